"""Agents' software on the other end: the Python SDK of the Model Context Protocol, its inspector and its scenarios.

The SDK (PyPI `mcp`) speaks both generations of the protocol, over HTTP and on standard input and output. What comes
from npm is in `mcp/` (it brings the Node.js that it needs).
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "rpcstream.cli.serve", "--mcp", "tests.interop.mcp_program:server"]
NODE_FOLDER = Path(__file__).parent / "mcp" / "node_modules"
NODE = NODE_FOLDER / "node" / "bin" / "node"
CONFORMANCE = NODE_FOLDER / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
INSPECTOR = NODE_FOLDER / ".bin" / "mcp-inspector"

needs_node = pytest.mark.skipif(
    not NODE.exists() or not CONFORMANCE.exists(),
    reason="the software from npm is not there (npm install --prefix tests/interop/mcp)",
)

#: Generations of the protocol, as the SDK calls them, and the version that is agreed on.
MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}

SCENARIOS = [
    "server-initialize",
    "ping",
    "json-schema-2020-12",
    "dns-rebinding-protection",
    *(f"tools-{name}" for name in ("list", "call-simple-text", "call-image", "call-embedded-resource")),
    *(f"tools-call-{name}" for name in ("mixed-content", "error", "with-progress")),
]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.interop.mcp_program"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().rpartition("//")[2]
        yield f"http://{address}/mcp"
        process.terminate()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_the_sdk_calls_hears_of_progress_and_cancels(served: str, way: str, mode: str) -> None:
    mcp = pytest.importorskip("mcp", reason="the SDK is not installed (pip install 'rpcstream[interop]')")
    from mcp.client.stdio import stdio_client

    command, *arguments = SERVE
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = mcp.StdioServerParameters(command=command, args=arguments, env=environment, cwd=ROOT)
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with asyncio.timeout(60), mcp.Client(served if way == "http" else stdio_client(program), mode=mode) as client:
        assert client.protocol_version == MODES[mode]
        assert "add" in {tool.name for tool in (await client.list_tools()).tools}
        assert numbers(await client.call_tool("add", {"a": 1, "b": 2})) == 3
        assert array_in(await client.call_tool("double", {"values": [[1, 2], [3, 4]]})).tolist() == [[2, 4], [6, 8]]
        mixed = await client.call_tool("test_multiple_content_types", {})
        assert {block.type for block in mixed.content} == {"text", "image", "resource"}
        assert (await client.call_tool("test_error_handling", {})).is_error
        # It asks its caller back, and an agent has nothing that can be called.
        assert (await client.call_tool("ask", {})).is_error
        await client.call_tool("test_tool_with_progress", {}, progress_callback=hear)
        assert heard == [0, 50, 100]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.call_tool("wait", {})
        for _ in range(1000):
            if numbers(await client.call_tool("waiting", {})) == 0:
                break
        else:
            raise AssertionError("the call was not cancelled")


def numbers(result: Any) -> Any:
    """The value in a result, as both generations give it."""
    value = result.structured_content
    return value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value


def array_in(result: Any) -> Any:
    """The array of the only resource in a result."""
    [blob] = [block.resource.blob for block in result.content if block.type == "resource"]
    return np.load(io.BytesIO(base64.b64decode(blob)))


@needs_node
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conformance(served: str, scenario: str, tmp_path: Path) -> None:
    command = [str(NODE), str(CONFORMANCE), "server", "--url", served, "--scenario", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed, 0 warnings" in done.stdout


@needs_node
@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_inspector_lists_and_calls(served: str, way: str) -> None:
    target = [served, "--transport", "http"] if way == "http" else SERVE
    for more, text in [
        (["--method", "tools/list"], "test_simple_text"),
        (["--method", "tools/call", "--tool-name", "json_schema_2020_12_tool", "--tool-arg", "name=Ada"], "Ada"),
    ]:
        command = [str(NODE), str(INSPECTOR.resolve()), "--cli", *target, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert text in json.dumps(json.loads(done.stdout))
