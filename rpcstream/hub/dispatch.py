"""Forwards the calls of a hub's dispatcher: who may call, which member carries a call out, and for how long.

From then on a `Relay` passes the messages of the call between the two members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from ..codec import Codec, payloads
from ..errors import (
    CallCancelled,
    InvalidParams,
    MethodNotFound,
    NotPermitted,
    ProviderGone,
    RpcError,
)
from ..limits import Limits
from ..methods.dispatch import Dispatcher, method_not_found, too_deep
from ..methods.registry import MethodRegistry
from ..observe.counters import Counters
from ..peer.deadline import INFINITE, timeout_of
from ..peer.flow_control import CREDIT_MAX, credit_of
from ..peer.inflight import Later
from ..peer.ledger import COUNTED
from ..peer.session import NOT_BEGUN, Session
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import VERSION
from ..wire.json_scan import is_deeper
from . import passthrough
from .directory import COMPARED, Directory, Route
from .members import Member, may_be_offered
from .methods import PassingMethod
from .passthrough import STREAM_TEXT, Line
from .relay import Relay
from .relayed_streams import argument_streams
from .rules import Rules

#: The tag of a stream may be written with escapes; a line with neither these nor the tag has no stream among its
#: arguments.
_ESCAPE = b"\\u"

#: The line of params that hold no rich values.
_NO_TAGS = b"{}"

#: How many providers a call is sent to, of which those before the last have not begun it.
TRIES = 5

#: Methods that only show that the caller is alive; they make it no member.
SIGNS_OF_LIFE = frozenset(("rpc.ping", "keepAlive"))


class Forwarding:
    """Forwards calls to members of the hub, and passes calls of the hub's own methods to a dispatcher.

    Args:
        dispatcher: of the hub's own methods.
        own: these methods.
        directory: the routes of the members' methods.
        rules: who may call what; None: everything is permitted.
        call_timeout: seconds after which a call is given up, even if its caller would wait longer.
        passing: methods of the hub whose params are passed on without decoding, by name.
        counters: of the hub.
        make_relay, notification: make the calls that are forwarded, and the notifications.

    Attributes:
        forwarded: calls and notifications that were forwarded.
        call_timeout: as given; may be changed.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        own: MethodRegistry,
        codec: Codec,
        limits: Limits,
        counters: Counters,
        directory: Directory,
        rules: Rules | None,
        call_timeout: float | None,
        passing: Mapping[str, PassingMethod],
        make_relay: Callable[..., Relay] = Relay,
        notification: Callable[..., Encoded] | None = None,
    ) -> None:
        self.replies = dispatcher.replies
        self.forwarded = 0
        self._dispatcher = dispatcher
        self._answer, dispatcher.answer = dispatcher.answer, self.answer
        dispatcher.not_found = self._not_found
        self._methods = own
        self._codec = codec
        self._serialize = codec.serialize
        self._limits = limits
        self._shallow = 2 * limits.max_depth
        self._counters = counters
        self._make_relay = make_relay
        self._notification = _notification if notification is None else notification
        self._directory = directory
        self._routes = directory.routes
        self._rules = rules
        self.call_timeout = call_timeout
        self._passing = passing

    def answer(self, message: Any, line: Line, session: Session) -> Encoded | Later | None:
        """Answer as `Dispatcher.answer` does; a call of a member's method becomes a `Relay`."""
        if type(message) is not dict:
            return self._answer(message, line, session)
        name = message.get("method")
        route = self._routes.get(name) if type(name) is str else None
        if route is None:
            return self._answer_own(name, message, line, session)
        if not line and "id" in message:
            return self._forward_from_batch(route, message, session, self._dispatcher.observed)
        reply = self._forward(route, message, line, session)
        if isinstance(reply, Relay) and (observed := self._dispatcher.observed) is not None:
            reply.on_end = observed.end
        return reply

    def _answer_own(self, name: Any, message: dict[str, Any], line: Line, session: Session) -> Encoded | Later | None:
        """Answer a call of the hub's own methods, or of one that does not exist."""
        if type(name) is str and name in self._methods:
            if session.is_lasting and name not in SIGNS_OF_LIFE:
                self._directory.find(session)
            if not self._may_call(session, name):
                return self._not_sent(message, NotPermitted(data={"method": name}), session)
            if name in self._passing:
                return self._pass(name, message, line, session)
        return self._answer(message, line, session)

    def _pass(self, name: str, message: dict[str, Any], line: Line, session: Session) -> Encoded | None:
        """Answer a call of a method that passes one of its arguments on as it came."""
        self._counters.requests += 1
        try:
            line = self._checked(message, line)
            args, kwargs = self._methods[name].bind(passthrough.without_value(message.get("params"), name), _NO_TAGS)
            result = self._passing[name](session, line, *args, **kwargs)
        except RpcError as error:
            return self._not_sent(message, error, session)
        return self._serialize({"jsonrpc": VERSION, "id": message["id"], "result": result}) if "id" in message else None

    # -- a call of a member's method ----------------------------------------------------------------------------------

    def _forward(
        self,
        route: Route,
        message: dict[str, Any],
        line: Line,
        session: Session,
        future: asyncio.Future[Encoded | None] | None = None,
    ) -> Encoded | Relay | None:
        """Forward a call; return an error reply if that cannot be done, and None for a notification.

        Args:
            route: of the method.
            message: the request.
            line: the text of the request; empty for one of a batch.
            session: of the caller.
            future: gets the reply in the place of the caller's session.
        """
        self._counters.requests += 1
        try:
            line = self._checked(message, line)
            if session.is_lasting:
                self._directory.find(session).calls_made += 1
            provider = self._provider(route, message["method"], session)
            timeout = self.call_timeout
            if "timeout" in message:
                timeout = timeout_of(message["method"], timeout, message, session.waited)
            self.forwarded += 1
            if "id" not in message:
                provider.send(self._notification(provider, line, message, route.text, timeout))
                provider.calls_served += 1
                return None
            deadline = INFINITE if timeout is None else session.loop.time() + timeout
            relay = self._make_relay(
                message["method"],
                session,
                message["id"],
                provider,
                deadline=deadline,
                forwarder=self,
                line=line if type(line) is bytes and len(line) < COUNTED else None,
                message=message,
            )
            relay.future = future
            self._send(relay, route, message, line, session, timeout=timeout)
            return relay
        except RpcError as error:
            if isinstance(error, ProviderGone) and session.is_leaving:  # and so is every provider's connection
                error = CallCancelled(data={"executed": False, "reason": NOT_BEGUN})
            return self._not_sent(message, error, session)

    async def _forward_from_batch(
        self, route: Route, message: dict[str, Any], session: Session, observed: Any
    ) -> Encoded | None:
        """Forward a call that stands in a batch, and wait for its reply."""
        if observed is not None:
            observed.begin()
        future: asyncio.Future[Encoded | None] = session.loop.create_future()
        reply = self._forward(route, message, b"", session, future)
        if isinstance(reply, Relay):
            relay = reply
            relay.on_end = None if observed is None else observed.end
            try:
                return await future
            except asyncio.CancelledError:
                relay.on_end = None  # the batch reports it
                relay.abort(CallCancelled())
                raise
        if observed is not None:
            observed.end(reply)
        return reply

    def send_again(self, relay: Relay) -> bool:
        """As `Forwarder.send_again`."""
        message, line, session, name = relay.message, relay.line, relay.caller, relay.method
        if line is None or relay.has_streams or relay.tries >= TRIES or session.channel is None:
            return False
        left = relay.deadline - session.loop.time()
        route = self._routes.get(name)
        if left <= 0 or route is None:
            return False
        try:
            relay.turn_to(self._provider(route, name, session))
            self._send(relay, route, message, line, session, timeout=None if left == INFINITE else left)
        except RpcError:
            return False
        return True

    # -- what is sent -------------------------------------------------------------------------------------------------

    def _send(
        self,
        relay: Relay,
        route: Route,
        message: dict[str, Any],
        line: Line,
        session: Session,
        *,
        timeout: float | None,
    ) -> None:
        """Send a relay's request to its provider; RpcError if it cannot be sent, and then the relay is over."""
        try:
            params = None
            credit = None
            if session.streaming or "stream" in message:
                granted = credit_of(message, session.streaming)
                credit = None if granted is None else relay.add_reply_stream(min(granted, CREDIT_MAX))
            if (STREAM_TEXT in line or _ESCAPE in line) and self._codec.holds_tags(line):
                streams, params = argument_streams(
                    line, message.get("params") or (), session, relay.provider, relay.abort
                )
                relay.add_argument_streams(streams)
            relay.send(relay.request(line, message, route.text, timeout=timeout, stream=credit, params=params))
        except RpcError:
            relay.provider.session.pending.discard(relay.pending_id)
            raise

    def _checked(self, message: dict[str, Any], line: Line) -> Line:
        """Check a request before it is passed on; return its line.

        Raises:
            InvalidRequest, ParseError, InvalidParams: it is not valid.
        """
        if len(line) > self._shallow and is_deeper(line, self._limits.max_depth):
            raise too_deep(self._limits.max_depth, "server")
        kind, params = type(message.get("id", 0)), message.get("params")
        if (kind is not int and kind is not str) or message.get("jsonrpc") != VERSION or type(params) not in _PARAMS:
            envelope.check_request(message)
        if not line:
            return self._line_in_batch(message)
        return passthrough.line_of(line, message)

    def _line_in_batch(self, message: dict[str, Any]) -> bytes:
        """Write a request of a batch as a message of its own."""
        try:
            return bytes(self._serialize(payloads.with_strings(message)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParams("Invalid params: they cannot be passed on", {"reason": str(error)}) from None

    def _provider(self, route: Route, name: str, session: Session) -> Member:
        """Choose the member that carries a call out.

        Raises:
            NotPermitted: the caller may call the method at none of them.
            ProviderGone: none of them takes calls.
        """
        member = route.choose()
        if self._rules is None or self._may_call(session, route.method, member):
            return member
        for other in route.members:
            if other.is_there and self._may_call(session, route.method, other):
                return other
        raise NotPermitted(data={"method": name})

    def _may_call(self, session: Session, method: str, provider: Member | None = None) -> bool:
        """Check the rules for a method of the hub, or of a provider, by all its names."""
        if self._rules is None:
            return True
        if provider is None:
            return self._rules.permits(session.identity, "call", method)
        return self._rules.permits_call(session.identity, method, provider.name or "")

    def _not_found(self, name: str, session: Session) -> MethodNotFound:
        """As `Dispatcher.not_found`; the data says if a client may offer the method later."""
        names = chain(self._methods, self._directory.listed())
        error = method_not_found(name, names, lambda known: self._is_visible(known, session))
        if may_be_offered(name):
            error.data["no_provider"] = True
        return error

    def _is_visible(self, name: str, session: Session) -> bool:
        route = self._routes.get(name)
        if route is None:
            return self._dispatcher.permits(name, session) and self._may_call(session, name)
        return any(self._may_call(session, route.method, member) for member in route.members[:COMPARED])

    def _not_sent(self, message: dict[str, Any], error: RpcError, session: Session | None = None) -> Encoded | None:
        return self.replies.error_to(message, error, session)

    def write_error(self, call_id: Any, error: RpcError) -> Encoded | None:
        return self.replies.error_to({"id": call_id}, error)


def _notification(
    provider: Member, line: Line, message: dict[str, Any], method: bytes, timeout: float | None
) -> Encoded:
    """Write a notification for its provider."""
    return passthrough.request(line, message, None, method, timeout=timeout)


_PARAMS = frozenset((dict, list))
