"""Binary frames from servers that break the rules: each call gets an answer or an error, and no other call's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import ConnectionLost, RpcError

from ..kit.scripted import Script, ScriptedConnection
from ..wire.frame_model import frame_of
from .conftest import MakeClient

Scripted = Callable[[Script], str]

DATA = np.arange(5000, dtype="<f8")


def array(number: int = 0, size: int = DATA.size) -> dict[str, Any]:
    return {"$type": "ndarray", "dtype": "<f8", "shape": [size], "data": {"$bin": number}}


def reply(call_id: Any, **changes: Any) -> bytes:
    return frame_of(orjson.dumps({"jsonrpc": "2.0", "id": call_id, "result": array(**changes)}), DATA.tobytes())


def test_a_frame_is_understood_before_anything_was_asked(scripted: Scripted, make_client: MakeClient) -> None:
    def serve(connection: ScriptedConnection) -> None:
        call = connection.read()
        connection.raw(reply(call["id"]))

    assert np.array_equal(make_client(scripted(serve)).call("get"), DATA)


def test_blanks_of_a_server_that_looks_whether_it_is_heard(scripted: Scripted, make_client: MakeClient) -> None:
    def serve(connection: ScriptedConnection) -> None:
        call = connection.read()
        connection.raw(b" ")
        connection.raw(b"  " + reply(call["id"]))

    assert np.array_equal(make_client(scripted(serve)).call("get"), DATA)


FAULTS: dict[str, Callable[[Any], bytes]] = {
    "a batch": lambda call_id: orjson.dumps([{"jsonrpc": "2.0", "id": call_id, "result": array()}]),
    "$bin of no payload": lambda call_id: orjson.dumps({"jsonrpc": "2.0", "id": call_id, "result": array(1)}),
    "another size": lambda call_id: orjson.dumps({"jsonrpc": "2.0", "id": call_id, "result": array(size=4999)}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_reply_that_cannot_be_read_fails_its_call(name: str, scripted: Scripted, make_client: MakeClient) -> None:
    def serve(connection: ScriptedConnection) -> None:
        call = connection.read()
        connection.raw(frame_of(FAULTS[name](call["id"]), DATA.tobytes()))
        while (message := connection.read()) is not None:
            connection.answer(message, "next")

    client = make_client(scripted(serve))
    with pytest.raises((RpcError, ValueError)):
        client.call("get")
    assert client.call("again") == "next"


def test_frames_that_no_call_waits_for_are_dropped(scripted: Scripted, make_client: MakeClient) -> None:
    """Also one whose reply would be the next call's, and a request that the client has no method for."""

    def serve(connection: ScriptedConnection) -> None:
        call = connection.read()
        unknown = orjson.dumps({"jsonrpc": "2.0", "id": call["id"], "method": "nope", "params": [array(7)]})
        connection.raw(reply(call["id"] + 1) + reply("x") + reply(1.5) + frame_of(unknown, DATA.tobytes()))
        connection.raw(reply(call["id"]))
        while (message := connection.read()) is not None:
            if "method" in message:
                connection.answer(message, message["params"][0])

    client = make_client(scripted(serve))
    assert np.array_equal(client.call("get"), DATA)
    assert client.call("echo", 5) == 5


def test_a_frame_unasked_to_a_client_that_takes_none(scripted: Scripted, make_client: MakeClient) -> None:
    def serve(connection: ScriptedConnection) -> None:
        call = connection.read()
        connection.raw(reply(call["id"]))

    with pytest.raises(ConnectionLost, match="switched off"):
        make_client(scripted(serve), binary=False).call("get")


@pytest.mark.parametrize("size", [1, 20, 100, 200, 40_000])
def test_a_server_that_closes_within_a_frame(size: int, scripted: Scripted, make_client: MakeClient) -> None:
    def serve(connection: ScriptedConnection) -> None:
        call = connection.read()
        connection.raw(reply(call["id"])[:size])

    with pytest.raises(ConnectionLost):
        make_client(scripted(serve)).call("get")
