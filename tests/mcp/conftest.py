"""A server that offers its methods to agents, and what an agent sends to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from rpcstream import Server

from ..kit.http import Answer, RawHttpConnection, post

STATELESS = "2026-07-28"

#: What the `_meta` of every request of that version has.
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}


class Agent:
    """An agent that sends each message as a POST, over one connection."""

    connection: RawHttpConnection

    def __init__(self, port: int, path: str, opened: list[RawHttpConnection]) -> None:
        self.port, self.path, self._opened = port, path, opened

    async def another(self) -> Agent:
        """Connect; gives an agent with a connection of its own."""
        made = Agent(self.port, self.path, self._opened)
        made.connection = RawHttpConnection(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**26))
        self._opened.append(made.connection)
        return made

    async def post(self, message: Any, *lines: str) -> Answer:
        """Send a message with these headers."""
        accept = "Accept: application/json, text/event-stream"
        body = message if isinstance(message, bytes) else orjson.dumps(message)
        return await self.connection.ask(post(body, accept, *lines, target=self.path))

    async def ask(self, method: str, *lines: str, meta: Any = None, **params: Any) -> Answer:
        """Make a request of the version 2026-07-28, with its headers and these."""
        message = request(method, meta=meta, **params)
        named = [f"Mcp-Name: {params['name']}"] if method == "tools/call" else []
        return await self.post(message, f"MCP-Protocol-Version: {STATELESS}", f"Mcp-Method: {method}", *named, *lines)

    async def call(self, tool: str, *lines: str, meta: Any = None, **arguments: Any) -> Any:
        """Call a tool; gives its result."""
        answer = await self.ask("tools/call", *lines, meta=meta, name=tool, arguments=arguments)
        assert answer.status == 200, answer
        return answer.json["result"]

    async def tools(self, *lines: str) -> list[Any]:
        """The tools that the server has for this agent."""
        tools: list[Any] = (await self.ask("tools/list", *lines)).json["result"]["tools"]
        return tools


def request(method: str, *, meta: Any = None, call_id: Any = 1, **params: Any) -> dict[str, Any]:
    """A request of the version 2026-07-28."""
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": {**params, "_meta": {**META, **(meta or {})}}}


#: `async with serve(server) as agent`, and the agent of a server with this function as its only tool.
Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Server], Any]]:
    """Serve while a block runs; gives an agent that is connected."""

    @asynccontextmanager
    async def served(server: Server, path: str = "/mcp") -> AsyncIterator[Agent]:
        opened: list[RawHttpConnection] = []
        async with server.listening(port=0) as address:
            try:
                yield await Agent(int(address.rpartition(":")[2]), path, opened).another()
            finally:
                for each in opened:
                    each.writer.close()

    return served


@pytest.fixture
def with_tool(serve: Serve) -> Serve:
    """`async with with_tool(function) as agent`: the function is the only tool, with the name "tool"."""

    def with_tool(function: Any, *, codec: Any = None, **options: Any) -> Any:
        server = Server(mcp=True, codec=codec)
        server.add(function, name="tool", **options)
        return serve(server)

    return with_tool
