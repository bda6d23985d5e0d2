"""Binary frames as bytes, for ends in any language: good ones, and bad ones with what a server answers.

As JSON, to test other implementations with: `python -m tests.conversation.test_binary_vectors`.
"""
# ruff: noqa: E501 (the lists are tables, a line for each)

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from rpcstream import Limits, Server
from rpcstream.wire.framing import LineFramer

from ..kit import RawPeer, frame, raw_peers
from ..kit import request as usual_request
from ..wire.frame_model import TakesAll, read_slowly, seen_of

LIMITS = Limits(max_message_size=4096, max_json_size=8000, max_depth=32)


@dataclass(frozen=True)
class Good:
    """A frame that is taken.

    Attributes:
        name: what is shown.
        frame: the bytes.
        as_text: the same message as text.
        result: what a server answers that echoes its argument, as text without arrays; None: not to be asked.
    """

    name: str
    frame: bytes
    as_text: Any
    result: Any = None


@dataclass(frozen=True)
class Bad:
    """Bytes that are answered with an error.

    Attributes:
        name: what is wrong.
        sent: the bytes.
        code: of the error.
        call_id: of the reply.
        stays: the connection goes on behind it; else it is closed.
        server: "plain", one with a "token", or one with "binary=False".
        reason: what the error's data has in it.
    """

    name: str
    sent: bytes
    code: int
    call_id: Any = 1
    stays: bool = True
    server: str = "plain"
    reason: str = ""


def request(method: str, *params: Any, **members: Any) -> dict[str, Any]:
    """A request without the members that are `...`."""
    return {name: value for name, value in usual_request(method, *params, **members).items() if value is not ...}


def array(number: Any = 0, *, dtype: str = "<f4", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"$type": "ndarray", "dtype": dtype, "shape": [2] if shape is None else shape, "data": {"$bin": number}}


def as_text(message: Any, payloads: tuple[bytes, ...]) -> Any:
    """The message with base64 in the place of its payloads."""
    if isinstance(message, dict):
        if message.keys() == {"$bin"}:
            return base64.b64encode(payloads[message["$bin"]]).decode()
        return {name: as_text(member, payloads) for name, member in message.items()}
    return [as_text(member, payloads) for member in message] if isinstance(message, list) else message


def good(name: str, message: dict[str, Any], *payloads: bytes, result: Any = None) -> Good:
    return Good(name, frame(message, *payloads), as_text(message, payloads), result)


PAIR = np.array([1, 2], "<f4").tobytes()
ODD = b"\n@3 1\n"
INFINITY = {"$type": "float", "value": "inf"}


def good_frames() -> list[Good]:
    two = request("sizes", [{"$type": "bytes", "data": {"$bin": 0}}, {"$type": "bytes", "data": {"$bin": 1}}])
    swapped = request("sizes", [{"$type": "bytes", "data": {"$bin": 1}}, {"$type": "bytes", "data": {"$bin": 0}}])
    many = [{"$type": "bytes", "data": {"$bin": number}} for number in range(64)]
    one = frame(request("total", array()), PAIR)
    json_size = int(one[1:].split()[0])
    bare = one[one.index(b"\n") + 1 :]
    reply = {"jsonrpc": "2.0", "id": 1, "result": array()}
    item = {"jsonrpc": "2.0", "method": "$/item", "params": {"id": 1, "value": array()}}
    return [
        good("one array", request("total", array()), PAIR, result=3.0),
        good("one array by name", request("total", params={"points": array()}), PAIR, result=3.0),
        good("a payload of one byte", request("size", {"$type": "bytes", "data": {"$bin": 0}}), b"x", result=1),
        good("two payloads, the first padded with 3 zeros", two, b"abcde", b"fgh", result=[5, 3]),
        good("two payloads in another order than they stand in the JSON", swapped, b"abcde", b"fgh", result=[3, 5]),
        good("a payload that looks like a frame", request("size", {"$type": "bytes", "data": {"$bin": 0}}), ODD, result=6),
        good("a bare payload where a hint takes base64", request("size", {"$bin": 0}), b"abcde", result=5),
        good("an infinity beside an array", request("scaled", array(), INFINITY), PAIR, result=INFINITY),
        good("64 payloads", request("sizes", many), *[b"x" * (1 + n % 9) for n in range(64)],
             result=[1 + n % 9 for n in range(64)]),
        Good("no blanks in the header, so that nothing is aligned",
             b"@%d %d\n" % (json_size, len(PAIR)) + bare, as_text(request("total", array()), (PAIR,)), 3.0),
        Good("seven blanks, and numbers with zeros in front",
             b"@%04d %03d       \n" % (json_size, len(PAIR)) + bare, as_text(request("total", array()), (PAIR,)), 3.0),
        Good("blanks in front of the frame", b"   " + one, as_text(request("total", array()), (PAIR,)), 3.0),
        good("a reply", reply, PAIR),
        good("an item of a stream", item, PAIR),
    ]  # fmt: skip


