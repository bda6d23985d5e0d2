"""Passes events and subscriptions on between the workers of a supervisor.

The messages are described in `event_relay`, which is the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import ServerBusy
from ..events.retained import Retained
from ..text import get_logger
from .event_relay import SETTLE_TIME, EventOutbox, Link, Message, Subscription, SubscriptionChanges, unpacked_event

log = get_logger("rpcstream.supervisor")


class Worker(Link, Protocol):
    """A worker, as far as events are concerned."""

    @property
    def number(self) -> int: ...


class Member:
    """A worker that events are passed on to.

    Attributes:
        subscriptions: its own.
        changes: what it is still to be told of those of others.
    """

    def __init__(self, worker: Worker, exchange: EventExchange) -> None:
        self.worker = worker
        self.subscriptions: set[tuple[int, str]] = set()
        everything = partial(exchange.subscriptions_of_others, self)
        self.changes = SubscriptionChanges(everything, worker, contextlib.nullcontext())
        self.outbox = EventOutbox(worker.send, lambda: worker.waiting_size, lambda: exchange.retained)


class EventExchange:
    """Joins the workers' events."""

    def __init__(self) -> None:
        self._members: dict[Worker, Member] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._max_retained = 0
        self.retained = Retained(0)

    def add(self, worker: Worker, max_retained: int) -> None:
        """Pass events on to a worker from now on, and tell it what there is.

        Args:
            worker: that is ready.
            max_retained: topics of which the last value is kept, as the worker keeps them.
        """
        self._set_max_retained(max_retained)
        member = self._members[worker] = Member(worker, self)
        member.changes.tell()
        member.outbox.put_last_values(self.retained.messages)

    def remove(self, worker: Worker) -> None:
        """Forget a worker whose process has ended, and tell the others."""
        member = self._members.pop(worker, None)
        if member is None:
            return
        self._change(member, [(*subscription, False) for subscription in member.subscriptions])
        for other in self._members.values():
            other.changes.tell()

    def on_room(self, worker: Worker) -> None:
        """A worker has taken all that was sent to it."""
        member = self._members.get(worker)
        if member is not None:
            member.outbox.put_last_values()

    def on_message(self, worker: Worker, message: Message) -> None:
        """Handle a message of one of `event_relay.KINDS`."""
        member = self._members.get(worker)
        if member is None:
            return
        kind = message["type"]
        if kind == "event":
            self._pass_on(member, message)
        elif kind == "subscriptions":
            self._take(member, message)

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
            self.retained.forget(topic)
            return
        try:
            self.retained.keep(topic, value)
        except ServerBusy as error:  # two workers have kept the last ones for which there was room
            log.warning("a last value is not kept for workers that start later: %s", error)

    def _set_max_retained(self, max_retained: int) -> None:
        """Keep as many last values as the workers do."""
        if self._max_retained != max_retained:
            before, self.retained, self._max_retained = self.retained, Retained(max_retained), max_retained
            for topic, value in reversed(before.messages.items()):
                with contextlib.suppress(ServerBusy):
                    self.retained.keep(topic, value)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def _take(self, source: Member, message: Message) -> None:
        """Take changes of a worker's subscriptions over, and pass them on."""
        if message.get("reset"):
            self._change(source, [(*subscription, False) for subscription in source.subscriptions])
        self._change(source, message["changes"])
        told = [other.changes.tell() for other in self._others(source)]
        if "ask" in message:
            answer = asyncio.get_running_loop().create_task(self._answer(source, message, told))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    async def _answer(self, source: Member, message: Message, told: list[asyncio.Task[None]]) -> None:
        """Answer when the others have been told, or some are too slow."""
        if told:
            await asyncio.wait(told, timeout=SETTLE_TIME)
        source.worker.answer(message, {})

    def _change(self, source: Member, changes: Iterable[Sequence[Any]]) -> None:
        for connection, name, is_there in changes:
            change = source.subscriptions.add if is_there else source.subscriptions.discard
            change((connection, name))
            for other in self._others(source):
                other.changes.add((source.worker.number, connection), name, is_there)

    def subscriptions_of_others(self, member: Member) -> list[Subscription]:
        return [
            ((other.worker.number, connection), name)
            for other in self._others(member)
            for connection, name in other.subscriptions
        ]
