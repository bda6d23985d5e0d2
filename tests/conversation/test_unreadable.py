"""Messages that are not JSON: the error that they get, and that nothing in them is carried out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import Context, Limits, Server

from ..kit import LogLines, Network, RawPeer, request, until

#: Those that speak raw; by HTTP: tests/transports.
pytestmark = pytest.mark.lasting

LONG = "x" * 20_000


class Echo:
    """A server that notes what it was asked."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server(limits=Limits(**limits))
        self.carried_out: list[Any] = []
        self.server(self.echo)
        self.server(self.ask)

    def echo(self, *values: Any, **named: Any) -> Any:
        self.carried_out.append(values or named)
        return list(values) or named

    async def ask(self, ctx: Context) -> str:
        return str(await ctx.peer.confirm("well?"))


@asynccontextmanager
async def connected(network: Network) -> AsyncIterator[tuple[Echo, RawPeer]]:
    echo = Echo()
    async with network.raw(echo.server) as raw:
        yield echo, raw


BAD = {
    "a lone surrogate": rb'"\ud800"',
    "too large": b"1e400",
    "NaN": b"NaN",
    "10,000 digits": b"9" * 10_000,
    "half a character": b'"\xc3"',
    "a tab in a string": b'"\t"',
}
FORMS = {
    "id first": b'{"jsonrpc":"2.0","id":%b,"method":"echo","params":[%b]}',
    "id last": b'{"jsonrpc":"2.0","method":"echo","params":[%(bad)b,{"id":5}],"id":%(id)b}',
    "by name": b'{"method":"echo","params":{"id":5,"b":[%(bad)b]}, "id" : %(id)b , "jsonrpc":"2.0"} ',
    "method last": b'{"id":%b,"params":{"a":%b},"method":"echo","jsonrpc":"2.0"}',
    "long": b'{"jsonrpc":"2.0","method":"echo","params":["' + LONG.encode() + b'",%(bad)b],"id":%(id)b}',
}


def filled(form: bytes, call_id: bytes, bad: bytes) -> bytes:
    return form % ({b"id": call_id, b"bad": bad} if b"%(" in form else (call_id, bad))


@pytest.mark.parametrize("bad", BAD)
async def test_the_error_has_the_id_of_the_request(network: Network, bad: str) -> None:
    if bad == "half a character" and type(network.transport).__name__ == "WebSocket":
        return  # it ends the connection there (RFC 6455, 8.1)
    async with connected(network) as (echo, raw):
        for form, text in FORMS.items():
            for call_id, written in ((7, b"7"), ("ä", rb'"\u00e4"'), (1.5, b"1.50")):
                raw.send(filled(text, written, BAD[bad]))
                reply = await raw.reply()
                assert (reply["id"], reply["error"]["code"]) == (call_id, -32700), form
                assert reply["error"]["data"]["reason"]
        assert not echo.carried_out
        assert await raw.result("echo", 1) == [1]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"echo","params":[NaN]}',  # perhaps a notification
        b'{"jsonrpc":"2.0","id":1e400,"method":"echo","params":[1]}',
        b'{"jsonrpc":"2.0","id":[1],"method":"echo","params":[NaN]}',
        b'{"jsonrpc":"2.0","id":true,"method":"echo","params":[NaN]}',
        b'{"jsonrpc":"2.0","id":1,"params":[NaN]}',  # perhaps a reply
        b'{"jsonrpc":"2.0","method":"echo","params":[{"a":[1],"id":5}',  # cut off: an id of something else
        b'{"jsonrpc":"2.0","method":"echo","params":["x],"id":5}',
        b'{"jsonrpc":"2.0","method":"echo","params":{"value":[NaN],"id":5}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"echo","params":[NaN]},{"jsonrpc":"2.0","id":2,"method":"echo"}]',
        b"]",
        b"{",
        b"NaN",
    ],
)
async def test_the_id_is_null_where_it_cannot_be_told(network: Network, line: bytes) -> None:
    async with connected(network) as (echo, raw):
        raw.send(line)
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (None, -32700)
        assert not echo.carried_out


async def test_a_request_that_is_cut_off_behind_its_id_is_told_so(network: Network) -> None:
    async with connected(network) as (_, raw):
        raw.send(b'{"jsonrpc":"2.0","id":3,"method":"echo","params":[1,2')
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (3, -32700)


