"""The connection of this process to NATS, by nats-py.

Owns what arrives in which order, what waits to be written, and why the connection ended. It lives as long as one
connection to one server (made by `dial`): a lost one is not mended here, since calls and subscriptions that were under
way are lost with it; who uses it makes another. Knows neither messages nor sessions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

try:
    import nats.errors
    from nats.aio.msg import Msg
except ImportError as missing:
    raise ImportError("NATS needs the package nats-py: pip install 'rpcstream[nats]'") from missing

from ..backoff import Backoff
from ..errors import ConnectFailed
from ..limits import DEFAULT_HOST
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from .dial import SecureClient, close_client, error_text, open_client
from .options import NatsOptions

log = get_logger("rpcstream.nats")

#: Bytes that wait to be written; above this producers pause until half of it is written.
UNSENT_MAX = 1024 * 1024

#: Bytes of the two subjects of a message: NATS ends a connection with a line of over 4,096, where numbers stand, too.
SUBJECTS_MAX = 4000

#: Servers of a cluster that are kept for the next connection. With as many no list of addresses is needed.
LEARNED_MAX = 64

#: Seconds between two looks at what still waits to be written.
_LOOK = 0.005

#: The pauses before a link that was lost is replaced.
REJOINING = Backoff(first=0.1, longest=5.0)

#: Seconds that the server has to confirm what was sent.
FLUSH_TIME = 5

#: Subscriptions have numbers over this one; nats-py gives its own few lesser ones.
FIRST_NUMBER = 1_000_000_000

#: Seconds; longer than any connection stays without an answer.
_NEVER = 1_000_000

#: A message of NATS: `subject`, `reply`, `data`, `headers`.
NatsMessage = Msg

#: Called with each message of a subscription.
OnMessage = Callable[[NatsMessage], object]

#: The header with which NATS answers a message that had no subscriber.
NO_RESPONDERS = {"Status": "503"}


def is_unanswerable(message: NatsMessage) -> bool:
    """Whether NATS sends this in place of an answer: the subject had no subscriber."""
    return not message.data and message.headers is not None and message.headers.get("Status") == NO_RESPONDERS["Status"]


def size_of(headers: dict[str, str] | None) -> int:
    """Bytes that headers take of `max_payload`."""
    if headers is None:
        return 0
    return len("NATS/1.0\r\n\r\n") + sum(len(f"{name}: {text}\r\n".encode()) for name, text in headers.items())


class NatsLink:
    """A connection to NATS that stands; made by `connect`.

    Attributes:
        address: of the server, for errors.
        inbox: a subject of this connection alone, for subscriptions below it.
        client: of nats-py, for JetStream.
        reason: why it ended; None while it stands.
        on_full: called with True when much waits to be written, and with False when it was written.
        denied: called with "publish" or "subscription", and the subject, where NATS does not permit one.
        ended: called once with the reason, when it has ended without `close`.
    """

    def __init__(self, client: SecureClient, options: NatsOptions, host: str) -> None:
        client.on_error, client.on_denied, client.on_closed = self._failed, self._denied, self._closed
        self.client = client
        self.address = options.address
        self.inbox = client.new_inbox()
        self.reason: str | None = None
        self.on_full: Callable[[bool], object] = lambda is_full: None
        self.denied: list[Callable[[str, str], object]] = []
        self.ended: list[Callable[[str], object]] = []
        self._options = options
        self._host = host
        self._connected_to = self.server
        assert client.writer is not None
        self._writer = client.writer
        self._learn()
        self._is_closing = self._is_full = False
        self._last_number = FIRST_NUMBER
        self._loop = asyncio.get_running_loop()
        self._log = LimitedLog(log)

    @classmethod
    async def connect(cls, options: NatsOptions) -> NatsLink:
        """Connect to one of the servers, in random order; then to those that they have named.

        Raises:
            ConnectFailed: none of them can be connected to; permanent where it refuses this login.
        """
        servers = random.sample(options.servers, len(options.servers))
        others = [server for server in options.learned if server not in servers]
        failures = []
        for server in servers + random.sample(others, len(others)):
            host = options.learned.get(server) if server in others else None
            try:
                return cls(await open_client(server, options, host), options, host or server.rpartition(":")[0])
            except ConnectFailed as error:
                failures.append(f"{server}: {error.reason}" if len(servers) + len(others) > 1 else error.reason)
                if error.is_permanent:
                    raise ConnectFailed(error.reason, address=options.address, is_permanent=True) from error
        raise ConnectFailed("; ".join(failures), address=options.address)

    def _learn(self) -> None:
        """Keep the servers that this one has named, and this one, for the connection after this one."""
        learned = self._options.learned
        if others := self.other_servers[: LEARNED_MAX - 1]:
            learned.clear()
            learned.update(dict.fromkeys((self._connected_to, *others), self._host))

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Messages can be sent."""
        return self.reason is None

    @property
    def max_payload(self) -> int:
        """Bytes that a message may have, its headers included; the NATS server says so."""
        return self.client.max_payload

    @property
    def server(self) -> str:
        """`host:port` of the NATS server; empty when the connection has ended."""
        url = self.client.connected_url
        return "" if url is None else str(url.netloc).rpartition("@")[2]

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection has TLS."""
        return self._writer.get_extra_info("ssl_object") is not None

    @property
    def local_host(self) -> str:
        """The address of this machine on the connection."""
        name = self._writer.get_extra_info("sockname")
        return str(name[0]) if isinstance(name, tuple) else DEFAULT_HOST

    @property
    def unsent(self) -> int:
        """Bytes that wait to be written, in nats-py and in the transport below it."""
        # nats-py waits while the latter is full, but asyncio's `writelines` (3.12, 3.13.0) forgets to say that it is.
        return self.client.pending_data_size + self._writer.transport.get_write_buffer_size()

    @property
    def received(self) -> int:
        """How many messages have come."""
        return self.client.received

    @property
    def has_jetstream(self) -> bool:
        """This NATS server has JetStream; others of its cluster may have it where it has not."""
        return self.client.has_jetstream

    @property
    def other_servers(self) -> tuple[str, ...]:
        """`host:port` of servers of the same cluster that this one has named."""
        return tuple(server.netloc for server in self.client.discovered_servers)

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Send a message with the others of this turn; dropped where the connection has ended.

        Args:
            payload: of at most `max_payload` bytes, with the headers; a larger one is dropped, since NATS would end
                the connection.
            reply: the subject for answers; where nothing subscribes to `subject`, NATS says so there.
        """
        if self.reason is not None:
            return
        if len(payload) + size_of(headers) > self.client.max_payload or _is_too_long(subject, reply):
            size = len(payload)
            self._log.warning(None, "NATS %s: not sent, %d bytes to %.100r are too many", self.address, size, subject)
            return
        try:
            # It never waits: nats-py only does so for a limit that is not reached here, and takes the message first.
            self.client.publish(subject, payload, reply, headers).send(None)
        except StopIteration:
            pass
        except nats.errors.Error as error:
            self._end(f"a message could not be sent: {error_text(error)}")
            return
        if not self._is_full and self.unsent > UNSENT_MAX:
            self._is_full = True
            self.on_full(True)
            self._loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        """See whether what waits has been written."""
        if self.reason is None and self.unsent > UNSENT_MAX // 2:
            self._loop.call_later(_LOOK, self._look)
            return
        self._is_full = False
        self.on_full(False)

    async def flush(self) -> None:
        """Wait until the server has handled all that was sent, and all that it had sent by then has been delivered.

        Raises:
            ConnectionError: the connection has ended, or the server does not answer.
        """
        # nats-py's own ends its reader when the answer comes after the time, or after the wait was cancelled.
        flushing = asyncio.ensure_future(self._flush())
        flushing.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait({flushing}, timeout=FLUSH_TIME)
        if not done:
            raise ConnectionError(f"the NATS server did not answer for {FLUSH_TIME} s")
        flushing.result()

    async def _flush(self) -> None:
        try:
            # nats-py writes its ping ahead of what waits; that is gone when the first one is answered.
            await self.client.flush(_NEVER)
            await self.client.flush(_NEVER)
        except (nats.errors.Error, OSError) as error:
            raise ConnectionError(self.reason or error_text(error)) from error

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def subscribe(self, subject: str, on_message: OnMessage, queue: str = "") -> Subscription:
        """Have a function called with each message of a subject or pattern, for all subscriptions in one order.

        Args:
            queue: the queue group: each message goes to one of its subscribers.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self.reason is not None:
            raise ConnectionError(self.reason)
        self._last_number += 1
        made = Subscription(self.client, self._last_number, subject, on_message, self._log)
        # nats-py would have a task for each, and so lose the order between them: a cancel could come before its call.
        self.client.takers[made.number] = made.take
        await self.client.send_line(f"SUB {subject} {queue} {made.number}")
        return made

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Write what waits, and close. `ended` are not called."""
        self._is_closing = True
        self.reason = self.reason or "it was closed"
        await close_client(self.client)

    def _failed(self, error: Exception) -> None:
        """Take an error that nats-py reports, and does not raise."""
        if self.is_open and not (self._is_closing or isinstance(error, nats.errors.UnexpectedEOF)):
            log.warning("NATS %s: %s", self.address, error_text(error))

    def _denied(self, what: str, subject: str) -> None:
        for told in list(self.denied):
            told(what, subject)

    def _closed(self) -> None:
        error = self.client.last_error
        is_plain = error is None or isinstance(error, nats.errors.UnexpectedEOF)
        self._end("the NATS server closed the connection" if is_plain else error_text(error))

    def _end(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            self._learn()
            if not self._is_closing:
                for told in list(self.ended):
                    told(reason)


class Subscription:
    """A subscription of a link.

    Args:
        client: has it.
        number: by which the NATS server knows it.
        subject: the subject or pattern.
        on_message: called with each message.
        errors: gets what it raises.

    Attributes:
        received: how many messages have come.
    """

    __slots__ = ("_client", "_log", "_on_message", "number", "received", "subject")

    def __init__(
        self, client: SecureClient, number: int, subject: str, on_message: OnMessage, errors: LimitedLog
    ) -> None:
        self.number = number
        self.subject = subject
        self.received = 0
        self._client = client
        self._on_message = on_message
        self._log = errors

    def take(self, message: NatsMessage) -> None:
        """Take a message that has come."""
        self.received += 1
        try:
            self._on_message(message)
        except Exception as error:  # it would end nats-py's reader
            self._log.error(None, "a message of NATS could not be handled", error=error)

    async def end(self) -> None:
        """Want no more messages; those that the server has sent before it knew are still delivered until a `flush`."""
        await self._client.send_line(f"UNSUB {self.number}")

    async def drop(self) -> None:
        """Want no more messages, from now on."""
        self._client.takers.pop(self.number, None)
        await self.end()


def _is_too_long(subject: str, reply: str) -> bool:
    """Whether NATS does not take these subjects. Those for answers are chosen by others."""
    if len(subject) + len(reply) <= SUBJECTS_MAX // 4:  # characters have at most four bytes
        return False
    return len(subject.encode()) + len(reply.encode()) > SUBJECTS_MAX
