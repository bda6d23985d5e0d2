"""Passes events and subscriptions on between the workers of a supervisor.

Owns which worker has which subscriptions, the last values for workers that start later, and what a slow worker is
spared. Events are not looked into. The messages are described in `events.relay`, which is the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ..errors import ServerBusy
from ..events.relay import SETTLE_TIME, EventOutbox, Message, SubscriptionChanges, packed_event, unpacked_event
from ..events.retained import Retained
from ..text import get_logger

log = get_logger("rpcstream.supervisor")


class Worker(Protocol):
    """A worker, as far as events are concerned."""

    @property
    def number(self) -> int: ...

    @property
    def waiting_size(self) -> int: ...

    def send(self, message: Message) -> None: ...


class Question:
    """Asks workers whether they have seen what one of them has told, and tells that one when they have, or it is late.

    Args:
        asked: the workers that are asked.
        on_end: called once, when all have answered or `SETTLE_TIME` seconds have passed.
    """

    def __init__(self, asked: Iterable[Member], on_end: Callable[[], object]) -> None:
        self._waits_for = set(asked)
        self._on_end: Callable[[], object] | None = on_end
        for member in self._waits_for:
            member.next_questions.add(self)
        self._timer = asyncio.get_running_loop().call_later(SETTLE_TIME, self._end)
        if not self._waits_for:
            self._end()

    def answered(self, member: Member) -> None:
        """A worker has seen it, or has ended."""
        self._waits_for.discard(member)
        if not self._waits_for:
            self._end()

    def _end(self) -> None:
        self._timer.cancel()
        for member in self._waits_for:
            member.next_questions.discard(self)
            member.questions.discard(self)
        self._waits_for.clear()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


class Member:
    """A worker that events are passed on to.

    Attributes:
        subscriptions: its own, by the number of the connection; each topic with what is denied of it.
        changes: what it is still to be told of those of others.
        questions: those that the messages which it has not seen yet belong to.
        next_questions: those that belong to what it is told next.
        is_asked: it has been told something, and has not said that it has seen it.
    """

    def __init__(self, worker: Worker, last_value: Callable[[str], Message]) -> None:
        self.worker = worker
        self.subscriptions: dict[int, dict[str, list[str]]] = {}
        self.changes = SubscriptionChanges()
        self.outbox = EventOutbox(worker.send, lambda: worker.waiting_size, last_value)
        self.questions: set[Question] = set()
        self.next_questions: set[Question] = set()
        self.is_asked = False


class EventExchange:
    """Joins the workers' events."""

    def __init__(self) -> None:
        self._members: dict[Worker, Member] = {}
        self._limits = (0, 0)
        self._retained = Retained(*self._limits)
        self._is_binary = False

    def add(self, worker: Worker, max_retained: int, max_retained_size: int) -> None:
        """Pass events on to a worker from now on, and tell it what there is.

        Args:
            worker: that is ready.
            max_retained: topics of which the last value is kept, as the worker keeps them.
            max_retained_size: bytes of these.
        """
        self._set_limits((max_retained, max_retained_size))
        member = self._members[worker] = Member(worker, self._last_value)
        if self._is_binary:
            worker.send({"type": "binary"})
        member.changes.begin_anew()
        self._tell(member)
        for topic, _ in reversed(self._retained.newest(">")):
            member.outbox.put(self._last_value(topic))

    def remove(self, worker: Worker) -> None:
        """Forget a worker whose process has ended, and tell the others."""
        member = self._members.pop(worker, None)
        if member is None:
            return
        for question in member.questions | member.next_questions:
            question.answered(member)
        for other in self._members.values():
            other.changes.forget((worker.number, connection) for connection in member.subscriptions)
            other.worker.send({"type": "lost", "worker": worker.number})

    def on_room(self, worker: Worker) -> None:
        """A worker has taken all that was sent to it."""
        member = self._members.get(worker)
        if member is not None:
            member.outbox.on_room()

    def on_message(self, worker: Worker, message: Message) -> None:
        """Handle a message of one of `events.relay.KINDS`."""
        member = self._members.get(worker)
        if member is None:
            return
        kind = message["type"]
        if kind == "event":
            self._pass_on(member, message)
        elif kind == "subscriptions":
            self._change(member, message)
        elif kind == "seen":
            member.is_asked = False
            questions, member.questions = member.questions, set()
            for question in questions:
                question.answered(member)
            self._tell(member)
        elif kind == "binary" and not self._is_binary:
            self._is_binary = True
            for other in self._others(member):
                other.worker.send({"type": "binary"})

    def _others(self, member: Member) -> list[Member]:
        return [each for each in self._members.values() if each is not member]

    # -- events -------------------------------------------------------------------------------------------------------

    def _pass_on(self, source: Member, message: Message) -> None:
        keep, to = message["keep"], message.pop("to")
        if keep:
            self._keep(message)
            source.worker.send({"type": "kept", "topic": message["topic"]})
        for member in self._others(source):
            if (to is None or member.worker.number in to) and not member.outbox.put(message):
                source.worker.send({"type": "dropped"})

    def _keep(self, message: Message) -> None:
        topic, value = message["topic"], unpacked_event(message)
        if value is None or message["keep"] == "forget":
            self._retained.forget(topic)
            return
        try:
            self._retained.keep(topic, value)
        except ServerBusy as error:  # two workers have kept the last ones for which there was room
            log.warning("a last value is not kept for workers that start later: %s", error)

    def _last_value(self, topic: str) -> Message:
        value = self._retained.get(topic)
        return packed_event(topic, value, "forget" if value is None else "keep", None)

    def _set_limits(self, limits: tuple[int, int]) -> None:
        """Keep as many last values as the workers do."""
        if self._limits != limits:
            before, self._retained, self._limits = self._retained, Retained(*limits), limits
            for topic, value in before.newest(">"):
                with contextlib.suppress(ServerBusy):
                    self._retained.keep(topic, value)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def _change(self, source: Member, message: Message) -> None:
        """Take changes of a worker's subscriptions over, and pass them on."""
        others = self._others(source)
        number = source.worker.number
        if message.get("reset"):
            self._leave(source, list(source.subscriptions), others)
        for connection, *rest in message["changes"]:
            if not rest:
                self._leave(source, [connection], others)
                continue
            topic, denied = rest
            topics = source.subscriptions.setdefault(connection, {})
            if denied is None:
                topics.pop(topic, None)
            else:
                topics[topic] = denied
            for other in others:
                if denied is None:
                    other.changes.remove((number, connection), topic)
                else:
                    other.changes.add((number, connection), topic, denied)
        if message.get("ask"):
            Question(others, lambda: source.worker.send({"type": "settled"}))
        for other in others:
            self._tell(other)

    def _leave(self, source: Member, connections: list[int], others: list[Member]) -> None:
        for connection in connections:
            source.subscriptions.pop(connection, None)
            for other in others:
                other.changes.leave((source.worker.number, connection))

    def _tell(self, member: Member) -> None:
        """Tell a worker what has changed, unless it has not seen yet what it was told before."""
        if member.is_asked or not (member.changes or member.next_questions):
            return
        messages = member.changes.take(lambda: self._subscriptions_of_others(member))
        member.is_asked = True
        member.questions, member.next_questions = member.next_questions, set()
        for message in messages:
            member.worker.send(message)

    def _subscriptions_of_others(self, member: Member) -> Mapping[tuple[int, int], Mapping[str, list[str]]]:
        return {
            (other.worker.number, connection): topics
            for other in self._others(member)
            for connection, topics in other.subscriptions.items()
        }
