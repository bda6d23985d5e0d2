"""What stands before the methods of a server until a peer has shown who it is.

Owns the time before: the one method that may be called then, what is tried without it, small messages, a deadline, and
wrong tokens. Once a peer is known the session answers with the methods themselves, and nothing of this is in the way.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import orjson

from ..auth.credentials import MAX_WRONG, NOT_SYNC, Authenticator, Credentials
from ..errors import InvalidParams, InvalidRequest, NotAuthenticated, ParseError, RpcError
from ..limits import Limits
from ..peer.interfaces import Channel, Later
from ..peer.session import Session
from ..wire import envelope
from ..wire.framing import Oversize
from ..wire.pieces import Written
from .dispatch import Dispatcher

Line = bytes | bytearray

AUTHENTICATE, PING = "rpc.authenticate", "rpc.ping"

FIRST = {"reason": "call rpc.authenticate first"}
WRONG = {"reason": "the token is not accepted"}
NOT_IN_BATCH = {"reason": "rpc.authenticate must not stand in a batch"}


@runtime_checkable
class Restricted(Protocol):
    """A channel that takes small messages only, for a time."""

    def restrict(self, max_message_size: int | None) -> None: ...


class Gate:
    """A session's `Dispatch` until the peer is known; one for each session.

    Args:
        dispatcher: the methods behind it.
    """

    __slots__ = ("_authenticator", "_deadline", "_dispatcher", "_is_over", "_limits", "_task", "_wrong")

    def __init__(self, dispatcher: Dispatcher, authenticator: Authenticator, limits: Limits) -> None:
        self._dispatcher = dispatcher
        self._authenticator = authenticator
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        #: Finds out at the moment who the peer is.
        self._task: asyncio.Task[Any] | None = None
        self._wrong = 0
        #: Nobody is let in any more.
        self._is_over = False

    # -- the life of a connection -----------------------------------------------------------------------------------

    def begin(self, session: GatedSession) -> None:
        """The connection is there; perhaps it says itself who the peer is."""
        if session.identity is not None:  # the transport has found out (HTTP, WebSocket)
            session.admit(session.identity, self._dispatcher)
            return
        if isinstance(session.channel, Restricted):
            session.channel.restrict(self._limits.auth_message_size)
        session.on_lost.append(self._end)
        if self._limits.auth_timeout is not None:
            # From the connection, not from what was said on it first.
            opened = getattr(session.channel, "opened", session.loop.time())
            self._deadline = session.loop.call_at(opened + self._limits.auth_timeout, self._too_late, session)
        if not self._authenticator.takes_shown:
            return
        credentials = _shown(session)
        if not credentials.are_shown:
            return
        found = self._authenticator.identify_now(credentials)
        if found is NOT_SYNC:
            self._find_out(session, credentials)
        elif found is not None:
            self._admit(session, found)

    def _admit(self, session: GatedSession, identity: Any) -> None:
        if self._is_over:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if isinstance(session.channel, Restricted):
            session.channel.restrict(None)
        session.admit(identity, self._dispatcher)

    def _too_late(self, session: GatedSession) -> None:
        self._deadline = None
        reason = f"not authenticated after {self._limits.auth_timeout:g} s (auth_timeout)"
        self._close(session, reason)
        session.tell(self._dispatcher.refused(None, NotAuthenticated(data={"reason": reason})))

    def _close(self, session: GatedSession, reason: str) -> None:
        """Close the connection, once what was said is written."""
        self._is_over = True
        channel: Any = session.channel
        if channel is not None:
            channel.reason = reason
            channel.over_limit = True  # so that it is counted, and said
            session.drain_soon()
        if self._task is not None:
            self._task.cancel()

    def _end(self) -> None:
        """The connection is lost."""
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()

    # -- who it is --------------------------------------------------------------------------------------------------

    async def change(self, session: Session, token: str) -> None:
        """A peer that is known says that it is somebody else.

        Raises:
            NotAuthenticated: it is not believed, and stays who it was.
        """
        assert isinstance(session, GatedSession)
        found = None
        if not self._is_over:
            found = await self._authenticator.identify(replace(_shown(session), token=token))
        if found is None:
            raise self._count_wrong(session)
        session.identity = found

    def _count_wrong(self, session: GatedSession) -> NotAuthenticated:
        self._wrong += 1
        if self._wrong == MAX_WRONG:
            self._close(session, f"{MAX_WRONG} wrong tokens")
        return NotAuthenticated(data=WRONG)

    def _authenticate(self, message: dict[str, Any], session: GatedSession) -> Written | Later | None:
        try:
            envelope.check_request(message)
            token = _token_in(message.get("params"))
        except InvalidRequest as error:
            readable = "id" in message and envelope.has_valid_id(message)
            return self._dispatcher.refused(message if readable else None, error)
        except InvalidParams as error:
            return self._dispatcher.refused(message, error)
        if self._is_over:
            return self._dispatcher.refused(message, NotAuthenticated(data=WRONG))
        credentials = replace(_shown(session), token=token)
        found = self._authenticator.identify_now(credentials)
        if found is NOT_SYNC:
            return self._answer_later(self._find_out(session, credentials), message, session)
        if found is not None:
            self._admit(session, found)
        return self._answered(found, message, session)

    def _answered(self, identity: Any, message: dict[str, Any], session: GatedSession) -> Written | None:
        if identity is None:
            return self._dispatcher.refused(message, self._count_wrong(session))
        if "id" not in message:
            return None
        return orjson.dumps({"jsonrpc": envelope.VERSION, "id": message["id"], "result": True})

    async def _answer_later(
        self, task: asyncio.Task[Any], message: dict[str, Any], session: GatedSession
    ) -> Written | None:
        try:
            found = await task
        except asyncio.CancelledError:
            if not self._is_over:  # who asked does not wait any more
                raise
        if self._is_over:
            return self._dispatcher.refused(message, NotAuthenticated(data=WRONG))
        return self._answered(found, message, session)

    def _find_out(self, session: GatedSession, credentials: Credentials) -> asyncio.Task[Any]:
        """Ask the server's function. What has come behind waits meanwhile, in its order."""
        hold = session.hold()
        self._task = task = session.loop.create_task(self._authenticator.identify(credentials))

        def finish(task: asyncio.Task[Any]) -> None:
            self._task = None
            identity = None if task.cancelled() or task.exception() is not None else task.result()
            if identity is not None:
                self._admit(session, identity)
            session.release(hold)

        task.add_done_callback(finish)
        return task

    # -- Dispatch ---------------------------------------------------------------------------------------------------

    def answer(self, message: Any, line: Line, session: Session) -> Written | Later | None:
        assert isinstance(session, GatedSession)
        is_call = type(message) is dict or (type(message) is list and message)
        if not is_call or envelope.is_deeper(line, self._limits.max_depth):
            return self._dispatcher.answer(message, line, session)  # an error: it calls nothing
        if type(message) is list:
            return self._batch(message, line)
        if type(message.get("id")) is float:
            envelope.with_exact_ids(message, line)
        method = message.get("method")
        if method == PING:
            return self._dispatcher.answer(message, line, session)
        if method == AUTHENTICATE:
            return self._authenticate(message, session)
        return self._dispatcher.refused(message, NotAuthenticated(data=FIRST))

    def _batch(self, members: list[Any], line: Line) -> Written | None:
        """Each member by itself; who one is must be settled before a batch."""
        if len(members) > self._limits.max_batch:
            return self._dispatcher.too_many(members, line)
        if any(type(member) is dict and type(member.get("id")) is float for member in members):
            envelope.with_exact_ids(members, line)
        replies = []
        for member in members:
            if envelope.is_reply(member):
                continue
            method = member.get("method") if type(member) is dict else None
            error: RpcError = (
                InvalidRequest(data=NOT_IN_BATCH) if method == AUTHENTICATE else NotAuthenticated(data=FIRST)
            )
            replies.append(self._dispatcher.refused(member, error))
        said = [bytes(reply) for reply in replies if reply is not None]
        return b"[" + b",".join(said) + b"]" if said else None

    def oversize(self, message: Oversize) -> Written | None:
        return self._dispatcher.oversize(message)

    def unreadable(self, error: ParseError, call_id: Any) -> Written | None:
        return self._dispatcher.unreadable(error, call_id)

    def cancelled(self, message: Any) -> Written | None:
        return self._dispatcher.cancelled(message)

    def busy(self, message: Any, limit: int, name: str) -> Written | None:
        return self._dispatcher.busy(message, limit, name)

    def goes_on(self, message: Any) -> bool:
        return "id" not in message

    def took_long(self, message: Any, seconds: float) -> None:
        self._dispatcher.took_long(message, seconds)


