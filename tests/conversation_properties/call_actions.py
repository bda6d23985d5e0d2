"""Starts the calls of a simulation, clients to server and server to clients, and enters each in the reference model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from rpcstream import AsyncClient
from rpcstream.peer.remote import Peer
from rpcstream.peer.session import Session

from ..kit.loops import SteppedLoop
from .reference_model import ConnectionModel, ExpectedCall, ReferenceModel
from .scripted_peer import ScriptedPeer
from .service import FAILURE, answer_of

#: Seconds, of those that `advance` adds, after which a caller with a limit gives up.
LIMIT = 5.0


class SimulatedClient:
    """A client, its current connection, and the server's session of that connection."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection = ConnectionModel(name)
        self.client: AsyncClient = None  # type: ignore[assignment]
        #: The protocol of its connection, and the transport of that.
        self.stream: Any = None
        self.transport: Any = None
        self.far: Session | None = None
        self.reads = True

    @property
    def is_unaware(self) -> bool:
        """The connection is over, or takes no more calls, and the client cannot know that yet."""
        is_drained = self.far is not None and self.far.channel is not None and not self.far.is_open
        return is_drained or not self.reads


class CallActions:
    """Starts calls, and does not wait for them.

    Attributes:
        callers: the clients, by name.
        peers: the scripted peers, by name; the server's session of each is in `far`.
    """

    loop: SteppedLoop
    model: ReferenceModel
    callers: dict[str, SimulatedClient]
    peers: dict[str, ScriptedPeer]
    far: dict[ScriptedPeer, Session]

    def call(self, name: str, kind: str, *, limited: bool = False) -> ExpectedCall:
        client = self.callers[name].client
        expected = self._expect(name, kind, limited=limited)
        number = expected.number

        def told(value: Any) -> None:
            if value != [name, number]:
                self.model.wrong.append(f"question {number} was told of {value}")

        call = client.call(kind, name, number, timeout=expected.limit, on_progress=told)
        expected.task = self.loop.create_task(call)
        return expected

    def batch(self, name: str, kinds: list[str], *, limited: bool = False) -> list[ExpectedCall]:
        client, expected_calls = (
            self.callers[name].client,
            [self._expect(name, kind, limited=limited) for kind in kinds],
        )
        calls: list[Any] = []

        async def perform() -> None:
            async with client.batch(timeout=expected_calls[0].limit) as batch:
                calls.extend(batch.call(expected.kind, name, expected.number) for expected in expected_calls)

        async def outcome(place: int) -> Any:
            await asyncio.wait([whole])
            if whole.cancelled():
                raise asyncio.CancelledError
            return calls[place].result() if calls else whole.result()

        whole = self.loop.create_task(perform())
        whole.add_done_callback(lambda task: task.cancelled() or task.exception())
        for place, expected in enumerate(expected_calls):
            expected.task = self.loop.create_task(outcome(place))
            expected.task.add_done_callback(lambda task: task.cancelled() and whole.cancel())
            expected.together = expected_calls
        return expected_calls

    def stream(self, name: str, kind: str, n: int, *, stop: int | None = None, limited: bool = False) -> ExpectedCall:
        """Read a stream to its end, or leave it after `stop` items."""
        client, expected = self.callers[name].client, self._expect(name, kind, limited=limited)
        number = expected.number

        async def consume() -> Any:
            items = []
            async with client.stream(kind, name, number, n, timeout=expected.limit) as stream:
                if stop != 0:
                    async for item in stream:
                        items.append(item)
                        if len(items) == stop:
                            break
            assert items == [[name, number, place] for place in range(n if stop is None else min(n, stop))]
            return answer_of(kind, name, number)

        expected.task = self.loop.create_task(consume())
        return expected

    def upload(self, name: str, n: int, source: str, *, limited: bool = False) -> ExpectedCall:
        """Send `n` items; from an iterator, from an async one, from one that waits or one that fails."""
        client, expected = self.callers[name].client, self._expect(name, "total", limited=limited)
        number = expected.number
        if source == "broken":
            expected.failure = KeyError
        expected.answer = ["total", name, number, n]

        def items() -> Iterator[Any]:
            for place in range(n):
                yield [name, number, place]

        async def items_later() -> AsyncIterator[Any]:
            for item in items():
                yield item
            if source == "gated":
                await self.model.gate(number).passed()
            elif source == "broken":
                raise KeyError("broken")

        argument = items() if source == "sync" else items_later()
        call = client.call("total", name, number, argument, timeout=expected.limit)
        expected.task = self.loop.create_task(call)
        return expected

    def _expect(self, name: str, kind: str, *, limited: bool) -> ExpectedCall:
        number = self.model.number()
        return self.model.enter(
            ExpectedCall(
                number,
                kind,
                self.callers[name].connection,
                answer_of(kind, name, number),
                code=FAILURE + number if kind == "fails" and name != "c" else None,
                limit=LIMIT if limited else None,
                since=self.loop.time(),
            )
        )

    def cancel(self, expected: ExpectedCall) -> None:
        assert expected.task is not None
        if not expected.task.done():
            for one in expected.together or [expected]:
                one.was_cancelled = True
            expected.task.cancel()

    def ask(self, name: str, kind: str, *, limited: bool = False) -> ExpectedCall | None:
        """The server calls the client or the scripted peer of this name."""
        if name in self.callers:
            far, connection = self.callers[name].far, self.callers[name].connection
        else:
            far, connection = self.far[self.peers[name]], self.peers[name].connection
        if far is None:
            return None
        number = self.model.number()
        limit = LIMIT if limited else None
        expected = ExpectedCall(number, kind, connection, [kind, name, number], limit=limit, since=self.loop.time())
        self.model.enter(expected)
        if far.channel is None or connection.was_touched:
            expected.may_be_lost = True
        expected.task = self.loop.create_task(self._asked(far, expected))
        return expected

    async def _asked(self, far: Session, expected: ExpectedCall) -> Any:
        peer, arguments = Peer(far), (expected.connection.name, expected.number)
        if expected.kind == "confirmations":
            # Closed when the call is cancelled: a drained connection waits for a stream that somebody still holds, and
            # the requests that come meanwhile are dropped.
            async with peer.stream.confirmations(*arguments, timeout=expected.limit) as stream:
                items = [item async for item in stream]
            assert items == [["confirm", *arguments]] * len(items)
            return expected.answer
        return await peer.call(expected.kind, *arguments, timeout=expected.limit)
