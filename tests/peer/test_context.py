"""A handler's context in a thread."""

from __future__ import annotations

from rpcstream import Context, Server
from rpcstream.testing import memory_client


async def test_the_first_word_of_a_connection_may_come_from_a_thread() -> None:
    server = Server()

    @server(offload="thread")
    def work(ctx: Context) -> str:
        ctx.progress("half")
        return "whole"

    async with memory_client(server) as client:
        seen: list[str] = []
        assert await client.work(on_progress=seen.append) == "whole"
        assert seen == ["half"]