class GatedSession(Session):
    """A session of a server that asks who its peers are. In the way of a call it is as any other."""

    __slots__ = ("gate",)

    def __init__(self, gate: Gate, **options: Any) -> None:
        super().__init__(gate, **options)
        self.gate = gate

    def connected(self, channel: Channel) -> None:
        super().connected(channel)
        self.gate.begin(self)

    def tell(self, message: Written | None) -> None:
        """Say something to a peer that is not known."""
        if message is not None:
            self.send(message)

    def drain_soon(self) -> None:
        """As `drain`, once the answers that are being made are there."""
        self.loop.call_soon(self.drain)


def _shown(session: Session) -> Credentials:
    shown = getattr(session.channel, "credentials", None)
    if isinstance(shown, Credentials):
        return shown
    return Credentials(address=session.channel.address if session.channel is not None else "")


def _token_in(params: Any) -> str:
    """The one parameter, by name or by position. Never says what it is."""
    if type(params) is dict and params.keys() == {"token"}:
        token = params["token"]
    elif type(params) is list and len(params) == 1:
        token = params[0]
    else:
        raise InvalidParams(data={"path": "$", "reason": "rpc.authenticate takes one parameter: token"})
    if type(token) is not str:
        raise InvalidParams(data={"parameter": "token", "path": "$.token", "reason": "the token must be a string"})
    return token
