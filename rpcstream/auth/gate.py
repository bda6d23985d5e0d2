"""Answers a peer until it is authenticated; after that the session calls the dispatcher directly.

Owns what holds before authentication: `rpc.authenticate` and `rpc.ping` are the only methods, messages are small, there
is a deadline, and wrong tokens are counted. Does not know how credentials are checked (`authenticator`), nor methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import orjson

from ..errors import InvalidParams, InvalidRequest, NotAuthenticated, RpcError
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.interfaces import Channel, Dispatch, Later
from ..peer.session import Session
from ..wire import envelope
from ..wire.buffers import Encoded
from .authenticator import MAX_WRONG, NOT_SYNC, Authenticator

Line = bytes | bytearray

AUTHENTICATE, PING = "rpc.authenticate", "rpc.ping"

NOT_AUTHENTICATED = {"reason": "call rpc.authenticate first"}
WRONG_TOKEN = {"reason": "the token is not accepted"}
NOT_IN_BATCH = {"reason": "rpc.authenticate must not stand in a batch"}


@runtime_checkable
class SizeLimited(Protocol):
    """A channel whose limit of message size can be lowered until the peer is authenticated."""

    def restrict(self, max_message_size: int | None) -> None:
        """Take messages of at most so many bytes; None: as many as the server's limits say."""


