"""The example of micro-batching: its model as a function of many texts, and calls with one text each."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rpcstream import Client, InvalidParams
from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(load_example):
    return load_example("embedding_service.py")


@pytest.fixture(scope="module")
def address(example):
    with serve_in_thread(example.server) as address:
        yield address


def test_prints_what_it_promises(load_example, python, promised):
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


def test_one_text_is_embedded_as_among_others(example, address):
    many = example.embed(["A cat, on a sofa!", "", "ein Maßstab"])
    assert (many.shape, many.dtype) == ((3, example.SIZE), np.float32)
    assert np.allclose(np.linalg.norm(many, axis=1), [1, 0, 1], atol=1e-6)
    with Client(address) as client:
        for text, row in zip(["a cat on a sofa", "", "EIN MASSSTAB"], many, strict=True):
            one = client.embed(text)
            assert one.shape == (example.SIZE,)
            assert np.allclose(one, row, atol=1e-5)
        with pytest.raises(InvalidParams) as caught:
            client.embed(["a list"])
        assert caught.value.data["parameter"] == "text"
