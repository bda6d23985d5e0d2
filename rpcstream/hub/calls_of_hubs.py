"""The dispatcher for the sessions of other hubs: their clients' calls are carried out by clients of this hub alone.

Owns what another hub may ask for. Rights are not looked at here: the hub of the caller has checked its rules, and hubs
trust each other. Knows neither how hubs find each other nor what they tell each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..codec import payloads
from ..errors import InvalidParams, MethodNotFound, RpcError
from ..methods.arguments import Tagged
from ..methods.dispatch import Dispatcher
from ..peer.interfaces import Later
from ..peer.state import ConversationState
from ..wire import envelope
from ..wire.buffers import Encoded
from .dispatch import HubDispatcher
from .events_of_hubs import SUBSCRIPTIONS
from .members import Member
from .passthrough import Line
from .remote_members import OtherHub
from .routes import Route

#: The methods of a hub that other hubs may call, besides those by which they tell each other of clients.
OWN = frozenset((envelope.HELLO, "rpc.ping"))


class Told(Protocol):
    """Takes what other hubs tell; see `OtherHubs`."""

    def takes(self, method: str) -> bool: ...

    def take(self, session: ConversationState, method: str, params: Any) -> None: ...


class CallsOfHubs(HubDispatcher):
    """A `HubDispatcher` whose callers are other hubs.

    Args:
        told: takes what they tell of their clients.
        on_subscriptions: takes what they tell of subscriptions; ValueError for what makes no sense.
    """

    def __init__(
        self, *args: Any, told: Told, on_subscriptions: Callable[[OtherHub, Any], bool], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._told = told
        self._on_subscriptions = on_subscriptions

    def _answer_own(
        self, name: Any, message: dict[str, Any], line: Line, session: ConversationState, tagged: Tagged
    ) -> Encoded | Later | None:
        if type(name) is not str:
            return Dispatcher.answer(self, message, line, session, tagged)
        if "id" not in message and self._told.takes(name):
            self._told.take(session, name, message.get("params"))
            return None
        if name == SUBSCRIPTIONS:
            return self._take_subscriptions(message, session)
        if name in self._passing:
            return self._pass(self._passing[name], message, line, session)
        if name in OWN:
            return Dispatcher.answer(self, message, line, session, tagged)
        return self._not_sent(message, self._unknown(name, session), session)

    def _take_subscriptions(self, message: dict[str, Any], session: ConversationState) -> Encoded | None:
        other = self._directory.members.get(session)
        try:
            envelope.check_request(message)
            if not isinstance(other, OtherHub):
                raise ValueError("the session is none of a hub")
            result = self._on_subscriptions(other, payloads.with_strings(message.get("params")))
        except ValueError as error:
            return self._not_sent(message, InvalidParams(data={"reason": str(error)}), session)
        except RpcError as error:
            return self._not_sent(message, error, session)
        return self._serialize({"jsonrpc": "2.0", "id": message["id"], "result": result}) if "id" in message else None

    def _provider(self, route: Route, name: str, session: ConversationState) -> Member:
        return route.choose_here(self._balance)

    def _unknown(self, name: str, session: ConversationState) -> MethodNotFound:
        return MethodNotFound(data={"method": name, "executed": False})


def for_hubs(kind: type[HubDispatcher]) -> Callable[..., HubDispatcher]:
    """The class of a hub's dispatchers for the sessions of other hubs, which observes calls as this one does."""
    bases: tuple[type, ...] = (CallsOfHubs,) if kind is HubDispatcher else (CallsOfHubs, kind)
    made: Any = type(f"{kind.__name__}OfHubs", bases, {})
    return made  # type: ignore[no-any-return]
