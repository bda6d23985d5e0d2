"""MCP on standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rpcstream.cli.serve import main

from .conftest import META

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, os
from rpcstream import Context, Limits, Server

print("while it is imported")
async def find(credentials):
    return {"t": "me"}.get(credentials.token)

limits = Limits(idle_timeout=0.1, max_message_size=200_000, max_json_size=100_000)
server = Server(authenticate=find, limits=limits)

@server
async def add(a: int, b: int, ctx: Context) -> str:
    print("in a handler")
    os.system("echo in another program")
    input_is_empty = os.read(0, 1) == b""
    for value in ("half", 0.7, [2, 3], 0.1, {"done": 3, "total": 4, "message": "nearly"}, {"x": 1}):
        ctx.progress(value)
        await asyncio.sleep(0.01)
    return f"{a + b} {ctx.identity} {input_is_empty}"

@server
async def hold(ctx: Context) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        print("hold has ended")
"""


class Host:
    """A program that has started `rpcstream-server --mcp`, and speaks with it."""

    def __init__(self, folder: Path, *target: str, token: str | None = "t") -> None:
        (folder / "app.py").write_text(PROGRAM)
        environment = {name: value for name, value in os.environ.items() if name != "RPCSTREAM_TOKEN"}
        if token is not None:
            environment["RPCSTREAM_TOKEN"] = token
        command = [sys.executable, "-m", "rpcstream.cli.serve", "--mcp", *(target or ["app.py"])]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )

    def talk(self, *lines: Any) -> tuple[list[Any], str, int]:
        """Send these lines, and end; gives what comes as JSON, what comes on standard error, and the status."""
        text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        out, err = self.process.communicate(text, timeout=60)
        return [json.loads(line) for line in out.splitlines()], err, self.process.returncode


def request(call_id: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}


def cancelled(call_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call_id}}


def test_messages_and_nothing_else_come_on_standard_output(tmp_path: Path) -> None:
    said, logged, status = Host(tmp_path).talk(
        request(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={}),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request(2, "tools/call", name="hold"),
        cancelled(2),
        cancelled(99),
        request(3, "tools/call", name="add", arguments={"a": 1, "b": 2}, _meta={**META, "progressToken": "p"}),
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
    # What is no number counts one further, and what is not further is left out.
    assert [message["params"] for message in said if "method" in message] == [
        {"progressToken": "p", "progress": 1, "message": "half"},
        {"progressToken": "p", "progress": 2, "total": 3},
        {"progressToken": "p", "progress": 3, "total": 4, "message": "nearly"},
        {"progressToken": "p", "progress": 4, "message": '{"x": 1}'},
    ]
    for text in ("while it is imported", "in a handler", "in another program"):
        assert text in logged


@pytest.mark.parametrize(("token", "reason"), [(None, "is not set"), ("wrong", "is not accepted")])
def test_a_server_with_authentication_asks_for_a_token(tmp_path: Path, token: str | None, reason: str) -> None:
    said, logged, status = Host(tmp_path, token=token).talk(request(1, "ping"))
    assert (said, status) == ([], 1)
    assert f"the token in RPCSTREAM_TOKEN {reason}" in logged


@pytest.mark.parametrize("text", ["\u00e9" * 60_000, "x" * 300_000], ids=["max_json_size", "max_message_size"])
def test_odd_and_large_lines_are_answered_and_end_nothing(tmp_path: Path, text: str) -> None:
    large = json.dumps({"jsonrpc": "2.0", "id": "large", "method": "ping", "params": [text]}, ensure_ascii=False)
    lines = (request(1, "ping"), "", " \t", "@10 10", request(2, "ping"), "@1 1 ", large, request(3, "ping"))
    said, _, status = Host(tmp_path).talk(*lines)
    assert status == 0
    assert [message.get("id") for message in said] == [1, None, 2, None, "large", 3]
    assert [message["error"]["code"] for message in said if "error" in message] == [-32700, -32700, -31001]


def test_a_host_that_leaves_it_alone_finds_it_there(tmp_path: Path) -> None:
    """Longer than `idle_timeout`."""
    host = Host(tmp_path)
    assert host.process.stdin is not None
    assert host.process.stdout is not None
    host.process.stdin.write(json.dumps(request(1, "ping")) + "\n")
    host.process.stdin.flush()
    assert json.loads(host.process.stdout.readline())["result"] == {}
    time.sleep(1)
    said, _, status = host.talk(request(2, "ping"))
    assert (status, [message["id"] for message in said]) == (0, [2])


def test_the_methods_of_every_server_of_functions_are_no_tools(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("def control_pump(speed):\n    return speed\n")
    said, _, status = Host(tmp_path, "-f", "functions").talk(request(1, "tools/list", _meta=META))
    assert (status, [tool["name"] for tool in said[0]["result"]["tools"]]) == (0, ["control_pump"])


@pytest.mark.parametrize("option", ["--hub", "--port=1", "--host=x", "--unix=x", "--workers=2"])
def test_options_for_listening_do_not_go_with_it(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mcp", "app.py", option]) == 2
    assert f"{option.partition('=')[0]} does not go with --mcp" in capsys.readouterr().err
