"""Events between the hubs of a group: what is published at one reaches the subscribers of all, last values too.

Owns what hubs tell each other of subscriptions (`EventRelay` keeps them), how an event goes to another hub, and which
of two last values is the newer one. Knows neither how hubs find each other nor who may publish.

The messages:

* `rpc.group.subscriptions`: `changes` as in `events.relay`. A request: the answer says that they were seen.
* `$/event`: an event as any subscriber gets it. With `keep` ("keep" or "forget") it is sent to all hubs, and `stamp`
  says when it was published: nanoseconds of Unix time, never less than of any other that this hub has seen, and the id
  of the hub. The greatest stamp wins everywhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from ..codec import payloads
from ..errors import RpcError
from ..events.patterns import RESERVED, fault_of_pattern, fault_of_topic
from ..events.relay import LATE_MAX, SETTLE_TIME, EventRelay, Keep, Message, unpacked_event
from ..events.topics import Topics
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..peer.pending import PendingCall
from ..text import get_logger
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded, parts_of, size_as_text
from . import passthrough
from .registrations import SYSTEM_TOPICS
from .remote_members import OtherHub

log = get_logger("rpcstream.hub")

SUBSCRIPTIONS = "rpc.group.subscriptions"

#: When an event was published, and by which hub.
Stamp = tuple[int, str]


class EventsOfHubs:
    """The other hubs, as the topics of this one see them.

    Args:
        limits: of the subscriptions and last values of this hub; those of others have as much room again.

    Attributes:
        hub: the id of this hub, in stamps.
    """

    def __init__(self, topics: Topics, *, limits: Limits) -> None:
        self.hub = ""
        self._topics = topics
        self._limits = limits
        self._relay = EventRelay(limits)
        topics.join(self._relay, counts_others=False)
        self._others: dict[int, OtherHub] = {}
        #: When the last value of a topic was published, or taken away; the oldest are forgotten first.
        self._stamps: dict[str, Stamp] = {}
        self._last_time = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._log = LimitedLog(log)

    def start(self) -> None:
        """The hub begins."""
        self._others.clear()
        self._relay.start(self._send, lambda: 0)

    def add(self, other: OtherHub) -> None:
        """Another hub is there: tell it the subscriptions here; `send_late` sends the last values."""
        self._others[other.number] = other
        for message in self._relay.introduction():
            self._tell(other, message["changes"])
        other.late = dict.fromkeys(self._stamps)
        other.late.update(dict.fromkeys(reversed(self._topics.topics_with_values())))

    def lost(self, other: OtherHub) -> None:
        """Another hub is gone, with the subscriptions there."""
        self._others.pop(other.number, None)
        self._relay.on_message({"type": "lost", "worker": other.number})

    # -- to other hubs ------------------------------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        """Send what the relay has for the others."""
        kind = message["type"]
        if kind == "subscriptions":
            self._tell_all(message["changes"], asks=bool(message.get("ask")))
        elif kind == "event":
            self._publish(message["topic"], unpacked_event(message), message["keep"], message["to"])

    def _tell_all(self, changes: list[Any], *, asks: bool) -> None:
        """Tell all hubs of changed subscriptions; where the relay asks, tell it when they have seen them."""
        others = list(self._others.values())
        question = None
        if asks:
            loop = asyncio.get_running_loop()
            question = _Question(set(others), lambda: self._relay.on_message({"type": "settled"}), loop)
        for other in others:
            self._tell(other, changes, question)

    def _tell(self, other: OtherHub, changes: list[Any], question: _Question | None = None) -> None:
        call_id = other.session.pending.add(_Seen(other, question))
        message = orjson.dumps(envelope.request(SUBSCRIPTIONS, {"changes": changes}, call_id=call_id))
        other.tell(message, self._log)

    def _publish(self, topic: str, message: Encoded | None, keep: Keep, to: list[int] | None) -> None:
        if keep:
            self._last_time = max(time.time_ns(), self._last_time + 1)
            self._stamp(topic, (self._last_time, self.hub))
            self._relay.on_message({"type": "kept", "topic": topic})
            message = _stamped(topic, message, keep, self._stamps[topic])
        if message is None:
            return
        others = list(self._others.values()) if to is None else [self._others[n] for n in to if n in self._others]
        for other in others:
            self._send_event(other, topic, message, is_kept=bool(keep))

    def _send_event(self, other: OtherHub, topic: str, message: Encoded, *, is_kept: bool) -> None:
        """Send an event to another hub; where it has no room for it, a last value is sent later."""
        try:
            if is_kept and topic in other.late:
                other.late[topic] = None  # it comes in its turn
            elif other.session.channel is not None:
                other.send(message)
        except RpcError:
            self._topics.count_dropped(1)
            if is_kept and len(other.late) < LATE_MAX:
                is_first = not other.late
                other.late[topic] = None
                if is_first:
                    task = other.session.loop.create_task(self.send_late(other))
                    self._sending.add(task)
                    task.add_done_callback(self._sending.discard)

    async def send_late(self, other: OtherHub) -> None:
        """Send last values for which there was no room, or which another hub does not know yet."""
        while other.late and other.session.channel is not None:
            await other.wait_for_room()
            topic = next(iter(other.late), None)
            if topic is None or other.session.channel is None:
                return
            del other.late[topic]
            message = self._relay.last_value(topic)
            stamp = self._stamps.get(topic)
            if stamp is None:
                continue  # so many have come since that it is not known any more which is the newer one
            try:
                other.send(_stamped(topic, message, "forget" if message is None else "keep", stamp))
            except RpcError as error:
                self._log.warning(other.hub, "a last value was not sent to the hub %s: %s", other.hub, error)

    def _stamp(self, topic: str, stamp: Stamp) -> None:
        """Note when the last value of a topic was published."""
        self._stamps.pop(topic, None)
        self._stamps[topic] = stamp
        if len(self._stamps) > 2 * self._limits.max_retained:
            del self._stamps[next(iter(self._stamps))]

    # -- from other hubs ----------------------------------------------------------------------------------------------

    def seen(self, other: OtherHub, params: Any) -> bool:
        """Take the changed subscriptions of another hub.

        Raises:
            ValueError: they have another form.
        """
        changes = params.get("changes") if type(params) is dict else None
        if type(changes) is not list:
            raise ValueError("there are no changes")
        read = [_change(other.number, change) for change in changes]
        self._relay.on_message({"type": "subscriptions", "changes": read})
        return True

    def take(self, other: OtherHub, params: dict[str, Any], line: bytes | bytearray) -> None:
        """Send an event of another hub to the subscribers of this one."""
        topic, keep = params.get("topic"), params.get("keep", "")
        reason = _fault_of(topic, keep)
        if reason is None and not payloads.is_json(line):
            reason = "its value is no JSON"
        if reason is not None or type(topic) is not str:
            self._log.warning(other.hub, "an event of the hub %s was dropped: %s", other.hub, reason)
            return
        message: Encoded | None = None
        if "value" in params:
            message = passthrough.event_of(passthrough.line_of(line, {"params": params}), topic)
            if size_as_text(message) > self._limits.max_event_size:
                self._log.warning(other.hub, "an event of the hub %s was dropped: it is too large", other.hub)
                return
            if type(message) is AttachedMessage:
                message.secure()
        if keep:
            stamp = _read_stamp(params.get("stamp"))
            known = self._stamps.get(topic)
            if stamp is None or (known is not None and stamp == known):
                return
            self._last_time = max(self._last_time, stamp[0])
            if known is not None and stamp < known:
                keep = ""
            else:
                self._stamp(topic, stamp)
        self._relay.receive(topic, message, keep)


class _Question:
    """Asks hubs whether they have seen what they were told.

    Args:
        on_end: called once, when all have answered or `SETTLE_TIME` seconds have passed.

    Attributes:
        waits_for: those that have not answered.
    """

    def __init__(self, waits_for: set[OtherHub], on_end: Callable[[], object], loop: asyncio.AbstractEventLoop) -> None:
        self.waits_for = waits_for
        self._on_end: Callable[[], object] | None = on_end
        # Not at once where there are none: the relay is in the middle of its turn.
        self._timer = loop.call_later(SETTLE_TIME if waits_for else 0, self.end)

    def answered(self, other: OtherHub) -> None:
        """A hub has answered, or is gone."""
        if other in self.waits_for:
            self.waits_for.discard(other)
            if not self.waits_for:
                self.end()

    def end(self) -> None:
        """Wait no more."""
        self._timer.cancel()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


class _Seen(PendingCall):
    """A message with subscriptions that a hub has not answered."""

    __slots__ = ("_other", "_question")

    method = SUBSCRIPTIONS

    def __init__(self, other: OtherHub, question: _Question | None) -> None:
        self._other = other
        self._question = question

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        if self._question is not None:
            self._question.answered(self._other)

    def fail(self, error: Exception) -> None:
        if self._question is not None:
            self._question.answered(self._other)


def _change(number: int, change: Any) -> list[Any]:
    """A change of another hub's subscriptions as the relay takes it; ValueError if it has another form."""
    if type(change) is not list or len(change) not in (1, 3) or type(change[0]) is not int:
        raise ValueError("a change of subscriptions has another form")
    key = (number, change[0])
    if len(change) == 1:
        return [key]
    topic, denied = change[1:]
    patterns = denied if denied is not None else []
    if type(patterns) is not list or any(type(each) is not str for each in (topic, *patterns)):
        raise ValueError("a change of subscriptions has another form")
    for each in (topic, *patterns):
        if (fault := fault_of_pattern(each)) is not None:
            raise ValueError(f"the topic {each!r:.100} {fault}")
    return [key, topic, denied]


