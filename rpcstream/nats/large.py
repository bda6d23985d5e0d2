"""What NATS does not carry, at the client: calls, items and results over `max_payload` go by direct connections.

Each direct connection has an ordinary session with one instance. It carries one call at a time, and is kept for a while
for the next ones. Who may connect, and for what, is said by NATS (see `payloads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConnectFailed, ConnectionLost, ServerBusy, Unread
from ..wire.buffers import AttachedMessage, Encoded
from .dial import error_text
from .direct import CLAIM_TIME
from .direct_options import Offer
from .payloads import direct_message, ids_in, no_way
from .places import Place
from .route import Route, Service

#: Seconds that a client tries to connect, and to show its secret.
CONNECT_TIME = 5.0


@dataclass(eq=False)
class Question:
    """Something that waits for a direct connection.

    Attributes:
        call_ids: the calls that it belongs to; a notification has none.
        size: its bytes.
        since: when it was asked (loop time, s).
        go: called with the connection.
        method: of the call; None: a batch, or no call.
        is_call: a call is to be sent, so that one that fails was not carried out.
        is_asked: this end has asked for the connection; False: something waits at the instance.
    """

    call_ids: tuple[int | str, ...]
    size: int
    since: float
    go: Callable[[Route], object]
    method: str | None = None
    is_call: bool = False
    is_asked: bool = True


class Upload:
    """The items of an argument that do not go by NATS any more."""

    def __init__(self) -> None:
        self._waiting: list[Encoded] = []
        self._route: Route | None = None

    def send(self, message: Encoded) -> None:
        """Send an item, or keep it until there is a connection."""
        if self._route is not None:
            self._route.send([message])
            return
        if type(message) is AttachedMessage:
            message.secure()
        self._waiting.append(message)

    def begin(self, route: Route) -> None:
        """The connection stands."""
        self._route = route
        route.send(self._waiting)
        self._waiting = []


class LargeCalls:
    """What a client sends to a service, and gets from it, by direct connections.

    Attributes:
        size: bytes of what waits for a connection.
    """

    def __init__(self, service: Service) -> None:
        self.size = 0
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._questions: dict[int, Question] = {}
        self._by_id: dict[Any, int] = {}
        self._uploads: dict[int | str, Upload] = {}
        self._routes: dict[Route, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: Encoded, size: int, method: str | None, call_ids: Sequence[int | str]) -> bytes | None:
        """Send a call, if there is a connection for it; else gives the question where it may be sent.

        Args:
            method: of the call; None for a batch.

        Raises:
            ServerBusy: too many bytes of calls wait for their connection.
        """
        ids = tuple(call_ids)
        route = next((each for each in self._routes if each.permits(method)), None)
        if route is not None:
            self._begin(route, message, ids)
            return None
        if type(message) is AttachedMessage:
            message.secure()

        def go(route: Route) -> None:
            route.permit(method)
            if not ids or any(map(self._service.session.pending.find, ids)):
                self._begin(route, message, ids)

        question = Question(ids, size, self._loop.time(), go, method, is_call=True)
        return direct_message(ask=self._ask(question), method=method, size=size, ids=list(ids))

    def _begin(self, route: Route, message: Encoded, call_ids: tuple[int | str, ...]) -> None:
        route.expect(call_ids, is_here=True)
        self._service.places.acknowledged(route, call_ids)
        route.send([message])

    def has_sent_item(self, place: Place, call_ids: Sequence[int | str], message: Encoded) -> bool:
        """Send an item of an argument, if NATS does not carry it, or those before it went by here.

        Args:
            place: that has the call.
        """
        call_id = call_ids[0]
        upload = self._uploads.get(call_id)
        if upload is None:
            if isinstance(place, Route) or len(message) < self._service.max_payload - 4096:
                return False
            upload = self._uploads[call_id] = Upload()

            def go(route: Route) -> None:
                route.expect((call_id,))
                upload.begin(route)

            question = Question((call_id,), len(message), self._loop.time(), go)
            place.send([direct_message(ask=self._ask(question))])
        upload.send(message)
        return True

    def _ask(self, question: Question) -> int:
        limit = self._service.limits.max_held_total // 2
        if self.size + question.size > limit and self._questions:
            reason = "too many bytes of calls wait for a direct connection (max_held_total)"
            raise ServerBusy(data={"limit": limit, "executed": False, "reason": reason})
        self._last += 1
        self._questions[self._last] = question
        self.size += question.size
        if question.call_ids:
            self._by_id[question.call_ids[0]] = self._last
        return self._last

    def _take(self, number: Any) -> Question | None:
        question = self._questions.pop(number, None) if type(number) is int else None
        if question is not None:
            self.size -= question.size
            if question.call_ids:
                self._by_id.pop(question.call_ids[0], None)
        return question

    def drop(self, call_id: Any) -> None:
        """A call was given up."""
        self._take(self._by_id.get(call_id))

    def forget(self, now: float) -> bool:
        """Drop what waits in vain: of calls that are over, and of notifications. Returns whether anything waits."""
        find = self._service.session.pending.find
        for number, question in list(self._questions.items()):
            is_late = not any(map(find, question.call_ids)) and now - question.since > CLAIM_TIME
            if is_late:
                self._take(number)
        for call_id in [each for each in self._uploads if find(each) is None]:
            del self._uploads[call_id]
        return bool(self._questions or self._uploads)

    # -- connections --------------------------------------------------------------------------------------------------

    def take(self, params: dict[str, Any], instance: Place) -> list[int | str]:
        """Take a message of an instance about direct connections; gives the calls for which something waits there."""
        call_ids = ids_in(params.get("ids"))
        offer, question = Offer.of(params), None
        if "ask" in params:
            question = self._take(params["ask"])
        elif any(map(self._service.session.pending.find, call_ids)):
            question = Question(tuple(call_ids), 0, self._loop.time(), lambda route: None, is_asked=False)
        if question is None:  # it was given up meanwhile
            if offer is not None:
                instance.send([direct_message(unused=offer.secret)])
            return []
        if offer is None:
            error = no_way(question.size, self._service.max_payload, str(params.get("reason")))
            self._service.places.fail(question.call_ids, error)
            return []
        for call_id in question.call_ids:
            self._service.places.take_sent(call_id)  # `_connect` takes care of it
        task = self._loop.create_task(self._connect(offer, question, instance))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return call_ids

    async def _connect(self, offer: Offer, question: Question, instance: Place) -> None:
        """Use an offer, on a connection that is there, or on a new one."""
        known = next((each for each in self._routes if each.address == offer.address and each.is_idle), None)
        route = known or Route(self._service, offer, self._over)
        try:
            async with asyncio.timeout(CONNECT_TIME):
                if route is not known:
                    await route.open()
                    self._routes[route] = None
                await route.show(offer.secret, () if question.is_asked else question.call_ids)
            if question.is_call and not route.session.is_open:
                raise ConnectionLost("the instance is leaving")
        except (OSError, ValueError) as error:
            route.abort(str(error))
            if route is known:  # it may have been closed at this moment
                await self._connect(offer, question, instance)
            else:
                instance.send([direct_message(unused=offer.secret)])
                self._fail(question, offer, error)
        else:
            question.go(route)

    def _fail(self, question: Question, offer: Offer, error: Exception) -> None:
        """There is no connection: nothing was sent by it."""
        text = f"no answer within {CONNECT_TIME:g} s" if isinstance(error, TimeoutError) else error_text(error)
        what = "a message" if not question.size else f"{question.size} bytes"
        reason = (
            f"{what} over NATS's max_payload could not go by a direct connection to {offer.address}: {text} "
            "(direct=, --set nats_direct=)"
        )
        kind: type[ConnectFailed | ConnectionLost] = ConnectionLost
        if question.is_call:
            kind = Unread if isinstance(error, ConnectionLost) else ConnectFailed
        for call_id in question.call_ids:
            if not question.is_call:
                self._service.places.cancel(call_id)
            found = self._service.session.pending.find(call_id)
            method = None if found is None else found.method
            self._service.places.fail((call_id,), kind(reason, method=method, address=offer.address))

    def _over(self, route: Route) -> None:
        self._routes.pop(route, None)
        self._service.places.lose(route.call_ids, "the direct connection to the instance was lost")

    async def close(self, reason: str) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        routes = list(self._routes)
        for route in routes:
            if route.is_idle:
                route.session.end(lambda method: ConnectionLost(reason, method=method))
            else:
                route.abort(reason)
        if routes:
            await asyncio.wait([route.closed for route in routes], timeout=CONNECT_TIME)