class Gate:
    """The `Dispatch` of one session until its peer is authenticated.

    Args:
        dispatcher: answers the peer once it is authenticated.
        authenticator: finds the identity of the peer.
        limits: `auth_timeout`, `auth_message_size`, `max_depth` and `max_batch` are enforced here.
        on_accepted: called with each request `rpc.authenticate` that is answered here with True, its session and the
            reply, since the dispatcher does not see it; None: it need not be told.
    """

    __slots__ = (
        "_authenticator",
        "_deadline",
        "_dispatcher",
        "_is_closed",
        "_limits",
        "_lookup",
        "_on_accepted",
        "_wrong_tokens",
    )

    def __init__(
        self,
        dispatcher: Dispatch[Session],
        authenticator: Authenticator,
        limits: Limits,
        *,
        on_accepted: Callable[[dict[str, Any], Session, Encoded | None], None] | None = None,
    ) -> None:
        self._on_accepted = on_accepted
        self._dispatcher = dispatcher
        self._authenticator = authenticator
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        #: The call of an async `authenticate` function that runs at the moment.
        self._lookup: asyncio.Task[Any] | None = None
        self._wrong_tokens = 0
        #: The connection is lost or being closed: the peer is not admitted any more.
        self._is_closed = False

    # -- life of the connection --------------------------------------------------------------------------------------

    def begin(self, session: GatedSession) -> None:
        """The connection is open: start the deadline, and admit the peer at once if the connection shows who it is."""
        if session.identity is not None:  # found by the transport, from the headers of HTTP or WebSocket
            session.admit(session.identity, self._dispatcher)
            return
        if isinstance(session.channel, SizeLimited):
            session.channel.restrict(self._limits.auth_message_size)
        session.add_lost_callback(self._lost)
        if self._limits.auth_timeout is not None:
            # Counted from the time of connecting, not from the first message.
            opened = getattr(session.channel, "opened", session.loop.time())
            self._deadline = session.loop.call_at(opened + self._limits.auth_timeout, self._too_late, session)
        if not self._authenticator.takes_shown:
            return
        credentials = _credentials_of(session)
        if not credentials.are_shown:
            return
        found = self._authenticator.identify_now(credentials)
        if found is NOT_SYNC:
            self._look_up(session, credentials)
        elif found is not None:
            self._admit(session, found)

    def _admit(self, session: GatedSession, identity: Any) -> None:
        """The peer is authenticated: hand the session to the dispatcher, without the limits of before."""
        if self._is_closed:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if isinstance(session.channel, SizeLimited):
            session.channel.restrict(None)
        session.admit(identity, self._dispatcher)

    def _too_late(self, session: GatedSession) -> None:
        """The deadline has passed."""
        self._deadline = None
        reason = f"not authenticated after {self._limits.auth_timeout:g} s (auth_timeout)"
        self._close(session, reason)
        session.send_reply(self._dispatcher.refuse(None, NotAuthenticated(data={"reason": reason})))

    def _close(self, session: GatedSession, reason: str) -> None:
        """Close the connection, once the replies of this turn are written."""
        self._is_closed = True
        channel: Any = session.channel
        if channel is not None:
            channel.reason = reason
            channel.over_limit = True  # so that it is counted and logged
            session.drain_soon()
        if self._lookup is not None:
            self._lookup.cancel()

    def _lost(self) -> None:
        """The connection is lost."""
        self._is_closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._lookup is not None:
            self._lookup.cancel()

    # -- authentication ---------------------------------------------------------------------------------------------

    async def change(self, session: Session, token: str) -> None:
        """Give an authenticated peer another identity, by another token.

        Raises:
            NotAuthenticated: the token is not accepted; the identity stays as it was.
        """
        assert isinstance(session, GatedSession)
        found = None
        if not self._is_closed:
            found = await self._authenticator.identify(replace(_credentials_of(session), token=token))
        if found is None:
            raise self._count_wrong(session)
        session.set_identity(found)

    def _count_wrong(self, session: GatedSession) -> NotAuthenticated:
        """Count a wrong token, and close the connection at the last one; gives the error for the peer."""
        self._wrong_tokens += 1
        self._report(session, has_shown=True)
        if self._wrong_tokens == MAX_WRONG:
            self._close(session, f"{MAX_WRONG} wrong tokens")
        return NotAuthenticated(data=WRONG_TOKEN)

    def _report(self, session: Session, *, has_shown: bool, requests: int = 1) -> None:
        """Count and log requests that are refused since the peer is not authenticated."""
        address = session.channel.address if session.channel is not None else ""
        self._authenticator.refused(address, has_shown=has_shown, requests=requests)

    def _authenticate(self, message: dict[str, Any], session: GatedSession) -> Encoded | Later | None:
        """The reply to `rpc.authenticate`."""
        try:
            envelope.check_request(message)
            token = _token_in(message.get("params"))
        except InvalidRequest as error:
            readable = "id" in message and envelope.has_valid_id(message)
            return self._dispatcher.refuse(message if readable else None, error)
        except InvalidParams as error:
            return self._dispatcher.refuse(message, error)
        if self._is_closed:
            self._report(session, has_shown=True)
            return self._dispatcher.refuse(message, NotAuthenticated(data=WRONG_TOKEN))
        credentials = replace(_credentials_of(session), token=token)
        found = self._authenticator.identify_now(credentials)
        if found is NOT_SYNC:
            return self._answer_later(self._look_up(session, credentials), message, session)
        if found is not None:
            self._admit(session, found)
        return self._answered(found, message, session)

    def _answered(self, identity: Any, message: dict[str, Any], session: GatedSession) -> Encoded | None:
        if identity is None:
            return self._dispatcher.refuse(message, self._count_wrong(session))
        reply = None
        if "id" in message:
            reply = orjson.dumps({"jsonrpc": envelope.VERSION, "id": message["id"], "result": True})
        if self._on_accepted is not None:
            self._on_accepted(message, session, reply)
        return reply

    async def _answer_later(
        self, task: asyncio.Task[Any], message: dict[str, Any], session: GatedSession
    ) -> Encoded | None:
        """The reply to `rpc.authenticate`, when an async function has found the identity."""
        try:
            found = await task
        except asyncio.CancelledError:
            if not self._is_closed:  # the caller has cancelled its request
                raise
        if self._is_closed:
            return self._dispatcher.refuse(message, NotAuthenticated(data=WRONG_TOKEN))
        return self._answered(found, message, session)

    def _look_up(self, session: GatedSession, credentials: Credentials) -> asyncio.Task[Any]:
        """Call the server's async function. Requests that come meanwhile wait, in their order."""
        hold = session.hold()
        self._lookup = task = session.loop.create_task(self._authenticator.identify(credentials))

        def finish(task: asyncio.Task[Any]) -> None:
            self._lookup = None
            identity = None if task.cancelled() or task.exception() is not None else task.result()
            if identity is not None:
                self._admit(session, identity)
            session.release(hold)

        task.add_done_callback(finish)
        return task

    # -- Dispatch ---------------------------------------------------------------------------------------------------

    def answer(self, message: Any, line: Line, session: Session) -> Encoded | Later | None:
        assert isinstance(session, GatedSession)
        is_call = type(message) is dict or (type(message) is list and 0 < len(message) <= self._limits.max_batch)
        if not is_call or envelope.is_deeper(line, self._limits.max_depth):
            return self._dispatcher.answer(message, line, session)  # which answers with an error, and calls nothing
        if type(message) is list:
            return self._batch(message, line, session)
        if type(message.get("id")) is float:
            envelope.with_exact_ids(message, line)
        method = message.get("method")
        if method == PING:
            return self._dispatcher.answer(message, line, session)
        if method == AUTHENTICATE:
            return self._authenticate(message, session)
        self._report(session, has_shown=False)
        return self._dispatcher.refuse(message, NotAuthenticated(data=NOT_AUTHENTICATED))

    def _batch(self, members: list[Any], line: Line, session: Session) -> Encoded | None:
        """Refuse each member by itself: a peer must be authenticated before its first batch."""
        if any(type(member) is dict and type(member.get("id")) is float for member in members):
            envelope.with_exact_ids(members, line)
        replies = []
        for member in members:
            if envelope.is_reply(member):
                continue
            method = member.get("method") if type(member) is dict else None
            error: RpcError = (
                InvalidRequest(data=NOT_IN_BATCH)
                if method == AUTHENTICATE
                else NotAuthenticated(data=NOT_AUTHENTICATED)
            )
            replies.append(self._dispatcher.refuse(member, error))
        if replies:
            self._report(session, has_shown=False, requests=len(replies))
        written = [bytes(reply) for reply in replies if reply is not None]
        return b"[" + b",".join(written) + b"]" if written else None

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        return self._dispatcher.refuse(message, error)

    def refusal_of(self, message: dict[str, Any], session: Session) -> RpcError | None:
        return NotAuthenticated(data=NOT_AUTHENTICATED)  # no frame is read so early

    def goes_on(self, message: Any) -> bool:
        return "id" not in message


