"""What a traceback shows of a failed call: the caller's line, the error, and with debug where the handler failed."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, Codec, ConnectFailed, InternalError, RpcError, Server
from rpcstream.hub import Hub
from rpcstream.testing import serve_in_thread


def make_server(**options: Any) -> Server:
    server = Server(**options)

    @server
    def fail(text: str) -> None:
        raise ValueError(text + "\x1b[31m")

    @server
    def refuse() -> None:
        raise RpcError(7, "no")

    @server
    def echo(value: Any) -> Any:
        return value

    return server


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def check_ends_at_the_caller(error: BaseException) -> None:
    """Behind the caller's line there are only the functions that it calls, and no other exception."""
    text = shown(error)
    assert "direct cause" not in text
    assert "During handling" not in text
    assert error.__cause__ is None
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.filename for frame in frames].count(__file__) == 1
    assert len(frames) <= 4, text


SYNC: list[Callable[[Client], object]] = [
    lambda client: client.refuse(),
    lambda client: client.refuse(1, a=2),
    lambda client: client.notify.refuse(),
    lambda client: client.submit.refuse().result(),
    lambda client: next(client.stream.refuse()),
    lambda client: client.discover(),
    lambda client: client.subscribe("a").__enter__(),
]


@pytest.mark.parametrize("call", SYNC)
@pytest.mark.parametrize("way", ["blocking", "loop"])
def test_a_refused_connection_is_shown_in_a_few_lines(
    free_address: str, call: Callable[[Client], object], way: str
) -> None:
    with (
        Client(free_address, keepalive=60 if way == "loop" else None) as client,
        pytest.raises(ConnectFailed) as caught,
    ):
        call(client)
    check_ends_at_the_caller_or_lambda(caught.value)


def check_ends_at_the_caller_or_lambda(error: BaseException) -> None:
    trace = error.__traceback__
    assert trace is not None
    check_ends_at_the_caller(error.with_traceback(trace.tb_next))  # less the line of the test


async def test_a_refused_connection_is_shown_in_a_few_lines_by_the_async_client(free_address: str) -> None:
    client = AsyncClient(free_address)
    with pytest.raises(ConnectFailed) as caught:
        await client.refuse()
    check_ends_at_the_caller(caught.value)
    with pytest.raises(ConnectFailed) as caught:
        await client.notify.refuse()
    check_ends_at_the_caller(caught.value)
    with pytest.raises(ConnectFailed) as caught:
        await anext(client.stream.refuse())
    check_ends_at_the_caller(caught.value)
    await client.close()


def test_an_error_reply_is_shown_in_a_few_lines() -> None:
    with serve_in_thread(make_server()) as address, Client(address) as client:
        with pytest.raises(RpcError) as caught:
            client.refuse()
        check_ends_at_the_caller(caught.value)
        with client.batch() as batch:
            refused = batch.refuse()
        for _ in range(3):
            with pytest.raises(RpcError) as caught:
                refused.result()
            check_ends_at_the_caller(caught.value)


def check_is_short(error: BaseException) -> None:
    """There are few functions behind the lines of the test, and no other exception."""
    frames = traceback.extract_tb(error.__traceback__)
    assert len([frame for frame in frames if frame.filename != __file__]) <= 3, shown(error)
    assert shown(error).count("Traceback") == 1


WRONG: list[Callable[[Any], Any]] = [
    lambda client: client.echo(object()),
    lambda client: client.call("echo", 1, returns=str),
    lambda client: client.submit.echo(object()),
    lambda client: client.echo(1, value=2),
]


@pytest.mark.parametrize("scheme", ["", "http://", "ws://"])
@pytest.mark.parametrize("call", WRONG)
async def test_what_cannot_be_sent_or_does_not_fit_is_shown_in_a_few_lines(
    scheme: str, call: Callable[[Any], Any]
) -> None:
    with serve_in_thread(make_server()) as address:
        for options in ({}, {"keepalive": 60.0}) if not scheme else ({},):
            with Client(scheme + address, **options) as client, pytest.raises(TypeError) as caught:
                call(client).result()
            check_is_short(caught.value)
        async with AsyncClient(scheme + address) as client:
            with pytest.raises(TypeError) as caught:
                await call(client)
        check_is_short(caught.value)


def test_the_fault_of_an_encoder_of_the_user_is_shown() -> None:
    class Odd:
        pass

    def encode(value: Odd) -> Any:
        raise KeyError("the fault")

    codec = Codec()
    codec.register(Odd, "odd", encode=encode, decode=lambda data: Odd())
    with serve_in_thread(make_server()) as address, Client(address, codec=codec) as client:
        with pytest.raises(TypeError) as caught:
            client.echo(Odd())
        assert "KeyError: 'the fault'" in shown(caught.value)


def test_with_debug_the_remote_traceback_is_a_note() -> None:
    text = "a long reason " * 200
    with serve_in_thread(make_server(debug=True)) as address, Client(address) as client:
        with pytest.raises(InternalError) as caught:
            client.fail(text)
        error = caught.value
        (note,) = error.__notes__
        assert note.startswith(f"Remote traceback, at {address}:\nTraceback (most recent call last):\n")
        assert "in fail\n" in note
        assert note.endswith(f"ValueError: {text}\\u001b[31m"), "whole, and harmless to a terminal"
        assert "Traceback" not in str(error)
        assert shown(error).count("Traceback (most recent call last)") == 2


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
