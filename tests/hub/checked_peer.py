"""Peers of a hub that send what a run tells them, and compare what they receive with what was requested.

Every request has a token of its own among its params, and every right answer, item and progress brings it back. So a
message that reaches the wrong peer is noticed, however equal the ids are.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_values = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: Values that JSON parsers read differently: a hub has to pass them on as they are written.
EXACT = b'[1.10,-0.0,1180591620717411303424,1E5,"\\u0041\\/"]'


@dataclass(eq=False)
class SentRequest:
    """A request that a peer has sent.

    Attributes:
        call_id: as JSON, as it was sent; "" for a notification.
        method: as its provider calls it.
        limited: whether it has a deadline.
        due: loop time, s, by which it must be answered; None if never.
        credit: items that are permitted; None where no stream was asked for.
        provider: the peer that it came to, if it came to one.
        is_sure: nothing at its caller can delay its answer.
    """

    token: int
    call_id: str
    method: str
    limited: bool
    due: float | None = None
    credit: int | None = None
    upload: str | None = None
    provider: CheckedPeer | None = None
    answers: list[Any] = field(default_factory=list)
    items: int = 0
    is_sure: bool = True
    was_cancelled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it waits for its answer."""
        return self.call_id != "" and not self.answers


@dataclass(eq=False)
class ReceivedRequest:
    """A request that came to a provider: its id there, the request it stems from, and the items permitted."""

    call_id: int
    sent: SentRequest | None
    method: str
    params: dict[str, Any]
    credit: int | None
    items: int = 0
    permitted: int = 0


class RequestRecord:
    """All requests of one run, by their tokens, and the violations that were noticed."""

    def __init__(self) -> None:
        self.sent_requests: list[SentRequest] = []
        self.wrong: list[str] = []

    def find(self, token: Any) -> SentRequest | None:
        return self.sent_requests[token] if type(token) is int and 0 <= token < len(self.sent_requests) else None


def result_of(received: ReceivedRequest, more: str = "") -> str:
    """The right answer, as JSON."""
    token = received.sent.token if received.sent is not None else -1
    result = f'{{"token":{token},"exact":{EXACT.decode()}{more}}}'
    return f'{{"jsonrpc":"2.0","id":{received.call_id},"result":{result}}}'