def _fault_of(topic: Any, keep: Any) -> str | None:
    """Why an event of another hub is not taken."""
    if type(topic) is not str or keep not in ("", "keep", "forget"):
        return "it has another form"
    if (fault := fault_of_topic(topic)) is not None:
        return f"the topic {topic!r:.100} {fault}"
    if topic.startswith(RESERVED) and not topic.startswith(SYSTEM_TOPICS):
        return f"the topic {topic!r:.100} is reserved"
    return None


def _read_stamp(stamp: Any) -> Stamp | None:
    if type(stamp) is list and len(stamp) == 2 and type(stamp[0]) is int and type(stamp[1]) is str:
        # No clock is ahead by more than a day: one that says so would win for ever.
        return (stamp[0], stamp[1]) if 0 < stamp[0] < time.time_ns() + 86_400 * 10**9 else None
    return None


def _stamped(topic: str, message: Encoded | None, keep: Keep, stamp: Stamp) -> Encoded:
    """Write an event that is a last value, or that there is none any more."""
    more = b',"keep":"%b","stamp":%b}}' % (keep.encode(), orjson.dumps(stamp))
    if message is None:
        return b'{"jsonrpc":"2.0","method":"$/event","params":{"topic":%b' % passthrough.text_of(topic) + more
    if type(message) is AttachedMessage:
        *pieces, last = message.pieces
        return AttachedMessage([*pieces, _open_end(last) + more], message.payloads, is_secured=True)
    return _open_end(b"".join(parts_of(message))) + more


def _open_end(text: bytes) -> bytes:
    """A message without the braces at its end."""
    assert text.endswith(b"}}")
    return text[:-2]
