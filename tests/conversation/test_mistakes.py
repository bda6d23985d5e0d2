"""Mistakes that callers in any language make, and what each is answered: each answer says what to do.

The page mistakes.md is made of the same list:

    python -m tests.conversation.test_mistakes
"""
# ruff: noqa: E501 (the list is a table, a line for each)

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL.Image import Image

from rpcstream import Limits, Server, Shape
from rpcstream.errors import readable

from ..kit import server_tls

PAGE = Path(__file__).with_name("mistakes.md")

#: Seconds after which an answer is overdue.
PATIENCE = 30

LIMITS = Limits(max_message_size=20_000, max_batch=5, message_timeout=0.2)


class Mistake(NamedTuple):
    """One thing that is done wrong.

    Attributes:
        name: what is wrong.
        sent: all bytes that are sent.
        says: what the answer must have in it, as a regular expression.
        over: the kind of connection: a key of `WAYS`.
        is_fine: it is no mistake here, and carried out.
    """

    name: str
    sent: bytes
    says: str
    over: str = "line"
    is_fine: bool = False


def make_server(**options: Any) -> Server:
    server = Server(limits=LIMITS, **options)

    @server
    def add(a: int, b: int = 0) -> int:
        return a + b

    @server
    def norm(points: Annotated[NDArray[np.float32], Shape(None, 3)]) -> int:
        return len(points)

    @server
    def resize(photo: Image, mode: Literal["fast", "exact"] = "fast") -> list[int]:
        return list(photo.size)

    @server
    def size(data: bytes) -> int:
        return len(data)

    @server
    def count(to: int) -> Iterator[int]:
        yield from range(to)

    return server