def notification(method: str, **params: Any) -> str:
    """A notification."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def can_be_cancelled(call_id: str) -> bool:
    """Whether a cancel may name this id, given as JSON."""
    return type(json.loads(call_id)) in (str, int) and len(call_id) < 18


class CheckedPeer(asyncio.Protocol):
    """A peer at the end of a connection to the hub.

    Attributes:
        sent_requests: all that it sent.
        received_requests: those that came to it and are not answered; `done`: those that are.
        hub_replies: replies to its calls of the hub's own methods, by id.
        offered: methods that it has ever offered on this connection.
        topics: that it has ever subscribed to; `events`: those that came.
        reads: it reads; `was_held`: it has not been reading for a while, so nothing is known about times.
        has_ended: it sends nothing more; `is_gone`: nothing comes any more either.
    """

    def __init__(self, name: str, record: RequestRecord) -> None:
        self.name = name
        self.record = record
        self.sent_requests: list[SentRequest] = []
        self.received_requests: list[ReceivedRequest] = []
        self.done: list[ReceivedRequest] = []
        self.hub_replies: dict[str, Any] = {}
        self.offered: set[str] = set()
        self.topics: list[str] = []
        self.events: list[tuple[str, Any]] = []
        self.key: str | None = None
        self.reads = True
        self.was_held = self.has_ended = self.is_gone = False
        self.uploads = 0
        self._transport: Any = None
        self._rest = b""

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

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

    # -- receiving ----------------------------------------------------------------------------------------------------

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
            self.hub_replies[json.loads(text)] = message
            return
        same = [sent for sent in self.sent_requests if sent.call_id == text]
        waiting = [sent for sent in same if sent.is_open]
        result = message.get("result")
        if isinstance(result, dict) and "token" in result:
            if "exact" in result and EXACT not in members["result"]:
                self.record.wrong.append(f"numbers have changed: {members['result']!r}")
            mine = [sent for sent in same if sent.token == result["token"]]
            waiting = [sent for sent in mine if self._is_open(sent)]
        elif "error" not in message:
            waiting = []
        if not waiting:
            self.record.wrong.append(f"{self.name} got an answer that is not its own: {str(message)[:300]}")
            return
        for sent in waiting[1:]:
            sent.is_sure = False
        waiting[0].answers.append(message)

    def _is_open(self, sent: SentRequest) -> bool:
        """Whether it waits for its answer. An error has no token: one that was taken for its own may be another's."""
        if not sent.is_open and "error" in sent.answers[0]:
            other = next((each for each in self.sent_requests if each.call_id == sent.call_id and each.is_open), None)
            if other is not None:
                other.answers, sent.answers = sent.answers, []
        return sent.is_open

    def _request(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message["method"] == "rpc.ping":
            self.say(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":"pong"}}')
            return
        sent = self.record.find(params.get("token")) if isinstance(params, dict) else None
        if sent is None or message["method"] not in self.offered or message["method"] != sent.method:
            self.record.wrong.append(f"{self.name} got a request that was not sent: {message}")
            return
        if sent.provider is not None:
            self.record.wrong.append(f"{sent} was carried out twice")
        sent.provider = self
        if "id" in message:
            self.received_requests.append(
                ReceivedRequest(message["id"], sent, message["method"], params, message.get("stream"))
            )
        elif sent.call_id:
            self.record.wrong.append(f"{sent} came without an id")

    def _item(self, params: dict[str, Any]) -> None:
        if "stream" in params:
            for received in [*self.received_requests, *self.done]:
                if received.params.get("up", {}).get("id") == params["stream"]:
                    received.items += 1
                    if (
                        received.sent is None
                        or params["value"] != received.sent.token
                        or received.items > received.permitted
                    ):
                        self.record.wrong.append(f"{self.name} got an item of another stream: {params}")
                    return
            self.record.wrong.append(f"{self.name} got an item of no stream: {params}")
            return
        sent = self.record.find(params["value"])
        if sent is None or sent not in self.sent_requests or json.loads(sent.call_id) != params["id"]:
            self.record.wrong.append(f"{self.name} got an item that is not its own: {params}")
            return
        sent.items += 1
        if sent.credit is None or sent.items > sent.credit or sent.answers:
            self.record.wrong.append(f"{self.name} got an item too many: {params}, {sent}")

    def _progress(self, params: dict[str, Any], members: dict[str, bytes]) -> None:
        token = _members(members["params"])["token"]
        sent = self.record.find(params["value"])
        if (
            sent is None
            or sent not in self.sent_requests
            or sent.call_id != bytes(token).decode()
            or not self._is_open(sent)
        ):
            self.record.wrong.append(f"{self.name} got a progress that is not its own: {params}")

    def _credit(self, params: dict[str, Any]) -> None:
        for received in self.received_requests:
            if params.get("id") == received.call_id and type(params.get("id")) is int:
                assert received.credit is not None
                received.credit += params["n"]
        for sent in self.sent_requests:
            if sent.upload is not None and sent.upload == params.get("stream") and sent.credit is None:
                sent.items += params["n"]

    # -- sending ------------------------------------------------------------------------------------------------------

    def say(self, *texts: str | bytes) -> None:
        """Send these messages, with one write."""
        if not self.has_ended and not self._transport.is_closing():
            lines = [text.encode() if isinstance(text, str) else text for text in texts]
            self._transport.write(b"".join(line + b"\n" for line in lines))

    def end(self, how: str) -> None:
        """End what is sent: "half" (a half-close), "empty" (an empty line), "close" or "abort"."""
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
        """Resume or pause reading."""
        self.reads, self.was_held = wanted, self.was_held or not wanted
        if not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()
