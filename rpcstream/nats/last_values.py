"""The last values of a service's topics, in a JetStream key-value bucket.

An event that becomes a last value is published once, to the bucket. JetStream stores it, and then publishes it to the
subject of its topic (`republish`) with its revision (`Nats-Sequence`), so subscribers there get it like any other
event, in the order in which it was stored. A program that subscribes first and then reads the bucket gets each value,
and the revisions tell which values came twice.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import nats.errors
import nats.js.errors
from nats.js import api

from ..errors import NotPermitted, ServerBusy
from ..events.retained import MAX_RETAINED_SIZE
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from .event_messages import topic_of
from .link import NatsLink, NatsMessage
from .subjects import event_prefix, event_tokens

log = get_logger("rpcstream.nats")

#: Seconds that JetStream has for an answer. It has a leader again about 4 s after the one before was lost.
ANSWER_TIME = 6.0

#: Seconds between two heartbeats of JetStream, and the silence after which the values are read again.
HEARTBEAT, SILENCE = 5.0, 15.0

#: Seconds after which JetStream forgets a consumer whose reader is gone.
_FORGET_AFTER = 30

#: How long JetStream remembers that a last value was removed, for readers that are away meanwhile.
_ENDED_FOR = "1h"

#: Copies of the bucket in a cluster.
_COPIES = 3

#: Codes of JetStream's errors: it is off for this account; no such stream; too many values or bytes; too few nodes.
_IS_OFF, _NO_STREAM, _FULL, _FEW_NODES = 10039, 10059, (10047, 10077), (10005, 10074)

#: Headers: the value was removed; the revision that JetStream gave it.
_OPERATION, REVISION = "KV-Operation", "Nats-Sequence"

Answer = TypeVar("Answer")


class NoLastValues(Exception):
    """Last values cannot be shared here; the text says why."""


class NotNow(Exception):
    """JetStream does not answer in time, or refuses for a reason that may pass."""


class StoredValue(NamedTuple):
    """A last value, or the mark that it was removed.

    Attributes:
        topic: the topic.
        revision: counts up with each value that the bucket stores.
        data: the message of the event; empty if there is nothing to send.
        is_end: the last value was removed.
    """

    topic: str
    revision: int
    data: bytes
    is_end: bool


class LastValues:
    """The bucket of one service, on one connection.

    Args:
        link: the connection.
        service: the name of the service.
    """

    def __init__(self, link: NatsLink, service: str) -> None:
        self._link = link
        self._service = service
        self._jetstream = link.client.jetstream(timeout=ANSWER_TIME)
        self._manager = link.client.jsm(timeout=ANSWER_TIME)
        self._bucket = f"rpc_{service}_last"
        self._stream = f"KV_{self._bucket}"
        self._prefix = f"$KV.{self._bucket}."
        self._log = LimitedLog(log, each=1)

    # -- the bucket ---------------------------------------------------------------------------------------------------

    async def make(self, limits: Limits) -> None:
        """Make the bucket, unless it exists.

        Raises:
            NoLastValues: JetStream is off, or the bucket is of another kind.
            NotNow: JetStream does not answer, or refuses.
            NotPermitted: NATS does not permit this login to use JetStream.
            ConnectionError: the connection has ended.
        """
        subjects = [f"$JS.API.STREAM.{verb}.{self._stream}" for verb in ("INFO", "CREATE")]
        config = await self._ask(self._find_or_create(limits), *subjects)
        destination = config.republish.dest if config.republish is not None else None
        if destination != self._events or not config.allow_rollup_hdrs:
            needs = f"republish to {self._events}, and allow_rollup_hdrs"
            raise NoLastValues(f"the bucket {self._bucket} was made by something else: it needs {needs}")

    async def _find_or_create(self, limits: Limits) -> api.StreamConfig:
        try:
            return (await self._manager.stream_info(self._stream)).config
        except nats.js.errors.NotFoundError:
            copies = _COPIES if self._link.other_servers else 1
        try:
            return (await self._manager.add_stream(self._config(limits, copies))).config
        except nats.js.errors.APIError as error:
            if copies == 1 or error.err_code not in _FEW_NODES:
                raise
            return (await self._manager.add_stream(self._config(limits, 1))).config

    @property
    def _events(self) -> str:
        return f"{event_prefix(self._service)}>"

    def _config(self, limits: Limits, copies: int) -> api.StreamConfig:
        """Return the settings of a key-value bucket (ADR-8) that publishes what it stores.

        nats-py's `create_key_value` has no limit for the number of values.
        """
        return api.StreamConfig(
            name=self._stream,
            description=f"last values of topics of the service {self._service}",
            subjects=[f"{self._prefix}>"],
            max_msgs_per_subject=1,
            max_msgs=limits.max_retained,
            max_bytes=MAX_RETAINED_SIZE,
            discard=api.DiscardPolicy.NEW,
            storage=api.StorageType.FILE,
            num_replicas=copies,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            republish=api.RePublish(src=f"{self._prefix}>", dest=self._events),
            allow_msg_ttl=self._has_ttl or None,
        )

    @property
    def _has_ttl(self) -> bool:
        """NATS 2.11 and later can forget the mark of a removed value."""
        version = self._link.client.connected_server_version
        return (version.major, version.minor) >= (2, 11)

    # -- storing ------------------------------------------------------------------------------------------------------

    async def put(self, topic: str, payload: bytes, *, is_end: bool) -> int:
        """Store the last value of a topic, which sends it to the subscribers on NATS.

        Args:
            topic: the topic.
            payload: the message of the event.
            is_end: remove the last value; the event is sent all the same.

        Returns:
            The revision of the value.

        Raises:
            ServerBusy: the bucket is full.
            NoLastValues: JetStream is off, or no instance has made the bucket.
            NotNow: JetStream does not answer, or refuses.
            NotPermitted: NATS does not permit this login to store it.
            ConnectionError: the connection has ended.
        """
        subject = self._prefix + event_tokens(topic)
        headers = {_OPERATION: "PURGE", "Nats-Rollup": "sub"} if is_end else {}
        if is_end and self._has_ttl:
            headers["Nats-TTL"] = _ENDED_FOR
        stored = await self._ask(self._jetstream.publish(subject, payload, headers=headers or None), subject)
        return int(stored.seq)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(self, pattern: str) -> list[StoredValue]:
        """Read the last values of a topic, or of all topics that match a pattern, in the order they were stored.

        Raises what `follow` raises.
        """
        try:
            async with asyncio.timeout(ANSWER_TIME):
                return await ask(self._link, self._read(pattern))
        except TimeoutError as error:
            raise NotNow(f"JetStream did not send the last values of {pattern!r} in {ANSWER_TIME:g} s") from error

    async def _read(self, pattern: str) -> list[StoredValue]:
        values: list[StoredValue] = []
        async with aclosing(self.follow(pattern)) as changes:
            async for value in changes:
                if value is None:
                    break
                values.append(value)
        return values

    async def follow(self, pattern: str) -> AsyncGenerator[StoredValue | None]:
        """Yield the last values that match a pattern, then None, then each value that is stored from then on.

        This is an ordered consumer. That of nats-py has no name, so NATS could not permit it for some topics only, and
        does not tell how many values it will send at first.

        Raises:
            NoLastValues: JetStream is off, or no instance has made the bucket.
            NotNow: JetStream does not answer in time, falls silent, or a value was lost on the way: read again.
            NotPermitted: NATS does not permit this login to read it.
            ConnectionError: the connection has ended.
        """
        link = self._link
        name, inbox = f"rpc{secrets.token_hex(8)}", link.client.new_inbox()
        subject = self._prefix + event_tokens(pattern)
        messages: asyncio.Queue[NatsMessage] = asyncio.Queue()
        subscription = await link.subscribe(inbox, messages.put_nowait)
        try:
            created = self._manager.add_consumer(self._stream, _consumer(name, inbox, subject))
            info = await self._ask(created, f"$JS.API.CONSUMER.CREATE.{self._stream}.{name}.{subject}")
            is_current = not info.num_pending and not (info.delivered and info.delivered.consumer_seq)
            if is_current:
                yield None
            async with aclosing(self._received(messages)) as received:
                async for message in received:
                    topic, metadata = topic_of(message, len(self._prefix), self._log), message.metadata
                    if topic is not None:
                        is_end = _OPERATION in (message.headers or {})
                        yield StoredValue(topic, metadata.sequence.stream, message.data, is_end)
                    if not (is_current or metadata.num_pending):
                        is_current = True
                        yield None
        except (nats.errors.Error, ValueError, OverflowError) as error:
            raise NotNow(f"JetStream sent something else: {error}") from error
        finally:
            if link.is_open:
                await subscription.drop()
                link.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{name}", b"")  # it would expire later

    async def _received(self, messages: asyncio.Queue[NatsMessage]) -> AsyncGenerator[NatsMessage]:
        """Yield each message with a value; raise where one is missing."""
        count = 0
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    message = await messages.get()
            except TimeoutError as error:
                raise NotNow(f"JetStream was silent for {SILENCE:g} s") from error
            is_value = message.reply.startswith("$JS.ACK.")
            if is_value:
                count += 1
                sent = message.metadata.sequence.consumer
            else:  # a heartbeat, which tells how many values were sent
                sent = int((message.headers or {}).get("Nats-Last-Consumer", count))
            if sent != count:
                raise NotNow("a value was lost on the way from JetStream")
            if is_value:
                yield message

    async def _ask(self, request: Awaitable[Answer], *subjects: str) -> Answer:
        """Await JetStream's answer. Raises ServerBusy, NotPermitted, ConnectionError, NoLastValues, and NotNow."""
        try:
            return await ask(self._link, request, *subjects)
        except (nats.errors.NoRespondersError, nats.js.errors.NoStreamResponseError) as error:
            raise NoLastValues("JetStream is off, or no instance has made the bucket") from error
        except nats.js.errors.APIError as error:
            raise _failure(error) from error
        except nats.errors.TimeoutError as error:
            raise NotNow(f"JetStream did not answer within {ANSWER_TIME:g} s") from error
        except (nats.errors.Error, ValueError, TypeError, KeyError) as error:
            raise NotNow(f"JetStream's answer cannot be read: {error}") from error