def request(params: Any = None, *, method: Any = "add", **members: Any) -> bytes:
    """A request as text; without a member that is ..., with no line end."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **members}
    if params is None:
        del message["params"]
    return json.dumps({name: value for name, value in message.items() if value is not ...}).encode()


def line(params: Any = None, **members: Any) -> bytes:
    return request(params, **members) + b"\n"


def http(body: bytes | None, *headers: str, start: str = "POST / HTTP/1.1", host: str | None = "localhost") -> bytes:
    """A request of HTTP, with these headers besides the usual ones; those given replace them."""
    given = {each.partition(":")[0].lower() for each in headers}
    head = [start, *([f"Host: {host}"] if host is not None else []), "Connection: close", *headers]
    if body is not None and "content-type" not in given:
        head.append("Content-Type: application/json")
    if body is not None and not given & {"content-length", "transfer-encoding"}:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*(each for each in head if not each.endswith(": -")), "", ""]).encode() + (body or b"")


HANDSHAKE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")


def handshake(*headers: str) -> bytes:
    lines = ("GET / HTTP/1.1", "Host: localhost", *HANDSHAKE, *(headers or ("Sec-WebSocket-Version: 13",)))
    return "\r\n".join([*lines, "", ""]).encode()


def frame(payload: bytes, *, opcode: int = 1, mask: bool = True) -> bytes:
    """A frame of a client, masked with zeros."""
    size = (
        bytes((len(payload) | mask << 7,))
        if len(payload) < 126
        else bytes((126 | mask << 7,)) + len(payload).to_bytes(2)
    )
    return bytes((0x80 | opcode,)) + size + bytes(4 * mask) + payload


def websocket(payload: bytes, **options: Any) -> bytes:
    return handshake() + frame(payload, **options) + frame(b"\x03\xe8", opcode=8)


ARRAY = {"$type": "ndarray", "dtype": "<f4", "shape": [1, 3], "data": base64.b64encode(bytes(12)).decode()}
PNG = base64.b64encode(bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415478da63f8cfc0000003010100"
    "c9fe92ef0000000049454e44ae426082"
)).decode()  # fmt: skip
WORD = "send one JSON object in UTF-8"

# fmt: off
MISTAKES = [
    # -- text that is no JSON
    Mistake("plain text", b"add 2 3\n", WORD),
    Mistake("single quotes", b"{'jsonrpc': '2.0', 'id': 1, 'method': 'add'}\n", WORD),
    Mistake("names without quotes", b'{jsonrpc: "2.0", id: 1, method: "add"}\n', WORD),
    Mistake("a trailing comma", b'{"jsonrpc": "2.0", "id": 1, "method": "add", "params": [2,]}\n', WORD),
    Mistake("a comment", b'{"jsonrpc": "2.0", // version\n', WORD),
    Mistake("NaN", b'{"jsonrpc": "2.0", "id": 1, "method": "add", "params": [NaN]}\n', WORD),
    Mistake("True, False or None", b'{"jsonrpc": "2.0", "id": 1, "method": "add", "params": [True]}\n', WORD),
    Mistake("a message that is cut off", b'{"jsonrpc": "2.0", "id": 1, "method": "add", "params": [2\n', WORD),
    Mistake("a byte order mark", b"\xef\xbb\xbf" + line([2]), WORD),
    Mistake("UTF-16", b"\xff\xfe" + line([2]).decode().encode("utf-16-le"), WORD),
    Mistake("Latin-1", line(["\0"]).replace(b"\\u0000", b"\xe4"), WORD),
    Mistake("JSON on several lines", b'{"jsonrpc": "2.0",\n"id": 1}\n', WORD),
    Mistake("a message without a line end", request([2, 3]), "5", is_fine=True),
    Mistake("half a message, then nothing", b'{"jsonrpc": "2.0", "id": 1,', "end each message with a line end", over="waiting"),
    Mistake("half a message, then the end", b'{"jsonrpc": "2.0", "id": 1,', WORD),
    Mistake("two messages on a line", request([2, 3]) + request([4], id=2) + b"\n", "5.*4", is_fine=True),
    Mistake("two messages with a comma between", request([2, 3]) + b", " + request([4], id=2) + b"\n", WORD),
    # -- JSON that is no request
    Mistake("a wrong name of a member", line([2], method=..., methd="add"), "missing 'method'"),
    Mistake("no `jsonrpc`", line([2], jsonrpc=...), 'missing .jsonrpc.: every message has "jsonrpc": "2.0"'),
    Mistake("another version", line([2], jsonrpc="1.0"), 'must be the string "2.0"'),
    Mistake("the version as a number", line([2], jsonrpc=2.0), 'must be the string "2.0"'),
    Mistake("a method that is a number", line([2], method=5), "'method' must be a string"),
    Mistake("a value that is no object", b"42\n", "a request must be an object, a batch an array"),
    Mistake("no `id`", line([2], id=...), "no reply", is_fine=True),
    Mistake("no `id`, and a wrong method", line([2], id=..., method="ad"), "log: .*did you mean 'add'"),
    Mistake("an `id` of null", line([2, 3], id=None), "5", is_fine=True),
    Mistake("an `id` that is a fraction", line([2, 3], id=1.5), "5", is_fine=True),
    Mistake("an `id` that is an object", line([2], id={"n": 1}), "must be a string, a number or null"),
    Mistake("an `id` that is true", line([2], id=True), "must be a string, a number or null"),
    Mistake("`params` as text", line("2"), "must be an array or an object"),
    Mistake("`params` as a number", line(2), "must be an array or an object"),
    Mistake("an empty batch", b"[]\n", "an empty batch"),
    Mistake("a batch of other things", b"[1, 2]\n", "a request must be an object"),
    Mistake("a batch that is too large", b"[%b]\n" % b",".join([request([1])] * 6), "limit is 5"),
    Mistake("a message that is too long", line([2], junk="x" * 20_000), "limit is 20000 bytes"),
    Mistake("arrays that are nested too deep", line(json.loads("[" * 200 + "]" * 200)), "max_depth"),
    # -- methods and parameters
    Mistake("an unknown method", line([2], method="ad"), r"did you mean 'add'\?"),
    Mistake("an unknown method, like no other", line([2], method="frobnicate"), "rpc.discover lists"),
    Mistake("a notification of the protocol, with an `id`", line(method="$/progress"), "rpc.discover"),
    Mistake("an unknown parameter", line({"a": 2, "bb": 3}), r"did you mean 'b'\?"),
    Mistake("an unknown parameter, like no other", line({"a": 2, "zoom": 3}), "'zoom' is unknown"),
    Mistake("a missing parameter", line({"b": 3}), "'a' is missing"),
    Mistake("no parameters", line(), "'a' is missing"),
    Mistake("too many parameters", line([1, 2, 3]), "at most 2 by position, got 3"),
    Mistake("a parameter of the wrong type", line({"a": [2]}), "a: expected an integer, got a list"),
    Mistake("a number as text", line(["2"]), "a: expected an integer, got a string"),
    Mistake("a null", line([None]), "a: expected an integer, got null"),
    Mistake("none of the choices", line([PNG, "slow"], method="resize"), 'mode: expected "fast" or "exact"'),
    Mistake("a `timeout` that is no number", line([2], method="count", timeout="soon"), "'timeout' must be a number of seconds"),
    Mistake("a `stream` that is no number", line([2], method="count", stream=True), "'stream' must be a number of items"),
    Mistake("a stream that is not asked for", line([3], method="count"), r"\[0,1,2\]", is_fine=True),
    # -- arrays, images and bytes
    Mistake("text in a list of numbers", line([[[1, 2, "3"]]], method="norm"), "nested lists must contain only numbers"),
    Mistake("numbers in base64 for an array", line(["AAAAAAAA"], method="norm"), 'must be a base64-encoded .npy file.*an array is an object'),
    Mistake("the shape of something else", line([{**ARRAY, "shape": [3]}], method="norm"), r"expected .* of shape \(\*, 3\), got .* of shape \(3,\)"),
    Mistake("a shape that the bytes do not fill", line([{**ARRAY, "shape": [2, 3]}], method="norm"), "12 bytes of data, shape and dtype need 24"),
    Mistake("another element type", line([{**ARRAY, "dtype": "<i4"}], method="norm"), "expected an array of float32"),
    Mistake("an unknown dtype", line([{**ARRAY, "dtype": "float"}], method="norm"), "use a name such as 'float32'"),
    Mistake("an array without `shape`", line([{"$type": "ndarray", "dtype": "<f4", "data": ""}], method="norm"), "its members are dtype, shape, data"),
    Mistake("the path of a file", line(["/home/me/cat.png"], method="resize"), "send the bytes of the file"),
    Mistake("a data: URL", line([f"data:image/png;base64,{PNG}"], method="resize"), r"\[1,1\]", is_fine=True),
    Mistake("the URL of a file", line(["https://example.org/cat.png"], method="resize"), "send the bytes of the file"),
    Mistake("base64 of no image", line(["aGVsbG8="], method="resize"), "not png or jpeg"),
    Mistake("URL-safe base64", line(["_-8="], method="size"), "in the standard alphabet"),
    Mistake("bytes as a list", line([[1, 2]], method="size"), "bytes are a string in base64"),
    Mistake("TLS where there is none", b"\x16\x03\x01\x00\x2e\x01hello", "this port is without TLS"),
    Mistake("plain lines where there is TLS", line([2]), "this port expects TLS", over="tls"),
    Mistake("plain HTTP where there is TLS", http(request([2])), "this port expects TLS", over="tls"),
    # -- HTTP
    Mistake("GET", http(None, start="GET / HTTP/1.1"), "a call comes with POST", over="http"),
    Mistake("PUT", http(request([2]), start="PUT / HTTP/1.1"), "a call comes with POST", over="http"),
    Mistake("another path", http(request([2]), start="POST /rpc HTTP/1.1"), "calls go to /", over="http"),
    Mistake("the content type of a form", http(request([2]), "Content-Type: text/plain"), "is application/json", over="http"),
    Mistake("a compressed body", http(b"\x1f\x8b", "Content-Encoding: gzip"), "send the body as it is", over="http"),
    Mistake("no length", http(request([2]), "Content-Length: -"), "needs a Content-Length", over="http"),
    Mistake("no body", http(b""), "send one JSON object", over="http"),
    Mistake("two messages in a body", http(request([2]) + request([3])), WORD, over="http"),
    Mistake("another `Host`", http(request([2]), host="api.example.org"), "--set hosts=", over="http"),
    Mistake("no `Host`", http(request([2]), host=None), "[Hh]eader Host is missing", over="http"),
    Mistake("a page of another site", http(request([2]), "Origin: https://example.org"), "--set origins=", over="http"),
    Mistake("lines that end with LF alone", http(request([2])).replace(b"\r\n", b"\n"), "lines end with CR LF", over="http"),
    Mistake("a body that is too long", http(b" " * 20_001), "the limit is 20000 bytes", over="http"),
    Mistake("events over HTTP", http(request(["news"], method="rpc.subscribe")), "subscribe over a WebSocket or the line stream", over="http"),
    # -- WebSocket
    Mistake("two messages in one WebSocket message", websocket(request([2]) + request([3])), WORD, over="websocket"),
    Mistake("a WebSocket message that is no JSON", websocket(b"add 2 3"), WORD, over="websocket"),
    Mistake("another version of WebSocket", handshake("Sec-WebSocket-Version: 8"), "only version 13", over="http"),
    Mistake("a WebSocket without its key", handshake("Sec-WebSocket-Version: 13").replace(b"AAAA==", b"A"), "Sec-WebSocket-Key: 16 bytes", over="http"),
    Mistake("frames that are not masked", handshake() + frame(request([2]), mask=False), "closed with 1002: .*mask", over="websocket"),
    Mistake("a WebSocket message in Latin-1", handshake() + frame(b'"\xe4"'), "closed with 1007: .*UTF-8", over="websocket"),
    # -- tokens
    Mistake("no token", line([2]), "call rpc.authenticate first", over="guarded"),
    Mistake("a wrong token", line({"token": "guess"}, method="rpc.authenticate"), "the token is not accepted", over="guarded"),
    Mistake("no token over HTTP", http(request([2])), "send the header Authorization: Bearer TOKEN", over="guarded http"),
    Mistake("a wrong token over HTTP", http(request([2]), "Authorization: Bearer guess"), "the token is not accepted", over="guarded http"),
]
# fmt: on


def error_text(error: dict[str, Any]) -> str:
    text, rest = readable(error["code"], error["message"], error.get("data"))
    return f"{error['code']} {text}" + (f" {json.dumps(rest, ensure_ascii=False)}" if rest else "")


def message_text(message: Any) -> str:
    if isinstance(message, list):
        return "[" + ", ".join(map(message_text, message)) + "]"
    return error_text(message["error"]) if "error" in message else f"result {orjson.dumps(message['result']).decode()}"


def of_lines(answer: bytes) -> str:
    return "; then ".join(message_text(orjson.loads(each)) for each in answer.splitlines())


def of_http(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].decode().removeprefix("HTTP/1.1 ")
    return f"{status}: {message_text(orjson.loads(body)) if body[:1] in (b'{', b'[') else body.decode().strip()}"


def of_websocket(answer: bytes) -> str:
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), head
    said = []
    while rest:
        opcode, size, start = rest[0] & 15, rest[1], 2
        if size == 126:
            size, start = int.from_bytes(rest[2:4]), 4
        payload, rest = rest[start : start + size], rest[start + size :]
        if opcode == 1:
            said.append(message_text(orjson.loads(payload)))
        elif payload[:2] != b"\x03\xe8":  # 1000 answers the close of the client
            said.append(f"closed with {int.from_bytes(payload[:2])}: {payload[2:].decode()}")
    return "; then ".join(said)


def of_any(answer: bytes) -> str:
    return of_http(answer) if answer.startswith(b"HTTP/") else of_lines(answer)


#: By kind of connection: the server, whether the client ends its half, and how the answer is read.
WAYS: dict[str, tuple[str, bool, Callable[[bytes], str]]] = {
    "line": ("plain", True, of_lines),
    "waiting": ("plain", False, of_lines),
    "http": ("plain", False, of_http),
    "websocket": ("plain", False, of_websocket),
    "tls": ("tls", False, of_any),
    "guarded": ("guarded", True, of_lines),
    "guarded http": ("guarded", False, of_http),
}


async def ask(address: str, mistake: Mistake, *, ends: bool) -> bytes:
    """All that the server answers, until it closes."""
    host, _, port = address.removeprefix("tls://").rpartition(":")
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(mistake.sent)
            if ends:
                writer.write_eof()
            return await reader.read()
        finally:
            writer.close()


async def ask_all() -> dict[str, str]:
    """What each mistake is answered, by its name; what is not answered, with the line in the log."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("rpcstream.server")
    log.addHandler(handler)
    servers = {
        "plain": make_server(),
        "guarded": make_server(token="a-long-secret"),
        "tls": make_server(tls=server_tls()),
    }
    try:
        async with AsyncExitStack() as stack:
            at = {name: await stack.enter_async_context(server.listening(port=0)) for name, server in servers.items()}
            asked: list[Awaitable[bytes]] = []
            for mistake in MISTAKES:
                server, ends, _ = WAYS[mistake.over]
                asked.append(ask(at[server], mistake, ends=ends))
            raw = await asyncio.gather(*asked)
    finally:
        log.removeHandler(handler)
    answers = {}
    for mistake, answer in zip(MISTAKES, raw, strict=True):
        text = WAYS[mistake.over][2](answer) if answer else ""
        if not text:
            text = "no reply"
            if not mistake.is_fine:
                (found,) = (each for each in logged if each.startswith("notification of"))
                text = f"no reply; in the server's log: {found.partition(' (it came')[0]}"
        answers[mistake.name] = without_details(text)
    return answers


