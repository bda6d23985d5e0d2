"""Requests to NATS itself, as to JetStream, on a connection that others use as well.

Owns the subjects of the answers, time limits, and what is denied. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio

from ..errors import NotPermitted
from .link import NatsLink, NatsMessage, is_unanswerable

#: Seconds that JetStream has for an answer. It has a leader again within some 4 s after the one before was lost.
ANSWER_TIME = 6.0


class NoAnswer(Exception):
    """Nothing answers on that subject, or not in time; the text says which."""


class LateAnswer(NoAnswer):
    """There was none in time."""


class Asker:
    """Asks on one connection.

    Args:
        link: it.
    """

    def __init__(self, link: NatsLink) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._inbox = link.client.new_inbox()
        self._last = 0
        #: By the number of the request: the subject that was asked, and what gets the answer.
        self._waiting: dict[int, tuple[str, asyncio.Future[NatsMessage]]] = {}
        self._started: asyncio.Future[None] | None = None
        #: Why no answer can come.
        self._fault: Exception | None = None
        link.denied.append(self._on_denied)
        link.ended.append(self._on_ended)

    async def start(self) -> None:
        """Subscribe for the answers.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self._started is None:
            self._started = asyncio.ensure_future(self._subscribe())
        await asyncio.shield(self._started)

    async def _subscribe(self) -> None:
        await self._link.subscribe(f"{self._inbox}.*", self._on_answer)

    def ask(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> asyncio.Future[NatsMessage]:
        """Send a request; `start` was awaited before.

        Returns:
            Gets the answer; or NoAnswer, NotPermitted, or ConnectionError where the connection ends before.
        """
        self._last += 1
        number = self._last
        future: asyncio.Future[NatsMessage] = self._loop.create_future()
        self._waiting[number] = subject, future
        timer = self._loop.call_later(ANSWER_TIME, self._is_late, number)

        def over(_: object) -> None:
            timer.cancel()
            self._waiting.pop(number, None)

        future.add_done_callback(over)
        fault = self._fault if self._link.is_open else ConnectionError(self._link.reason)
        if fault is not None:
            self._settle(number, fault)
            return future
        self._link.publish(subject, payload, f"{self._inbox}.{number}", headers)
        return future

    def _on_answer(self, message: NatsMessage) -> None:
        number = message.subject.rpartition(".")[2]
        if is_unanswerable(message):
            self._settle(int(number), NoAnswer("nothing answers"))
            return
        _, future = self._waiting.pop(int(number), ("", None))
        if future is not None and not future.done():
            future.set_result(message)

    def _settle(self, number: int, error: Exception) -> None:
        _, future = self._waiting.pop(number, ("", None))
        if future is not None and not future.done():
            future.set_exception(error)

    def _is_late(self, number: int) -> None:
        self._settle(number, LateAnswer(f"no answer within {ANSWER_TIME:g} s"))

    def _on_denied(self, what: str, subject: str) -> None:
        if what == "subscription" and subject.lower() == f"{self._inbox}.*".lower():
            self._fault = denied("subscribe", f"{self._inbox}.*")
            for number in list(self._waiting):
                self._settle(number, self._fault)
        if what == "publish":
            for number in [each for each, (asked, _) in self._waiting.items() if asked.lower() == subject.lower()]:
                self._settle(number, denied("publish", self._waiting[number][0]))

    def _on_ended(self, reason: str) -> None:
        for number in list(self._waiting):
            self._settle(number, ConnectionError(reason))


def denied(what: str, subject: str) -> NotPermitted:
    """The error for what NATS does not permit this login."""
    reason = f"NATS does not permit this login to {'publish' if what == 'publish' else 'subscribe'} to {subject}"
    return NotPermitted(data={"reason": reason})