async def ask(link: NatsLink, request: Awaitable[Answer], *subjects: str, what: str = "publish") -> Answer:
    """Await a request of nats-py, which by itself does not notice that NATS denies it, or that the connection ends.

    Args:
        link: the connection that the request uses.
        request: the request.
        subjects: what the request publishes or subscribes to.
        what: "publish" or "subscription".

    Raises:
        NotPermitted: NATS does not permit this login one of the subjects, or its inbox.
        ConnectionError: the connection has ended.
        nats.errors.Error: as the request raises it.
    """
    inboxes = link.inbox.rpartition(".")[0] + "."
    task = asyncio.ensure_future(request)
    failure: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def fail(error: Exception) -> None:
        if not failure.done():
            failure.set_exception(error)

    def on_denied(denied: str, subject: str) -> None:
        if (denied == what and subject in subjects) or (denied == "subscription" and subject.startswith(inboxes)):
            verb = "publish" if denied == "publish" else "subscribe"
            fail(NotPermitted(data={"reason": f"NATS does not permit this login to {verb} to {subject}"}))

    def on_ended(reason: str) -> None:
        fail(ConnectionError(reason))

    link.denied.append(on_denied)
    link.ended.append(on_ended)
    try:
        await asyncio.wait({task, failure}, return_when=asyncio.FIRST_COMPLETED)
        return await (failure if failure.done() else task)
    except nats.errors.Error as error:
        if link.is_open:
            raise
        raise ConnectionError(link.reason) from error
    finally:
        link.denied.remove(on_denied)
        link.ended.remove(on_ended)
        for waiting in (task, failure):
            waiting.cancel()
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())


def revision_of(message: NatsMessage) -> int:
    """Return the revision of an event that JetStream has stored and published; 0 for any other event."""
    said = message.headers.get(REVISION, "") if message.headers else ""
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else 0


def _consumer(name: str, inbox: str, subject: str) -> api.ConsumerConfig:
    return api.ConsumerConfig(
        name=name,
        deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
        ack_policy=api.AckPolicy.NONE,
        deliver_subject=inbox,
        filter_subject=subject,
        mem_storage=True,
        num_replicas=1,
        max_deliver=1,
        idle_heartbeat=HEARTBEAT,
        inactive_threshold=_FORGET_AFTER,
    )


def _failure(error: nats.js.errors.APIError) -> Exception:
    """Return the error that tells what JetStream refuses."""
    if error.err_code in _FULL:
        return ServerBusy(f"Server busy: the service has no room for this last value ({error.description})")
    if error.err_code == _NO_STREAM:
        return NoLastValues("no instance has made the bucket")
    if error.err_code in (_IS_OFF, None):  # nats-py raises it without a code where nothing answers
        return NoLastValues("JetStream is off")
    return NotNow(error.description or "JetStream refuses")
