"""The examples with arrays: hints with dtype and shape, and micro-batching."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rpcstream import Client, InvalidParams
from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.slow


def test_hints_with_dtype_and_shape(load_example, python, promised):
    with serve_in_thread(load_example("numpy_service.py").server) as address:
        assert python("-W", "error", "examples/numpy_service.py", "call", address) == promised("numpy_service.py")
        with Client(address) as client:
            for matrix, right, parameter in [
                (np.ones(3), np.ones(3), "matrix"),
                (np.ones((3, 2)), np.ones((3, 1)), "right"),
                (np.ones((3, 2), np.float32), np.ones(3), "matrix"),
                ("no array", np.ones(3), "matrix"),
            ]:
                with pytest.raises(InvalidParams) as caught:
                    client.solve(matrix, right)
                assert caught.value.data["parameter"] == parameter


def test_micro_batching(load_example, python, promised):
    example = load_example("embedding_service.py")
    with serve_in_thread(example.server) as address:
        printed = python("-W", "error", "examples/embedding_service.py", "call", address)
        stats = example.server.batches["embed"].stats()
    assert without_mean(printed) == without_mean(promised("embedding_service.py"))
    assert stats["items"] == len(example.TEXTS) + 1
    assert f" {stats['mean_size']:.1f} in a run" in printed
    assert 1 < stats["mean_size"] <= 32


def without_mean(text):
    return re.sub(r"[\d.]+ in a run", "… in a run", text)


def test_one_text_is_embedded_as_among_others(load_example):
    example = load_example("embedding_service.py")
    many = example.embed(["A cat, on a sofa!", "", "ein Maßstab"])
    assert (many.shape, many.dtype) == ((3, example.SIZE), np.float32)
    assert np.allclose(np.linalg.norm(many, axis=1), [1, 0, 1], atol=1e-6)
    with serve_in_thread(example.server) as address, Client(address) as client:
        for text, row in zip(["a cat on a sofa", "", "EIN MASSSTAB"], many, strict=True):
            assert np.allclose(client.embed(text), row, atol=1e-5)
