"""The connection of this process to NATS.

It lives as long as one connection to one server. A lost connection is not mended here, since calls and subscriptions in
progress are lost with it; the caller makes another link.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..backoff import Backoff
from ..errors import ConnectFailed, NotPermitted
from ..limits import DEFAULT_HOST
from ..text import get_logger
from .options import NatsOptions, close_connection, error_text, open_connection
from .protocol import NatsMessage, NatsProtocol, header_block

log = get_logger("rpcstream.nats")

#: Bytes of the two subjects of a message: NATS ends a connection with a line of over 4,096, where numbers stand, too.
SUBJECTS_MAX = 4000

#: The pauses before a link that was lost is replaced.
REJOINING = Backoff(first=0.1, longest=5.0)

#: Seconds that the server has to confirm what was sent.
FLUSH_TIME = 5

#: Called with each message of a subscription.
OnMessage = Callable[[NatsMessage], object]

#: Called with each message that comes before an answer, and the tokens behind the reply subject.
OnMore = Callable[[str, NatsMessage], object]

#: The header with which NATS answers a message that had no subscriber.
NO_RESPONDERS = {"Status": "503"}


def is_unanswerable(message: NatsMessage) -> bool:
    """Whether NATS sends this in place of an answer: the subject had no subscriber."""
    return not message.data and message.headers is not None and message.headers.get("Status") == NO_RESPONDERS["Status"]


def size_of(headers: dict[str, str] | None) -> int:
    """Bytes that headers take of `max_payload`."""
    return 0 if headers is None else len(header_block(headers))


class NatsLink(NatsProtocol):
    """A connection to NATS that stands; made by `connect`.

    Attributes:
        address: of the server, for errors.
        inbox: a subject of this connection alone, for subscriptions below it.
        reason: why it ended; None while it stands.
        denied: called with "publish" or "subscription", and the subject, where NATS does not permit one.
        ended: called once with the reason, when it has ended without `close`.
    """

    def __init__(self, options: NatsOptions) -> None:
        super().__init__()
        self.address = options.address
        self.reason: str | None = None
        self.denied: list[Callable[[str, str], object]] = []
        self.ended: list[Callable[[str], object]] = []
        self._options = options
        self.inbox = self.new_inbox()
        self._last_number = 0
        #: The subject below which answers to requests come, once there was one, and those that wait, by token.
        self._answers: str | None = None
        self._asked: dict[str, tuple[asyncio.Future[NatsMessage], OnMore | None]] = {}

    @classmethod
    async def connect(cls, options: NatsOptions) -> NatsLink:
        """Connect to one of the servers, in random order.

        Raises:
            ConnectFailed: none of them can be connected to; permanent where it refuses this login.
        """
        servers = random.sample(options.servers, len(options.servers))
        failures = []
        for server in servers:
            link = cls(options)
            try:
                await open_connection(link, server, options)
            except ConnectFailed as error:
                failures.append(f"{server}: {error.reason}" if len(servers) > 1 else error.reason)
                if error.is_permanent:
                    raise ConnectFailed(error.reason, address=options.address, is_permanent=True) from error
            else:
                return link
        raise ConnectFailed("; ".join(failures), address=options.address)

    def new_inbox(self) -> str:
        """A new subject, which only this client knows."""
        return f"{self._options.login.inbox_prefix or self._options.inbox_prefix}.{secrets.token_hex(11)}"

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Messages can be sent."""
        return self.reason is None

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection has TLS."""
        return self._extra("ssl_object") is not None

    @property
    def local_host(self) -> str:
        """The address of this machine on the connection."""
        name = self._extra("sockname")
        return str(name[0]) if isinstance(name, tuple) else DEFAULT_HOST

    def _extra(self, name: str) -> Any:
        return None if self.transport is None else self.transport.get_extra_info(name)

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Send a message with the others of this turn; dropped where the connection has ended.

        Args:
            payload: of at most `max_payload` bytes, with the headers; a larger one is dropped, since NATS would end
                the connection.
            reply: the subject for answers; where nothing subscribes to `subject`, NATS says so there.
        """
        if self.reason is not None:
            return
        size = len(payload)
        block = b"" if headers is None else header_block(headers)
        if size + len(block) > self.max_payload or _is_too_long(subject, reply):
            self._log.warning(None, "NATS %s: not sent, %d bytes to %.100r are too many", self.address, size, subject)
        elif headers is None:
            self.write(f"PUB {subject} {reply} {size}\r\n".encode(), payload, b"\r\n")
        else:
            line = f"HPUB {subject} {reply} {len(block)} {len(block) + size}\r\n"
            self.write(line.encode(), block, payload, b"\r\n")

    async def flush(self) -> None:
        """Wait until the server has handled all that was sent, and all that it had sent by then has been delivered.

        Raises:
            ConnectionError: the connection has ended, or the server does not answer.
        """
        try:
            async with asyncio.timeout(FLUSH_TIME):
                await self.ping()
        except TimeoutError:
            raise ConnectionError(f"the NATS server did not answer for {FLUSH_TIME} s") from None
        except OSError as error:
            raise ConnectionError(self.reason or error_text(error)) from error

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        seconds: float,
        on_more: OnMore | None = None,
    ) -> NatsMessage:
        """Send a message, and wait for its answer.

        Args:
            on_more: called with each message that comes below the reply subject before the answer.

        Raises:
            TimeoutError: there is none within these seconds.
            NotPermitted: NATS does not permit this login to publish there, or to listen for answers.
            ConnectionError: the connection has ended.
        """
        if self._answers is None:
            self._answers = self.new_inbox()
            self.subscribe(f"{self._answers}.>", self._answered)
        token = secrets.token_hex(8)
        with self._watched(subject) as watch:
            future: asyncio.Future[NatsMessage] = asyncio.get_running_loop().create_future()
            self._asked[token] = future, on_more
            self.publish(subject, payload, f"{self._answers}.{token}", headers)
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.wait({future, watch}, return_when=asyncio.FIRST_COMPLETED)
                return (watch if watch.done() else future).result()
            except NotPermitted:
                self._answers = None  # the subscription may be what was denied
                raise
            finally:
                del self._asked[token]

    async def confirm(self, subject: str, what: str = "publish") -> None:
        """Wait as `flush` does, after a "publish" or a "subscription" to this subject.

        Raises:
            NotPermitted: NATS does not permit it.
            ConnectionError: as for `flush`.
        """
        with self._watched(subject, what) as watch:
            await self.flush()
            if watch.done():
                watch.result()

    def _answered(self, message: NatsMessage) -> None:
        token, _, more = message.subject[len(self.inbox) + 1 :].partition(".")  # all inboxes have the same length
        future, on_more = self._asked.get(token, (None, None))
        if more and on_more is not None:
            on_more(more, message)
        elif not more and future is not None and not future.done():
            future.set_result(message)

    @contextmanager
    def _watched(self, subject: str, what: str = "publish") -> Iterator[asyncio.Future[Any]]:
        """Give a future that fails when NATS denies this subject or a subscription to an inbox, or the connection ends.

        Args:
            what: "publish" or "subscription".
        """
        failure: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        inboxes = self.inbox.rpartition(".")[0] + "."

        def fail(error: Exception) -> None:
            if not failure.done():
                failure.set_exception(error)
                failure.exception()  # no warning where no one awaits it

        def on_denied(denied: str, denied_subject: str) -> None:
            is_inbox = denied == "subscription" and denied_subject.startswith(inboxes)
            if is_inbox or (denied, denied_subject) == (what, subject):
                verb = "publish" if denied == "publish" else "subscribe"
                fail(NotPermitted(data={"reason": f"NATS does not permit this login to {verb} to {denied_subject}"}))

        def on_ended(reason: str) -> None:
            fail(ConnectionError(reason))

        self.denied.append(on_denied)
        self.ended.append(on_ended)
        try:
            if self.reason is not None:
                fail(ConnectionError(self.reason))
            yield failure
        finally:
            self.denied.remove(on_denied)
            self.ended.remove(on_ended)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def subscribe(self, subject: str, on_message: OnMessage, queue: str = "") -> Subscription:
        """Have a function called with each message of a subject or pattern, for all subscriptions in one order.

        Args:
            queue: the queue group: each message goes to one of its subscribers.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self.reason is not None:
            raise ConnectionError(self.reason)
        self._last_number += 1
        made = Subscription(self, self._last_number, subject)
        self.takers[made.number] = on_message
        self.write(f"SUB {subject} {queue} {made.number}\r\n".encode())
        return made

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Write what waits, and close. `ended` are not called."""
        self.reason = self.reason or "it was closed"
        await close_connection(self)

    def on_denied(self, what: str, subject: str) -> None:
        """As `NatsProtocol.on_denied`."""
        for told in list(self.denied):
            told(what, subject)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_full(False)
        if self.reason is None:
            self.reason = error_text(self.error) or "the NATS server closed the connection"
            for told in list(self.ended):
                told(self.reason)


class Subscription:
    """A subscription of a link.

    Args:
        protocol: has it.
        number: by which the NATS server knows it.
        subject: the subject or pattern.
    """

    __slots__ = ("_protocol", "number", "subject")

    def __init__(self, protocol: NatsProtocol, number: int, subject: str) -> None:
        self.number = number
        self.subject = subject
        self._protocol = protocol

    def end(self) -> None:
        """Want no more messages; those that the server has sent before it knew are still delivered until a `flush`."""
        self._protocol.write(f"UNSUB {self.number}\r\n".encode())

    def drop(self) -> None:
        """Want no more messages, from now on."""
        self._protocol.takers.pop(self.number, None)
        self.end()


def _is_too_long(subject: str, reply: str) -> bool:
    """Whether NATS does not take these subjects. Those for answers are chosen by others."""
    if len(subject) + len(reply) <= SUBJECTS_MAX // 4:  # characters have at most four bytes
        return False
    return len(subject.encode()) + len(reply.encode()) > SUBJECTS_MAX
