"""Events as messages of NATS, and the retained events, which every instance keeps in memory.

An event is the same `$/event` message as on a connection, as text or as a binary frame. Any program of NATS may have
written what is read here.

Each retained event has a stamp, and the one with the larger stamp is the later one. So all instances come to the same
event, in whatever order they learn of two. An instance that joins, and a client that subscribes, ask one instance.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from typing import Any, NamedTuple

import orjson

from ..codec import payloads
from ..codec.attachments import CutLine, FrameLine, whole
from ..errors import MessageTooLarge, RpcError, ServerBusy, error_from_wire
from ..events.patterns import matches
from ..events.topics import MAX_RETAINED_SIZE, Keep, Topics
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..wire import envelope
from ..wire.binary_frame import MARK, parts_of_frame, read_header
from ..wire.buffers import AttachedMessage, Encoded, padding
from ..wire.json_scan import is_deeper
from .link import NatsLink, is_unanswerable
from .messages import LAST, decoded, event_subject, event_tokens
from .protocol import UNSENT_MAX, NatsMessage

#: Bytes that are left for the headers of a last value.
HEADERS_MAX = 1024

#: What the reply subject of an event begins with that one of several processes of a server has published. The id of the
#: server follows.
OF_PROCESSES = "rpcstream.processes."


class ReadEvent(NamedTuple):
    """An event as it is given to those who read it: the params of its message, and the message."""

    params: dict[str, Any]
    line: bytes


class PassedEvent(NamedTuple):
    """An event as a server passes it on: its message for connections, and whether its value is null."""

    message: Encoded
    is_null: bool


def topic_of(message: NatsMessage, prefix: int, events_log: LimitedLog) -> str | None:
    """Return the topic of an event; None, and log it, if its subject does not name one.

    Args:
        message: the message.
        prefix: characters of the subject that come before the topic.
        events_log: gets the warning.
    """
    topic = decoded(message.subject[prefix:])
    if topic is None:
        text = "an event on NATS is skipped, since its subject is not a topic: %s"
        events_log.warning(None, text, message.subject)
    return topic


def payload_of(message: Encoded, limit: int) -> bytes:
    """The bytes that NATS carries for the message of an event.

    Raises:
        MessageTooLarge: they are more than it carries (`max_payload`).
    """
    is_frame = type(message) is AttachedMessage
    payload = b"".join(parts_of_frame(message)) if is_frame else bytes(message)  # type: ignore[arg-type]
    if len(payload) > limit - HEADERS_MAX:
        limit -= HEADERS_MAX
        reason = f"an event of {len(payload)} bytes is more than NATS carries ({limit}; max_payload of its server)"
        raise MessageTooLarge(data={"limit": limit, "size": len(payload), "reason": reason})
    return payload


def read_event(data: bytes, topic: str, limits: Limits) -> ReadEvent:
    """Read an event as a client gives it out.

    Args:
        data: the payload.
        topic: the one that its subject names.
        limits: `max_values` and `max_json_size`.

    Raises:
        ValueError: it is not an event of this topic, or over a limit.
    """
    message, line = _read_frame(data, limits) if data[:1] == bytes((MARK,)) else payloads.parse(data, limits)
    if type(message) is not dict or message.get("method") != envelope.EVENT:
        raise ValueError("it is no `$/event` message")
    params = message.get("params")
    if type(params) is not dict or "value" not in params or params.get("topic") != topic:
        raise ValueError("its params are not this topic, and a value")
    return ReadEvent(params, line)


def passed_on(data: bytes, topic: str, limits: Limits) -> PassedEvent:
    """Return an event for the connections of a server; its message is on one line.

    Args:
        data, topic: as for `read_event`.
        limits: the same, and `max_depth`.

    Raises:
        ValueError: it is not an event of this topic, or over a limit.
    """
    params, line = read_event(data, topic, limits)
    if is_deeper(line, limits.max_depth):
        raise ValueError(f"it is nested deeper than {limits.max_depth} levels (max_depth)")
    if type(line) is FrameLine:
        message: Encoded = whole(_on_one_line(bytes(line)), line)
    else:
        if isinstance(line, CutLine):  # its payloads were not looked at
            payloads.parse_whole(data, limits)
        message = _on_one_line(data)
    return PassedEvent(message, params["value"] is None)


def _on_one_line(text: bytes) -> bytes:
    """Return JSON without line ends: outside of strings they mean nothing, and inside none may stand."""
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return text.strip()


def _read_frame(data: bytes, limits: Limits) -> tuple[Any, bytes]:
    head, _, rest = data.partition(b"\n")
    header = read_header(head + b"\n")
    if any(header.places) or len(rest) != header.body_size:
        raise ValueError("a binary frame that is not whole")
    frame = payloads.read_frame(rest[: header.json_size], header.sizes, limits, "server")
    if frame.refusal is not None:
        raise ValueError(str(frame.refusal))
    message, line = frame.content
    at = header.json_size
    for memory, size in zip(line.take_memory(), header.sizes, strict=True):
        memory[:] = rest[at : at + size]
        at += size + padding(size)
    return message, line


# -- retained events ---------------------------------------------------------------------------------------------------

#: Seconds that an instance has to send the last values.
ANSWER_TIME = 6.0

#: Requests for last values that wait for their answer at one instance.
ASKED_MAX = 1000

#: Seconds between two looks whether NATS takes more.
_PAUSE = 0.02

#: The header of an event that is a last value, or ends one; and what it holds.
_HEADER = "Rpc-Last"
_STAMP = re.compile(r"(keep|forget) ([0-9]{1,18})-([0-9a-f]{16})", re.ASCII)


class Stamp(NamedTuple):
    """Tells which of two last values of a topic is the later one: the one with the larger stamp.

    Attributes:
        clock: larger than that of each last value that the publisher knew.
        publisher: the id of the instance that published it, which decides between equal clocks.
    """

    clock: int
    publisher: str

    def headers(self, keep: Keep) -> dict[str, str]:
        """The headers of an event with this stamp."""
        return {_HEADER: f"{keep} {self.clock}-{self.publisher}"}


class LastValue(NamedTuple):
    """A last value, or the mark that it was removed.

    Attributes:
        data: the message of the event; empty if there is nothing to send.
        keep: whether this is the last value from now on, or there is none.
    """

    topic: str
    stamp: Stamp
    data: bytes
    keep: Keep


def value_in(message: NatsMessage, topic: str) -> LastValue | None:
    """The last value of a topic in a message; None if it is an ordinary event."""
    found = None if message.headers is None else _STAMP.fullmatch(message.headers.get(_HEADER, ""))
    if found is None:
        return None
    return LastValue(topic, Stamp(int(found[2]), found[3]), message.data, "keep" if found[1] == "keep" else "forget")


async def read_values(link: NatsLink, service: str, pattern: str) -> list[LastValue]:
    """Ask an instance for the last values of the topics that match a pattern, in the order they were published.

    Returns:
        The last values; none where no instance runs.

    Raises:
        TimeoutError: the instance did not send them in time.
        ServerBusy: it has too much to do, or sends more than a service may have.
        NotPermitted: NATS does not permit this login to ask for them.
        ConnectionError: the connection has ended.
    """
    values: list[LastValue] = []
    size = 0

    def take(tokens: str, message: NatsMessage) -> None:
        nonlocal size
        topic = decoded(tokens)
        value = None if topic is None else value_in(message, topic)
        size += len(message.data)
        if value is not None and size <= MAX_RETAINED_SIZE:
            values.append(value)

    subject = event_subject(service, pattern, LAST)
    answer = await link.request(subject, seconds=ANSWER_TIME, on_more=take)
    if is_unanswerable(answer):
        return []
    check_answer(answer)
    if size > MAX_RETAINED_SIZE:
        raise ServerBusy(f"Server busy: the last values of {pattern!r} have more than {MAX_RETAINED_SIZE} bytes")
    return values


def check_answer(answer: NatsMessage) -> None:
    """Raise the error that an instance has answered with, if it has."""
    try:
        reply = orjson.loads(answer.data)
    except orjson.JSONDecodeError:
        reply = None
    if reply is not True:
        raise error_from_wire(reply.get("error") if type(reply) is dict else None)


def send_answer(link: NatsLink, reply: str, error: RpcError | None = None) -> None:
    """Answer a request about last values: it was carried out, or refused with an error."""
    link.publish(reply, b"true" if error is None else orjson.dumps(envelope.error_reply(None, error)))


class Stamps:
    """The stamps of the last values that one instance knows, removed ones among them; the latest one is at the end.

    Used under the lock of the topics.
    """

    def __init__(self, topics: Topics, max_retained: int) -> None:
        self.by_topic: dict[str, Stamp] = {}
        self._publisher = secrets.token_hex(8)
        self._clock = 0
        self._retained = topics.retained
        self._max = 4 * max_retained

    def make(self, topic: str) -> Stamp:
        """Stamp a last value that this instance publishes."""
        self._clock += 1
        return self._set(topic, Stamp(self._clock, self._publisher))

    def take(self, topic: str, stamp: Stamp) -> bool:
        """Take the stamp of a last value of another instance; return False if a later one is known."""
        self._clock = max(self._clock, stamp.clock)
        known = self.by_topic.get(topic)
        if known is not None and known >= stamp:
            return False
        self._set(topic, stamp)
        return True

    def _set(self, topic: str, stamp: Stamp) -> Stamp:
        self.by_topic.pop(topic, None)
        self.by_topic[topic] = stamp
        if len(self.by_topic) > self._max:  # there are more removed values than need to be known
            kept = self._retained.messages
            removed = [each for each in self.by_topic if each not in kept and each != topic]
            for each in removed[: self._max // 2]:
                del self.by_topic[each]
        return stamp


class Answers:
    """Sends the last values of one instance to those who ask for them, one after the other."""

    def __init__(self, link: NatsLink, topics: Topics, stamps: Stamps) -> None:
        self._link = link
        self._topics = topics
        self._stamps = stamps
        #: Patterns, and where the answers go.
        self._asked: deque[tuple[str, str]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, pattern: str, reply: str) -> None:
        """Answer a request as soon as those before it are answered."""
        if len(self._asked) >= ASKED_MAX:
            send_answer(self._link, reply, ServerBusy("Server busy: too many programs ask for last values"))
            return
        self._asked.append((pattern, reply))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    def stop(self) -> None:
        """Answer nothing more."""
        self._asked.clear()

    async def _send_all(self) -> None:
        while self._asked:
            pattern, reply = self._asked.popleft()
            with self._topics.lock:
                messages = self._topics.retained.messages
                known = [(topic, stamp, messages.get(topic)) for topic, stamp in self._stamps.by_topic.items()]
            for topic, stamp, message in known:
                if not matches(pattern, topic):
                    continue
                try:
                    payload = b"" if message is None else payload_of(message, self._link.max_payload)
                except MessageTooLarge:
                    continue
                headers = stamp.headers("forget" if message is None else "keep")
                self._link.publish(f"{reply}.{event_tokens(topic)}", payload, headers=headers)
                while self._link.is_open and self._link.unsent > UNSENT_MAX:
                    await asyncio.sleep(_PAUSE)
            send_answer(self._link, reply)
            await asyncio.sleep(0)
