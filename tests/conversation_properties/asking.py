"""What clients ask of the server, and the server of its clients: each question entered in the book, none waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from rpcstream import AsyncClient
from rpcstream.peer.remote import Peer
from rpcstream.peer.session import Session
from rpcstream.transports.stream import LineStream

from .book import Book, Line, Question
from .clock import SteppedLoop
from .hand import Hand
from .service import FAILURE, answer_of

#: Seconds, of those that `advance` adds, after which a caller with a limit gives up.
LIMIT = 5.0


class Caller:
    """A client, its connection of the moment and the session at the other end of that."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line = Line(name)
        self.client: AsyncClient = None  # type: ignore[assignment]
        self.stream: LineStream | None = None
        self.far: Session | None = None
        self.reads = True

    @property
    def is_unaware(self) -> bool:
        """Is there something that it does not know of its connection? The server takes no more, or it is over."""
        is_drained = self.far is not None and self.far.channel is not None and not self.far.is_open
        return is_drained or not self.reads


class Asking:
    """Those who ask.

    Attributes:
        callers: the clients, by name.
        ends: the ends that are worked by hand, by name; what the server has at the other end stands in `far`.
    """

    loop: SteppedLoop
    book: Book
    callers: dict[str, Caller]
    ends: dict[str, Hand]
    far: dict[Hand, Session]

    # -- clients ask --------------------------------------------------------------------------------------------------

    def call(self, name: str, kind: str, *, limited: bool = False) -> Question:
        client = self.callers[name].client
        question = self._question(name, kind, limited=limited)
        number = question.number

        def told(value: Any) -> None:
            if value != [name, number]:
                self.book.wrong.append(f"question {number} was told of {value}")

        call = client.call(kind, name, number, timeout=question.limit, on_progress=told)
        question.task = self.loop.create_task(call)
        return question

    def batch(self, name: str, kinds: list[str], *, limited: bool = False) -> list[Question]:
        client, questions = self.callers[name].client, [self._question(name, kind, limited=limited) for kind in kinds]
        calls: list[Any] = []

        async def perform() -> None:
            async with client.batch(timeout=questions[0].limit) as batch:
                calls.extend(batch.call(question.kind, name, question.number) for question in questions)

        async def outcome(place: int) -> Any:
            await asyncio.wait([whole])
            if whole.cancelled():
                raise asyncio.CancelledError
            return calls[place].result() if calls else whole.result()

        whole = self.loop.create_task(perform())
        whole.add_done_callback(lambda task: task.cancelled() or task.exception())
        for place, question in enumerate(questions):
            question.task = self.loop.create_task(outcome(place))
            question.task.add_done_callback(lambda task: task.cancelled() and whole.cancel())
            question.together = questions
        return questions

    def stream(self, name: str, kind: str, n: int, *, stop: int | None = None, limited: bool = False) -> Question:
        """Read a stream to its end, or leave it after `stop` items."""
        client, question = self.callers[name].client, self._question(name, kind, limited=limited)
        number = question.number
        question.line.is_inexact = True  # items may be on their way when nobody wants them any more

        async def consume() -> Any:
            items = []
            async with client.stream(kind, name, number, n, timeout=question.limit) as stream:
                if stop != 0:
                    async for item in stream:
                        items.append(item)
                        if len(items) == stop:
                            break
            assert items == [[name, number, place] for place in range(n if stop is None else min(n, stop))]
            return answer_of(kind, name, number)

        question.task = self.loop.create_task(consume())
        return question

    def upload(self, name: str, kind: str, n: int, source: str, *, limited: bool = False) -> Question:
        """Send `n` items; from an iterator, from an async one, from one that waits or one that fails."""
        client, question = self.callers[name].client, self._question(name, kind, limited=limited)
        number = question.number
        if source == "broken":
            question.failure = KeyError
            question.line.is_inexact = True
        question.answer = [kind, name, number, n]

        def items() -> Iterator[Any]:
            for place in range(n):
                yield [name, number, place]

        async def items_later() -> AsyncIterator[Any]:
            for item in items():
                yield item
            if source == "gated":
                await self.book.gate(number).passed()
            elif source == "broken":
                raise KeyError("broken")

        argument = items() if source == "sync" else items_later()
        if kind == "mirror":
            question.task = self.loop.create_task(self._mirrored(client, question, argument, n))
        else:
            call = client.call(kind, name, number, argument, timeout=question.limit)
            question.task = self.loop.create_task(call)
        return question

    async def _mirrored(self, client: AsyncClient, question: Question, items: Any, n: int) -> Any:
        name, number = question.line.name, question.number
        stream = client.stream.mirror(name, number, items, timeout=question.limit)
        got = [item async for item in stream]
        assert got == [[name, number, place] for place in range(n)]
        return question.answer

    def _question(self, name: str, kind: str, *, limited: bool) -> Question:
        number = self.book.number()
        return self.book.enter(
            Question(
                number,
                kind,
                self.callers[name].line,
                answer_of(kind, name, number),
                code=FAILURE + number if kind == "fails" and name != "c" else None,
                limit=LIMIT if limited else None,
                since=self.loop.time(),
            )
        )

    def cancel(self, question: Question) -> None:
        assert question.task is not None
        if not question.task.done():
            for one in question.together or [question]:
                one.was_cancelled = True
            question.line.is_inexact = True
            question.task.cancel()
            if "z" in self.ends:  # which may answer it all the same
                self.ends["z"].line.is_inexact = True

    def open_gate(self, question: Question) -> None:
        self.book.gate(question.number).open()

    # -- the server asks --------------------------------------------------------------------------------------------

    def ask(self, name: str, kind: str, *, limited: bool = False) -> Question | None:
        """The server calls the client of this name, or the end that is worked by hand."""
        if name in self.callers:
            far, line = self.callers[name].far, self.callers[name].line
        else:
            far, line = self.far[self.ends[name]], self.ends[name].line
        if far is None:
            return None
        number = self.book.number()
        limit = LIMIT if limited else None
        question = Question(number, kind, line, [kind, name, number], limit=limit, since=self.loop.time())
        self.book.enter(question)
        if far.channel is None or line.was_touched:
            question.may_be_lost = True
        question.task = self.loop.create_task(self._asked(far, question))
        return question

    async def _asked(self, far: Session, question: Question) -> Any:
        peer, arguments = Peer(far), (question.line.name, question.number)
        if question.kind == "confirmations":
            stream = peer.stream.confirmations(*arguments, timeout=question.limit)
            items = [item async for item in stream]
            assert items == [["confirm", *arguments]] * len(items)
            return question.answer
        return await peer.call(question.kind, *arguments, timeout=question.limit)
