"""Ends of connections to a hub that say what a run wants, and compare what they hear with what was asked.

Every request carries a token of its own among its params, and every true answer, item and progress carries it back. So
what reaches the wrong one is seen, however equal the ids are.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_values = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: Values that no two readers of JSON agree on: they go through as they are written.
EXACT = b'[1.10,-0.0,1180591620717411303424,1E5,"\\u0041\\/"]'


@dataclass(eq=False)
class Ask:
    """One request of one connection.

    Attributes:
        call_id: as JSON, as it was sent; "" for a notification.
        method: as its provider calls it.
        limited: it has a deadline.
        due: loop time, s, by which it must be answered; None if never.
        credit: items that are permitted; None where no stream was asked for.
        provider: the connection that it came to, if it came to one.
        is_sure: nothing on its caller's side can hold its answer back.
    """

    token: int
    call_id: str
    method: str
    limited: bool
    due: float | None = None
    credit: int | None = None
    upload: str | None = None
    provider: End | None = None
    answers: list[Any] = field(default_factory=list)
    items: int = 0
    is_sure: bool = True
    was_cancelled: bool = False

    @property
    def is_open(self) -> bool:
        """It waits for its answer."""
        return self.call_id != "" and not self.answers


@dataclass(eq=False)
class Asked:
    """A request that came to a provider: its id there, the token in it, and what it may send for it."""

    call_id: int
    ask: Ask | None
    method: str
    params: dict[str, Any]
    credit: int | None
    items: int = 0
    permitted: int = 0


class Book:
    """All requests of one run, by their tokens, and what went wrong."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.wrong: list[str] = []

    def find(self, token: Any) -> Ask | None:
        return self.asks[token] if type(token) is int and 0 <= token < len(self.asks) else None


def result_of(asked: Asked, more: str = "") -> str:
    """The right answer, as JSON."""
    token = asked.ask.token if asked.ask is not None else -1
    result = f'{{"token":{token},"exact":{EXACT.decode()}{more}}}'
    return f'{{"jsonrpc":"2.0","id":{asked.call_id},"result":{result}}}'


