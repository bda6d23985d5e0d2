"""The settings of malloc: which are changed, and when they are left alone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rpcstream import Codec
from rpcstream.codec import memory


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """The settings that a C library was given; there is one that takes them."""
    settings: dict[int, int] = {}
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=settings.__setitem__))
    memory.keep_freed_memory.cache_clear()
    yield settings
    memory.keep_freed_memory.cache_clear()


def test_with_the_first_big_message_out(asked: dict[int, int]) -> None:
    codec = Codec()
    codec.dumps({"result": bytes(60_000)})
    assert asked == {}
    codec.dumps({"result": bytes(200_000)})
    assert asked == {-3: 64 << 20, -1: 256 << 20}
    asked.clear()
    codec.dumps({"result": bytes(200_000)})
    assert asked == {}


def test_with_the_first_big_message_in(asked: dict[int, int]) -> None:
    codec = Codec()
    codec.parse(b'["%b"]' % (b"x" * 60_000))
    assert asked == {}
    codec.parse(b'["%b"]' % (b"x" * 70_000))
    assert set(asked) == {-1, -3}


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_who_has_decided_otherwise_is_obeyed(asked: dict[int, int], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "131072")
    memory.keep_freed_memory()
    assert asked == {}


@pytest.mark.parametrize("library", [SimpleNamespace(), None])
def test_other_c_libraries_have_no_such_setting(
    asked: dict[int, int], monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    def load(name: None) -> Any:
        if library is None:
            raise OSError("no such library")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    memory.keep_freed_memory()
    assert asked == {}
