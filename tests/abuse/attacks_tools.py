"""Attacks on the command line and on MCP."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import orjson

from rpcstream import Server
from rpcstream.hub import Hub

from .harness import MIB, ROOT, Budget, ServerUnderAttack, attack


def hub() -> Hub:
    return Hub(keepalive_timeout=None)


@attack(170, "a copied command with a parameter that is named as an option", server=hub, budget=Budget(memory=16 * MIB))
async def named_as_an_option(target: ServerUnderAttack) -> None:
    reached = asyncio.Event()
    elsewhere = await asyncio.start_server(lambda reader, writer: reached.set(), "127.0.0.1", 0)
    async with elsewhere:
        option = f"--uri=http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}/?"
        provider = await target.connect()
        shown = {"name": "shown", "params": [{"name": option, "schema": {"type": "string"}}]}
        assert "result" in await provider.call("rpc.register", {"name": "evil", "methods": [shown]})
        words = ["--uri", target.address, "--token", "secret", "--", "shown", f"{option}:str=x"]
        status, text = await asyncio.to_thread(_called, *words)
        assert (status, "never begins with '-'" in text) == (2, True), text
        assert not reached.is_set(), "the token was sent elsewhere"


def _called(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "rpcstream", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def agents() -> Server:
    """A server whose tools have large results, of which agents know the schema."""
    server = Server(mcp=True)
    words = ['"word" ' * 4] * 1_500_000

    @server
    def text() -> list[str]:
        return words

    return server


@attack(171, "results of 60 MiB of a tool with a schema", server=agents, budget=Budget(memory=512 * MIB), slowest=0.1)
async def large_results(target: ServerUnderAttack) -> None:
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "text"}})
    head = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json\r\n"
    for _ in range(4 if target.whole else 2):
        raw = await target.connect()
        await raw.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        said = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 30)).decode().lower()
        size = int(said.partition("content-length: ")[2].split()[0])
        reply = orjson.loads(await asyncio.wait_for(raw.reader.readexactly(size), 30))
        assert reply["result"]["isError"], "as the content of MCP it is over max_message_size"
