"""What the tracebacks of errors say: the line of the caller and of the fault."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, ConnectFailed, RpcError
from rpcstream.errors import InternalError
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def check_is_short(error: BaseException) -> None:
    """There are few functions behind the lines of the test, and no other exception."""
    frames = traceback.extract_tb(error.__traceback__)
    assert len([frame for frame in frames if frame.filename != __file__]) <= 3, shown(error)
    assert shown(error).count("Traceback") == 1
    assert error.__cause__ is None


REFUSED: list[Callable[[Any], Any]] = [
    lambda client: client.call("fail"),
    lambda client: client.notify.fail(),
    lambda client: client.submit.fail().result(),
    lambda client: next(client.stream.fail()),
    lambda client: client.discover(),
    lambda client: client.subscribe("a").__enter__(),
]


@pytest.mark.parametrize("call", REFUSED)
@pytest.mark.parametrize("keepalive", [None, 60.0], ids=["blocking", "loop"])
def test_a_refused_connection(free_address: str, call: Callable[[Any], Any], keepalive: float | None) -> None:
    with Client(free_address, keepalive=keepalive) as client, pytest.raises(ConnectFailed) as caught:
        call(client)
    check_is_short(caught.value)


async def test_a_refused_connection_and_an_error_with_the_async_client(free_address: str, served: str) -> None:
    async with AsyncClient(free_address) as nobody, AsyncClient(served) as client:
        for call in (nobody.fail(), nobody.notify.fail(), anext(nobody.stream.fail()), client.fail()):
            with pytest.raises((ConnectFailed, RpcError)) as caught:
                await call
            check_is_short(caught.value)


def test_with_debug_the_remote_traceback_is_a_note() -> None:
    text = "a long reason " * 200
    server = UsualServer(debug=True)

    @server
    def break_down(text: str) -> None:
        raise ValueError(text + "\x1b[31m")

    with serve_in_thread(server) as address, Client(address) as client:
        with pytest.raises(InternalError) as caught:
            client.break_down(text)
        (note,) = caught.value.__notes__
        assert note.startswith(f"Remote traceback, at {address}:\nTraceback (most recent call last):\n")
        assert "in break_down\n" in note
        assert note.endswith(f"ValueError: {text}\\u001b[31m"), "whole, and harmless to a terminal"
        assert "Traceback" not in str(caught.value)
