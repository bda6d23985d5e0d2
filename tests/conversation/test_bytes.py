"""Malformed and hostile messages, as rows: what is answered, and that nothing else on the connection is disturbed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rpcstream import Limits

from ..kit import LogLines, Network, RawPeer, UsualServer, notification, reply, request, until

#: Those that speak raw; by HTTP: tests/transports.
pytestmark = pytest.mark.lasting

LIMITS = Limits(max_batch=20, max_depth=50)
STREAM = {"$type": "stream", "id": "s"}

#: A message, and the answers: the id and the code of an error, or the id and a result; a list of them for a batch.
Row = tuple[Any, list[Any]]


def answer(message: Any) -> Any:
    if isinstance(message, list):
        return [answer(each) for each in message]
    assert "id" in message, message
    return message["id"], message["error"]["code"] if "error" in message else message["result"]


def said(method: str, *odd: Any) -> list[Row]:
    """Notifications with these params, none of which means anything."""
    return [({"jsonrpc": "2.0", "method": method, "params": params}, []) for params in odd]


BAD = [rb'"\ud800"', b"1e400", b"NaN", b"9" * 10_000, b'"\t"']
FORMS = [
    b'{"jsonrpc":"2.0","id":%(id)b,"method":"note","params":[%(bad)b]}',
    b'{"jsonrpc":"2.0","method":"note","params":[%(bad)b,{"id":5}],"id":%(id)b}',
    b'{"method":"note","params":{"id":5,"b":[%(bad)b]},"jsonrpc":"2.0", "id" : %(id)b } ',
    b'{"id":%(id)b,"params":{"a":%(bad)b},"method":"note","jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","method":"note","params":["' + b"x" * 20_000 + b'",%(bad)b],"id":%(id)b}',
]
LONG = b'["' + b"x" * 1_200_000 + b'",NaN]'
NOTE = b'{"jsonrpc":"2.0","id":7,"method":"note","params":[1]}'
NO_IDS: list[Any] = [True, [7], {"id": 7}]
NO_STREAMS: list[Any] = ["t", "", None, 1, ["s"], {"s": 1}, "S", "s "]

GROUPS: dict[str, list[Row]] = {
    "no JSON, with an id": [
        *((form % {b"bad": bad, b"id": b"7"}, [(7, -32700)]) for bad in BAD for form in FORMS),
        *((form % {b"bad": b"NaN", b"id": rb'"\u00e4"'}, [("ä", -32700)]) for form in FORMS),
    ],
    "no JSON, cut off or very long": [
        (b'{"jsonrpc":"2.0","id":3,"method":"note","params":[1,2', [(3, -32700)]),
        (b'{"jsonrpc":"2.0","id":3,"method":"note","params":' + LONG + b"}", [(3, -32700)]),
        (b'{"jsonrpc":"2.0","method":"note","params":' + LONG + b',"id":3}', [(None, -32700)]),
        *((NOTE + behind, [(7, -32700)]) for behind in (b" x", b",", b"}", b" 1", b'"', b"\0")),
    ],
    "no JSON, whose id cannot be told": [
        (line, [(None, -32700)])
        for line in (
            b'{"jsonrpc":"2.0","method":"note","params":[NaN]}',  # perhaps a notification
            b'{"jsonrpc":"2.0","id":1e400,"method":"note","params":[1]}',
            b'{"jsonrpc":"2.0","id":[1],"method":"note","params":[NaN]}',
            b'{"jsonrpc":"2.0","id":true,"method":"note","params":[NaN]}',
            b'{"jsonrpc":"2.0","id":77,"params":[NaN]}',  # perhaps a reply
            b'{"jsonrpc":"2.0","method":"note","params":[{"a":[1],"id":5}',  # cut off: an id of something else
            b'{"jsonrpc":"2.0","method":"note","params":["x],"id":5}',
            b'{"jsonrpc":"2.0","method":"note","params":{"value":[NaN],"id":5}}',
            b'[{"jsonrpc":"2.0","id":1,"method":"note","params":[NaN]},{"jsonrpc":"2.0","id":2,"method":"note"}]',
            b"]",
            b"{",
            b"NaN",
        )
    ],
    "no requests": [
        *((value, [(None, -32600)]) for value in (b"[]", b"{}", b"42", b'"x"', b"null", b"true")),
        (b'{"id":7}', [(7, -32600)]),
        *((request("note", 1, id=call_id), [(None, -32600)]) for call_id in NO_IDS),
        *((request("note", 1, id=7, jsonrpc=version), [(7, -32600)]) for version in ("1.0", 2.0, None, [])),
        *((request(method, 1, id=7), [(7, -32600)]) for method in (5, None, [], {})),  # type: ignore[arg-type]
        *(({**request("note", id=7), "params": params}, [(7, -32600)]) for params in ("1", 1, True)),
        (b'{"jsonrpc":"2.0","id":7,"method":"note","params":[%b]}' % (b"[" * 60 + b"]" * 60), [(7, -32600)]),
        (request("$/cancelRequest", id=7), [(7, -32601)]),
        (request("note", 1, 2, id=7), [(7, -32602)]),
        (request("nothing", id=7), [(7, -32601)]),
        ({"jsonrpc": "2.0", "method": "nothing"}, []),
    ],
    "batches": [
        ([1, "x", None], [[(None, -32600)] * 3]),
        ([[request("note", 1, id=7)]], [[(None, -32600)]]),
        ([request("note", id=7), 5, request("echo", 1, id=8)], [[(7, -32602), (None, -32600), (8, 1)]]),
        ([notification("nothing"), notification("$/cancelRequest", id=77)], []),
        ([request("echo", 1, id=7)] * 21, [[(7, -32004)]]),
        (b"[" + NOTE + b",]", [(None, -32700)]),
    ],
    "time-outs and numbers of items": [
        *((request("echo_after", 1, 0, id=7, timeout=odd), [(7, -32600)]) for odd in (-1, -0.001, True, "5", [], {})),
        *((request("echo", 1, id=7, timeout=odd), [(7, -32600)]) for odd in (-1, True, "5", [])),
        *(
            (request(name, id=7, timeout=zero), [(7, -32003)])
            for zero in (0, 0.0, -0.0)
            for name in ("hello", "rpc.ping")
        ),
        *((request("count", 3, id=7, stream=odd), [(7, -32600)]) for odd in (-1, 1.5, "3", True, [], {}, 1e30)),
        (b'{"jsonrpc":"2.0","id":7,"method":"echo","params":[1],"timeout":1' + b"0" * 300 + b"}", [(7, 1)]),
        (request("echo", 5, id=7, stream=3), [(7, 5)]),
        (request("nothing", id=7, stream=3), [(7, -32601)]),
        # They are echoed as they came; but nothing could be permitted or cancelled by such a name.
        *(
            (b'{"jsonrpc":"2.0","id":%b,"method":"count","params":[3],"stream":1}' % each, [(json.loads(each), -32600)])
            for each in (b"1.5", b"1e2")
        ),
        (b'{"jsonrpc":"2.0","id":1e2,"method":"count","params":[3]}', [(100.0, [0, 1, 2])]),
    ],
    "cancels": [
        *said("$/cancelRequest", {}, *({"id": odd} for odd in (None, "1", 1.0, 22, 1e30, *NO_IDS)), {"ID": 1}),
        *said("$/cancelRequest", [], [1], [{"id": 1}], None),
        ({"jsonrpc": "2.0", "method": "$/cancelRequest"}, []),
        ({"method": "$/cancelRequest", "params": {"id": 1}}, []),
        (notification("$/cancel", id=1), []),
        (notification("$/", id=1), []),
        (request("$/cancelRequest", id=7, params={"id": 1}), [(7, -32601)]),
    ],
    "credit": [
        *said("$/credit", *({"id": 2, "n": odd} for odd in (0, -5, True, 1.5, "1", None, [1])), {"id": 2}, {"n": 1}),
        *said("$/credit", *({"id": odd, "n": 1} for odd in ("2", 2.0, 3, None, *NO_IDS))),
        *said("$/credit", *({"stream": odd, "n": 1} for odd in ("2", 2, "id 2")), {"stream": "", "id": 2, "n": 1}),
        *said("$/credit", [], [2, 1], [{"id": 2, "n": 1}], None, {"stream": "s", "n": 1}),
        ({"method": "$/credit", "params": {"id": 2, "n": 1}}, []),
        (request("$/credit", id=7, params={"id": 2, "n": 1}), [(7, -32601)]),
    ],
    "items and ends": [
        *said("$/item", *({"stream": odd, "value": 1} for odd in NO_STREAMS), {"id": "s", "value": 1}),
        *said("$/end", *({"stream": odd} for odd in NO_STREAMS)),
        *(each for name in ("$/item", "$/end") for each in said(name, {}, {"stream": "s2"}, [], ["s"], None, "s")),
        *said("$/progress", {}, [], None, {"token": 1, "value": 1}, {"token": True}),
        *((reply(odd, "to nobody"), []) for odd in (99, "x", None, 1.5)),
    ],
    "references to streams": [
        (request("total", odd, id=7), [(7, -32602)])
        for odd in (
            {"$type": "stream"},
            *({"$type": "stream", "id": each} for each in (1, None)),
            {**STREAM, "more": 1},
            STREAM,  # the name is taken
            {"$type": "Stream", "id": "t"},
            {"$type": "ndarray", "id": "t"},
            {"id": "t"},
            *({}, "t", 1, None, True),
        )
    ],
}


@pytest.mark.parametrize("group", GROUPS)
async def test_each_is_answered_so_and_nothing_else_is_disturbed(network: Network, group: str) -> None:
    """Meanwhile a call runs on the connection, and a stream each way waits; and there is a neighbour."""
    server = UsualServer(limits=LIMITS)
    async with network.serve(server) as endpoint:
        raw, neighbour = await endpoint.raw(), await endpoint.raw()
        raw.send(request("wait", "here", id=1), request("count", 2, id=2, stream=0), request("total", STREAM, id=3))
        assert await raw.receive() == notification("$/credit", stream="s", n=16)
        neighbour.call("wait", "next door", id=1)
        await until(lambda: len(server.begun) == 2)
        for sent, expected in GROUPS[group]:
            raw.send(sent)
            assert [answer(await raw.receive()) for _ in expected] == expected, sent
        await raw.silence()
        assert (server.noted, server.ended) == ([], [])
        raw.send(notification("$/credit", id=2, n=2))
        assert [await raw.receive() for _ in "01"] == [notification("$/item", id=2, value=n) for n in (0, 1)]
        assert answer(await raw.receive()) == (2, None)
        raw.send(notification("$/item", stream="s", value=5), notification("$/end", stream="s"))
        assert answer(await raw.receive()) == (3, 5)
        await neighbour.silence()
        server.release()
        assert [await raw.result(), await neighbour.result()] == ["here", "next door"]


async def test_a_reply_that_is_not_json_fails_its_call_and_is_not_answered(network: Network, errors: LogLines) -> None:
    """An error with its id would be taken for the answer to a call of the other end."""
    errors.expect("method 'ask' failed", times=3)
    async with network.raw(UsualServer()) as raw:
        for broken in (b'"result":NaN', b'"error":"no object"', b'"result":{"$type":"ndarray","dtype":"<f4"}'):
            raw.call("ask", "confirm", id="mine")
            asked = await raw.receive()
            raw.send(b'{"jsonrpc":"2.0","id":%d,%b}' % (asked["id"], broken))
            assert answer(await raw.receive()) == ("mine", -32603)
            await raw.silence()


@pytest.mark.undelimited
async def test_a_notification_that_is_wrong_is_logged(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    async with network.raw(UsualServer()) as raw:
        raw.send({"jsonrpc": "2.0", "method": "eccho"}, {"jsonrpc": "2.0", "method": "crash", "params": [1]})
        await raw.silence()
        raw.send(*[{"jsonrpc": "2.0", "method": "\x1b[2J" + "x" * 5000}] * 50)
        await raw.silence()
    assert "notification of 'eccho' failed: [-32601] Method not found: 'eccho' (did you mean 'echo'?)" in caplog.text
    assert "notification of 'crash' failed: [-32602] Invalid params: too many, at most 0 by position" in caplog.text
    assert caplog.text.count("notification of") == 10, "ten a minute"
    assert "lines were left out of the log" in caplog.text
    assert len(caplog.text) < 10_000
    assert "\x1b" not in caplog.text


CALL = b'{"jsonrpc":"2.0","id":%d,"method":"echo","params":[%d]}'
ONE, OTHER = CALL % (1, 1), CALL % (2, 2)
TWO = [ONE + OTHER, b"[%b]%b" % (ONE, OTHER), b"%b\t[%b]" % (ONE, OTHER)]


@pytest.mark.undelimited
async def test_two_values_in_one_line_are_two_messages(network: Network) -> None:
    async with network.raw(UsualServer()) as raw:
        for message in TWO:
            for end in (b"\n", b""):  # with a line end, and without
                raw.write(message + end)
                found = [each if isinstance(each, dict) else each[0] for each in await raw.receive_many(2)]
                assert list(map(answer, found)) == [(1, 1), (2, 2)]
        raw.write(b"[]{}" * 500)
        assert {answer(each) for each in await raw.receive_many(1000)} == {(None, -32600)}


DEEP = request("note", {"deep": [1, [2], "}{"]}, [])
PRETTY = json.dumps(DEEP, indent=2).encode()


@pytest.mark.undelimited
async def test_each_line_of_json_on_several_lines_is_an_error(network: Network) -> None:
    server = UsualServer()
    async with network.raw(server) as raw:
        for text in (PRETTY, PRETTY.replace(b"\n", b"\r\n")):
            raw.write(text + b"\n")
            found = await raw.receive_many(len(text.splitlines()))
            assert {answer(each)[1] for each in found} <= {-32700, -32600}
            assert "on one line" in found[0]["error"]["data"]["reason"]
        await raw.silence()
        assert not server.noted


ECHO = request("echo", 1, id="e")
HEARD = ("e", 1)
NONE = (None, -32700)


@pytest.mark.undelimited
@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        ([b"{", ECHO] * 3, [NONE, HEARD] * 3),
        ([b"[", ECHO, b'{"jsonrpc":"2.0",', ECHO, b'{"a":[1,{"b":', ECHO], [NONE, HEARD] * 3),
        ([b"{", [ECHO], b"}]"], [NONE, [HEARD], NONE]),  # the value was given up before
        ([b"{", b"hello", b"<html>", b"{'a': 1}", b"[1 2]"], [NONE] * 5),
    ],
)
async def test_what_is_broken_does_not_hide_what_is_behind_it(
    network: Network, sent: list[Any], answers: list[Any]
) -> None:
    async with network.raw(UsualServer()) as raw:
        raw.send(*sent)
        # On a busy machine a turn may end between them: then what is no request is answered before the requests.
        found = [answer(each) for each in await raw.receive_many(len(answers))]
        assert sorted(map(repr, found)) == sorted(map(repr, answers))
        await raw.silence()


def odd_words(asked: Any, token: str) -> list[dict[str, Any]]:
    """About nothing, though some look as if they were about this call, or this stream of arguments."""
    calls: list[Any] = [99, str(asked), float(asked), None, True, [asked]]
    words = [notification("$/item", id=each, value="odd") for each in calls]
    words += [notification("$/progress", token=each, value="odd") for each in calls]
    words += [reply(each, "odd") for each in (99, str(asked), 0.5)]
    words += [notification("$/credit", **each) for each in ({"n": 5}, {"stream": "t", "n": 5}, {"stream": token})]
    words += [notification("$/credit", stream=token, n=odd) for odd in (0, -1, True, "5")]
    for params in ({}, [], None, "x", {"value": 1}, {"stream": "s", "value": 1}, {"stream": asked, "value": 1}):
        names = ("$/item", "$/end", "$/progress", "$/event", "$/credit", "$/cancelRequest", "$/nothing")
        words += [{"jsonrpc": "2.0", "method": name, "params": params} for name in names]
    return words


async def test_what_belongs_nowhere_disturbs_no_call_of_a_client(network: Network) -> None:
    made: list[int] = []

    def source() -> Any:
        made.append(1)
        yield 1

    async def script(raw: RawPeer) -> None:
        asked_for = {each["method"]: each for each in await raw.receive_many(3)}
        stream, take, plain = (asked_for[method] for method in ("items", "take", "plain"))
        raw.send(*odd_words(stream["id"], take["params"][0]["id"]), notification("$/item", id=plain["id"], value=1))
        raw.send(notification("$/item", id=stream["id"], value="right"))
        raw.send(notification("$/progress", token=plain["id"], value="right"))
        for asked in (plain, take, stream):
            raw.answer(asked, asked["method"])
        raw.send(notification("$/item", id=stream["id"], value="late"))
        raw.send(notification("$/progress", token=plain["id"], value="late"))
        raw.answer(await raw.receive(), "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        stream = client.stream.items()
        seen: list[Any] = []
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        taking = client.submit.take(source())
        await asyncio.sleep(0.01)
        assert await client.plain(on_progress=seen.append) == "plain"
        assert (await reading, await taking) == ("right", "take")
        assert [each async for each in stream] == []
        assert (stream.result, seen, made) == ("items", ["right"], [])
        assert await client.next() == "fine"