class GatedSession(Session):
    """A session of a server with authentication: its gate answers until the peer is admitted.

    It differs from other sessions in that only; calls take the same way once the peer is authenticated.
    """

    __slots__ = ("gate",)

    def __init__(self, gate: Gate, **options: Any) -> None:
        super().__init__(gate, **options)
        self.gate = gate

    def connected(
        self, channel: Channel, *, is_lasting: bool = True, splits_values: bool = False, is_lines: bool = False
    ) -> None:
        super().connected(channel, is_lasting=is_lasting, splits_values=splits_values, is_lines=is_lines)
        self.gate.begin(self)

    def send_reply(self, reply: Encoded | None) -> None:
        """Send a reply that belongs to no request; None: send nothing."""
        if reply is not None:
            self.send(reply)

    def drain_soon(self) -> None:
        """Drain behind the replies that are being made in this turn of the loop."""
        self.loop.call_soon(self.drain)


def _credentials_of(session: Session) -> Credentials:
    """The credentials that the connection shows; only the address if it has no others."""
    shown = getattr(session.channel, "credentials", None)
    if isinstance(shown, Credentials):
        return shown
    return Credentials(address=session.channel.address if session.channel is not None else "")


def _token_in(params: Any) -> str:
    """The token in the params of `rpc.authenticate`, by name or by position.

    Raises:
        InvalidParams: there is none, or more; the text never has the token in it.
    """
    if type(params) is dict and params.keys() == {"token"}:
        token = params["token"]
    elif type(params) is list and len(params) == 1:
        token = params[0]
    else:
        raise InvalidParams(data={"path": "$", "reason": "rpc.authenticate takes one parameter: token"})
    if type(token) is not str:
        raise InvalidParams(data={"parameter": "token", "path": "$.token", "reason": "the token must be a string"})
    return token