def bad_frames() -> list[Bad]:
    call = request("total", array())
    bytes_of = request("size", {"$type": "bytes", "data": {"$bin": 0}})
    name = "the header of a binary frame is malformed"
    headers = {
        "no sizes": b"@\n",
        "no payload": b"@3\n{}\n",
        "two blanks between sizes": b"@3  1\n{}\nx",
        "a negative size": b"@3 -1\n{}\n",
        "a fraction": b"@3 1.0\n{}\nx",
        "a payload of no bytes": b"@3 0\n{}\n",
        "JSON of no bytes": b"@0 1\nx",
        "a size of 13 digits": b"@3 1000000000000\n{}\n",
        "257 payloads": b"@3" + b" 1" * 257 + b"\n{}\n",
        "eight blanks": b"@3 1        \n{}\nx",
        "CR LF": b"@3 1\r\n{}\nx",
        "a header that does not end": b"@3" + b" 1000" * 900,
        "a name behind @": b"@abc\n",
    }
    long = request("size", {"$type": "bytes", "data": {"$bin": 0}}, id=7)
    spread = b'{"jsonrpc":"2.0","id":1,"method":"size","params":[{"$type":"bytes","data":{"$bin":0}}],"x":' + b"["
    return [
        *(Bad(f"malformed header: {what}", sent, -32700, None, stays=False, reason=name) for what, sent in headers.items()),
        Bad("before authentication", frame(call, PAIR), -32700, None, stays=False, server="token", reason="authentication"),
        Bad("to a server that takes none", frame(call, PAIR), -32700, None, stays=False, server="binary=False", reason="switched off"),
        Bad("the stream ends within it", frame(call, PAIR)[:-1], -32700, None, stays=False, reason="ended within"),
        Bad("too large", frame(long, b"x" * 4090), -32001, 7),
        Bad("too large, the JSON by itself", frame({**long, "x": "y" * 4096}, b"x"), -32001, None),
        Bad("JSON that is none", frame(b'{"jsonrpc":"2.0","id":1,"method":"size","params":[{"$bin":0}', b"x"), -32700),
        Bad("a batch", frame(orjson.dumps([bytes_of]), b"x"), -32600, None, reason="batch"),
        Bad("no $bin", frame(request("size", {"$type": "bytes", "data": "eA=="}), b"x"), -32600),
        Bad("$bin twice", frame(request("sizes", [{"$bin": 0}, {"$bin": 0}]), b"x"), -32600),
        Bad("$bin of no payload", frame(request("size", {"$bin": 1}), b"x"), -32600),
        Bad("one of two payloads without $bin", frame(request("size", {"$bin": 0}), b"x", b"y"), -32600),
        *(Bad(f"$bin is {value!r}".lower(), frame(request("sizes", [{"$bin": 0}, {"$bin": value}]), b"x", b"y"), -32600)
          for value in (-1, True, 1.0, "1", None, [1])),
        Bad("$bin beside another member", frame(request("size", {"$bin": 0, "x": 1}), b"x"), -32600),
        Bad("$bin within a string", frame(request("size", '{"$bin":0}'), b"x"), -32600),
        Bad("$bin twice in one object", frame(b'{"jsonrpc":"2.0","id":1,"method":"size","params":[{"$bin":0,"$bin":0}]}', b"x"), -32600),
        Bad("the notification has a bad $bin", frame(request("size", {"$bin": 1}, id=...), b"x"), -32600, None),
        Bad("an unknown method", frame(request("nope", {"$bin": 0}), b"x"), -32601),
        Bad("fewer bytes than dtype and shape need", frame(request("total", array(shape=[3])), PAIR), -32602, reason="points"),
        Bad("more bytes than dtype and shape need", frame(request("total", array(shape=[1])), PAIR), -32602, reason="points"),
        Bad("another dtype than the hint", frame(request("total", array(dtype="<i4")), PAIR), -32602, reason="points"),
        Bad("a bool array of other bytes than 0 and 1", frame(request("keep", array(dtype="|b1")), b"\0\2"), -32602),
        Bad("a payload where no hint takes one", frame(request("keep", {"$bin": 0}), b"x"), -32602),
        Bad("a bare payload that is no .npy file", frame(request("total", {"$bin": 0}), PAIR), -32602),
        Bad("too many values", frame(request("keep", [0] * 1000, array()), PAIR), -32001),
        Bad("nested too deep", frame(spread + b"[" * 40 + b"]" * 41 + b"}", b"x"), -32600),
    ]  # fmt: skip


