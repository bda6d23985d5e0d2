"""Attacks by many values that Python checks one by one: arrays, bytes, numbers of numpy, unions, over lines and MCP."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Server

from ..kit.http import post
from .harness import MIB, ServerUnderAttack, attack, request

ARRAY = {"$type": "ndarray", "dtype": "<f4", "shape": [1], "data": "AAAAAA=="}
NAN = {"$type": "float", "value": "nan"}
TOO_MANY = "values that are checked one by one"

#: Processor seconds for messages of 900,000 values. Checking these takes 0.1 to 0.2 s; as much again goes on memory
#: that is new to the process, and takes two to three times as long while other programs use that of the machine.
NEW_MEMORY = 0.5


#: Methods by the type of their argument; each tells its length.
KINDS: dict[str, Any] = {
    "choices": list[np.ndarray | Image.Image | str | None],
    "floats": list[np.float32],
    "numbers": list[float | np.ndarray],
    "texts": list[bytes],
    "complexes": list[complex],
    "anything": Any,
}


def picky() -> Server:
    server = Server(mcp=True)

    @server
    def arrays(values: list[np.ndarray], last: float = 0) -> int:
        return len(values)

    @server
    def rest(*values: NDArray[Any] | None) -> int:
        return len(values)

    for name, kind in KINDS.items():

        def length(values: Any) -> int:
            return len(values)

        length.__annotations__["values"] = kind
        server.add(length, name=name)
    return server


async def ask(target: ServerUnderAttack, method: str, *params: Any) -> Any:
    """The result, or the text of the error."""
    raw = await target.connect()
    await raw.send(request(method, params))
    reply = await raw.reply()
    return reply["result"] if "result" in reply else reply["error"]["message"]


async def ask_by_mcp(target: ServerUnderAttack, tool: str, values: list[Any]) -> str:
    """The text that an agent gets."""
    version = "2026-07-28"
    meta = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": tool, "arguments": {"values": values}, "_meta": meta}
    data = post(
        request("tools/call", params),
        *("Accept: application/json, text/event-stream", f"MCP-Protocol-Version: {version}"),
        *("Mcp-Method: tools/call", f"Mcp-Name: {tool}"),
        target="/mcp",
    )
    return (await (await target.connect()).ask_http(data)).body.decode()


@attack(160, "190,000 objects and lists for a list of arrays, images and texts, by MCP", picky, memory=192 * MIB)
async def objects_by_mcp(target: ServerUnderAttack) -> None:
    for tool in ("choices", "arrays", "rest"):
        assert "isError" in await ask_by_mcp(target, tool, [{}] * 190_000)
        assert TOO_MANY in await ask_by_mcp(target, tool, [[1.5]] * 190_000)


@attack(161, "900,000 numbers in lists for an array, flat and nested", picky, memory=192 * MIB, wait=NEW_MEMORY)
async def lists_for_arrays(target: ServerUnderAttack) -> None:
    assert await ask(target, "arrays", [[1.5] * 900_000]) == 1
    assert await ask(target, "arrays", [[[[1]]] * 100_000]) == 1
    assert TOO_MANY in await ask(target, "arrays", [[1]] * 100_000)


@attack(160, "900,000 numbers for lists of numpy's and for unions, by MCP", picky, memory=256 * MIB, wait=NEW_MEMORY)
async def numbers_by_mcp(target: ServerUnderAttack) -> None:
    for tool in ("floats", "numbers", "complexes"):
        assert TOO_MANY in await ask_by_mcp(target, tool, [1.5] * 900_000)


@attack(161, "900,000 numbers for a list of numpy's", picky, memory=192 * MIB, wait=NEW_MEMORY)
async def numbers_of_numpy(target: ServerUnderAttack) -> None:
    assert TOO_MANY in await ask(target, "floats", [1.5] * 900_000)
    assert TOO_MANY in await ask(target, "floats", [1.5] * 900_000 + [NAN])
    assert TOO_MANY in await ask(target, "floats", [NAN] * 20_000 + ["x"])


@attack(162, "small arrays, and one by one all of them twice", picky, memory=128 * MIB)
async def small_arrays(target: ServerUnderAttack) -> None:
    assert TOO_MANY in await ask(target, "arrays", [ARRAY] * 50_000)
    # The last value has to be put in its place, so that all are checked again.
    assert await ask(target, "arrays", [ARRAY] * 9_000, NAN) == 9_000
    assert TOO_MANY in await ask(target, "anything", [ARRAY] * 50_000)


@attack(163, "900,000 further arguments", picky, memory=192 * MIB, wait=NEW_MEMORY)
async def further_arguments(target: ServerUnderAttack) -> None:
    assert await ask(target, "rest", *[None] * 900_000) == 900_000, "what msgspec checks by itself does not count"


@attack(
    164,
    "900,000 values for a union with arrays, for bytes, for complex numbers",
    picky,
    memory=192 * MIB,
    wait=NEW_MEMORY,
)
async def unions(target: ServerUnderAttack) -> None:
    for method in ("numbers", "choices", "texts", "complexes"):
        value = {"choices": None, "texts": ""}.get(method, 1.5)
        assert TOO_MANY in await ask(target, method, [value] * (300_000 if method == "texts" else 900_000))


@attack(165, "90,000 tagged floats, and lists among which one tag is wrong", picky, memory=192 * MIB, wait=NEW_MEMORY)
async def tagged_floats(target: ServerUnderAttack) -> None:
    assert await ask(target, "anything", [NAN] * 90_000) == 90_000
    assert TOO_MANY in await ask(target, "numbers", [NAN] * 90_000)
    assert "Invalid params" in await ask(target, "arrays", [], [[]] * 150_000 + [NAN])


def agents() -> Server:
    """A server whose tools have large results, of which agents know the schema."""
    server = Server(mcp=True)
    words = ['"word" ' * 4] * 1_500_000

    @server
    def text() -> list[str]:
        return words

    return server


@attack(171, "results of 60 MiB of a tool with a schema", agents, memory=512 * MIB, slowest=0.1)
async def large_results(target: ServerUnderAttack) -> None:
    asked = post(request("tools/call", {"name": "text"}), "Accept: application/json", target="/mcp")
    for _ in range(4 if target.whole else 2):
        answer = await (await target.connect()).ask_http(asked)
        assert answer.json["result"]["isError"], "as the content of MCP it is over max_message_size"