def without_details(text: str) -> str:
    """Leave out what another version of the parser, or another run, may say otherwise."""
    text = re.sub(r"Parse error: [^;]*?: (line \d+ column \d+) \(char \d+\)", r"Parse error: … \1", text)
    return re.sub(r"\d+ bytes or more", "… bytes or more", text)


@functools.cache
def answers() -> dict[str, str]:
    return asyncio.run(ask_all())


#: What many answers end in; the page says it once, in its introduction.
HINT = 'send one JSON object in UTF-8 (on a socket: on one line): {"jsonrpc": "2.0", "id": 1, "method": "rpc.ping"}'

#: Characters of an answer on the page.
LONGEST = 110

INTRODUCTION = f"""\
# Mistakes, and what they are answered

<!-- Made by `python -m tests.conversation.test_mistakes`. Do not edit by hand: a test compares it. -->

Find the mistake behind an answer that your client in another language got. The server has `add(a: int, b: int = 0)`,
`norm(points)` (a float32 array with three columns), `resize(photo, mode)` (an image), `size(data)` (bytes) and the
generator `count(to)`. The tables show code, message and `data.reason`; programs find more in `data`.
HINT stands for `{HINT}`, and dots for details.

Only notifications (no `id`) are never answered; their errors are in the server's log. A message without a line end is
answered at once if it is a complete object or array. Otherwise the server waits until the client ends its half of the
connection, or for `message_timeout` (60 s; here 0.2 s).
"""

