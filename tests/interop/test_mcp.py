"""Agents' software on the other end: the Python SDK of the Model Context Protocol, its inspector and its scenarios.

The SDK (PyPI `mcp`) calls methods of the examples, in both generations of the protocol, over HTTP and on standard
input and output. What comes from npm is in `mcp/` (it brings the Node.js that it needs).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODE_FOLDER = Path(__file__).parent / "mcp" / "node_modules"
NODE = NODE_FOLDER / "node" / "bin" / "node"
CONFORMANCE = NODE_FOLDER / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
INSPECTOR = NODE_FOLDER / ".bin" / "mcp-inspector"

needs_node = pytest.mark.skipif(
    not NODE.exists() or not CONFORMANCE.exists(),
    reason="the software from npm is not there (npm install --prefix tests/interop/mcp)",
)

MISSING = "the SDK is not installed (pip install 'rpcstream[interop]')"

#: Generations of the protocol, as the SDK calls them, and the version that is agreed on.
MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}


def array_in(result: Any) -> Any:
    """The array of the only resource in a result."""
    [blob] = [block.resource.blob for block in result.content if block.type == "resource"]
    return np.load(io.BytesIO(base64.b64decode(blob)))


def kinds(result: Any) -> list[str]:
    """The types of the content of a result."""
    return [block.type for block in result.content]


def structured(result: Any) -> Any:
    """The value in a result, as both generations give it."""
    value = result.structured_content
    return value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value


Check = Callable[[Any], object]

#: Examples, and methods of them: arguments, and what must hold for the result.
CALLS: dict[str, dict[str, tuple[dict[str, Any], Check]]] = {
    "confirm.py": {
        "save": ({"name": "a", "text": "b c"}, lambda r: not r.is_error),
        "names": ({}, lambda r: structured(r) == ["a"]),
        # It asks its caller back, and an agent has nothing that can be called.
        "delete": ({"name": "a"}, lambda r: r.is_error),
    },
    "numpy_service.py": {
        "solve": ({"matrix": [[2, 0], [0, 4]], "right": [1, 1]}, lambda r: np.allclose(array_in(r), [0.5, 0.25])),
        "spectrum": ({"signal": [0, 1, 0, -1], "rate": 4}, lambda r: kinds(r).count("resource") == 2),
        "statistics": ({"values": [1.0, 2.0, 3.0]}, lambda r: structured(r)["mean"] == 2),
    },
    "deploy/service.py": {"embed": ({"text": "a", "size": 4}, lambda r: array_in(r).shape == (4,))},
}


def client_of(target: Any, mode: str) -> Any:
    mcp = pytest.importorskip("mcp", reason=MISSING)
    return mcp.Client(target, mode=mode)


@contextmanager
def by_http(name: str) -> Iterator[Any]:
    server = runpy.run_path(str(EXAMPLES / name), run_name="example")["server"]
    server.take_agents_at()
    with serve_in_thread(server) as address:
        yield f"http://{address.rpartition('//')[2]}/mcp"


@contextmanager
def by_stdio(name: str) -> Iterator[Any]:
    mcp = pytest.importorskip("mcp", reason=MISSING)
    from mcp.client.stdio import stdio_client

    arguments = ["-m", "rpcstream.cli.serve", "--mcp", str(EXAMPLES / name)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    yield stdio_client(mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environment))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", [by_http, by_stdio])
@pytest.mark.parametrize("name", CALLS)
async def test_the_sdk_calls_the_methods_of_the_examples(name: str, way: Any, mode: str) -> None:
    pytest.importorskip("mcp", reason=MISSING)
    with way(name) as target:
        async with asyncio.timeout(60), client_of(target, mode) as client:
            assert client.protocol_version == MODES[mode]
            assert {tool.name for tool in (await client.list_tools()).tools} == CALLS[name].keys()
            for method, (arguments, holds) in CALLS[name].items():
                result = await client.call_tool(method, arguments)
                assert holds(result), result


@pytest.mark.parametrize("mode", MODES)
async def test_the_sdk_hears_of_progress_and_cancels(mode: str) -> None:
    pytest.importorskip("mcp", reason=MISSING)
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with contextlib.AsyncExitStack() as stack:
        target = stack.enter_context(by_http("long_computation.py"))
        client = await stack.enter_async_context(client_of(target, mode))
        result = await client.call_tool("count_primes", {"below": 20000}, progress_callback=hear)
        assert structured(result) == 2262
        assert heard == sorted(set(heard))
        assert heard[-1] == 1.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.call_tool("count_primes", {"below": 10**9})
        assert structured(await client.call_tool("count_primes", {"below": 100})) == 25


# -- from npm ---------------------------------------------------------------------------------------------------------

SCENARIOS = [
    "server-initialize",
    "ping",
    "json-schema-2020-12",
    "dns-rebinding-protection",
    *(f"tools-{name}" for name in ("list", "call-simple-text", "call-image", "call-embedded-resource")),
    *(f"tools-call-{name}" for name in ("mixed-content", "error", "with-progress")),
]


@pytest.fixture(scope="module")
def conformance_server() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.interop.mcp_program"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().rpartition("//")[2]
        yield f"http://{address}/mcp"
        process.terminate()


@needs_node
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conformance(conformance_server: str, scenario: str, tmp_path: Path) -> None:
    command = [str(NODE), str(CONFORMANCE), "server", "--url", conformance_server, "--scenario", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed, 0 warnings" in done.stdout


@needs_node
@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_inspector_lists_and_calls(conformance_server: str, way: str) -> None:
    target = [conformance_server, "--transport", "http"]
    if way == "stdio":
        target = [sys.executable, "-m", "rpcstream.cli.serve", "--mcp", "tests.interop.mcp_program:server"]
    for more, text in [
        (["--method", "tools/list"], "test_simple_text"),
        (["--method", "tools/call", "--tool-name", "test_simple_text"], "simple text response"),
        (["--method", "tools/call", "--tool-name", "json_schema_2020_12_tool", "--tool-arg", "name=Ada"], "Ada"),
    ]:
        command = [str(NODE), str(INSPECTOR.resolve()), "--cli", *target, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert text in json.dumps(json.loads(done.stdout))
