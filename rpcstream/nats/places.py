"""Which instance of a service has which call of a client, and what becomes of the calls of one that is gone.

Owns what is known of the calls that wait: where they are, or since when that is not known; the questions to instances
about those; and the cancels of calls whose place is not known yet. Does not know how a message is sent.

A call that takes longer is acknowledged by the instance that has it, so that a cancel and credit for items find their
way, and the instance can be watched: a message to one that is gone comes back at once, as NATS says that nothing
subscribes to its subject. Calls that no instance has told of after a while are asked for: those that every instance
denies are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import orjson

from ..errors import ConnectFailed, ConnectionLost, MethodNotFound, NotPermitted, RpcError
from ..peer.pending import PendingCalls
from ..wire import envelope
from ..wire.buffers import Encoded

#: Seconds between two looks whether the instances are there that have calls, and which calls none has told of.
WATCH_EVERY = 0.5

#: Seconds after which a call is asked for that no instance has told of; an instance tells much sooner, unless its event
#: loop is kept by other work.
LATE_AFTER = 1.0

#: Seconds that instances have to say which of the calls that are asked for they have. One that is known and does not
#: answer is asked again.
ANSWER_TIME = 0.5

#: Calls that were given up before it was known where they are, and are cancelled when it is.
CANCELLED_MAX = 10_000


class Place(Protocol):
    """An instance that may have calls.

    Attributes:
        target: the subject of the session there.
        call_ids: the calls that are known to be there.
        is_over: it is gone, or was forgotten.
        is_leaving: it is gone, and what it has sent before may still come.
    """

    target: str
    call_ids: dict[int | str, None]
    is_over: bool
    is_leaving: bool

    def send(self, messages: list[Encoded]) -> None: ...

    def probe(self) -> None:
        """Have NATS say if it is gone."""


class CallPlaces:
    """Where the calls of one client to one service are.

    Args:
        pending: the calls that wait.
        service: its name, for errors.
        address: the address of the service, for errors.
        instances: gives those that are known.
        ask: sends a question to all instances: its number, and the ids of calls as JSON, of which so many bytes fit.
        max_question: gives how many ids fit into one.
        on_look: called with the time (loop time, s) now and then; returns whether to go on looking although no call is
            known to be anywhere.
    """

    def __init__(
        self,
        pending: PendingCalls,
        *,
        service: str,
        address: str,
        instances: Callable[[], Iterable[Place]],
        ask: Callable[[int, bytes], None],
        max_question: Callable[[], int],
        on_look: Callable[[float], bool],
    ) -> None:
        self._pending = pending
        self._service = service
        self._address = address
        self._instances = instances
        self._ask_all = ask
        self._max_question = max_question
        self._on_look = on_look
        self._loop = asyncio.get_running_loop()
        self._places: dict[int | str, Place] = {}
        #: The calls of which it is not known where they are: when they were sent (loop time, s), and their subject.
        self._sent: dict[int | str, tuple[float, str]] = {}
        self._cancelled: dict[int | str, None] = {}
        self._question: Question | None = None
        self._questions = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- calls --------------------------------------------------------------------------------------------------------

    def sent(self, call_ids: Iterable[int | str], subject: str) -> None:
        """Calls were sent to this subject."""
        now = self._loop.time()
        for call_id in call_ids:
            self._sent[call_id] = now, subject
        self.watch()

    def place_of(self, call_ids: Sequence[int | str]) -> Place | None:
        """The instance that has one of these calls; None if that is not known."""
        for call_id in call_ids:
            if (place := self._places.get(call_id)) is not None:
                return place
        return None

    def cancel(self, call_id: int | str) -> None:
        """The answer to a call is not wanted: tell the instance that has it, as soon as that is known."""
        place = self._forget_place(call_id)
        if place is not None:
            place.send([envelope.cancel(call_id)])
        elif self._sent.pop(call_id, None) is not None:
            self._cancelled[call_id] = None
            if len(self._cancelled) > CANCELLED_MAX:
                del self._cancelled[next(iter(self._cancelled))]

    def fail(self, call_ids: Iterable[int | str], error: Exception) -> None:
        """Fail calls that were not sent, or not carried out."""
        for call_id in call_ids:
            self._forget_place(call_id)
            self._sent.pop(call_id, None)
            call = self._pending.find(call_id)
            if call is None:
                continue
            if isinstance(error, RpcError):
                self._pending.settle(envelope.error_reply(call_id, error), b"")
            elif self._pending.discard(call_id):
                call.fail(error)

    def take_sent(self, call_id: int | str) -> str:
        """Take out where a call was sent that did not arrive; empty where that is not known."""
        return self._sent.pop(call_id, (0.0, ""))[1]

    def fail_unsent(self, call_ids: Iterable[int | str], is_missing: bool) -> None:
        """Fail calls that came back: no instance has their method, or the service is away."""
        for call_id in call_ids:
            call = self._pending.find(call_id)
            name = "" if call is None else call.method
            if is_missing:
                text = f"Method not found: {name}: no instance of the service {self._service!r} offers it"
                self.fail((call_id,), MethodNotFound(text, {"no_provider": True, "service": self._service}))
                continue
            reason = f"no instance of the service {self._service!r} is there now; wait_for= waits for one"
            self.fail((call_id,), ConnectFailed(reason, method=name or None, address=self._address))

    def fail_denied(self, subject: str) -> None:
        """Fail the calls that NATS did not permit to be published to this subject."""
        for call_id, (_, sent_to) in list(self._sent.items()):
            if sent_to.lower() == subject.lower():
                reason = f"NATS does not permit this login to publish to {sent_to!r}"
                self.fail((call_id,), NotPermitted(data={"reason": reason}))

    # -- instances ----------------------------------------------------------------------------------------------------

    def acknowledged(self, place: Place, call_ids: Iterable[int | str]) -> None:
        """An instance has these calls."""
        for call_id in call_ids:
            if self._pending.find(call_id) is not None:
                if self._places.setdefault(call_id, place) is place:  # a call is at one instance
                    self._sent.pop(call_id, None)
                    place.call_ids[call_id] = None
            elif call_id in self._cancelled:
                del self._cancelled[call_id]
                place.send([envelope.cancel(call_id)])

    def has_calls(self, place: Place) -> bool:
        """Whether calls that wait are known to be at an instance."""
        for call_id in [each for each in place.call_ids if self._pending.find(each) is None]:
            self._forget_place(call_id)
        return bool(place.call_ids)

    def inquire(self, place: Place) -> None:
        """Ask anew where the calls are that an instance had: its direct connection was lost, perhaps with some."""
        now = self._loop.time()
        for call_id in place.call_ids:
            self._places.pop(call_id, None)
            if self._pending.find(call_id) is not None:
                self._sent[call_id] = now, ""
        place.call_ids.clear()
        place.probe()

    def lose(self, place: Place, reason: str) -> None:
        """An instance is gone, and its calls are lost."""
        self._lose(list(place.call_ids), reason)

    def _forget_place(self, call_id: int | str) -> Place | None:
        place = self._places.pop(call_id, None)
        if place is not None:
            place.call_ids.pop(call_id, None)
        return place

    def _lose(self, call_ids: Iterable[int | str], reason: str) -> None:
        for call_id in call_ids:
            call = self._pending.find(call_id)
            method = None if call is None else call.method
            self.fail((call_id,), ConnectionLost(reason, method=method, address=self._address))

    # -- watching -----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Look now and then from now on, as long as there is something to look at."""
        if self._timer is None:
            self._timer = self._loop.call_later(WATCH_EVERY, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._question is not None:
            self._question.cancel()

    def _look(self) -> None:
        """Look whether the instances are there that have calls, and ask for calls that none has told of."""
        self._timer = None
        pending, now = self._pending, self._loop.time()
        goes_on = self._on_look(now)
        self._sent = {call_id: sent for call_id, sent in self._sent.items() if pending.find(call_id) is not None}
        for place in list(self._instances()):
            if self.has_calls(place):
                place.probe()
        late = [call_id for call_id, (sent, _) in self._sent.items() if now - sent > LATE_AFTER]
        if late and self._question is None:
            self._ask(late)
        if pending or self._places or goes_on:
            self.watch()

    def _look_now(self) -> None:
        """Look at once: other calls may have become late while these were asked for."""
        if self._timer is not None:
            self._timer.cancel()
            self._look()

    # -- questions ----------------------------------------------------------------------------------------------------

    def _ask(self, call_ids: list[int | str]) -> None:
        """Ask all instances which of these calls they have."""
        self._questions += 1
        asked = call_ids[: self._max_question()]
        self._question = Question(self._questions, asked, list(self._instances()), self._question_over)
        self._ask_all(self._questions, orjson.dumps(asked))

    def answered(self, place: Place, number: int, call_ids: Iterable[int | str]) -> None:
        """An instance says which of the calls that were asked for it has."""
        self.acknowledged(place, call_ids)
        if self._question is not None and self._question.number == number:
            self._question.heard(place)

    def cannot_tell(self) -> None:
        """An instance cannot tell which calls are from here, as where NATS joins two accounts: they stay."""
        if self._question is not None:
            self._question.cancel()
            self._question = None

    def none_answers(self, number: int, *, was_heard: bool) -> None:
        """There is no instance that answers questions.

        Args:
            number: of the question.
            was_heard: an instance was heard of before. If none ever was, the service is one of a program that knows
                nothing of questions: its calls wait for their time-out, as everywhere on NATS.
        """
        question = self._question
        if question is None or question.number != number:
            return
        question.cancel()
        if was_heard:
            self._question_over(question, is_complete=True)
            return
        self._question = None
        for call_id in question.call_ids:
            self._sent.pop(call_id, None)

    def _question_over(self, question: Question, *, is_complete: bool) -> None:
        """The time for answers is over: calls without a place are lost, unless an instance has not answered."""
        self._question = None
        if is_complete:
            lost = [call_id for call_id in question.call_ids if call_id in self._sent]
            self._lose(lost, "the instance that had the call is gone, or the message was lost")
        self._look_now()


class Question:
    """A question to all instances: which of these calls they have.

    Args:
        known: the instances that were heard of: each must answer, or be gone.
        on_over: called with this object when the time for answers is over, and whether one has answered, and all known
            ones have.
    """

    def __init__(
        self, number: int, call_ids: list[int | str], known: list[Place], on_over: Callable[..., None]
    ) -> None:
        self.number = number
        self.call_ids = call_ids
        #: By the subject of the instance: a session of it may be new.
        self._unheard = {_instance_of(place): place for place in known}
        self._known = known
        self._is_answered = False
        self._on_over = on_over
        self._timer = asyncio.get_running_loop().call_later(ANSWER_TIME, self._over)
        for place in known:
            place.probe()

    def heard(self, place: Place) -> None:
        """An instance has answered."""
        self._is_answered = True
        self._unheard.pop(_instance_of(place), None)

    def cancel(self) -> None:
        """Stop waiting."""
        self._timer.cancel()

    def _over(self) -> None:
        left = [*self._unheard.values(), *[place for place in self._known if place.is_leaving]]
        # Without any answer the one that NATS gave the question to has no time for it.
        self._on_over(self, is_complete=self._is_answered and all(place.is_over for place in left))


def _instance_of(place: Place) -> str:
    """The subject of an instance, without that of the session."""
    return place.target.rpartition(".")[0]