TITLES = {
    "line": "On a line stream",
    "http": "Over HTTP",
    "websocket": "Over WebSocket",
    "guarded": "Where a token is asked for",
}
GROUPS = {"waiting": "line", "tls": "line", "guarded http": "guarded"}


def cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def page() -> str:
    parts = [INTRODUCTION]
    for group, title in TITLES.items():
        parts.append(f"\n## {title}\n\n| answer | mistake |\n|---|---|\n")
        names: dict[str, list[str]] = {}
        for mistake in MISTAKES:
            if GROUPS.get(mistake.over, mistake.over) == group:
                answer = re.sub(r"… line \d+ column \d+", "…", answers()[mistake.name]).replace(HINT, "HINT")
                answer = answer if len(answer) <= LONGEST else answer[: LONGEST - 1] + "…"
                fine = "accepted: " if mistake.is_fine and answer != "no reply" else ""
                names.setdefault(fine + code(answer), []).append(mistake.name)
        parts += [f"| {cell(answer)} | {cell('; '.join(same))} |\n" for answer, same in names.items()]
    return "".join(parts)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "_"))
def test_each_mistake_is_answered_with_what_to_do(mistake: Mistake) -> None:
    answer = answers()[mistake.name]
    assert re.search(mistake.says, answer), answer
    is_refused = re.match(r"\[?-32\d{3} |[45]\d\d |closed with 10\d\d|no reply; in", answer) is not None
    is_refused = is_refused or re.match(r"200 OK: -32\d{3} ", answer) is not None
    assert is_refused is not mistake.is_fine, answer
    assert len(answer) < 400, "a text for people"


def test_the_page_is_made_of_this_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "stale: run python -m tests.conversation.test_mistakes"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
