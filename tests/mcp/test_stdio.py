"""MCP on standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Credentials, Limits, Server
from rpcstream.auth.authenticator import Authenticator
from rpcstream.cli.serve import main
from rpcstream.mcp.stdio import StdioStream
from rpcstream.observe.counters import Counters
from rpcstream.server.agents import identify_starter
from rpcstream.transports.memory import join
from rpcstream.transports.stream import LineStream

PROGRAM = """
import asyncio, os
from rpcstream import Context, Server

print("while it is imported")
server = Server(authenticate=lambda credentials: {"t": "me"}.get(credentials.token))

@server
async def add(a: int, b: int, ctx: Context) -> str:
    print("in a handler")
    os.system("echo in another program")
    input_is_empty = os.read(0, 1) == b""
    ctx.progress("half")
    await asyncio.sleep(0.01)
    return f"{a + b} {ctx.identity} {input_is_empty}"

@server
async def hold(ctx: Context) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        print("hold has ended")
"""


def talk(folder: Path, *lines: Any, token: str | None = "t") -> tuple[list[Any], str, int]:
    """Send these lines; gives what comes on standard output, as JSON, and on standard error, and the exit status."""
    file = folder / "app.py"
    file.write_text(PROGRAM)
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    environment = {name: value for name, value in os.environ.items() if name != "RPCSTREAM_TOKEN"}
    if token is not None:
        environment["RPCSTREAM_TOKEN"] = token
    command = [sys.executable, "-m", "rpcstream.cli.serve", "--mcp", str(file)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr, done.returncode


def request(call_id: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}


def test_messages_and_nothing_else_come_on_standard_output(tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": "p",
    }
    said, logged, status = talk(
        tmp_path,
        request(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={}),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request(2, "tools/call", name="hold"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        request(3, "tools/call", name="add", arguments={"a": 1, "b": 2}, _meta=meta),
        "no JSON",
        [],
        request(4, "ping"),
    )
    assert status == 0
    by_id = {message.get("id"): message for message in said if "method" not in message}
    assert by_id[1]["result"]["protocolVersion"] == "2025-06-18"
    assert by_id[3]["result"]["structuredContent"] == "3 me True"
    assert by_id[3]["result"]["resultType"] == "complete"
    assert by_id[4]["result"] == {}
    assert 2 not in by_id  # a call that was cancelled is not answered
    assert [message["error"]["code"] for message in said if "error" in message] == [-32700, -32600]
    [progress] = [message for message in said if "method" in message]
    assert progress["params"] == {"progressToken": "p", "progress": 1, "message": "half"}
    for text in ("while it is imported", "in a handler", "in another program"):
        assert text in logged


@pytest.mark.parametrize(("token", "reason"), [(None, "is not set"), ("wrong", "is not accepted")])
async def test_a_server_with_authentication_asks_for_a_token(
    monkeypatch: pytest.MonkeyPatch, token: str | None, reason: str
) -> None:
    async def look_up(credentials: Credentials) -> str | None:
        return {"t": "me"}.get(credentials.token or "")

    authenticator = Authenticator(authenticate=look_up, timeout=None, counters=Counters())
    monkeypatch.setenv("RPCSTREAM_TOKEN", "t")
    assert await identify_starter(authenticator) == "me"
    monkeypatch.delenv("RPCSTREAM_TOKEN")
    if token is not None:
        monkeypatch.setenv("RPCSTREAM_TOKEN", token)
    with pytest.raises(PermissionError, match=f"the token in RPCSTREAM_TOKEN {reason}"):
        await identify_starter(authenticator)


def test_an_empty_line_and_what_begins_as_a_frame_end_nothing(tmp_path: Path) -> None:
    said, _, status = talk(
        tmp_path, request(1, "ping"), "", " \t", "@10 10", request(2, "ping"), "@1 1 ", "", request(3, "ping")
    )
    assert status == 0
    assert [message.get("id") for message in said] == [1, None, 2, None, 3]
    assert [message["error"]["code"] for message in said if "error" in message] == [-32700, -32700]


@pytest.mark.parametrize("text", ["\u00e9" * 5_000_000, "x" * 70_000_000], ids=["max_json_size", "max_message_size"])
def test_a_message_that_is_too_large_is_answered_with_its_id(text: str, tmp_path: Path) -> None:
    large = json.dumps({"jsonrpc": "2.0", "id": "large", "method": "ping", "params": [text]}, ensure_ascii=False)
    said, _, status = talk(tmp_path, large, request(2, "ping"))
    assert status == 0
    assert [message["id"] for message in said] == ["large", 2]
    assert said[0]["error"]["code"] == -31001


async def test_a_host_that_leaves_it_alone_for_days_finds_it_there() -> None:
    server = Server(limits=Limits(idle_timeout=1.0))
    async with server.in_memory() as accept:
        line, other = accept(), accept()
        assert isinstance(line, LineStream)
        assert isinstance(other, LineStream)
        stream = StdioStream(other.session, on_end=lambda: None, limits=server.limits)  # type: ignore[arg-type]
        days = asyncio.get_running_loop().time() + 1e6
        for each in (line, stream):
            join(each, asyncio.Protocol())
        assert stream.check(days) is None
        assert "idle_timeout" in str(line.check(days))
        stream.abort("the end of the test")


@pytest.mark.parametrize("option", ["--hub", "--port=1", "--host=x", "--unix=x", "--workers=2", "--path=/x"])
def test_options_for_listening_do_not_go_with_it(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mcp", "app.py", option]) == 2
    assert f"{option.partition('=')[0]} does not go with --mcp" in capsys.readouterr().err
