"""What a traceback shows of a failed call: the caller's line, the error, and with debug where the handler failed."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, Codec, ConnectFailed, Hub, InternalError, RpcError
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


@pytest.mark.parametrize("scheme", ["", "http://", "ws://"])
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.echo(object()),
        lambda client: client.call("echo", 1, returns=str),
        lambda client: client.submit.echo(object()),
        lambda client: client.echo(1, value=2),
    ],
)
async def test_what_cannot_be_sent_or_does_not_fit(served: str, scheme: str, call: Callable[[Any], Any]) -> None:
    for options in ({}, {"keepalive": 60.0}) if not scheme else ({},):
        with Client(scheme + served, **options) as client, pytest.raises(TypeError) as caught:
            call(client).result()
        check_is_short(caught.value)
    async with AsyncClient(scheme + served) as other:
        with pytest.raises(TypeError) as caught:
            await call(other)
    check_is_short(caught.value)


def test_the_fault_of_an_encoder_of_the_user_is_shown(served: str) -> None:
    class Odd:
        pass

    def encode(value: Odd) -> Any:
        raise KeyError("the fault")

    codec = Codec()
    codec.register(Odd, "odd", encode=encode, decode=lambda data: Odd())
    with Client(served, codec=codec) as client, pytest.raises(TypeError) as caught:
        client.echo(Odd())
    assert "KeyError: 'the fault'" in shown(caught.value)


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


def test_a_hub_passes_on_whose_log_has_the_error(caplog: pytest.LogCaptureFixture) -> None:
    with serve_in_thread(Hub()) as address, Client(address) as provider, Client(address) as client:

        @provider
        def broken() -> int:
            raise ValueError("a secret")

        @provider
        def wrong() -> int:
            return "a secret"  # type: ignore[return-value]

        provider.offer()
        with pytest.raises(InternalError, match=r"Internal error: see the client's log, id [0-9a-f]{8} ") as caught:
            client.broken()
        failure_id = caught.value.message[-8:]
        assert any(record.getMessage().endswith(f", id {failure_id}") for record in caplog.records)
        with pytest.raises(InternalError, match="the result does not fit the return hint; see the client's log, id "):
            client.wrong()
