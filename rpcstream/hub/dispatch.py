"""The dispatcher of a hub: answers calls of the hub's own methods, and forwards those of its members.

Owns the way of a call from its caller to its provider: who may call, which member carries it out, for how long. The
messages between the two from then on are those of `Relay`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import orjson

from ..codec import payloads
from ..errors import (
    CallCancelled,
    DeadlineExceeded,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    NotPermitted,
    ParseError,
    ProviderGone,
    RpcError,
)
from ..methods.arguments import Tagged
from ..methods.dispatch import Dispatcher
from ..peer.deadline import INFINITE, timeout_of
from ..peer.flow_control import CREDIT_MAX, credit_of
from ..peer.inflight import ForwardedCall
from ..peer.interfaces import Later
from ..peer.memory import COUNTED
from ..peer.state import NOT_BEGUN, ConversationState
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import VERSION
from . import passthrough
from .directory import Directory
from .held import AwayMethod, HeldCall, HeldCalls
from .listing import Listing, reply_with
from .members import Member
from .methods import PassingMethod
from .offers import may_be_offered
from .passthrough import STREAM_TEXT, Line
from .relay import Relay
from .relayed_streams import argument_streams
from .routes import COMPARED, Balance, Route
from .rules import Rules

#: The tag of a stream may be written with escapes; a line with neither these nor the tag has no stream among its
#: arguments.
_ESCAPE = b"\\u"

#: How many providers a call is sent to, of which those before the last have not begun it.
TRIES = 5

#: Methods that only show that the caller is alive; they make it no member.
SIGNS_OF_LIFE = frozenset(("rpc.ping", "keepAlive"))


class HubDispatcher(Dispatcher):
    """A `Dispatcher` that forwards calls of its members' methods.

    Args:
        directory: the routes of these methods.
        rules: who may call what; None: everything is permitted.
        balance: how the calls of a shared method are distributed.
        call_timeout: seconds after which a call is given up, even if its caller would wait longer.
        passing: methods of the hub whose params are passed on without decoding, by name.
        listings: methods of the hub whose replies are long lists, by name.
        held: the calls that wait for providers which have just left; None where none are held.
        options: as for a `Dispatcher`.

    Attributes:
        forwarded: calls and notifications that were forwarded.
        call_timeout: as given; may be changed.
    """

    #: The class of calls that are forwarded.
    RELAY: type[Relay] = Relay

    def __init__(
        self,
        *args: Any,
        directory: Directory,
        rules: Rules | None,
        balance: Balance,
        call_timeout: float | None,
        passing: Mapping[str, PassingMethod],
        listings: Mapping[str, Listing],
        held: HeldCalls | None,
        **options: Any,
    ) -> None:
        self._directory = directory
        super().__init__(*args, **options)
        self.forwarded = 0
        self._routes = directory.routes
        self._rules = rules
        self._balance = balance
        self.call_timeout = call_timeout
        self._passing = passing
        self._listings = listings
        self._held = held
        if held is not None:
            held.forward = self._forward_held

    def answer(
        self, message: Any, line: Line, session: ConversationState, tagged: Tagged = None
    ) -> Encoded | Later | None:
        """Answer as `Dispatcher.answer` does; a call of a member's method becomes a `Relay`."""
        if type(message) is not dict:
            return super().answer(message, line, session, tagged)
        name = message.get("method")
        route = self._routes.get(name) if type(name) is str else None
        if route is None:
            return self._answer_own(name, message, line, session, tagged)
        if not line and "id" in message:
            return self._forward_from_batch(route, message, session)
        return self._forward(route, message, line, session)

    def refusal_of(self, message: dict[str, Any], session: ConversationState) -> RpcError | None:
        """As `Dispatch.refusal_of`: checks the method, whether the caller may call it, and for whom it is."""
        name = message.get("method")
        route = self._routes.get(name) if type(name) is str else None
        try:
            if route is not None:
                envelope.check_request(message)
                self._check_rights(route, message["method"], session)
                return None
            if type(name) is str and name in self._methods:
                if not self._may_call(session, name):
                    raise NotPermitted(data={"method": name})
                if name in self._passing:
                    envelope.check_request(message)
                    self._passing[name].check(session, message)
                    return None
            elif type(name) is str and self._away(name, session) is not None:
                envelope.check_request(message)
                return None
        except RpcError as error:
            return error
        return super().refusal_of(message, session)

    def _answer_own(
        self, name: Any, message: dict[str, Any], line: Line, session: ConversationState, tagged: Tagged
    ) -> Encoded | Later | None:
        """Answer a call of the hub's own methods, or of one that does not exist."""
        if type(name) is str and name in self._methods:
            if session.is_lasting and name not in SIGNS_OF_LIFE:
                self._directory.find(session)
            if not self._may_call(session, name):
                return self._not_sent(message, NotPermitted(data={"method": name}), session)
            if name in self._passing:
                return self._pass(self._passing[name], message, line, session)
            if name in self._listings:
                return self._list(self._listings[name], message, line, session)
        elif self._held is not None and type(name) is str:
            method = self._away(name, session)
            if method is not None:
                return self._hold(self._held, method, message, line, session)
        return super().answer(message, line, session, tagged)

    def _pass(
        self, function: PassingMethod, message: dict[str, Any], line: Line, session: ConversationState
    ) -> Encoded | None:
        """Answer a call of a method whose params are not decoded."""
        self._counters.requests += 1
        try:
            line = self._checked(message, line)
            result = function.carry_out(function.check(session, message), line)
        except RpcError as error:
            return self._not_sent(message, error, session)
        return self._serialize({"jsonrpc": VERSION, "id": message["id"], "result": result}) if "id" in message else None

    def _list(
        self, listing: Listing, message: dict[str, Any], line: Line, session: ConversationState
    ) -> Encoded | Later | None:
        """Answer a call of a method whose reply is a long list: now, or when that is written."""
        self._counters.requests += 1
        try:
            if line and type(message.get("id")) is float:
                envelope.with_exact_ids(message, line)
            envelope.check_request(message)
            listing = listing.asked_for(message.get("params"))
        except RpcError as error:
            return self._not_sent(message, error, session)
        if "id" not in message:
            return None
        version = listing.ask()
        found = listing.now(version)
        if found is None:
            return self._list_soon(listing, version, message, session, in_batch=not line)
        return self._listed(message, found)

    async def _list_soon(
        self, listing: Listing, version: int, message: dict[str, Any], session: ConversationState, *, in_batch: bool
    ) -> Encoded | None:
        """Answer when the list is written; `in_batch`: as part of a batch, whose replies have a bound of their own."""
        found, write_gate = await listing.soon(version), session.write_gate
        if in_batch:
            return self._listed(message, found)
        # All callers get the list in the same turn of the loop; each connection is sent no more than it takes.
        while not write_gate.is_open:
            await write_gate.wait()
        reply = self._listed(message, found)
        write_gate.add_unsent(len(reply or b""))
        return reply

    def _listed(self, message: dict[str, Any], found: bytes | RpcError) -> Encoded | None:
        if not isinstance(found, RpcError):
            reply = reply_with(orjson.dumps(message["id"]), found, self._limits.max_message_size)
            if not isinstance(reply, RpcError):
                return reply
            found = reply
        return self._not_sent(message, found)

    # -- a call of a member's method ----------------------------------------------------------------------------------

    def _forward(
        self,
        route: Route,
        message: dict[str, Any],
        line: Line,
        session: ConversationState,
        future: asyncio.Future[Encoded | None] | None = None,
        held: HeldCall | None = None,
    ) -> Encoded | Relay | None:
        """Forward a call; return an error reply if that cannot be done, and None for a notification.

        Args:
            route: of the method.
            message: the request.
            line: the text of the request; empty for one of a batch.
            session: of the caller.
            future: gets the reply in the place of the caller's session.
            held: the call, if it was held here; None: it has just come.
        """
        self._counters.requests += 1
        try:
            line = self._checked(message, line)
            now = session.loop.time()
            if held is None:
                waited = session.waited
                if session.is_lasting:
                    self._directory.find(session).calls_made += 1
            else:
                waited = now - held.since
            provider = self._provider(route, message["method"], session)
            timeout = self.call_timeout
            if "timeout" in message:
                timeout = timeout_of(message["method"], timeout, message, waited)
            if held is not None and held.deadline != INFINITE:
                timeout = min(held.deadline - now, INFINITE if timeout is None else timeout)
                if timeout <= 0:
                    raise DeadlineExceeded(data={"method": message["method"]})
            self.forwarded += 1
            if "id" not in message:
                provider.send(self._notification(route, provider, line, message, timeout))
                provider.calls_served += 1
                return None
            deadline = INFINITE if timeout is None else now + timeout
            relay = self.RELAY(
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
            if held is not None:
                relay.tries += held.tries
            self._send(relay, route, message, line, session, timeout=timeout)
            return relay
        except RpcError as error:
            if isinstance(error, ProviderGone) and session.is_leaving:  # and so is every provider's connection
                error = CallCancelled(data={"executed": False, "reason": NOT_BEGUN})
            return self._not_sent(message, error, session)

    async def _forward_from_batch(
        self, route: Route, message: dict[str, Any], session: ConversationState
    ) -> Encoded | None:
        """Forward a call that stands in a batch, and wait for its reply."""
        future: asyncio.Future[Encoded | None] = session.loop.create_future()
        relay = self._forward(route, message, b"", session, future)
        if not isinstance(relay, Relay):
            return relay
        try:
            reply = await future
            self._relayed(relay, reply)
            return reply
        except asyncio.CancelledError:
            relay.abort(CallCancelled())
            raise

    def send_again(self, relay: Relay) -> bool:
        """As `Forwarder.send_again`. Where no other is there, the call may be held until one is."""
        message, line, session, name = relay.message, relay.line, relay.caller, relay.method
        if line is None or relay.has_streams or relay.tries >= TRIES or session.channel is None:
            return False
        left = relay.deadline - session.loop.time()
        if left <= 0:
            return False
        route = self._routes.get(name)
        if route is None:
            return self._hold_again(relay, message, line)
        try:
            relay.turn_to(self._provider(route, name, session))
            self._send(relay, route, message, line, session, timeout=None if left == INFINITE else left)
        except RpcError:
            return False
        return True

    def _hold_again(self, relay: Relay, message: dict[str, Any], line: Line) -> bool:
        """Hold a call whose provider has not begun it, in the place of its relay."""
        session, name = relay.caller, relay.method
        method = self._held.find(name) if self._held is not None else None
        if self._held is None or method is None or relay.future is not None:
            return False
        call = self._held_call(message, line, session, waited=0.0, deadline=relay.deadline, tries=relay.tries)
        if not self._may_wait(session, name, method) or not self._held.hold(name, method, call):
            return False
        relay.leave()
        self._replaced(relay, call)
        session.running.leave(relay)
        session.running.enter(call)
        return True

    # -- a call that is held until its provider is back ---------------------------------------------------------------

    def _away(self, name: str, session: ConversationState) -> AwayMethod | None:
        """The method with this name, if its calls are to be held now, and the caller may call it."""
        method = self._held.find(name) if self._held is not None else None
        return method if method is not None and self._may_wait(session, name, method) else None

    def _may_wait(self, session: ConversationState, name: str, method: AwayMethod) -> bool:
        """Check the rules for a method that is away, as far as is known who will offer it."""
        if self._rules is None:
            return True
        if method.method is None:
            return self._rules.permits(session.identity, "call", name)
        return self._rules.permits_call(session.identity, method.method, method.provider)

    def _hold(
        self, held: HeldCalls, method: AwayMethod, message: dict[str, Any], line: Line, session: ConversationState
    ) -> Encoded | Later | None:
        """Hold a call or notification; answer it at once if it is wrong, or there is no room."""
        name = message["method"]
        try:
            in_batch = not line and "id" in message
            line = self._checked(message, line)
            timeout = timeout_of(name, None, message, session.waited)
        except RpcError as error:
            self._counters.requests += 1
            return self._not_sent(message, error, session)
        if session.is_lasting:
            self._directory.find(session).calls_made += 1
        deadline = INFINITE if timeout is None else session.loop.time() + timeout
        call = self._held_call(message, line, session, waited=session.waited, deadline=deadline)
        if in_batch:
            return self._hold_in_batch(held, method, call)
        if not held.hold(name, method, call):
            self._counters.requests += 1
            return self._not_sent(message, self._unknown(name, session), session)
        return call if call.is_call else None

    def _held_call(self, message: dict[str, Any], line: Line, session: ConversationState, **options: Any) -> HeldCall:
        """Make a call that is to be held; arguments as for `HeldCall`."""
        return HeldCall(message, line, session, refused=self._refused, **options)

    async def _hold_in_batch(self, held: HeldCalls, method: AwayMethod, call: HeldCall) -> Encoded | None:
        """Hold a call that stands in a batch, and wait for its reply."""
        call.future = call.session.loop.create_future()
        name = call.message["method"]
        route = self._routes.get(name)
        try:
            if route is not None:  # it is back already
                self._forward_held(call, route)
            elif not held.hold(name, method, call):
                return self._not_sent(call.message, self._unknown(name, call.session))
            reply = await call.future
            if call.relay is not None:
                self._relayed(call.relay, reply)
            return reply
        except asyncio.CancelledError:
            call.cancel()
            raise

    def _forward_held(self, call: HeldCall, route: Route) -> None:
        """Forward a call that was held: its provider is back."""
        session = call.session
        relay = self._forward(route, call.message, call.line, session, call.future, held=call)
        if not isinstance(relay, Relay):
            if call.is_call:
                call.finish(relay)
        elif call.future is not None:
            call.relay = relay
        else:
            self._replaced(call, relay)
            session.running.leave(call)
            session.running.enter(relay)

    # -- for those who observe calls ----------------------------------------------------------------------------------

    def _replaced(self, before: ForwardedCall, call: ForwardedCall) -> None:
        """One forwarded call goes on as another: one that was held is passed on, or held again."""

    def _relayed(self, relay: Relay, reply: Encoded | None) -> None:
        """The reply to a member of a batch has come, by this relay."""

    # -- what is sent -------------------------------------------------------------------------------------------------

    def _send(
        self,
        relay: Relay,
        route: Route,
        message: dict[str, Any],
        line: Line,
        session: ConversationState,
        *,
        timeout: float | None,
    ) -> None:
        """Send a relay's request to its provider; RpcError if it cannot be sent, and then the relay is over."""
        try:
            params = None
            credit = None
            if session.streaming or "stream" in message:
                granted = _initial_credit(message, session)
                credit = relay.add_reply_stream(granted) if granted is not None else None
            if (STREAM_TEXT in line or _ESCAPE in line) and self._codec.holds_tags(line):
                streams, params = argument_streams(
                    line, message.get("params") or (), session, relay.provider, relay.abort
                )
                relay.add_argument_streams(streams)
            relay.send(
                relay.request(
                    line, message, route.text_at(relay.provider), timeout=timeout, stream=credit, params=params
                )
            )
        except RpcError:
            relay.provider.session.pending.discard(relay.pending_id)
            raise

    def _notification(
        self, route: Route, provider: Member, line: Line, message: dict[str, Any], timeout: float | None
    ) -> Encoded:
        """Write a notification for its provider."""
        return passthrough.request(line, message, None, route.text_at(provider), timeout=timeout)

    def _checked(self, message: dict[str, Any], line: Line) -> Line:
        """Check a request before it is passed on; return its line.

        Raises:
            InvalidRequest, ParseError, InvalidParams: it is not valid.
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
            return self._line_in_batch(message)
        if not payloads.is_json(line):
            raise ParseError(data={"reason": "a string among the params is not valid JSON"})
        return passthrough.line_of(line, message)

    def _line_in_batch(self, message: dict[str, Any]) -> bytes:
        """Write a request of a batch as a message of its own."""
        try:
            return bytes(self._serialize(payloads.with_strings(message)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParams("Invalid params: they cannot be passed on", {"reason": str(error)}) from None

    def _provider(self, route: Route, name: str, session: ConversationState) -> Member:
        """Choose the member that carries a call out.

        Raises:
            NotPermitted: the caller may call the method at none of them.
            ProviderGone: none of them takes calls.
        """
        member = route.choose(self._balance)
        if self._rules is None or self._may_call(session, route.method, member):
            return member
        for other in route.members:
            if other.is_there and self._may_call(session, route.method, other):
                return other
        raise NotPermitted(data={"method": name})

    def _check_rights(self, route: Route, name: str, session: ConversationState) -> None:
        """Raise NotPermitted if the caller may call the method at none of the members that offer it."""
        if self._rules is not None and not any(self._may_call(session, route.method, each) for each in route.members):
            raise NotPermitted(data={"method": name})

    def _may_call(self, session: ConversationState, method: str, provider: Member | None = None) -> bool:
        """Check the rules for a method of the hub, or of a provider, by all its names."""
        if self._rules is None:
            return True
        if provider is None:
            return self._rules.permits(session.identity, "call", method)
        return self._rules.permits_call(session.identity, method, provider.name or "")

    def _unknown(self, name: str, session: ConversationState) -> MethodNotFound:
        """As `Dispatcher._unknown`; the data says if a client may offer the method later."""
        error = super()._unknown(name, session)
        if may_be_offered(name):
            error.data["no_provider"] = True
        return error

    def _known_names(self) -> Iterable[str]:
        return chain(self._registry, self._directory.listed())

    def _is_visible(self, name: str, session: ConversationState) -> bool:
        route = self._routes.get(name)
        if route is None:
            return super()._is_visible(name, session) and self._may_call(session, name)
        return any(self._may_call(session, route.method, member) for member in route.members[:COMPARED])

    def _not_sent(
        self, message: dict[str, Any], error: RpcError, session: ConversationState | None = None
    ) -> Encoded | None:
        """Write the error reply; a message that is not JSON always gets one (JSON-RPC 2.0, section 5)."""
        if "id" not in message and not isinstance(error, ParseError):
            self.replies.log_notification(message.get("method"), error, session)
        return self.replies.error_to({"id": message.get("id")} if isinstance(error, ParseError) else message, error)

    def _refused(self, call: HeldCall, error: RpcError | None) -> Encoded | None:
        """Write the error reply to a call that was held; None for the error: its provider has not come back."""
        name = call.message["method"]
        return self._not_sent(call.message, self._unknown(name, call.session) if error is None else error, call.session)

    def write_error(self, call_id: Any, error: RpcError) -> Encoded | None:
        return self.replies.error_to({"id": call_id}, error)


def _initial_credit(message: dict[str, Any], session: ConversationState) -> int | None:
    """Return the credit that the caller grants at first, None if it wants no stream; or raise InvalidRequest."""
    if session.streaming is False or message.get("stream", 0) is None:
        return None
    return CREDIT_MAX if session.streaming else credit_of(message)


_PARAMS = frozenset((dict, list))