async def test_the_id_of_a_very_long_one_is_looked_for_in_front_only(network: Network) -> None:
    value = b'["' + b"x" * 1_200_000 + b'",NaN]'
    async with connected(network) as (_, raw):
        raw.send(b'{"jsonrpc":"2.0","id":3,"method":"echo","params":' + value + b"}")
        assert (await raw.reply())["id"] == 3
        raw.send(b'{"jsonrpc":"2.0","method":"echo","params":' + value + b',"id":3}')
        assert (await raw.reply())["id"] is None


async def test_a_reply_that_is_not_json_fails_its_call_and_is_not_answered(network: Network, errors: LogLines) -> None:
    """An error with its id would be taken for the answer to a call of the other end."""
    errors.expect("method 'ask' failed")
    async with connected(network) as (_, raw):
        raw.call("ask", id="mine")
        asked = await raw.receive()
        raw.send(b'{"jsonrpc":"2.0","id":%d,"result":NaN}' % asked["id"])
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == ("mine", -32603)
        await raw.silence()


TWO = [
    b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}%b{"jsonrpc":"2.0","id":2,"method":"echo","params":[2]}',
    b'[{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}]%b{"jsonrpc":"2.0","id":2,"method":"echo","params":[2]}',
    b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}%b[{"jsonrpc":"2.0","id":2,"method":"echo","params":[2]}]',
]


@pytest.mark.framed
@pytest.mark.parametrize("form", TWO)
@pytest.mark.parametrize("between", [b"", b" ", b"\t"])
async def test_two_values_in_one_message_are_none(network: Network, form: bytes, between: bytes) -> None:
    async with connected(network) as (echo, raw):
        raw.send(form % between)
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (None, -32700)
        await raw.silence()
        assert not echo.carried_out


@pytest.mark.undelimited
@pytest.mark.parametrize("form", TWO)
@pytest.mark.parametrize("between", [b"", b" ", b"\t"])
async def test_two_values_in_one_line_are_two_messages(network: Network, form: bytes, between: bytes) -> None:
    async with connected(network) as (_, raw):
        for end in (b"\n", b""):  # with a line end, and without
            raw.transport.write(form % between + end)
            replies = [each if isinstance(each, dict) else each[0] for each in await raw.receive_many(2)]
            assert [(each["id"], each["result"]) for each in replies] == [(1, [1]), (2, [2])]


@pytest.mark.parametrize("behind", [b" x", b",", b"}", b" 1", b'"', b"\0"])
async def test_text_behind_a_value_is_no_message_and_nothing_is_carried_out(network: Network, behind: bytes) -> None:
    async with connected(network) as (echo, raw):
        raw.send(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}' + behind)
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (1, -32700)
        await raw.silence()
        assert not echo.carried_out


@pytest.mark.undelimited
async def test_values_that_are_no_requests_are_each_refused(network: Network) -> None:
    """However many: the other end is answered meanwhile."""
    async with connected(network) as (_, raw):
        raw.transport.write(b"[]{}" * 5000)
        codes = {each["error"]["code"] for each in await raw.receive_many(10_000)}
        assert codes == {-32600}
        assert await raw.result("echo", 1) == [1]


async def test_whose_error_it_is_is_told_at_the_limit_too(network: Network) -> None:
    echo = Echo(max_calls=1)
    async with network.raw(echo.server) as raw:
        raw.call("ask", id="asking")
        asked = await raw.receive()
        raw.call("echo", 2, id="waits")
        await until(lambda: network.served[0].queue.is_full)
        raw.send(b'{"jsonrpc":"2.0","method":"echo","params":[NaN],"id":"away"}')
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == ("away", -32700)
        raw.answer(asked, "fine")
        assert {each["id"] for each in await raw.receive_many(2)} == {"asking", "waits"}


# -- a message on several lines


PRETTY = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [{"deep": [1, [2], "}{"]}, []]}, indent=2
).encode()
PRETTY_BATCH = json.dumps([{"jsonrpc": "2.0", "id": number, "method": "echo"} for number in (1, 2)], indent=1).encode()
INDENTED_BATCH = b'[\n  {"jsonrpc":"2.0","id":1,"method":"echo"},\n  {"jsonrpc":"2.0","id":2,"method":"echo"}\n]'
FLAT = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [[1], {"a": 2}]}, indent=0).encode()


