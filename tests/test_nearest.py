"""Suggestions for unknown methods: what is near, and that names of any length are answered."""

from __future__ import annotations

import pytest

from rpcstream import MethodNotFound, Server
from rpcstream.testing import memory_client


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("txt", ["text", "size"], "did you mean 'text'?"),
        ("TEXT", ["text", "size"], "did you mean 'text'?"),
        ("vectroize", ["vectorize", "authorize"], "did you mean 'vectorize'"),
        ("time_out", ["timeout", "title"], "did you mean 'timeout'?"),
        ("ad", ["add", "other"], "did you mean 'add'?"),
        ("name150x", [f"name{number}" for number in range(200)], "'name150'"),
        ("zzz", ["text", "size"], ""),
        ("y" * 1_000_000, ["y" * 1000], ""),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_what_is_near_is_suggested(name: str, known: list[str], said: str) -> None:
    server = Server()
    async with memory_client(server) as client:
        for each in known:  # names that are added later are suggested, too
            server.add(lambda: None, name=each)
        with pytest.raises(MethodNotFound) as caught:
            await client.call(name)
        assert said in str(caught.value)
        assert bool(said) is ("did you mean" in str(caught.value))
