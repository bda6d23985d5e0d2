"""The last values of a service's topics, in a JetStream key-value bucket.

Owns the bucket, what is stored in it, and reading it: as it stands, or as it changes. Knows neither who subscribes nor
what an event holds.

An event that becomes a last value is published once, to the bucket. JetStream stores it, and then publishes it to the
subject of its topic (`republish`), with its number (`Nats-Sequence`): so those who have subscribed there get it like
any other event, all in the order in which it was stored. A program that subscribes first and then reads the bucket gets
each value, and knows by their numbers which came twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from ..errors import NotPermitted, RpcError, ServerBusy
from ..events.retained import MAX_RETAINED_SIZE
from ..limits import Limits
from ..observe.limited_log import shortened
from ..text import get_logger
from .asking import ANSWER_TIME, Asker, LateAnswer, NoAnswer
from .link import NatsLink, NatsMessage, Subscription
from .subjects import decoded, event_prefix, event_tokens

log = get_logger("rpcstream.nats")

#: Seconds between two signs of life of the consumer that reports changes; after three without one it is made again.
HEARTBEAT = 5.0

#: Seconds after which JetStream forgets a consumer whose reader is gone.
_FORGET_AFTER = 30

#: Seconds for which it is remembered that there is no last value any more, for readers that are away meanwhile.
_ENDED_FOR = "1h"

#: Copies of the bucket in a cluster.
_COPIES = 3

#: Codes of JetStream's errors: it is off for this account; there is no such stream; too many values, or bytes; too few
#: nodes for the copies.
_IS_OFF, _NO_STREAM, _FULL, _FEW_NODES = 10039, 10059, (10047, 10077), (10005, 10074)

#: Headers: who has published; what has become of the value; the number that JetStream gave it.
ORIGIN, _OPERATION, NUMBER = "Rpcstream-Origin", "KV-Operation", "Nats-Sequence"

#: Who is told what has changed.
OnValue = Callable[["StoredValue"], object]


class NoLastValues(Exception):
    """Last values cannot be shared here; the text says why."""


class StoredValue(NamedTuple):
    """A last value, or that there is none any more.

    Attributes:
        topic: it.
        number: of this value in the bucket; later ones have higher ones.
        data: the message of its event; empty: there is nothing to send.
        is_end: there is no last value any more.
        origin: of the instance that has published it; empty: something else has.
    """

    topic: str
    number: int
    data: bytes
    is_end: bool
    origin: str


class LastValues:
    """The bucket of one service, by one connection.

    Args:
        link: the connection.
        service: the service.
    """

    def __init__(self, link: NatsLink, service: str) -> None:
        self._link = link
        self._service = service
        self._asker = Asker(link)
        self.bucket = f"rpc_{service}_last"
        self._stream = f"KV_{self.bucket}"
        self._prefix = f"$KV.{self.bucket}."
        #: A value was skipped, since its name is no topic.
        self._has_skipped = False

    # -- the bucket ---------------------------------------------------------------------------------------------------

    async def make(self, limits: Limits) -> None:
        """Make the bucket, if it is not there.

        Raises:
            NoLastValues: JetStream is off, does not answer, or refuses.
            ConnectionError: the connection has ended.
        """
        answer = await self._api(f"STREAM.INFO.{self._stream}", {})
        if _code(answer) == _NO_STREAM:
            copies = _COPIES if self._link.other_servers else 1
            answer = await self._api(f"STREAM.CREATE.{self._stream}", self._config(limits, copies))
            if copies > 1 and _code(answer) in _FEW_NODES:
                answer = await self._api(f"STREAM.CREATE.{self._stream}", self._config(limits, 1))
        if "error" in answer:
            off = "JetStream is off for this account" if _code(answer) == _IS_OFF else _text(answer)
            raise NoLastValues(off)
        config = answer.get("config") or {}
        destination = (config.get("republish") or {}).get("dest")
        if destination != self._events or not config.get("allow_rollup_hdrs"):
            needs = f"republish to {self._events}, and allow_rollup_hdrs"
            raise NoLastValues(f"the bucket {self.bucket} was made by something else: it needs {needs}")

    @property
    def _events(self) -> str:
        return f"{event_prefix(self._service)}>"

    def _config(self, limits: Limits, copies: int) -> dict[str, Any]:
        """That of a key-value bucket (ADR-8), with JetStream publishing what is stored."""
        return {
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
            # From version 2.11 on, which forgets what has ended by this.
            **({"allow_msg_ttl": True} if self._forgets else {}),
        }

    @property
    def _forgets(self) -> bool:
        version = self._link.client.connected_server_version
        return (version.major, version.minor) >= (2, 11)

    # -- storing ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Be ready to store and to read. Raises ConnectionError if the connection has ended."""
        await self._asker.start()

    def put(self, topic: str, payload: bytes, *, is_end: bool, origin: str = "") -> asyncio.Future[int]:
        """Store the last value of a topic, and send it to its subscribers.

        Args:
            payload: the message of the event.
            is_end: there is none any more; the event is sent all the same.
            origin: of the instance.

        Returns:
            Gets the number of the value; or NoLastValues, ServerBusy, NotPermitted, ConnectionError.
        """
        headers = {ORIGIN: origin} if origin else {}
        if is_end:
            headers |= {_OPERATION: "PURGE", "Nats-Rollup": "sub"}
            if self._forgets:
                headers["Nats-TTL"] = _ENDED_FOR
        asked = self._asker.ask(self._prefix + event_tokens(topic), payload, headers or None)
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answered(done: asyncio.Future[NatsMessage]) -> None:
            if stored.done():
                done.cancelled() or done.exception()
                return
            try:
                stored.set_result(_stored(done.result()))
            except NoAnswer as error:
                stored.set_exception(NoLastValues(f"JetStream is off, or no instance has made the bucket: {error}"))
            except (RpcError, ConnectionError, NoLastValues) as error:
                stored.set_exception(error)

        asked.add_done_callback(answered)
        return stored

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(self, pattern: str) -> list[StoredValue]:
        """Read the last values of a topic, or of all that match a pattern, in the order in which they were stored.

        Raises:
            NoLastValues: there are none, since JetStream is off, or no instance has made the bucket.
            ServerBusy: JetStream does not answer in time.
            NotPermitted: NATS does not permit it.
            ConnectionError: the connection has ended.
        """
        values: list[StoredValue] = []
        current = asyncio.Event()

        def on_value(value: StoredValue) -> None:
            if not current.is_set():
                values.append(value)

        watch = Watch(self, on_value, current.set, pattern=pattern)
        try:
            await watch.begin()
            await asyncio.wait_for(current.wait(), ANSWER_TIME)
        except TimeoutError as error:
            text = f"Server busy: JetStream did not send the last values of {pattern!r} in {ANSWER_TIME:g} s"
            raise ServerBusy(text) from error
        finally:
            await watch.end()
        return values

    async def _api(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask JetStream's API. Raises NoLastValues, also where it is not permitted, and ConnectionError."""
        try:
            await self.start()
            return await self._ask_api(subject, body)
        except NoAnswer as error:
            raise NoLastValues(f"JetStream is off: {error}") from error
        except NotPermitted as error:
            raise NoLastValues(error.data["reason"]) from error

    async def _ask_api(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._asker.ask(f"$JS.API.{subject}", orjson.dumps(body) if body else b"")
        try:
            read = orjson.loads(answer.data)
        except orjson.JSONDecodeError as error:
            raise NoAnswer("the answer is not JSON") from error
        return read if type(read) is dict else {"error": {}}

    def value_of(self, message: NatsMessage, number: int) -> StoredValue | None:
        """A message of the bucket; None where its name is no topic."""
        is_ours = message.subject.startswith(self._prefix)
        topic = decoded(message.subject[len(self._prefix) :]) if is_ours else None
        if topic is None:
            if not self._has_skipped:
                self._has_skipped = True
                name = shortened(message.subject.removeprefix(self._prefix))
                log.warning("the bucket %s: skipping the name %s, which is not a topic", self.bucket, name)
            return None
        headers = message.headers or {}
        return StoredValue(topic, number, message.data, _OPERATION in headers, headers.get(ORIGIN, ""))


class Watch:
    """The last values that match a pattern, and what becomes of them.

    Args:
        values: where they are.
        on_value: called with each, those that there are first.
        on_current: called once those that there were at the beginning have been given.
        pattern: which topics.
    """

    def __init__(
        self, values: LastValues, on_value: OnValue, on_current: Callable[[], object], *, pattern: str = ">"
    ) -> None:
        self._values = values
        self._on_value = on_value
        self._on_current = on_current
        self._filter = values._prefix + event_tokens(pattern)
        self._name = ""
        self._subscription: Subscription | None = None
        #: Messages that this consumer has sent; the time of the last sign of life.
        self._count = 0
        self._heard = 0.0
        self._guard: asyncio.Task[None] | None = None
        self._is_current = self._has_ended = False

    async def begin(self) -> None:
        """Begin to give values.

        Raises:
            NoLastValues, ServerBusy, NotPermitted, ConnectionError: as `LastValues.read`.
        """
        values = self._values
        self._name, self._count = f"rpc{secrets.token_hex(8)}", 0
        subject = values._link.client.new_inbox()
        self._subscription = await values._link.subscribe(subject, self._on_message)
        self._heard = asyncio.get_running_loop().time()
        config = {
            "name": self._name,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "deliver_subject": subject,
            "filter_subject": self._filter,
            "mem_storage": True,
            "num_replicas": 1,
            "max_deliver": 1,
            "idle_heartbeat": round(HEARTBEAT * 1e9),
            "inactive_threshold": _FORGET_AFTER * 1_000_000_000,
        }
        stream = values._stream
        try:
            await values.start()
            body = {"stream_name": stream, "config": config}
            answer = await values._ask_api(f"CONSUMER.CREATE.{stream}.{self._name}.{self._filter}", body)
        except LateAnswer as error:
            raise ServerBusy(f"Server busy: JetStream does not say the last values: {error}") from error
        except NoAnswer as error:  # JetStream itself answers, unless it is off
            raise NoLastValues("JetStream is off") from error
        if "error" in answer:
            if _code(answer) in (_NO_STREAM, _IS_OFF):
                raise NoLastValues(_text(answer))
            raise ServerBusy(f"Server busy: JetStream does not say the last values: {_text(answer)}")
        if not answer.get("num_pending") and not self._count:
            self._has_come()

    def guard(self) -> None:
        """Begin again where nothing is heard any more, from now on."""
        self._guard = asyncio.get_running_loop().create_task(self._look())

    async def end(self) -> None:
        """Give no more values."""
        self.stop()
        await self._drop()

    def stop(self) -> None:
        """Give no more values, since the connection is over."""
        self._has_ended = True
        if self._guard is not None:
            self._guard.cancel()

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None and self._values._link.is_open:
            await subscription.drop()
            # JetStream would forget it by itself, later.
            self._values._link.publish(f"$JS.API.CONSUMER.DELETE.{self._values._stream}.{self._name}", b"")

    def _on_message(self, message: NatsMessage) -> None:
        if self._subscription is None or self._has_ended:
            return
        self._heard = asyncio.get_running_loop().time()
        # $JS.ACK.<stream>.<consumer>.<times>.<number in the stream>.<number of the consumer>.<time>.<how many follow>,
        # with two tokens more behind $JS.ACK where accounts and domains are named.
        tokens = message.reply.split(".")
        if tokens[:2] != ["$JS", "ACK"]:
            # A sign of life, which says how many messages there were.
            said = (message.headers or {}).get("Nats-Last-Consumer")
            if said is not None and said != str(self._count):
                self._begin_again()
            return
        number, count, _, left = map(int, tokens[-4:] if len(tokens) < 12 else tokens[-5:-1])
        self._count += 1
        if count != self._count:
            self._begin_again()
            return
        value = self._values.value_of(message, number)
        if value is not None:
            self._on_value(value)
        if not left:
            self._has_come()

    def _has_come(self) -> None:
        if not self._is_current:
            self._is_current = True
            self._on_current()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            if asyncio.get_running_loop().time() - self._heard > 3 * HEARTBEAT:
                await self._begin_anew()

    def _begin_again(self) -> None:
        """A message is missing."""
        if self._guard is None or self._has_ended:
            return
        self._guard.cancel()
        self._guard = asyncio.get_running_loop().create_task(self._anew_then_look())

    async def _anew_then_look(self) -> None:
        await self._begin_anew()
        await self._look()

    async def _begin_anew(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._drop()
            try:
                await self.begin()
            except (NoLastValues, RpcError) as error:
                log.warning("last values of the service %s do not come now: %s", self._values._service, error)


def number_of(message: NatsMessage) -> int:
    """The number of an event that JetStream has published, since it was stored; 0: something else has published it."""
    said = message.headers.get(NUMBER, "") if message.headers else ""
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else 0


def _stored(message: NatsMessage) -> int:
    """The number of a value that JetStream says it has stored. Raises ServerBusy or NoLastValues where it has not."""
    try:
        answer = orjson.loads(message.data)
    except orjson.JSONDecodeError:
        answer = {"error": {"description": "the answer is not JSON"}}
    if "error" not in answer:
        return int(answer["seq"])
    if _code(answer) in _FULL:
        raise ServerBusy(f"Server busy: the service has no room for this last value ({_text(answer)})")
    raise NoLastValues(_text(answer))


def _code(answer: dict[str, Any]) -> int:
    error = answer.get("error")
    return int(error.get("err_code", 0)) if type(error) is dict else 0


def _text(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    return str(error.get("description", "JetStream refuses")) if type(error) is dict else "JetStream refuses"
