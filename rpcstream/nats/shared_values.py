"""The last values of one instance, and those of its service in JetStream: that both come to be the same.

Owns what is stored when, what has changed there, and which of two values is the later one: JetStream's order decides.
Where there is no JetStream each instance keeps last values of its own, and the log says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from ..backoff import Backoff
from ..errors import MessageTooLarge, NotPermitted, RpcError, ServerBusy
from ..events.topics import LATE_MAX, Keep
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.buffers import Encoded
from .asking import ANSWER_TIME
from .event_messages import payload_of
from .last_values import LastValues, NoLastValues, StoredValue, Watch
from .link import NatsLink

log = get_logger("rpcstream.nats")

#: Values that JetStream has been sent and has not confirmed; of more, the last one of each topic waits. As many as it
#: stores in some 50 ms.
UNCONFIRMED_MAX = 1000

#: Seconds until JetStream is tried again that did not take values.
RETRY = 2.0

#: The pauses before it is tried again where it was not there.
JOINING = Backoff(first=0.5, longest=10.0)


class Recipient(Protocol):
    """The events of the instance; to be called without their lock."""

    def receive(self, topic: str, data: bytes, keep: Keep) -> bool:
        """Give a value of others to the subscribers here; False if one of this instance is on its way."""

    def stored(self, topic: str) -> None:
        """JetStream has answered: one value of this instance less is on its way."""

    def last_value(self, topic: str) -> Encoded | None:
        """The message with the present last value of a topic here."""


class SharedValues:
    """The last values of one instance, as JetStream has them.

    Args:
        service: the service.
        limits: of the server.
        origin: the id of the instance.
        recipient: gets what has changed, and has the values of this instance.

    Attributes:
        is_shared: JetStream has all values, and brings those of others.
    """

    def __init__(self, service: str, limits: Limits, origin: str, recipient: Recipient) -> None:
        self.is_shared = False
        self._service = service
        self._limits = limits
        self._origin = origin
        self._recipient = recipient
        self._log = LimitedLog(log)
        self._link: NatsLink | None = None
        self._values: LastValues | None = None
        self._watch: Watch | None = None
        self._joining: asyncio.Task[None] | None = None
        #: Some value was retained here; why the values are not shared, and whether that was logged.
        self._is_used = self._is_told = False
        self._reason: str | None = None
        #: Topics whose last value is stored when that is possible.
        self._late: dict[str, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        #: By topic: values of this instance that its subscribers have and JetStream has not confirmed; and meanwhile
        #: the latest of others, which came before one of these, or after it.
        self._unconfirmed: Counter[str] = Counter()
        self._deferred: dict[str, StoredValue] = {}
        #: Values that JetStream was sent and has not answered.
        self._asked = 0
        #: By topic: the number of the last value that is known here. While the values are read: which were.
        self._numbers: dict[str, int] = {}
        self._read: set[str] | None = None
        self._settled: asyncio.Event = asyncio.Event()

    # -- the connection -----------------------------------------------------------------------------------------------

    async def begin(self, link: NatsLink) -> None:
        """Share the values by this connection; returns when they are, or when it is known why they are not.

        Where the NATS server has no JetStream, another one of its cluster may have it, but most likely there is none:
        it is asked for with the first value, so that a service without any needs no permission for it.
        """
        self._link = link
        if not link.has_jetstream and not self._late:
            return
        first = self._join_soon(link)
        assert self._joining is not None
        await asyncio.wait({first, self._joining}, return_when=asyncio.FIRST_COMPLETED)

    def use(self) -> None:
        """A value was retained here."""
        if not self._is_used:
            self._is_used = True
            if self._reason is not None:
                self._tell(self._reason)
        if self._joining is None and self._link is not None:
            self._join_soon(self._link)

    def _join_soon(self, link: NatsLink) -> asyncio.Future[None]:
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._joining = asyncio.get_running_loop().create_task(self._join(link, first))
        return first

    def end(self) -> None:
        """The connection is over. Under the lock."""
        self.is_shared = False
        if self._joining is not None:
            self._joining.cancel()
        if self._watch is not None:
            self._watch.stop()
        if self._retry is not None:
            self._retry.cancel()
        self.put_later(self._unconfirmed)
        self._unconfirmed.clear()
        self._deferred.clear()
        self._asked = 0
        self._settled.set()
        self._link = self._values = self._watch = self._joining = self._retry = None

    async def _join(self, link: NatsLink, first: asyncio.Future[None]) -> None:
        """Try until the values are shared."""
        failures = 0
        while link is self._link:
            try:
                await self._share(link)
                return
            except ConnectionError:
                return
            except (NoLastValues, RpcError) as error:
                self._reason = error.data["reason"] if isinstance(error, NotPermitted) else str(error)
                if self._is_used or self._late:
                    self._tell(self._reason)
            finally:
                if not first.done():
                    first.set_result(None)
            failures += 1
            await asyncio.sleep(JOINING.pause(failures))

    async def _share(self, link: NatsLink) -> None:
        values = LastValues(link, self._service)
        await values.make(self._limits)
        current = asyncio.Event()
        self._read = set()
        before = max(self._numbers.values(), default=0)
        watch = Watch(values, self._on_value, current.set)
        try:
            await watch.begin()
            await asyncio.wait_for(current.wait(), ANSWER_TIME)
        except BaseException as error:
            await watch.end()
            if isinstance(error, TimeoutError):
                raise NoLastValues(f"JetStream did not send them in {ANSWER_TIME:g} s") from error
            raise
        self._forget_missing(before)
        watch.guard()
        self._values, self._watch, self.is_shared, self._reason = values, watch, True, None
        if self._is_told:
            self._is_told = False
            log.info("the last values of the service %s are shared now", self._service)
        self.put_waiting()

    def _forget_missing(self, before: int) -> None:
        """Forget values that were known before, and that are gone."""
        read, self._read = self._read or set(), None
        for topic, number in list(self._numbers.items()):
            if number <= before and topic not in read and topic not in self._late:
                del self._numbers[topic]
                self._recipient.receive(topic, b"", "forget")

    def _tell(self, reason: str) -> None:
        """Say once why the values are not shared."""
        if not self._is_told:
            self._is_told = True
            text = "the last values (retain) of the service %s are not shared, each instance keeps its own: %s"
            log.warning(text, self._service, reason)

    # -- to JetStream -------------------------------------------------------------------------------------------------

    def put_later(self, topics: Iterable[str]) -> None:
        """Store the last values of these topics when that is possible; in any thread."""
        for topic in topics:
            self._late[topic] = None
            if len(self._late) > LATE_MAX:
                self._late.popitem()

    def put_waiting(self) -> None:
        """Store the values that wait for that, as many as JetStream takes."""
        while self._late and self.is_shared and self._link is not None and self._asked < UNCONFIRMED_MAX:
            topic, _ = self._late.popitem()
            message = self._recipient.last_value(topic)
            try:
                payload = b"" if message is None else payload_of(message, self._link.max_payload)
            except MessageTooLarge as error:
                self._log.warning(topic, "the last value of %s is not shared: %s", topic, error.data["reason"])
                continue
            self.expect(topic)
            self.put(topic, payload, is_end=message is None, on_refused=lambda payload: None)

    def expect(self, topic: str) -> None:
        """A value of this instance is on its way to JetStream. Under the lock of the topics, in any thread."""
        self._unconfirmed[topic] += 1
        self._settled.clear()

    def expect_no_more(self, topic: str) -> None:
        """One less is on its way. Under the lock."""
        self._unconfirmed[topic] -= 1
        if self._unconfirmed[topic] <= 0:
            del self._unconfirmed[topic]
        if not self._unconfirmed:
            self._settled.set()

    def expects(self, topic: str) -> bool:
        """Whether a value of this instance is on its way. Under the lock."""
        return topic in self._unconfirmed

    def put(self, topic: str, payload: bytes, *, is_end: bool, on_refused: Callable[[bytes], object]) -> bool:
        """Store the last value of a topic, which is expected, and have its event sent.

        Args:
            payload: the message of the event; empty: there is nothing to send.
            is_end: there is no last value any more.
            on_refused: called with the payload if it is not stored, and will not be; the value stays here.

        Returns:
            False if it is stored later, with what follows it.
        """
        values = self._values
        if values is None or self._asked >= UNCONFIRMED_MAX:
            self.put_later((topic,))
            return False
        self._late.pop(topic, None)  # this one is later
        self._asked += 1
        stored = values.put(topic, payload, is_end=is_end, origin=self._origin)
        stored.add_done_callback(partial(self._stored, values, topic, payload, on_refused))
        return True

    def _stored(
        self,
        values: LastValues,
        topic: str,
        payload: bytes,
        on_refused: Callable[[bytes], object],
        stored: asyncio.Future[int],
    ) -> None:
        """JetStream has stored a value, or not."""
        error = stored.exception()
        if values is not self._values:
            return  # that connection is over: it is stored again
        self._asked -= 1
        if error is None:
            self._numbers[topic] = max(stored.result(), self._numbers.get(topic, 0))
        elif isinstance(error, ServerBusy | NotPermitted):
            text = "the last value of %s is not shared: %s"
            self._log.warning(topic, text, topic, error.data["reason"] if error.data else error)
            on_refused(payload)
        else:
            self.put_later((topic,))
            self._log.warning(None, "last values are stored later: %s", error)
            self._put_again()
        self._recipient.stored(topic)
        deferred = self._deferred.pop(topic, None)
        if deferred is not None:
            self._on_value(deferred)
        if self._retry is None:
            self.put_waiting()

    def _put_again(self) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY, self._is_time)

    def _is_time(self) -> None:
        self._retry = None
        self.put_waiting()

    async def settle(self, seconds: float) -> None:
        """Wait until JetStream has confirmed all that it was sent, for so many seconds."""
        if self._unconfirmed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), seconds)

    # -- from JetStream -----------------------------------------------------------------------------------------------

    def _on_value(self, value: StoredValue) -> None:
        """A value was stored, by anything."""
        topic = value.topic
        if self._read is not None:
            self._read.add(topic)
        if value.number <= self._numbers.get(topic, 0) or topic in self._late:
            return
        if value.origin == self._origin:  # its subscribers here have it
            self._remember(topic, value.number)
        elif not self._recipient.receive(topic, value.data, "forget" if value.is_end else "keep"):
            self._deferred[topic] = value  # perhaps that one comes before this one
        else:
            self._remember(topic, value.number)

    def _remember(self, topic: str, number: int) -> None:
        numbers = self._numbers
        numbers[topic] = number
        if len(numbers) > 4 * self._limits.max_retained:  # those that have ended are among them
            for old in sorted(numbers, key=numbers.__getitem__)[: len(numbers) // 2]:
                del numbers[old]