def make_server(**options: Any) -> Server:
    server = Server(limits=LIMITS, **options)

    @server
    def total(points: NDArray[np.float32]) -> float:
        return float(points.sum())

    @server
    def scaled(points: NDArray[np.float32], factor: float) -> float:
        return float(points.sum()) * factor

    @server
    def size(data: bytes) -> int:
        return len(data)

    @server
    def sizes(data: list[bytes]) -> list[int]:
        return list(map(len, data))

    @server
    def keep(*values: Any) -> None: ...

    return server


SERVERS: dict[str, dict[str, Any]] = {"plain": {}, "token": {"token": "secret"}, "binary=False": {"binary": False}}


def test_good_frames_are_read_as_the_model_reads_them() -> None:
    for each in good_frames():
        (message,) = LineFramer(max_size=4096, intake=TakesAll()).feed(each.frame)
        (expected,) = read_slowly(each.frame, 4096).seen
        assert seen_of(message) == expected, each.name


async def test_good_frames_are_answered() -> None:
    async with raw_peers(make_server()) as connect:
        raw = await connect()
        for each in good_frames():
            if each.result is not None:
                raw.write(each.frame)
                raw.send(each.as_text)
                assert [await raw.result(), await raw.result()] == [each.result] * 2, each.name


async def test_as_many_frames_as_fit_into_a_read_are_all_answered() -> None:
    """They take several turns: each of these ends before a frame that is there already."""
    call = frame(request("size", {"$bin": 0}), b"x")
    async with raw_peers(make_server()) as connect:
        raw = await connect()
        raw.write((call + b"[]\n") * 1000)
        replies = await raw.receive_many(2000)
        assert sum("result" in reply for reply in replies) == 1000


@pytest.mark.parametrize("bad", bad_frames(), ids=lambda each: each.name.replace(" ", "_"))
async def test_a_bad_frame_is_answered_so(bad: Bad) -> None:
    async with raw_peers(make_server(**SERVERS[bad.server])) as connect:
        raw: RawPeer = await connect()
        raw.write(bad.sent)
        if bad.stays:
            raw.call("size", "eHg=", id="next")
        elif "ends within" in bad.name:
            raw.end()
        reply = await raw.reply()
        assert (reply["error"]["code"], reply["id"]) == (bad.code, bad.call_id), reply
        assert bad.reason in json.dumps(reply), reply
        if bad.stays:
            assert await raw.reply() == {"jsonrpc": "2.0", "id": "next", "result": 2}
        else:
            assert await raw.receive() is None


if __name__ == "__main__":
    for vector in [*good_frames(), *bad_frames()]:
        print(
            json.dumps(
                {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(vector).items()}
            )
        )