def word(method: str, **params: Any) -> str:
    """A notification."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def can_be_cancelled(call_id: str) -> bool:
    """Is the id, as JSON, one that a cancel may name?"""
    return type(json.loads(call_id)) in (str, int) and len(call_id) < 18


class End(asyncio.Protocol):
    """A connection to the hub, from the other side.

    Attributes:
        asks: what it asked; `asked`: what came to it and was not answered; `done`: what was.
        offered: methods that it has ever offered on this connection.
        topics: that it has ever subscribed to; `events`: what came.
        reads: what is sent to it is taken; `was_held`: it was not, once, so nothing about times is known.
        has_ended: it says nothing more; `is_gone`: nothing comes any more either.
    """

    def __init__(self, name: str, book: Book) -> None:
        self.name = name
        self.book = book
        self.asks: list[Ask] = []
        self.asked: list[Asked] = []
        self.done: list[Asked] = []
        self.own: dict[str, Any] = {}
        self.offered: set[str] = set()
        self.topics: list[str] = []
        self.events: list[tuple[str, Any]] = []
        self.key: str | None = None
        self.reads = True
        self.was_held = self.has_ended = self.is_gone = False
        self.uploads = 0
        self._transport: Any = None
        self._rest = b""

    # -- what asyncio says --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            line = line.strip()
            if not line:
                continue
            json.loads(line)  # no line is ever anything but one message
            for raw in _values(line) if line.startswith(b"[") else [line]:
                self._hear(bytes(raw))

    def eof_received(self) -> bool:
        self.is_gone = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _hear(self, line: bytes) -> None:
        members = {name: bytes(raw) for name, raw in _members(line).items()}
        message = json.loads(line)
        method = message.get("method")
        if method is None:
            self._answered(members, message)
        elif not method.startswith("$/"):
            self._request(message)
        elif method == "$/item":
            self._item(message["params"])
        elif method == "$/progress":
            self._progress(message["params"], members)
        elif method == "$/credit":
            self._credit(message["params"])
        elif method == "$/event":
            self.events.append((message["params"]["topic"], message["params"]["value"]))

    def _answered(self, members: dict[str, bytes], message: dict[str, Any]) -> None:
        text = members["id"].decode()
        if text.startswith('"own-'):
            self.own[json.loads(text)] = message
            return
        same = [ask for ask in self.asks if ask.call_id == text]
        waiting = [ask for ask in same if ask.is_open]
        result = message.get("result")
        if isinstance(result, dict) and "token" in result:
            if "exact" in result and EXACT not in members["result"]:
                self.book.wrong.append(f"numbers have changed: {members['result']!r}")
            mine = [ask for ask in same if ask.token == result["token"]]
            waiting = [ask for ask in mine if self._is_open(ask)]
        elif "error" not in message:
            waiting = []
        if not waiting:
            self.book.wrong.append(f"{self.name} got an answer that is not its own: {str(message)[:300]}")
            return
        for ask in waiting[1:]:
            ask.is_sure = False
        waiting[0].answers.append(message)

    def _is_open(self, ask: Ask) -> bool:
        """Does it wait for its answer? An error carries no token: what was taken for its own may be another's."""
        if not ask.is_open and "error" in ask.answers[0]:
            other = next((each for each in self.asks if each.call_id == ask.call_id and each.is_open), None)
            if other is not None:
                other.answers, ask.answers = ask.answers, []
        return ask.is_open

    def _request(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message["method"] == "rpc.ping":
            self.say(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":"pong"}}')
            return
        ask = self.book.find(params.get("token")) if isinstance(params, dict) else None
        if ask is None or message["method"] not in self.offered or message["method"] != ask.method:
            self.book.wrong.append(f"{self.name} was asked what nobody asked: {message}")
            return
        if ask.provider is not None:
            self.book.wrong.append(f"{ask} was carried out twice")
        ask.provider = self
        if "id" in message:
            self.asked.append(Asked(message["id"], ask, message["method"], params, message.get("stream")))
        elif ask.call_id:
            self.book.wrong.append(f"{ask} came without an id")

    def _item(self, params: dict[str, Any]) -> None:
        if "stream" in params:
            for asked in [*self.asked, *self.done]:
                if asked.params.get("up", {}).get("id") == params["stream"]:
                    asked.items += 1
                    if asked.ask is None or params["value"] != asked.ask.token or asked.items > asked.permitted:
                        self.book.wrong.append(f"{self.name} got an item of another stream: {params}")
                    return
            self.book.wrong.append(f"{self.name} got an item of no stream: {params}")
            return
        ask = self.book.find(params["value"])
        if ask is None or ask not in self.asks or json.loads(ask.call_id) != params["id"]:
            self.book.wrong.append(f"{self.name} got an item that is not its own: {params}")
            return
        ask.items += 1
        if ask.credit is None or ask.items > ask.credit or ask.answers:
            self.book.wrong.append(f"{self.name} got an item too many: {params}, {ask}")

    def _progress(self, params: dict[str, Any], members: dict[str, bytes]) -> None:
        token = _members(members["params"])["token"]
        ask = self.book.find(params["value"])
        if ask is None or ask not in self.asks or ask.call_id != bytes(token).decode() or not self._is_open(ask):
            self.book.wrong.append(f"{self.name} got a progress that is not its own: {params}")

    def _credit(self, params: dict[str, Any]) -> None:
        for asked in self.asked:
            if params.get("id") == asked.call_id and type(params.get("id")) is int:
                assert asked.credit is not None
                asked.credit += params["n"]
        for ask in self.asks:
            if ask.upload is not None and ask.upload == params.get("stream") and ask.credit is None:
                ask.items += params["n"]

    # -- saying -------------------------------------------------------------------------------------------------------

    def say(self, *texts: str | bytes) -> None:
        """Send these messages, with one write."""
        if not self.has_ended and not self._transport.is_closing():
            lines = [text.encode() if isinstance(text, str) else text for text in texts]
            self._transport.write(b"".join(line + b"\n" for line in lines))

    def end(self, how: str) -> None:
        """Say nothing more: "half" (a half-close), "empty" (an empty line), "close" or "abort"."""
        if self._transport.is_closing() or (self.has_ended and how in ("half", "empty")):
            return
        self.has_ended = True
        if how == "half":
            self._transport.write_eof()
        elif how == "empty":
            self._transport.write(b"\n")
        else:
            self.is_gone = True
            (self._transport.close if how == "close" else self._transport.abort)()

    def read(self, wanted: bool) -> None:
        """Take what comes, or leave it where it is."""
        self.reads, self.was_held = wanted, self.was_held or not wanted
        if not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()
