"""The example with dtype and shape in its hints."""

from __future__ import annotations

import numpy as np
import pytest

from rpcstream import Client, InvalidParams
from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(load_example):
    with serve_in_thread(load_example("numpy_service.py").server) as address:
        yield address


def test_prints_what_it_promises(address, python, promised):
    assert python("-W", "error", "examples/numpy_service.py", "call", address) == promised("numpy_service.py")


@pytest.mark.parametrize(
    ("matrix", "right", "parameter"),
    [
        (np.ones(3), np.ones(3), "matrix"),
        (np.ones((3, 2)), np.ones((3, 1)), "right"),
        (np.ones((3, 2), np.float32), np.ones(3), "matrix"),
        ("no array", np.ones(3), "matrix"),
    ],
    ids=["shape of the matrix", "shape of the right side", "dtype", "no array"],
)
def test_refuses_what_the_hints_do_not_allow(address, matrix, right, parameter):
    with Client(address) as client:
        with pytest.raises(InvalidParams) as caught:
            client.solve(matrix, right)
        assert caught.value.code == -32602
        assert caught.value.data["parameter"] == parameter
        assert np.allclose(client.solve(np.eye(2), np.array([3.0, 4.0])), [3, 4])
