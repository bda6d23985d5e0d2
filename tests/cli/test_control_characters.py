"""Control characters in what a server sends: the command line shows them escaped."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import environment
from .test_completion import completions
from .test_terminal import on_a_terminal

#: Clears the screen, sets the title, turns the direction of writing, is no character, forges a line.
NASTY = "x\x1b[2J\x1b]0;title\x07\x9b2J\x7f\x00\b\r\v\n\u202e\u2066\u200f\u2028'\"$(touch no)`y"

#: What a terminal must not get, besides line ends and tabs.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

SCHEMA: dict[str, Any] = {
    "$ref": f"#/components/schemas/{NASTY}",
    "title": NASTY,
    "format": NASTY,
    "default": {NASTY: NASTY},
}
METHOD: dict[str, Any] = {
    "name": "m",
    "summary": NASTY,
    "description": NASTY,
    "params": [
        {"name": NASTY, "schema": SCHEMA},
        {"name": "a", "schema": {"enum": [NASTY], "x-default": NASTY}},
        {"name": "b", "schema": {"type": "string", "format": NASTY}},
        {"name": "c", "schema": {"type": "object", "title": NASTY}},
        {"name": "d", "schema": {"properties": {"$type": {"const": NASTY}, "dtype": {"enum": [NASTY]}}}},
        {"name": "e", "schema": {"const": {"$type": NASTY}}},
    ],
    "result": {"schema": SCHEMA},
}
DOCUMENT = {
    "methods": [METHOD, {**METHOD, "name": NASTY}],
    "components": {"schemas": {NASTY: {"type": "object", "properties": {NASTY: {"default": NASTY, "title": NASTY}}}}},
}
DEEP: Any = {"methods": [{"name": "m", "params": [], "result": {"schema": {}}}]}
for _ in range(300):
    DEEP["methods"][0]["result"]["schema"] = {"anyOf": [{"items": DEEP["methods"][0]["result"]["schema"]}]}

PROGRESS = {"done": 1, "total": 2, "text": NASTY}
ERROR = {"code": 5, "message": NASTY, "data": {"traceback": NASTY, NASTY: NASTY}}


@pytest.fixture
def stranger() -> Iterator[Callable[..., str]]:
    """`stranger(result=…, error=…, progress=…)`: the address of a server that answers every request so."""
    listeners: list[socket.socket] = []

    def serve(listener: socket.socket, said: dict[str, Any]) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock, sock.makefile("rwb") as lines:
                for line in lines:
                    call_id = json.loads(line)["id"]
                    messages = [{"jsonrpc": "2.0", "id": call_id, **said["reply"]}]
                    for value in said["progress"]:
                        params = {"token": call_id, "value": value}
                        messages.insert(-1, {"jsonrpc": "2.0", "method": "$/progress", "params": params})
                    for message in messages:
                        # As themselves where JSON permits it.
                        lines.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
                    lines.flush()

    def begin(*progress: Any, **reply: Any) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        said = {"reply": reply, "progress": progress}
        threading.Thread(target=serve, args=(listener, said), daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield begin
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


RESULTS = [NASTY, [NASTY], {NASTY: NASTY}, {"$type": NASTY, "data": NASTY}, {"$type": "image", "format": NASTY}]


def in_a_pipe(*argv: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rpcstream", *argv]
    return subprocess.run(command, env=environment(), capture_output=True, timeout=30, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("options", [[], ["--format", "json"], ["--format", "raw"], ["-v"], ["-o", "-"], ["--stream"]])
def test_results_on_a_terminal(stranger: Callable[..., str], options: list[str]) -> None:
    for result in (NASTY, RESULTS):
        address = stranger(NASTY, PROGRESS, result=result)
        status, text = on_a_terminal("m", "--uri", address, *options, NO_COLOR="1")
        assert status == 0, text
        if "-v" not in options:
            # The line with the progress is written over: by a carriage return of our own.
            text = text.replace("\r", "")
        assert not OBEYED.search(text), text
        assert "\\u001b[2J" in text


def test_in_a_pipe_a_result_is_exact(stranger: Callable[..., str]) -> None:
    for result in RESULTS:
        done = in_a_pipe("m", "--uri", stranger(result=result))
        assert json.loads(done.stdout) == result
    done = in_a_pipe("m", "--uri", stranger(result=NASTY), "--format", "raw")
    assert done.stdout.decode() == NASTY + "\n"


@pytest.mark.parametrize("options", [[], ["-v"]])
def test_errors(stranger: Callable[..., str], options: list[str]) -> None:
    address = stranger(error=ERROR)
    status, text = on_a_terminal("m", "--uri", address, *options, NO_COLOR="1")
    assert status == 1
    assert not OBEYED.search(text), text
    assert not OBEYED.search(in_a_pipe("m", "--uri", address, *options).stderr.decode())


@pytest.mark.parametrize(
    "argv", [["--list"], ["--describe", "m"], ["--list", "--format", "raw"], ["--describe", "m", "--format", "json"]]
)
def test_descriptions(stranger: Callable[..., str], argv: list[str]) -> None:
    status, text = on_a_terminal(*argv, "--uri", stranger(result=DOCUMENT), NO_COLOR="1")
    assert status == 0, text
    assert not OBEYED.search(text), text
    assert "\\u001b[2J" in text


def test_descriptions_without_end(stranger: Callable[..., str]) -> None:
    status, text = on_a_terminal("--describe", "m", "--uri", stranger(result=DEEP), NO_COLOR="1")
    assert "Traceback" not in text
    assert status in (0, 1)


@pytest.mark.parametrize("line", ["", "m ", "m a=1 "])
def test_what_completion_offers(stranger: Callable[..., str], tmp_path: Path, line: str) -> None:
    pytest.importorskip("argcomplete")
    bad = [NASTY, "a b", "a\vb", "$(x)", "`x`", "a;b", "'", '"', "a\nb", "--output", "-x", "~root", "a*", "a" * 300, ""]
    methods = [{**METHOD, "name": name, "params": [{"name": each} for each in [*bad, "plain"]]} for name in [*bad, "m"]]
    address = stranger(result={"methods": methods})
    offered = completions("rpcstream", f"rpcstream --uri {address} {line}", tmp_path)
    names = [each for each in offered if not each.startswith("--") and each not in ("cart.py", "carts/")]
    wanted = "plain=" if line else "m"
    assert wanted in names
    assert not [each for each in names if OBEYED.search(each) or set(each) & set(" \t\n\"'`$;()*~")], names
    assert "--output=" not in offered
