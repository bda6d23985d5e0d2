"""Opens the connections of an async client: TCP, TLS, Unix sockets, HTTP, WebSocket and NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import BY_STATUS, ConnectFailed, NotAuthenticated, RpcError
from ..local_peer import waiter
from ..text import get_logger
from ..transports.connection import why_lost
from ..transports.stream import LineStream
from ..wire.http_messages import readable_text
from .address import Address
from .connection import ClientConnection, certificate_fault
from .faults import TLS_ALERT, connect_failed, refusal_advice, silence
from .options import Settings

if TYPE_CHECKING:
    from ..nats.options import NatsOptions

log = get_logger("rpcstream.client")

P = TypeVar("P", bound=asyncio.Protocol)

#: Seconds for the closing handshake of TLS, and for the text of a refused WebSocket handshake.
FAREWELL_TIME = 1.0

#: Limits of the response to a WebSocket handshake (bytes): its head, and the part of its body that is read.
HEAD_MAX = 64 * 1024
BODY_MAX = 4096


def connect_fault(error: Exception, connection: ClientConnection, *, is_joined: bool) -> Exception:
    """What callers get for an error of connecting; `is_joined`: of greeting the server (`ConnectionPool.greetings`)."""
    settings, address = connection.settings, connection.calls.marshaller.address
    if isinstance(error, ConnectFailed):
        return error
    if isinstance(error, OSError):
        fault = certificate_fault(connection.reason, address)
        return fault or connect_failed(error, settings.connect_timeout, settings.address)
    if isinstance(error, RpcError):
        if isinstance(error, NotAuthenticated) or not is_joined:
            error.method = error.address = None  # the calls that wait name their own method
            return error
        reason = f"the server refused the token, or a call of on_connect: {error}"
        return ConnectFailed(reason, address=address)
    log.error("a connection to %s could not be made", address, exc_info=error)
    return ConnectFailed(f"could not connect: {error!r}", address=address)


async def join(connection: ClientConnection, settings: Settings) -> None:
    """Open a connection to the server, and give it to the session as its channel.

    Raises:
        OSError, ConnectFailed: no connection could be made.
        NotAuthenticated, NotPermitted, ServerBusy: the server refused the handshake of a WebSocket.
    """
    if settings.address.is_http:
        from .http import HttpChannel

        http = HttpChannel(connection.session, connection.calls.marshaller, settings, partial(_dial_only, settings))
        connection.session.offers_binary = False  # each request and each response says so by itself
        connection.use(http)
        connection.channel = http
        connection.session.connected(http)
        return
    if settings.address.is_nats:
        await _join_service(connection, settings)
        return
    open_stream = _open_websocket if settings.address.is_websocket else _open_line_stream
    stream = await open_stream(connection, settings)
    connection.channel = stream
    if stream.socket is not None:
        connection.poll = waiter(stream.socket, read=True)


async def _join_service(connection: ClientConnection, settings: Settings) -> None:
    """Connect to NATS; calls go to the instances of a service from there."""
    from ..nats.calls import ServiceConnection
    from ..nats.client_events import ClientEvents
    from ..nats.link import NatsLink

    address, session = settings.address, connection.session
    link = await NatsLink.connect(_nats_options(settings))
    service = ServiceConnection(
        link,
        address.target,
        session,
        partial(connection.make_session, session.server_ledger),
        connection.calls.marshaller,
        address=str(address),
        limits=settings.limits,
        token=settings.token,
        trace=settings.trace,
    )
    session.offers_binary, session.sends_binary = False, bool(settings.binary)
    if settings.binary:
        connection.calls.marshaller.attach_payloads()
    connection.use(service.calls)
    connection.channel, connection.closed = service, service.closed
    connection.events = ClientEvents(link, address.target, settings.limits, str(address))
    try:
        await service.open()
    except BaseException:
        await link.close()
        raise


def _nats_options(settings: Settings) -> NatsOptions:
    from ..nats.options import NatsLogin, NatsOptions

    address = settings.address
    return NatsOptions(
        servers=address.servers,
        login=settings.nats or NatsLogin(),
        tls=settings.tls,
        is_secure=address.is_secure,
        connect_timeout=settings.connect_timeout or NatsOptions.connect_timeout,
    )


async def _open_line_stream(connection: ClientConnection, settings: Settings) -> LineStream:
    def make() -> LineStream:
        return LineStream(
            connection.session,
            delimiter=settings.delimiter,
            address=str(settings.address),
            trace=settings.trace,
        )

    if settings.connect is not None:
        return await settings.connect(make)
    connection.server, stream = await _dial(settings, make)
    return stream


async def _dial_only(settings: Settings, make: Callable[[], P]) -> P:
    return (await _dial(settings, make))[1]


async def _dial(settings: Settings, make: Callable[[], P]) -> tuple[Address, P]:
    """Open a socket to the first server that can be reached, with TLS where the address asks for it.

    Returns:
        The address of that server, and the protocol of the connection.
    """
    *first, last = settings.address.in_turn
    share = None if settings.connect_timeout is None else settings.connect_timeout / (len(first) + 1)
    for address in first:
        try:
            async with asyncio.timeout(share):
                return address, await _dial_one(address, settings, make)
        except OSError as error:  # or TimeoutError, which is one
            log.info("%s is tried next: %s cannot be reached: %s", settings.address, address, error)
    return last, await _dial_one(last, settings, make)


async def _dial_one(address: Address, settings: Settings, make: Callable[[], P]) -> P:
    loop = asyncio.get_running_loop()
    made: list[Any] = []

    def make_protocol() -> P:
        made.append(make())
        return cast(P, made[-1])

    try:
        if address.is_unix:
            await loop.create_unix_connection(make_protocol, address.path)
        elif settings.tls is None:
            await loop.create_connection(make_protocol, address.host, address.port)
        else:
            await loop.create_connection(
                make_protocol,
                address.host,
                address.port,
                ssl=settings.tls,
                server_hostname=address.host.partition("%")[0],
                ssl_shutdown_timeout=FAREWELL_TIME,
            )
    except BaseException:
        # When a task is cancelled right after the TLS handshake, asyncio begins the closing handshake, for which an
        # event loop that ends would not wait.
        for protocol in made:
            protocol.abort("the client gave up while it connected")
        raise
    return cast(P, made[-1])


# -- WebSocket ------------------------------------------------------------------------------------------------------


async def _open_websocket(connection: ClientConnection, settings: Settings) -> Any:
    from ..transports.websocket import WebSocketStream
    from ..wire.upgrade import UpgradeRefusedError, check_response, request_upgrade

    address = settings.address
    headers = {} if settings.token is None else {"Authorization": f"Bearer {settings.token}"}
    request, key = request_upgrade(address.host_header, address.target, headers)
    _, handshake = await _dial(settings, lambda: _Handshake(request))
    try:
        head = await handshake.head(address)
        try:
            check_response(head, key)
        except UpgradeRefusedError as refused:
            text = await handshake.text()
            advice = refusal_advice(refused.status, text, address, has_token=settings.token is not None)
            raise _refusal(refused.status, f"{refused}{f': {text}' if text else ''}", advice, str(address)) from None
        closed: asyncio.Future[None] = connection.loop.create_future()
        stream = WebSocketStream(
            connection.session,
            client=True,
            address=str(address),
            trace=settings.trace,
            on_close=lambda _: None if closed.done() else closed.set_result(None),
        )
        await handshake.hand_over(stream)
        connection.closed = closed
    except BaseException as error:
        handshake.abort(str(error))
        raise
    return stream


def _refusal(status: int | None, text: str, advice: str, address: str) -> ConnectFailed | RpcError:
    """The error of a handshake that was refused with an HTTP status: the same as for a call over HTTP."""
    kind = BY_STATUS.get(status) if status is not None else None
    if kind is None:
        is_permanent = status is not None and 300 <= status < 500 and status != 408
        text += f"; {advice}" if advice else ""
        return ConnectFailed(text, address=address, is_permanent=is_permanent)
    error = kind(text)
    error.advice = advice or None
    error.address = address
    return error


class _Handshake(asyncio.StreamReaderProtocol):
    """The protocol of a connection until the server has answered the WebSocket handshake.

    Args:
        request: sent as soon as there is a connection.
    """

    def __init__(self, request: bytes) -> None:
        self._reader = asyncio.StreamReader(HEAD_MAX)
        self._request = request
        self._transport: asyncio.Transport | None = None
        super().__init__(self._reader)

    async def head(self, address: Address) -> bytes:
        """The head of the response, up to its empty line.

        Raises:
            ConnectFailed: the connection ended before, or the head is too long.
        """
        received, reason = b"", ""
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise ConnectFailed(f"the head of the server's response is longer than {HEAD_MAX} bytes") from None
        except asyncio.IncompleteReadError as error:
            received = error.partial
        except OSError as error:
            reason = f": {why_lost(error)}"
        hint = silence(address) if not received or received.startswith(TLS_ALERT) else ""
        raise ConnectFailed(f"the server closed the connection in the handshake of the WebSocket{reason}{hint}")

    async def text(self) -> str:
        """The body of a refusal as plain text, as far as it arrives soon, and before the server closes."""
        received = b""
        try:
            async with asyncio.timeout(FAREWELL_TIME):
                while len(received) < BODY_MAX and (data := await self._reader.read(BODY_MAX)):
                    received += data
        except OSError:  # the connection was lost, or the time is over
            pass
        return readable_text(received)

    async def hand_over(self, stream: asyncio.Protocol) -> None:
        """Give the connection to the protocol for messages, with what was received after the head."""
        transport = self._transport
        if transport is None:
            raise ConnectFailed("the server closed the connection in the handshake of the WebSocket")
        transport.set_protocol(stream)
        stream.connection_made(transport)
        self._reader.feed_eof()  # so that reading gives what is there, without waiting
        received = await self._reader.read()
        if received:
            stream.data_received(received)

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- called by asyncio --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        super().connection_lost(exc)
