"""The connections of one async client: made when they are needed, kept, made anew when they were lost.

Owns the pool and the making of connections, which calls that come meanwhile share. Knows nothing of calls but how many
wait where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..errors import CallTimeout, ConnectFailed, ConnectionLost
from ..transports.stream import LineStream
from .dial import failure
from .link import ClientSession
from .pool import choose
from .readiness import waiter
from .role import INFINITE
from .settings import Settings

CLOSED = "the client was closed"

#: Seconds that a closing client leaves to the server to take what was sent.
CLOSE_TIME = 2.0

#: Bytes that are sent in one turn of the loop before it must go round, so that they are written.
WRITE_MAX = 256 * 1024

#: Turns of the loop after which what the socket held has been read, and what was sent is written.
TURNS = 5

#: Joins the protocol that the given function makes to a transport, and returns it.
Connect = Callable[[Callable[[], LineStream]], Awaitable[LineStream]]


class Links:
    """Gives a call its connection."""

    def __init__(self, settings: Settings, connect: Connect | None) -> None:
        self.address = str(settings.address)
        self.is_closed = False
        self._settings = settings
        self._dial = connect or self._dial_address
        self._places = [_Place() for _ in range(settings.pool)]
        self._only = self._places[0] if settings.pool == 1 else None

    def ready(self, loop: asyncio.AbstractEventLoop) -> ClientSession | None:
        """A connection on which a call can be sent at once; None if something has to be waited for first."""
        place = self._only or choose(self._places)
        session = place.session
        if session is None or not session.is_open or session.loop is not loop:
            return None
        if session.stalled or session.unwritten > WRITE_MAX or session.has_unread():
            return None
        return session

    async def get(self, method: str, deadline: float) -> ClientSession:
        """A connection that is open and takes calls.

        Args:
            method: for errors.
            deadline: loop time, seconds; may be infinite.

        Raises:
            ConnectFailed, CallTimeout: there is none.
            RuntimeError: the client is closed.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                while True:
                    if self.is_closed:
                        raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
                    session = await self._open(self._only or choose(self._places), loop)
                    if not session.is_open:
                        raise ConnectionLost("the peer closed the connection at once")
                    for _ in range(TURNS):
                        if session.unwritten <= WRITE_MAX and not (session.is_open and session.has_unread()):
                            break
                        await asyncio.sleep(0)
                    if session.stalled:
                        await session.flowing()
                    if session.is_open:
                        return session
        except ConnectFailed as error:
            # Calls that share the attempt share its error; each is told of its own method.
            raise ConnectFailed(error.reason, method=method, address=self.address) from error
        except ConnectionLost as error:
            raise ConnectionLost(error.reason, method=method, address=self.address) from None
        except TimeoutError:
            raise CallTimeout("no connection in time", method=method, address=self.address) from None

    @property
    def dropped(self) -> int:
        """Replies on the present connections that nobody waited for."""
        return sum(place.session.pending.dropped for place in self._places if place.session is not None)

    async def close(self) -> None:
        """End all; what waits fails."""
        self.is_closed = True
        loop = asyncio.get_running_loop()
        closing = []
        for place in self._places:
            if place.opening is not None and place.opening.get_loop() is loop:
                place.opening.cancel()
                await asyncio.wait([place.opening])
            if place.session is not None and place.session.loop is loop:
                if place.session.is_open:
                    place.session.close(CLOSED)
                closing.append(place.session.gone(CLOSE_TIME))
        await asyncio.gather(*closing)

    async def _open(self, place: _Place, loop: asyncio.AbstractEventLoop) -> ClientSession:
        """The connection of a place, made once for all who want it at the same time."""
        session = place.session
        if session is not None and session.is_open and session.loop is loop:
            return session
        if place.opening is None or place.opening.get_loop() is not loop:
            place.opening = loop.create_task(self._connect(place))
            place.opening.add_done_callback(_look_at)
        # Whoever gives up does not take the connection from the others.
        try:
            return await asyncio.shield(place.opening)
        except asyncio.CancelledError:
            if self.is_closed:
                raise ConnectFailed(CLOSED, address=self.address) from None
            raise

    async def _connect(self, place: _Place) -> ClientSession:
        limit = self._settings.connect_timeout
        session = ClientSession(codec=self._settings.codec, limits=self._settings.limits, address=self.address)
        try:
            async with asyncio.timeout(limit):
                await self._dial(lambda: self._make_stream(session))
        except OSError as error:
            raise ConnectFailed(failure(error, limit), address=self.address) from error
        finally:
            place.opening = None
        place.session = session
        return session

    def _make_stream(self, session: ClientSession) -> LineStream:
        settings = self._settings
        return LineStream(
            session,
            limits=settings.limits,
            delimiter=settings.delimiter,
            address=self.address,
            trace=settings.trace,
        )

    async def _dial_address(self, make_stream: Callable[[], LineStream]) -> LineStream:
        address, loop = self._settings.address, asyncio.get_running_loop()
        stream: LineStream
        if address.kind == "unix":
            transport, stream = await loop.create_unix_connection(make_stream, address.path)
        else:
            transport, stream = await loop.create_connection(make_stream, address.host, address.port)
        assert isinstance(stream.session, ClientSession)
        stream.session.glance = waiter(transport.get_extra_info("socket"), read=True)
        return stream


def _look_at(task: asyncio.Task[ClientSession]) -> None:
    """If all who waited have given up, the failure is nobody's business any more."""
    if not task.cancelled():
        task.exception()


class _Place:
    """A place in the pool, with its connection or the task that makes it."""

    __slots__ = ("opening", "session")

    def __init__(self) -> None:
        self.session: ClientSession | None = None
        self.opening: asyncio.Task[ClientSession] | None = None

    @property
    def load(self) -> int:
        return 0 if self.session is None else len(self.session.pending)

    @property
    def is_open(self) -> bool:
        return self.session is not None and self.session.is_open