@pytest.mark.undelimited
@pytest.mark.parametrize("text", [PRETTY, PRETTY_BATCH, INDENTED_BATCH, FLAT, PRETTY.replace(b"\n", b"\r\n")])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_json_on_several_lines_is_one_error(network: Network, text: bytes, piece: int) -> None:
    if (text, piece) == (INDENTED_BATCH, 1):
        return  # a request is told from a member of the batch by its indentation, which must come with it
    async with connected(network) as (echo, raw):
        sent = text + b"\n"
        for start in range(0, len(sent), piece):
            raw.transport.write(sent[start : start + piece])
            await asyncio.sleep(0)
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (None, -32700)
        assert reply["error"]["data"]["reason"].startswith("a message is one line")
        await raw.silence()
        assert not echo.carried_out
        assert await raw.result("echo", 3) == [3]


@pytest.mark.undelimited
async def test_each_such_value_is_told_and_the_requests_between_are_carried_out(network: Network) -> None:
    async with connected(network) as (echo, raw):
        raw.send(PRETTY, PRETTY, request("echo", 1, id="a"), PRETTY_BATCH, request("echo", 2, id="b"))
        replies = await raw.receive_many(5)
        assert [reply["id"] for reply in replies] == [None, None, "a", None, "b"]
        assert echo.carried_out == [(1,), (2,)]


@pytest.mark.undelimited
@pytest.mark.parametrize("broken", [b"{", b"[", b'{"jsonrpc":"2.0",', b'{"a":[1,{"b":'])
async def test_a_broken_line_does_not_hide_the_requests_behind_it(network: Network, broken: bytes) -> None:
    async with connected(network) as (_, raw):
        for number in range(3):
            raw.send(broken, request("echo", number, id=number))
            assert (await raw.reply())["error"]["code"] == -32700
            assert (await raw.reply())["id"] == number
        raw.send(broken, [request("echo", 7, id="x")], b"}]")
        assert (await raw.reply())["error"]["code"] == -32700
        assert (await raw.receive())[0]["id"] == "x"
        assert (await raw.reply())["error"]["code"] == -32700, "the value was given up before"


@pytest.mark.undelimited
async def test_lines_of_other_kinds_are_told_each(network: Network) -> None:
    async with connected(network) as (_, raw):
        raw.send(b"{", b"hello", b"<html>", b"{'a': 1}", b"[1 2]")
        for _ in range(5):
            assert (await raw.reply())["error"]["code"] == -32700
        await raw.silence()


@pytest.mark.undelimited
async def test_what_waits_while_a_handler_runs_is_skipped_as_well(network: Network) -> None:
    server = Server(limits=Limits(max_calls=1))
    gate = asyncio.Event()

    @server
    async def wait() -> str:
        await gate.wait()
        return "waited"

    async with network.raw(server) as raw:
        raw.send(request("wait", id="w"), PRETTY, request("rpc.ping", id="p"))
        for line in PRETTY.split(b"\n"):
            raw.send(line)
        raw.send(request("rpc.ping", id="q"))
        await asyncio.sleep(0)
        gate.set()
        replies = await raw.receive_many(5)
        assert {reply["id"] for reply in replies} == {"w", "p", "q", None}
        assert sum(reply["id"] is None for reply in replies) == 2


@pytest.mark.undelimited
async def test_a_notification_that_is_wrong_is_logged(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(network) as (echo, raw):
        raw.send({"jsonrpc": "2.0", "method": "eccho"}, {"jsonrpc": "2.0", "method": "ask", "params": [1]})
        await raw.silence()
        raw.send(*[{"jsonrpc": "2.0", "method": "\x1b[2J" + "x" * 5000}] * 50)
        await raw.silence()
        assert not echo.carried_out
    assert "notification of 'eccho' failed: [-32601] Method not found: 'eccho' (did you mean 'echo'?)" in caplog.text
    assert "notification of 'ask' failed: [-32602] Invalid params: too many, at most 0 by position" in caplog.text
    assert caplog.text.count("notification of") == 11, "ten a minute, and how many were left out"
    assert len(caplog.text) < 10_000
    assert "\x1b" not in caplog.text
