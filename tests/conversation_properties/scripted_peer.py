"""A peer that sends what a run tells it: right answers, and everything that peers get wrong."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from rpcstream import RpcError

from .reference_model import ConnectionModel, ExpectedCall, ReferenceModel
from .service import FAILURE, answer_of

#: Ways to answer a call. Well: "right", in a batch, with an error. Wrongly: twice, again later, with an id of another
#: type, of another connection or of no call; once for all calls; with more items than permitted.
MANNERS = ("right", "batch", "mixed", "error", "twice", "again", "text", "float", "true", "foreign", "forged", "null")
MANNERS += ("flood", "item")

#: Ids as JSON: some are equal in Python, and yet no two are the same id.
IDS = ("1", '"1"', "1.0", "2", "null", '"s"')

Key = tuple[str, Any]


class ScriptedPeer(asyncio.Protocol):
    """A raw peer that sends what it is told to send, and keeps what it receives.

    Args:
        others: gives all scripted peers.
        calls_on: the model of the connection whose calls come here, where that is another one.

    Attributes:
        asked: the requests that the other end has made and that were not answered, and those that were.
        replies: how many came for each id (its type and the id itself), and what they said.
        credit: items that the other end permitted for each stream.
        was_left: the other end closed the connection although nothing had been done to it.
    """

    def __init__(
        self,
        connection: ConnectionModel,
        model: ReferenceModel,
        others: Callable[[], list[ScriptedPeer]],
        calls_on: ConnectionModel | None = None,
    ) -> None:
        self.connection = connection
        self.asked: list[dict[str, Any]] = []
        self.answered: list[dict[str, Any]] = []
        self.replies: dict[Key, list[dict[str, Any]]] = {}
        self.items: Counter[str] = Counter()
        self.credit: Counter[str] = Counter()
        self.is_open = self.has_ended = self.was_left = False
        self._transport: Any = None
        self._partial = b""
        self._calls_on = calls_on or connection
        self._model = model
        self._others = others
        self._requests: dict[Key, list[ExpectedCall]] = {}
        self._cancelled: set[Key] = set()
        self._streams: dict[str, int] = {}
        self._uploads: dict[str, ExpectedCall] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            message = json.loads(line)  # which keeps integers of any size
            for one in message if isinstance(message, list) else [message]:
                self.hear(one)

    def eof_received(self) -> bool:
        self._is_left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._is_left()

    def _is_left(self) -> None:
        self.was_left = self.was_left or not self.connection.was_touched
        self.connection.touch()

    def hear(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self.replies.setdefault(_key(message["id"]), []).append(message)
            for expected in self._requests.get(_key(message["id"]), []):
                # Several requests may have the same id: a result tells which of them it answers.
                if not expected.is_answered and ("result" not in message or _fits(expected, message["result"])):
                    expected.is_answered = True
                    break
        elif "id" in message:
            self.asked.append(message)
        elif method == "$/item":
            self.items[str(message["params"].get("id"))] += 1
        elif method == "$/credit":
            self.credit[str(message["params"].get("stream"))] += message["params"]["n"]

    def say(self, *texts: str) -> None:
        """Send these messages, with one write."""
        if self.is_open and not self.has_ended:
            self._transport.write("".join(f"{text}\n" for text in texts).encode())

    def end(self, how: str) -> None:
        """End what is sent: "half" (a half-close), "empty" (an empty line), "close" or "abort"."""
        if not self.is_open or (self.has_ended and how in ("half", "empty")):
            return
        self.connection.touch()
        self.has_ended = True
        if how == "half":
            self._transport.write_eof()
        elif how == "empty":
            self._transport.write(b"\n")
        elif how == "close":
            self._transport.close()
        else:
            self._transport.abort()

    def read(self, wanted: bool) -> None:
        """Resume or pause reading."""
        if self.is_open and not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def answer(self, place: int, manner: str) -> None:
        """Answer one of the calls that wait, in a manner of `MANNERS`."""
        if self.has_ended or not self.is_open:
            return
        among = self.answered if manner == "again" else self.asked
        if not among:
            if manner == "null":
                self._refuse_all("nothing is right")
            elif manner == "forged":
                self.say(_reply(10**6, "forged"))
            return
        message = among[place % len(among)]
        call_id, (_, number, *_) = message["id"], message["params"]
        expected = self._model.of(number)
        right = self._right(message)
        match manner:
            case "right":
                self._answered(message, *right)
            case "mixed" if self.connection.name != "z":
                self._answered(message, *right[:-1], f"[{right[-1]},{self._request('now', None, '2')}]")
            case "batch" | "mixed":
                self._answered(message, *right[:-1], f"[{right[-1]}]")
            case "error":
                expected.told.append((7, f"error {number}"))
                self._answered(message, _error(call_id, 7, f"error {number}"))
            case "twice":
                self._answered(message, *right)
                self.say(right[-1])
            case "null":
                self._refuse_all(f"refused with {number}")
            case "flood":
                self._flood(message, expected)
            case "item" if "stream" not in message:
                self.say(_notification("$/item", id=call_id, value="forged"))
            case "again":
                self.say(right[-1])
            case _:
                self.say(_reply(self._wrong_id(call_id, manner), "forged"))

    def _right(self, message: dict[str, Any]) -> list[str]:
        """The right messages: for a stream an item, then the reply."""
        who, number, *_ = message["params"]
        if "stream" not in message:
            return [_reply(message["id"], answer_of(message["method"], who, number))]
        item = _notification("$/item", id=message["id"], value=["confirm", who, number])
        return [item, _reply(message["id"], None)]

    def _wrong_id(self, call_id: int, manner: str) -> Any:
        open_here = [message["id"] for message in self.asked]
        others = [message["id"] for other in self._others() if other is not self for message in other.asked]
        foreign = [other for other in others if other not in open_here]
        if manner == "foreign" and foreign and not self._may_be_asked_more():
            return foreign[0]
        return {"text": str(call_id), "float": float(call_id), "true": True}.get(manner, 10**6)

    def _may_be_asked_more(self) -> bool:
        """Whether a call may be on its way here: what its id is cannot be seen."""
        read = [message["params"][1] for message in self.asked]
        return any(
            each.task is not None and not each.is_over and each.number not in read
            for each in self._calls_on.expected_calls
        )

    def _refuse_all(self, reason: str) -> None:
        """Send one error without an id, which fails all calls that wait."""
        for expected in self._calls_on.expected_calls:
            if expected.task is None or not expected.is_over:  # of requests with one id it is not known which is over
                expected.told.append((-1, reason))
        self.say(_error(None, -1, reason))
        self.answered += self.asked
        self.asked.clear()

    def _flood(self, message: dict[str, Any], expected: ExpectedCall) -> None:
        """Send more items than were permitted, where a stream was asked for."""
        if "stream" in message:
            expected.told.append((-32600, "Invalid Request"))
            who, number, *_ = message["params"]
            self._answered(message, *[_notification("$/item", id=message["id"], value=["confirm", who, number])] * 9)

    def _answered(self, message: dict[str, Any], *texts: str) -> None:
        self.asked.remove(message)
        self.answered.append(message)
        self.say(*texts)

    def request(self, kind: str, limit: float | None, text: str, since: float) -> ExpectedCall | None:
        """Call the server, with this id as JSON."""
        if self.has_ended or not self.is_open:
            return None
        self.say(self._request(kind, limit, text, since))
        return self._requests[_key(json.loads(text))][-1]

    def _request(self, kind: str, limit: float | None, text: str, since: float = 0.0) -> str:
        name, number = self.connection.name, self._model.number()
        code = FAILURE + number if kind == "fails" else None
        self._enter(
            ExpectedCall(number, kind, self.connection, answer_of(kind, name, number), code=code, limit=limit), text
        )
        self._model.expected_calls[-1].since = since
        timeout = "" if limit is None else f'"timeout":{limit},'
        return f'{{"jsonrpc":"2.0","id":{text},{timeout}"method":"{kind}","params":["{name}",{number}]}}'

    def _enter(self, expected: ExpectedCall, text: str) -> None:
        self._model.enter(expected)
        if self.connection.is_crowded:  # a cancel that waits among requests of one read may be for a later one
            expected.was_cancelled = _key(json.loads(text)) in self._cancelled
        self._requests.setdefault(_key(json.loads(text)), []).append(expected)

    def request_stream(self, n: int, credit: int) -> ExpectedCall | None:
        """Ask for a stream of `n` items, and permit some."""
        if self.has_ended or not self.is_open:
            return None
        name, number = self.connection.name, self._model.number()
        expected = ExpectedCall(number, "count", self.connection, None)
        self._enter(expected, f'"s{number}"')
        self._streams[f"s{number}"] = n
        message = {"jsonrpc": "2.0", "id": f"s{number}", "method": "count", "params": [name, number, n]}
        self.say(json.dumps({**message, "stream": credit}))
        return expected

    def permit(self, expected: ExpectedCall, n: int) -> None:
        self.say(_notification("$/credit", id=f"s{expected.number}", n=n))

    def request_upload(self) -> ExpectedCall | None:
        """Begin to send items."""
        if self.has_ended or not self.is_open:
            return None
        name, number = self.connection.name, self._model.number()
        expected = ExpectedCall(number, "total", self.connection, ["total", name, number, 0])
        self._enter(expected, f'"u{number}"')
        self._uploads[f"t{number}"] = expected
        params = [name, number, {"$type": "stream", "id": f"t{number}"}]
        self.say(json.dumps({"jsonrpc": "2.0", "id": f"u{number}", "method": "total", "params": params}))
        return expected

    def item(self, expected: ExpectedCall) -> None:
        """Send one more item; one that is not permitted ends the stream."""
        token = f"t{expected.number}"
        if token not in self._uploads:
            return
        place = expected.answer[3]
        if place >= self.credit[token]:  # as far as is known here
            expected.told.append((-32600, "Invalid Request"))
        expected.answer[3] = place + 1
        self.say(_notification("$/item", stream=token, value=[self.connection.name, expected.number, place]))

    def end_upload(self, expected: ExpectedCall) -> None:
        """End the stream, unless the server may drop that because it has more requests than it takes at once."""
        token = f"t{expected.number}"
        if token in self._uploads and (self.credit[token] or not self.connection.is_crowded):
            del self._uploads[token]
            self.say(_notification("$/end", stream=f"t{expected.number}"))

    def cancel(self, text: str) -> None:
        """Cancel the request with this id."""
        self._cancelled.add(_key(json.loads(text)))
        for expected in self._requests.get(_key(json.loads(text)), []):
            expected.was_cancelled = True
        self.say(f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{text}}}}}')

    def finish(self) -> bool:
        """Answer and end all that is open; returns whether a request was."""
        if not self.is_open or self.has_ended:
            return False
        found = bool(self.asked)
        for message in list(self.asked):
            self._answered(message, *self._right(message))
        for expected in list(self._uploads.values()):
            self.end_upload(expected)
        for name, n in self._streams.items():
            if not self.replies.get(("str", name)) and self.items[name] < n:
                self.say(_notification("$/credit", id=name, n=n))
        self._streams = {name: n for name, n in self._streams.items() if self.items[name] < n}
        return found

    @property
    def is_over(self) -> bool:
        """No message is expected any more."""
        expected_calls = [expected for expected_calls in self._requests.values() for expected in expected_calls]
        return not self.is_open or self.has_ended or (not self.asked and all(each.is_over for each in expected_calls))

    def check(self, now: float) -> None:
        """Assert that each request had one right answer, and that no other answer came."""
        assert not self.was_left, f"the connection of {self.connection.name} was closed without a reason"
        assert not set(self.replies) - set(self._requests), "answers to what was never asked"
        for key, expected_calls in self._requests.items():
            left = _unanswered(self.replies.get(key, []), expected_calls, now)
            assert left is not None, f"wrong answers, or too many: {self.replies[key]}, to {expected_calls}"
            assert not left or self.connection.was_touched, f"never answered: {left}"


def _unanswered(
    replies: list[dict[str, Any]], expected_calls: list[ExpectedCall], now: float
) -> list[ExpectedCall] | None:
    """The calls that no reply belongs to; None if a reply belongs to no call."""
    if not replies:
        return expected_calls
    reply, *others = replies
    for expected in expected_calls:
        if _may_answer(reply, expected, now):
            left = _unanswered(others, [other for other in expected_calls if other is not expected], now)
            if left is not None:
                return left
    return None


def _may_answer(reply: dict[str, Any], expected: ExpectedCall, now: float) -> bool:
    if "result" in reply:
        return expected.code is None and _fits(expected, reply["result"])
    return expected.may_end_with(RpcError(reply["error"]["code"], reply["error"]["message"]), now)


def _fits(expected: ExpectedCall, result: Any) -> bool:
    """Compare results; those of uploads that were cut off without the number of items."""
    if expected.kind == "total" and expected.told:
        return bool(result[:3] == expected.answer[:3])
    return bool(result == expected.answer)


def _key(call_id: Any) -> Key:
    return type(call_id).__name__, call_id


def _reply(call_id: Any, result: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "result": result})


def _error(call_id: Any, code: int, text: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "error": {"code": code, "message": text}})


def _notification(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})
