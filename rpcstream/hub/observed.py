"""The dispatcher of a hub whose calls are observed: also those that it passes on, from their arrival to their reply.

Owns how a forwarded call is followed through being held, passed on and sent again. What is measured is
`methods.observed`'s.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..methods.observed import ObservedCalls, observed
from ..peer.inflight import ForwardedCall
from ..peer.state import ConversationState
from ..wire.buffers import Encoded
from .dispatch import HubDispatcher
from .held import HeldCall
from .members import Member
from .passthrough import Line
from .relay import OnEnd, Relay


class ObservedRelay(Relay):
    """A `Relay` that tells when it ends.

    Its attributes have their slots in `Relay`, so that it may be joined with other classes of relays.

    Attributes:
        on_end: called once with the reply; None: the end is observed elsewhere, or need not be.
        code: of the error that the provider has answered with; None: it has not.
    """

    __slots__ = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        self.on_end: OnEnd | None = None
        self.code: int | None = None
        super().__init__(*args, **options)

    def turn_to(self, provider: Member) -> None:
        self.code = None
        super().turn_to(provider)

    def answer(self, reply: dict[str, Any], line: Line) -> None:
        error = reply.get("error")
        if type(error) is dict and type(error.get("code")) is int:
            self.code = error["code"]
        super().answer(reply, line)

    def refuse(self, error: Any) -> None:
        self.code = None  # it is this error then
        super().refuse(error)

    def _finish(self, reply: Encoded | None) -> None:
        if self.on_end is not None and not self._is_over:
            on_end, self.on_end = self.on_end, None
            on_end(reply, self.code)
        super()._finish(reply)


class ObservedHubCalls(ObservedCalls, HubDispatcher):
    """`ObservedCalls` for a hub."""

    RELAY = ObservedRelay

    def _follow(self, call: ForwardedCall, name: Any, size: int, session: ConversationState, began: float) -> None:
        assert isinstance(call, ObservedRelay | HeldCall)
        if self._observer.metrics is not None:
            self._observer.metrics.of(name)  # while it is offered: its provider may be gone when the call ends
        call.on_end = partial(self._ended, name, call.call_id, size, session, session.channel, began)

    def _replaced(self, before: ForwardedCall, call: ForwardedCall) -> None:
        assert isinstance(before, ObservedRelay | HeldCall)
        assert isinstance(call, ObservedRelay | HeldCall)
        call.on_end, before.on_end = before.on_end, None

    def _relayed(self, relay: Relay, reply: Encoded | None) -> None:
        assert isinstance(relay, ObservedRelay)
        if relay.code is not None and reply is not None:
            self.replies.note(reply, relay.code)


def observed_hub(kind: type[HubDispatcher]) -> type[HubDispatcher]:
    """As `methods.observed.observed`, for a class of a hub's dispatchers."""
    made: Any = observed(kind, ObservedHubCalls)
    made.RELAY = type(f"Observed{kind.RELAY.__name__}", (ObservedRelay, kind.RELAY), {"__slots__": ()})
    return made  # type: ignore[no-any-return]
