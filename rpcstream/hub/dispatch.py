"""What answers requests at a hub: its own methods, as at any server, and those that its clients offer.

Owns the way of a call from the caller to the client that it is for: who may call, who carries it out, how long. What
the two say to each other from then on is the relay's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from ..codec import payloads
from ..errors import CallCancelled, InvalidParams, InvalidRequest, NotPermitted, ParseError, RpcError
from ..methods.dispatch import Dispatcher, credit_of, timeout_of
from ..methods.signature import Tagged
from ..peer.deadline import INFINITE
from ..peer.flow_control import CREDIT_MAX
from ..peer.interfaces import Later
from ..peer.session import Session
from ..wire import envelope
from ..wire.envelope import VERSION
from ..wire.pieces import Written
from . import passthrough
from .directory import Balance, Directory, Route
from .listing import Listing, reply_with
from .members import Member
from .passthrough import Line
from .relay import Relay
from .relayed_streams import STREAM_TEXT, argument_streams
from .rules import Rules

#: What the tag of a stream may be written with; a line with neither this nor the tag has none among its arguments.
_ESCAPE = b"\\u"

#: These say only that the caller is there.
SIGNS_OF_LIFE = frozenset(("rpc.ping", "keepAlive"))

#: A method of the hub's whose params are not decoded: called with the session, the message and its line.
Passing = Callable[[Session, dict[str, Any], Line], Any]


class HubDispatcher(Dispatcher):
    """A `Dispatcher` that sends on what it has no method for.

    Args:
        directory: who offers what.
        rules: who may call what; None: everybody everything.
        balance: how the calls of a shared method are shared out.
        call_timeout: seconds after which a call is given up, also if its caller would wait for longer.
        passing: methods of the hub's that send on what is among their params.
        listings: methods of the hub's whose answers are long lists.
        options: as for a `Dispatcher`.

    Attributes:
        forwarded: calls that were sent on.
    """

    def __init__(
        self,
        *args: Any,
        directory: Directory,
        rules: Rules | None,
        balance: Balance,
        call_timeout: float | None,
        passing: Mapping[str, Passing],
        listings: Mapping[str, Listing],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.forwarded = 0
        self._directory = directory
        self._routes = directory.routes
        self._rules = rules
        self._balance = balance
        self._call_timeout = call_timeout
        self._passing = passing
        self._listings = listings

    def answer(self, message: Any, line: Line, session: Session, tagged: Tagged = None) -> Written | Later | None:
        """As `Dispatcher.answer`; a call for a client is a `Relay`."""
        if type(message) is not dict:
            return super().answer(message, line, session, tagged)
        name = message.get("method")
        route = self._routes.get(name) if type(name) is str else None
        if route is None:
            return self._answer_own(name, message, line, session, tagged)
        if not line and "id" in message:
            return self._forward_member(route, message, session)
        return self._forward(route, message, line, session)

    def _answer_own(
        self, name: Any, message: dict[str, Any], line: Line, session: Session, tagged: Tagged
    ) -> Written | Later | None:
        """A method of the hub itself, or none."""
        if type(name) is str and name in self._methods:
            if session.is_lasting and name not in SIGNS_OF_LIFE:
                self._directory.find(session)
            if not self._may_call(session, name):
                return self._error_to(message, NotPermitted(data={"method": name}))
            if name in self._passing:
                return self._pass(self._passing[name], message, line, session)
            if name in self._listings:
                return self._list(self._listings[name], message, line, session)
        return super().answer(message, line, session, tagged)

    def _pass(self, function: Passing, message: dict[str, Any], line: Line, session: Session) -> Written | None:
        self._counters.requests += 1
        try:
            result = function(session, message, self._checked(message, line))
        except RpcError as error:
            return self._not_sent(message, error)
        return self._serialize({"jsonrpc": VERSION, "id": message["id"], "result": result}) if "id" in message else None

    def _list(self, listing: Listing, message: dict[str, Any], line: Line, session: Session) -> Written | Later | None:
        """A method whose answer is a long list."""
        self._counters.requests += 1
        try:
            if line and type(message.get("id")) is float:
                envelope.with_exact_ids(message, line)
            envelope.check_request(message)
            if message.get("params"):
                raise InvalidParams(data={"reason": "it has no parameters"})
        except RpcError as error:
            return self._not_sent(message, error)
        if "id" not in message:
            return None
        version = listing.ask()
        found = listing.now(version)
        if found is None:
            return self._list_soon(listing, version, message, session, is_member=not line)
        return self._listed(message, found)

    async def _list_soon(
        self, listing: Listing, version: int, message: dict[str, Any], session: Session, *, is_member: bool
    ) -> Written | None:
        """The answer when the list is written; `is_member`: of a batch, which bounds what is kept of its answers."""
        found, flows = await listing.soon(version), session.flows
        if is_member:
            return self._listed(message, found)
        # All who wait have it in the same turn of the loop, and a connection is sent what it takes.
        while not flows.is_free:
            await flows.flowing()
        reply = self._listed(message, found)
        flows.unsent += len(reply or b"")
        return reply

    def _listed(self, message: dict[str, Any], found: bytes | RpcError) -> Written | None:
        if not isinstance(found, RpcError):
            reply = reply_with(orjson.dumps(message["id"]), found, self._limits.max_message_size)
            if not isinstance(reply, RpcError):
                return reply
            found = reply
        return self._not_sent(message, found)

    # -- a call for a client ------------------------------------------------------------------------------------------

    def _forward(
        self,
        route: Route,
        message: dict[str, Any],
        line: Line,
        session: Session,
        future: asyncio.Future[Written | None] | None = None,
    ) -> Written | Relay | None:
        """Send a call on; gives an error reply if that cannot be done, and nothing for a notification.

        Args:
            future: gets the reply in the place of the caller's session.
        """
        self._counters.requests += 1
        try:
            line = self._checked(message, line)
            client = self._chosen(route, message["method"], session)
            timeout = self._call_timeout
            if "timeout" in message:
                timeout = timeout_of(message["method"], timeout, message, session.waited)
            self.forwarded += 1
            if "id" not in message:
                client.send(passthrough.request(line, message, None, route.text, timeout=timeout))
                client.served += 1
                return None
            deadline = INFINITE if timeout is None else session.loop.time() + timeout
            relay = Relay(message["method"], session, message["id"], client, deadline=deadline, refuse=self._refusal)
            relay.future = future
            self._send(relay, route, message, line, session, timeout)
            return relay
        except RpcError as error:
            return self._not_sent(message, error)

    async def _forward_member(self, route: Route, message: dict[str, Any], session: Session) -> Written | None:
        """The same for a member of a batch, whose reply is waited for here."""
        future: asyncio.Future[Written | None] = session.loop.create_future()
        relay = self._forward(route, message, b"", session, future)
        if not isinstance(relay, Relay):
            return relay
        try:
            return await future
        except asyncio.CancelledError:
            relay.abort(CallCancelled())
            raise

    def _send(
        self, relay: Relay, route: Route, message: dict[str, Any], line: Line, session: Session, timeout: float | None
    ) -> None:
        """A relay's request to its provider. RpcError if it cannot be sent; then there is no relay."""
        try:
            params = None
            credit = None
            if session.streams or "stream" in message:
                permitted = _permitted(message, session)
                credit = relay.add_reply_stream(permitted) if permitted is not None else None
            if (STREAM_TEXT in line or _ESCAPE in line) and self._codec.holds_tags(line):
                streams, params = argument_streams(
                    line, message.get("params") or (), session, relay.client, relay.abort
                )
                relay.add_argument_streams(streams)
            call_id = relay.pending_id
            relay.send(
                passthrough.request(line, message, call_id, route.text, timeout=timeout, stream=credit, params=params)
            )
        except RpcError:
            relay.client.session.pending.discard(relay.pending_id)
            raise

    def _checked(self, message: dict[str, Any], line: Line) -> Line:
        """The line of a request that may go on.

        Raises:
            InvalidRequest, ParseError, InvalidParams: it may not.
        """
        if len(line) > self._shallow and envelope.is_deeper(line, self._max_depth):
            reason = f"more than {self._max_depth} arrays and objects inside each other (the {self._side}'s max_depth)"
            raise InvalidRequest(data={"reason": reason, "limit": self._max_depth})
        kind, params = type(message.get("id", 0)), message.get("params")
        if kind is float and line:
            envelope.with_exact_ids(message, line)
        if (kind is not int and kind is not str) or message.get("jsonrpc") != VERSION or type(params) not in _PARAMS:
            envelope.check_request(message)
        if not line:
            return self._line_of_member(message)
        if not payloads.is_json(line):
            raise ParseError(data={"reason": "a string among the params is none of JSON"})
        return passthrough.line_of(line, message)

    def _line_of_member(self, message: dict[str, Any]) -> bytes:
        """A member of a batch as a message of its own."""
        try:
            return bytes(self._serialize(payloads.with_strings(message)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParams("Invalid params: they cannot be sent on", {"reason": str(error)}) from None

    def _chosen(self, route: Route, name: str, session: Session) -> Member:
        """Who carries a call out.

        Raises:
            NotPermitted: the caller may call none of those who could.
            ProviderGone: none of them takes calls.
        """
        if session.is_lasting:
            self._directory.find(session).made += 1
        client = route.choose(self._balance)
        if self._rules is None or self._may_call(session, route.method, client):
            return client
        for other in route.clients:
            if other.is_there and self._may_call(session, route.method, other):
                return other
        raise NotPermitted(data={"method": name})

    def _may_call(self, session: Session, method: str, provider: Member | None = None) -> bool:
        """A rule about any name of a method is one about the method."""
        if self._rules is None:
            return True
        if provider is None:
            return self._rules.permits(session.identity, "call", method)
        return self._rules.permits_call(session.identity, method, provider.name or "")

    def _not_sent(self, message: dict[str, Any], error: RpcError) -> Written | None:
        """The error reply; what is no JSON gets one in any case (JSON-RPC 2.0, section 5)."""
        return self._error_to({"id": message.get("id")} if isinstance(error, ParseError) else message, error)

    def _refusal(self, call_id: Any, error: RpcError) -> Written | None:
        return self._error_to({"id": call_id}, error)


def _permitted(message: dict[str, Any], session: Session) -> int | None:
    """Items that the caller permits at first; None if it wants no stream. InvalidRequest if that is no number."""
    if session.streams is False or message.get("stream", 0) is None:
        return None
    return CREDIT_MAX if session.streams else credit_of(message)


_PARAMS = frozenset((dict, list))
