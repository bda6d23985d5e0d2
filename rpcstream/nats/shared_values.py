"""Keeps the last values of one instance and those that JetStream has for its service the same.

JetStream's order decides which of two values is the later one. Without JetStream each instance keeps last values of its
own, and the log says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing

from ..backoff import Backoff
from ..errors import MessageTooLarge, NotPermitted, RpcError, ServerBusy
from ..events.topics import LATE_MAX, Keep, Topics
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from .event_messages import payload_of
from .last_values import ANSWER_TIME, LastValues, NoLastValues, StoredValue
from .link import NatsLink

log = get_logger("rpcstream.nats")

#: Values that JetStream was sent and has not confirmed; beyond that, the last value of each topic waits. JetStream
#: stores this many in about 50 ms.
UNCONFIRMED_MAX = 1000

#: Seconds until a value that JetStream did not take is sent again.
RETRY = 2.0

#: The pauses before the values are read again.
JOINING = Backoff(first=0.5, longest=10.0)

#: Gives a value of another publisher to the subscribers here; False if one of this instance is on its way.
Receive = Callable[[str, bytes, Keep], bool]


class SharedValues:
    """The last values of one instance, shared through JetStream.

    Args:
        service: the name of the service.
        limits: of the server.
        receive: gets the values of others.
    """

    def __init__(self, service: str, limits: Limits, receive: Receive) -> None:
        self._service = service
        self._limits = limits
        self._receive = receive
        self._topics: Topics | None = None
        self._log = LimitedLog(log)
        self._link: NatsLink | None = None
        self._values: LastValues | None = None
        self._following: asyncio.Task[None] | None = None
        #: One for each value that JetStream was sent and has not answered.
        self._storing: set[asyncio.Task[None]] = set()
        self._failures = 0
        #: It was logged that the values are not shared.
        self._is_told = False
        #: Topics whose last value is stored when that is possible.
        self._late: dict[str, None] = {}
        #: By topic: values of this instance that its subscribers have and JetStream has not confirmed. Meanwhile, the
        #: latest value of others, which JetStream has stored before or after these.
        self._unconfirmed: Counter[str] = Counter()
        self._deferred: dict[str, StoredValue] = {}
        #: By topic: the revision of the last value that is known here.
        self._revisions: dict[str, int] = {}

    @property
    def is_shared(self) -> bool:
        """JetStream has all values, and sends those of others; may be called in any thread."""
        return self._values is not None

    def join(self, topics: Topics) -> None:
        """Share the last values of these topics. Under their lock."""
        self._topics = topics
        self.put_later(topics.retained.messages)

    # -- the connection -----------------------------------------------------------------------------------------------

    async def begin(self, link: NatsLink) -> None:
        """Share the values on this connection; return when they are shared, or cannot be for now.

        Where the NATS server has no JetStream, another one of its cluster may have it, but most likely there is none.
        It is asked for with the first value, so that a service without any needs no permission for it.
        """
        self._link = link
        if link.has_jetstream or self._late:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._start(link).wait(), ANSWER_TIME)

    def use(self) -> None:
        """Share the values, since there is one now."""
        if self._following is None and self._link is not None:
            self._start(self._link)

    def _start(self, link: NatsLink) -> asyncio.Event:
        is_decided = asyncio.Event()
        self._following = asyncio.get_running_loop().create_task(self._share(link, is_decided))
        return is_decided

    def end(self) -> None:
        """Store what is not confirmed on the next connection, since this one has ended. Under the lock."""
        for task in (*self._storing, self._following):
            if task is not None:
                task.cancel()
        self._link = self._values = self._following = None
        self.put_later(self._unconfirmed)
        self._unconfirmed.clear()
        self._deferred.clear()

    async def _share(self, link: NatsLink, is_decided: asyncio.Event) -> None:
        """Follow the values until the connection ends."""
        while True:
            try:
                await self._follow(link, is_decided)
            except ConnectionError:
                return
            except (NoLastValues, RpcError) as error:
                self._failures += 1
                self._warn(error)
            finally:
                is_decided.set()
            await asyncio.sleep(JOINING.pause(self._failures))

    def _warn(self, error: Exception) -> None:
        if self._late and not self._is_told:
            self._is_told = True
            text = "the last values (retain) of the service %s are not shared, each instance keeps its own: %s"
            log.warning(text, self._service, _text(error))

    async def _follow(self, link: NatsLink, is_decided: asyncio.Event) -> None:
        """Read all values, and then each one that is stored."""
        values = LastValues(link, self._service)
        await values.make(self._limits)
        missing = dict(self._revisions)
        async with aclosing(values.follow(">")) as changes:
            async for value in changes:
                if value is not None:
                    missing.pop(value.topic, None)
                    self._on_value(value)
                    continue
                self._forget(missing)
                self._values, self._failures = values, 0
                if self._is_told:
                    self._is_told = False
                    log.info("the last values of the service %s are shared now", self._service)
                is_decided.set()
                self.put_waiting()

    def _forget(self, missing: dict[str, int]) -> None:
        """Forget values that were known before, and that JetStream has no more."""
        for topic, revision in missing.items():
            if self._revisions.get(topic) == revision and topic not in self._late:
                del self._revisions[topic]
                self._receive(topic, b"", "forget")

    # -- to JetStream -------------------------------------------------------------------------------------------------

    def put_later(self, topics: Iterable[str]) -> None:
        """Store the last values of these topics when that is possible; in any thread."""
        for topic in topics:
            self._late[topic] = None
            if len(self._late) > LATE_MAX:
                self._late.popitem()

    def put_waiting(self) -> None:
        """Store the values that wait for that, as many as JetStream takes."""
        assert self._topics is not None
        while self._late and self.is_shared and self._link is not None and len(self._storing) < UNCONFIRMED_MAX:
            topic, _ = self._late.popitem()
            message = self._topics.retained.messages.get(topic)
            try:
                payload = b"" if message is None else payload_of(message, self._link.max_payload)
            except MessageTooLarge as error:
                self._log.warning(topic, "the last value of %s is not shared: %s", topic, _text(error))
            else:
                self.put(topic, payload, is_end=message is None, on_refused=lambda: None)

    def expects(self, topic: str) -> bool:
        """Whether a value of this instance is on its way."""
        return topic in self._unconfirmed

    def put(self, topic: str, payload: bytes, *, is_end: bool, on_refused: Callable[[], object]) -> None:
        """Store the last value of a topic, and have JetStream send its event.

        Args:
            topic: the topic.
            payload: the message of the event; empty if there is nothing to send.
            is_end: remove the last value.
            on_refused: called if it will not be stored; the value stays here.
        """
        values = self._values
        if values is None or len(self._storing) >= UNCONFIRMED_MAX:
            self.put_later((topic,))
            return
        self._late.pop(topic, None)  # this one is later
        self._unconfirmed[topic] += 1
        task = asyncio.get_running_loop().create_task(self._store(values, topic, payload, is_end, on_refused))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store(
        self, values: LastValues, topic: str, payload: bytes, is_end: bool, on_refused: Callable[[], object]
    ) -> None:
        try:
            self._remember(topic, await values.put(topic, payload, is_end=is_end))
        except (ServerBusy, NotPermitted) as error:
            self._log.warning(topic, "the last value of %s is not shared: %s", topic, _text(error))
            on_refused()
        except NoLastValues as error:
            self.put_later((topic,))
            self._log.warning(None, "last values are stored later: %s", error)
            await asyncio.sleep(RETRY)
        except ConnectionError:
            return  # `end` has it stored on the next connection
        self._unconfirmed[topic] -= 1
        if not self._unconfirmed[topic]:
            del self._unconfirmed[topic]
        deferred = self._deferred.pop(topic, None)
        if deferred is not None:
            self._on_value(deferred)
        self.put_waiting()

    async def settle(self, seconds: float) -> None:
        """Wait up to these seconds until JetStream has confirmed what it was sent."""
        if self._storing:
            await asyncio.wait(self._storing, timeout=seconds)

    # -- from JetStream -----------------------------------------------------------------------------------------------

    def _on_value(self, value: StoredValue) -> None:
        """Take a value that was stored, by any publisher, unless a later one is known."""
        topic = value.topic
        if value.revision <= self._revisions.get(topic, 0) or topic in self._late:
            return
        if self._receive(topic, value.data, "forget" if value.is_end else "keep"):
            self._remember(topic, value.revision)
        else:
            self._deferred[topic] = value  # JetStream may have stored the one of this instance before it, or after it

    def _remember(self, topic: str, revision: int) -> None:
        revisions = self._revisions
        revisions[topic] = max(revision, revisions.get(topic, 0))
        if len(revisions) > 4 * self._limits.max_retained:  # those of removed values are among them
            for old in sorted(revisions, key=revisions.__getitem__)[: len(revisions) // 2]:
                del revisions[old]


def _text(error: Exception) -> str:
    """Return why an error was raised."""
    return str(error.data["reason"]) if isinstance(error, RpcError) and error.data else str(error)
