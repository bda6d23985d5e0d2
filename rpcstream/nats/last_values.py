"""The last values of a service's topics, which every instance keeps in memory.

Each last value has a stamp, and the one with the larger stamp is the later one, so all instances come to the same value
in whatever order they learn of two. An instance that joins, and a client that subscribes, ask one instance for them.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from typing import NamedTuple

import orjson

from ..errors import MessageTooLarge, RpcError, ServerBusy, error_from_wire
from ..events.patterns import matches
from ..events.topics import MAX_RETAINED_SIZE, Keep, Topics
from ..wire import envelope
from .event_messages import payload_of
from .link import NatsLink, is_unanswerable
from .protocol import UNSENT_MAX, NatsMessage
from .subjects import LAST, decoded, event_subject, event_tokens

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
