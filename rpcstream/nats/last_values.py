"""The last values of a service's topics, in a JetStream key-value bucket.

An event that becomes a last value is published once, to the bucket. JetStream stores it, and then publishes it to the
subject of its topic (`republish`) with its revision (`Nats-Sequence`), so subscribers there get it like any other
event, in the order in which it was stored. A program that subscribes first and then reads the bucket gets each value,
and the revisions tell which values came twice.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

import orjson

from ..errors import ServerBusy
from ..events.retained import MAX_RETAINED_SIZE
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from .event_messages import topic_of
from .link import NatsLink, is_unanswerable
from .protocol import NatsMessage
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

#: The reply subject of a value: its number among those that were sent, its revision, and how many wait behind it.
_VALUE = re.compile(
    r"\$JS\.ACK\..*\.[0-9]{1,19}\.(?P<revision>[0-9]{1,19})\.(?P<sent>[0-9]{1,19})\.[0-9]+\.(?P<pending>[0-9]{1,19})"
    r"(\.[A-Za-z0-9]+)?",
    re.ASCII,
)


class NoLastValues(Exception):
    """Last values cannot be shared here; the text says why."""


class NotNow(Exception):
    """JetStream does not answer in time, or refuses for a reason that may pass."""


class _NoBucket(NoLastValues):
    """No instance has made the bucket."""


class _Refused(NotNow):
    """JetStream refuses; `code` is that of its error."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(text)
        self.code = code


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
        config = (await self._find_or_create(limits)).get("config")
        made: dict[str, Any] = config if type(config) is dict else {}
        if (made.get("republish") or {}).get("dest") != self._events or not made.get("allow_rollup_hdrs"):
            needs = f"republish to {self._events}, and allow_rollup_hdrs"
            raise NoLastValues(f"the bucket {self._bucket} was made by something else: it needs {needs}")

    async def _find_or_create(self, limits: Limits) -> dict[str, Any]:
        try:
            return await self._api(f"STREAM.INFO.{self._stream}")
        except _NoBucket:
            pass
        create = f"STREAM.CREATE.{self._stream}"
        if self._link.other_servers:
            try:
                return await self._api(create, self._config(limits, _COPIES))
            except _Refused as error:
                if error.code not in _FEW_NODES:
                    raise
        return await self._api(create, self._config(limits, 1))

    @property
    def _events(self) -> str:
        return f"{event_prefix(self._service)}>"

    def _config(self, limits: Limits, copies: int) -> dict[str, Any]:
        """Return the settings of a key-value bucket (ADR-8) that publishes what it stores."""
        config = {
            "name": self._stream,
            "description": f"last values of topics of the service {self._service}",
            "subjects": [f"{self._prefix}>"],
            "max_msgs_per_subject": 1,
            "max_msgs": limits.max_retained,
            "max_bytes": MAX_RETAINED_SIZE,
            "discard": "new",
            "storage": "file",
            "num_replicas": copies,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "republish": {"src": f"{self._prefix}>", "dest": self._events},
        }
        return {**config, "allow_msg_ttl": True} if self._has_ttl else config

    @property
    def _has_ttl(self) -> bool:
        """NATS 2.11 and later can forget the mark of a removed value."""
        return self._link.version >= (2, 11)

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
        stored = await self._ask(subject, payload, headers or None)
        return stored["seq"] if type(stored.get("seq")) is int else 0

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(self, pattern: str) -> list[StoredValue]:
        """Read the last values of a topic, or of all topics that match a pattern, in the order they were stored.

        Raises what `follow` raises.
        """
        values: list[StoredValue] = []
        try:
            async with asyncio.timeout(ANSWER_TIME), aclosing(self.follow(pattern)) as changes:
                async for value in changes:
                    if value is None:
                        break
                    values.append(value)
        except TimeoutError as error:
            raise NotNow(f"JetStream did not send the last values of {pattern!r} in {ANSWER_TIME:g} s") from error
        return values

    async def follow(self, pattern: str) -> AsyncGenerator[StoredValue | None]:
        """Yield the last values that match a pattern, then None, then each value that is stored from then on.

        This is an ordered consumer with a name, so that NATS can permit it for some topics only.

        Raises:
            NoLastValues: JetStream is off, or no instance has made the bucket.
            NotNow: JetStream does not answer in time, falls silent, or a value was lost on the way: read again.
            NotPermitted: NATS does not permit this login to read it.
            ConnectionError: the connection has ended.
        """
        link = self._link
        name, inbox = f"rpc{secrets.token_hex(8)}", link.new_inbox()
        subject = self._prefix + event_tokens(pattern)
        messages: asyncio.Queue[NatsMessage | str] = asyncio.Queue()
        subscription = link.subscribe(inbox, messages.put_nowait)
        link.ended.append(messages.put_nowait)
        try:
            created = f"CONSUMER.CREATE.{self._stream}.{name}.{subject}"
            info = await self._api(created, {"stream_name": self._stream, "config": _consumer(name, inbox, subject)})
            delivered = info.get("delivered") or {}
            is_current = not info.get("num_pending") and not delivered.get("consumer_seq")
            if is_current:
                yield None
            async with aclosing(self._received(messages)) as received:
                async for message, revision, pending in received:
                    topic = topic_of(message, len(self._prefix), self._log)
                    if topic is not None:
                        yield StoredValue(topic, revision, message.data, _OPERATION in (message.headers or {}))
                    if not (is_current or pending):
                        is_current = True
                        yield None
        finally:
            link.ended.remove(messages.put_nowait)
            if link.is_open:
                subscription.drop()
                link.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{name}", b"")  # it would expire later

    async def _received(
        self, messages: asyncio.Queue[NatsMessage | str]
    ) -> AsyncGenerator[tuple[NatsMessage, int, int]]:
        """Yield each message with a value, its revision, and how many follow at once; raise where one is missing."""
        count = 0
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    message = await messages.get()
            except TimeoutError as error:
                raise NotNow(f"JetStream was silent for {SILENCE:g} s") from error
            if isinstance(message, str):
                raise ConnectionError(message)
            value = _VALUE.fullmatch(message.reply)
            if value is not None:
                count += 1
                sent = int(value["sent"])
            else:  # a heartbeat, which tells how many values were sent
                sent = _number_in(message, "Nats-Last-Consumer", count)
            if sent != count:
                raise NotNow("a value was lost on the way from JetStream")
            if value is not None:
                yield message, int(value["revision"]), int(value["pending"])

    # -- requests to JetStream ----------------------------------------------------------------------------------------

    async def _api(self, verb: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask JetStream's API. Raises what `_ask` raises."""
        return await self._ask(f"$JS.API.{verb}", b"" if members is None else orjson.dumps(members))

    async def _ask(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Await JetStream's answer. Raises ServerBusy, NotPermitted, ConnectionError, NoLastValues, and NotNow."""
        try:
            message = await self._link.request(subject, payload, headers, seconds=ANSWER_TIME)
            answer = {} if is_unanswerable(message) else orjson.loads(message.data)
        except TimeoutError as error:
            raise NotNow(f"JetStream did not answer within {ANSWER_TIME:g} s") from error
        except orjson.JSONDecodeError as error:
            raise NotNow(f"JetStream's answer cannot be read: {error}") from error
        if is_unanswerable(message):
            raise NoLastValues("JetStream is off, or no instance has made the bucket")
        if type(answer) is not dict:
            raise NotNow("JetStream's answer cannot be read: it is no object")
        refusal = answer.get("error")
        if type(refusal) is dict:
            raise _failure(refusal.get("err_code"), str(refusal.get("description")))
        return answer


def revision_of(message: NatsMessage) -> int:
    """Return the revision of an event that JetStream has stored and published; 0 for any other event."""
    return _number_in(message, REVISION, 0)


def _number_in(message: NatsMessage, header: str, default: int) -> int:
    """Return the number in a header; the default where there is none."""
    said = (message.headers or {}).get(header, "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else default


def _consumer(name: str, inbox: str, subject: str) -> dict[str, Any]:
    return {
        "name": name,
        "deliver_policy": "last_per_subject",
        "ack_policy": "none",
        "deliver_subject": inbox,
        "filter_subject": subject,
        "mem_storage": True,
        "num_replicas": 1,
        "max_deliver": 1,
        "idle_heartbeat": int(HEARTBEAT * 1e9),
        "inactive_threshold": int(_FORGET_AFTER * 1e9),
    }


def _failure(code: Any, description: str) -> Exception:
    """Return the error that tells what JetStream refuses."""
    if code in _FULL:
        return ServerBusy(f"Server busy: the service has no room for this last value ({description})")
    if code == _IS_OFF:
        return NoLastValues("JetStream is off")
    return _NoBucket("no instance has made the bucket") if code == _NO_STREAM else _Refused(code, description)
