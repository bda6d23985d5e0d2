"""Which instance of a service has which call of a client, and how calls fail when their instance is gone.

An instance acknowledges a call that takes longer. From then on the client sends cancels and credit to that instance,
and probes it: NATS returns a message to an instance that is gone, because nothing subscribes to its subject.

If a call is neither answered nor acknowledged in time, the client asks all instances whether they are alive. They
acknowledge their calls first. The call is lost when each known instance has answered or is gone.

NATS also returns calls whose method has no subscriber. After a restart of NATS the instances join again one after the
other. So a method is missing only if an instance has joined, and NATS still has no subscriber for the method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ..errors import ConnectFailed, ConnectionLost, MethodNotFound, NotPermitted, RpcError
from ..wire import envelope
from .instance import Instance, Service

#: Seconds between two checks of the instances that have calls, and of late calls.
WATCH_EVERY = 0.5

#: Seconds after which a call without an acknowledgement is late. An instance acknowledges much sooner unless its event
#: loop is blocked.
LATE_AFTER = 1.0

#: Calls that were cancelled before their instance was known. They are cancelled there when it acknowledges them.
CANCELLED_MAX = 10_000

#: Makes the error for a call of this method.
MakeError = Callable[[str], Exception]


class CallPlaces:
    """The calls of one client to one service, and the instances that have them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pending = service.session.pending
        self._loop = asyncio.get_running_loop()
        #: Calls whose instance is not known: when they were sent (loop time, s), their subject, and the token of their
        #: reply subject.
        self._sent: dict[int | str, tuple[float, str, str]] = {}
        self._cancelled: dict[int | str, None] = {}
        #: Late calls for which all instances were asked whether they are alive; the known instances that have not
        #: answered; and whether any instance has.
        self._late: list[int | str] = []
        self._silent: list[Instance] = []
        self._is_answered = False
        self._timer: asyncio.TimerHandle | None = None
        #: The calls that came back, by subject, and the tasks that find out why.
        self._returned: dict[str, list[int | str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- calls --------------------------------------------------------------------------------------------------------

    def sent(self, call_ids: Iterable[int | str], subject: str, token: str) -> None:
        """Calls were sent to this subject."""
        now = self._loop.time()
        for call_id in call_ids:
            self._sent[call_id] = now, subject, token
        self.watch()

    def place_of(self, call_ids: Iterable[int | str]) -> Instance | None:
        """The instance that has acknowledged one of these calls; None if none has."""
        for place in self._service.instances.values():
            if not place.call_ids.keys().isdisjoint(call_ids):
                return place
        return None

    def cancel(self, call_id: int | str) -> None:
        """Cancel a call at the instance that has it, as soon as that is known."""
        place = self.place_of((call_id,))
        if place is not None:
            del place.call_ids[call_id]
            place.send([envelope.cancel(call_id)])
        elif self._sent.pop(call_id, None) is not None:
            self._cancelled[call_id] = None
            if len(self._cancelled) > CANCELLED_MAX:
                del self._cancelled[next(iter(self._cancelled))]

    def fail(self, call_ids: Iterable[int | str], make_error: MakeError) -> None:
        """Fail calls that were not sent, not carried out, or lost."""
        for call_id in list(call_ids):
            self._sent.pop(call_id, None)
            call = self._pending.find(call_id)
            if call is None:
                continue
            error = make_error(call.method)
            if isinstance(error, RpcError):
                self._pending.settle(envelope.error_reply(call_id, error), b"")
            elif self._pending.discard(call_id):
                call.fail(error)

    def fail_unsent(self, call_ids: Iterable[int | str], is_missing: bool) -> None:
        """Fail calls that came back: no instance has their method, or the service is away."""
        service = self._service

        def make_error(method: str) -> Exception:
            if is_missing:
                text = f"Method not found: {method}: no instance of the service {service.name!r} offers it"
                return MethodNotFound(text, {"no_provider": True, "service": service.name})
            reason = f"no instance of the service {service.name!r} is there now; wait_for= waits for one"
            return ConnectFailed(reason, method=method or None, address=service.address)

        self.fail(call_ids, make_error)

    def fail_denied(self, subject: str) -> None:
        """Fail the calls that NATS did not permit to be published to this subject."""
        denied = [call_id for call_id, (_, sent_to, _) in self._sent.items() if sent_to == subject]
        if denied:
            reason = f"NATS does not permit this login to publish to {subject!r}"
            self.fail(denied, lambda method: NotPermitted(data={"reason": reason}))

    # -- instances ----------------------------------------------------------------------------------------------------

    def acknowledged(self, place: Instance, call_ids: Iterable[int | str]) -> None:
        """An instance has acknowledged these calls."""
        for call_id in call_ids:
            if self._pending.find(call_id) is not None:
                if self.place_of((call_id,)) is None:  # a call is at one instance
                    self._sent.pop(call_id, None)
                    place.call_ids[call_id] = None
            elif call_id in self._cancelled:
                del self._cancelled[call_id]
                place.send([envelope.cancel(call_id)])

    def has_calls(self, place: Instance) -> bool:
        """Whether calls that wait are known to be at an instance."""
        for call_id in [each for each in place.call_ids if self._pending.find(each) is None]:
            del place.call_ids[call_id]
        return bool(place.call_ids)

    def lose(self, call_ids: Iterable[int | str], reason: str) -> None:
        """Fail calls whose instance is gone, or that were lost on the way."""
        address = self._service.address
        self.fail(call_ids, lambda method: ConnectionLost(reason, method=method, address=address))

    # -- watching -----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Check instances and calls every `WATCH_EVERY` seconds, as long as calls are pending."""
        if self._timer is None:
            self._timer = self._loop.call_later(WATCH_EVERY, self._look)

    def _look(self) -> None:
        """Probe the instances that have calls, and look for late calls."""
        self._timer = None
        pending, now = self._pending, self._loop.time()
        goes_on = self._service.large.forget()
        self._sent = {call_id: sent for call_id, sent in self._sent.items() if pending.find(call_id) is not None}
        for place in list(self._service.instances.values()):
            if self.has_calls(place):
                place.probe()
        self._look_for_late(now)
        if pending or goes_on:
            self.watch()

    def _look_for_late(self, now: float) -> None:
        """Fail late calls that no instance has, and ask whether the instances are alive if there are others."""
        if self._is_answered and all(place.is_over for place in self._silent):
            lost = [call_id for call_id in self._late if call_id in self._sent]
            self.lose(lost, "the instance that had the call is gone, or the message was lost")
            self._late = []
        if self._late and self._is_answered:
            return  # the event loop of an instance is blocked: it may have the call
        self._late = [call_id for call_id, (sent, _, _) in self._sent.items() if now - sent > LATE_AFTER]
        if self._late:
            self._silent, self._is_answered = list(self._service.instances.values()), False
            for place in self._silent:
                place.probe()
            self._service.inquire()

    def answered(self, place: Instance | None) -> None:
        """An instance has answered that it is alive; None: an instance that is not known."""
        self._is_answered = True
        if place in self._silent:
            self._silent.remove(place)

    # -- calls that came back -----------------------------------------------------------------------------------------

    def came_back(self, token: str) -> None:
        """NATS has returned the calls whose reply subject has this token: nothing subscribes to their subject."""
        call_ids: list[int | str]
        if token.isdecimal():
            call_ids = [int(token)]
        else:
            call_ids = [call_id for call_id, (_, _, sent_with) in self._sent.items() if sent_with == token]
        for call_id in call_ids:
            _, subject, _ = self._sent.pop(call_id, (0.0, "", ""))
            if not subject:  # it was for an instance
                self.fail_unsent((call_id,), False)
            elif subject in self._returned:
                self._returned[subject].append(call_id)
            else:
                self._returned[subject] = [call_id]
                task = self._loop.create_task(self._explain(subject))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _explain(self, subject: str) -> None:
        """Find out why calls came back from this subject, and fail them."""
        is_missing = await self._service.is_missing(subject)
        self.fail_unsent(self._returned.pop(subject, ()), is_missing)

    def stop(self) -> None:
        """Stop, because the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for call_ids in self._returned.values():
            self.fail_unsent(call_ids, False)
        self._returned = {}
