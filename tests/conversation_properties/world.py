"""A server, its clients, and ends that are worked by hand: all that can happen between them, one thing at a time.

"a" and "b" are clients of the server; "x" and "y" are connections to it that are worked by hand; "c" is a client of a
server that is worked by hand, "z". Nothing here goes on by itself: what was begun goes on when the loop turns.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

from rpcstream import AsyncClient
from rpcstream.peer.remote import Peer
from rpcstream.peer.session import Session
from rpcstream.transports.stream import LineStream

from .book import Book, Line, Question
from .clock import SteppedLoop
from .ends import Memory, Tcp, read
from .hand import Hand
from .service import CLIENT_LIMITS, FAILURE, SERVER_LIMITS, answer_of, make_server, offered

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

    @property
    def is_drained(self) -> bool:
        """The server takes no more on this connection, which the client learns when it is closed."""
        return self.far is not None and self.far.channel is not None and not self.far.is_open


class World:
    """What exists in one run."""

    def __init__(self, network: type[Memory | Tcp]) -> None:
        self.loop = SteppedLoop()
        self.book = Book(crowd=min(SERVER_LIMITS.max_calls, CLIENT_LIMITS.max_calls) - 1)
        self.server = make_server(self.book)
        self.sessions: list[Session] = []
        self.network = network(self.server)
        self.callers = {name: Caller(name) for name in "abc"}
        self.ends: dict[str, Hand] = {}
        self.left_ends: list[Hand] = []
        self._far: dict[Hand, Session] = {}
        self._going: list[asyncio.Task[Any]] = []
        #: Calls that threads have not done yet.
        self._busy_threads = 0
        self._keep_sessions()

    def _keep_sessions(self) -> None:
        make = self.server._make_session

        def kept(*args: Any) -> Session:
            self.sessions.append(make(*args))
            return self.sessions[-1]

        self.server._make_session = kept  # type: ignore[method-assign]

    def _count_threads(self) -> None:
        assert self.server._running is not None
        threads, lock = self.server._running.invoker._threads, threading.Lock()
        submit = threads.submit

        def count(change: int) -> None:
            with lock:
                self._busy_threads += change

        def counted(call: Callable[[], Any]) -> Future[Any]:
            count(1)
            future = submit(call)
            future.add_done_callback(lambda _: count(-1))
            return future

        threads.submit = counted  # type: ignore[method-assign]

    def open(self) -> None:
        self.run(self.network.open())
        self._count_threads()
        for caller in self.callers.values():
            self.run(self._make_client(caller))
        for name in "xy":
            self.reconnect(name)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def settle(self) -> None:
        """Until nothing goes on by itself. Then everybody knows what was done to connections."""
        self.loop.settle()
        draining = [caller.line for caller in self.callers.values() if caller.is_drained]
        for line in self.lines:
            line.is_shaky = line in draining

    @property
    def lines(self) -> list[Line]:
        return [caller.line for caller in self.callers.values()] + [end.line for end in self._all_ends]

    @property
    def _all_ends(self) -> list[Hand]:
        return [*self.ends.values(), *self.left_ends]

    # -- clients ----------------------------------------------------------------------------------------------------

    async def _make_client(self, caller: Caller) -> None:
        async def connect(make_stream: Callable[[], LineStream]) -> LineStream:
            caller.stream = stream = make_stream()
            self.sessions.append(stream.session)
            if caller.name != "c":
                caller.far = await self._connected(stream)
            else:
                if "z" in self.ends:
                    self.left_ends.append(self.ends["z"])
                self.ends["z"] = self._hand("z")
                await self.network.join(stream, self.ends["z"])
            return stream

        caller.client = AsyncClient(
            "the server", connect=connect, timeout=None, connect_timeout=None, limits=CLIENT_LIMITS
        )
        for function in offered(self.book, caller.name):
            caller.client(function)

    async def _connected(self, near: asyncio.Protocol) -> Session:
        """Connect an end to the server; the session there."""
        known = len(self.sessions)
        address = await self.network.connect(near)
        while True:
            for session in self.sessions[known:]:
                # In memory all ends have the same address, and are there at once.
                if session.side == "server" and session.channel is not None and session.channel.address == address:
                    return session
            await asyncio.sleep(0)

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
            far, line = self._far[self.ends[name]], self.ends[name].line
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

    # -- by hand ----------------------------------------------------------------------------------------------------

    def reconnect(self, name: str) -> None:
        """A new connection for one that is worked by hand; the old one goes on as it can."""
        if name in self.ends:
            self.left_ends.append(self.ends[name])
        end = self.ends[name] = self._hand(name)
        self._far[end] = self.run(self._connected(end))

    def request(self, name: str, kind: str, text: str, *, limited: bool) -> None:
        self.ends[name].request(kind, LIMIT if limited else None, text, self.loop.time())

    def _hand(self, name: str) -> Hand:
        asked_over = self.callers["c"].line if name == "z" else None
        return Hand(Line(name), self.book, lambda: list(self.ends.values()), asked_over)

    # -- what happens to connections --------------------------------------------------------------------------------

    def disturb(self, name: str, how: str) -> None:
        """Do something to the connection of a client: "abort" it, "abort far" at the server, "drain", or "leave"."""
        caller = self.callers[name]
        if caller.stream is None:
            return
        caller.line.touch()
        if "z" in self.ends and name == "c":
            self.ends["z"].line.touch()
        if how == "leave":
            self._going.append(self.loop.create_task(caller.client.close()))
            self.run(self._make_client(caller))
        elif how == "abort" or caller.far is None:
            self.loop.call_soon(caller.stream.abort, "the run says so")
        elif how == "abort far":
            self.loop.call_soon(caller.far.abort, "the run says so")
        else:
            self.loop.call_soon(caller.far.drain)

    def end(self, name: str, how: str) -> None:
        self.ends[name].end(how)
        if name == "z":
            self.callers["c"].line.touch()
        else:
            self.reconnect(name)

    def read(self, name: str, wanted: bool) -> None:
        """Have somebody stop reading, or read again."""
        if name in self.ends:
            self.ends[name].read(wanted)
        elif name in self.callers and (stream := self.callers[name].stream) is not None:
            read(stream, wanted)

    def advance(self, seconds: float) -> None:
        self.loop.jump(seconds)
        for question in self.book.questions:
            if question.limit is not None and not question.is_over:  # an answer that comes now may be late
                question.line.is_inexact = True
                if question.line is self.callers["c"].line and "z" in self.ends:
                    self.ends["z"].line.is_inexact = True
        if seconds >= SERVER_LIMITS.write_timeout:  # type: ignore[operator]
            for line in self.lines:  # who did not read for so long is put out
                line.touch()

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Keep nothing back any more: everything comes to its end, and has come to the right one."""
        for name in self.callers:
            self.read(name, True)
        for end in self._all_ends:
            end.read(True)
        self.book.open_all()
        self._wait(lambda: not sum(end.finish() for end in self._all_ends) and self._is_over)
        self.book.check()
        now = self.loop.time()
        for question in self.book.questions:
            if question.task is not None:
                question.check(now)
            # A stream that was left without being closed ends when it is dropped, with what ended its reader.
            question.task = None
        for end in self._all_ends:
            end.check(now)
        gc.collect()
        self._wait(lambda: not any(map(_kept, self.sessions)))
        for session in self.sessions:
            assert not _kept(session), f"kept at the {session.side}: {_kept(session)}"
        self._check_dropped()

    @property
    def _is_over(self) -> bool:
        questions = [question for question in self.book.questions if question.task is not None]
        return all(question.is_over for question in questions) and all(end.is_over for end in self._all_ends)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Until that is so, or would not be so any more: nobody has been doing anything for a while."""
        idle, until = 0, time.monotonic() + 20
        while True:
            self.settle()
            if is_over() or idle > 200:
                break
            idle = 0 if self._busy_threads else idle + 1
            if isinstance(
                self.network, Tcp
            ):  # sockets are closed when all has arrived, which is looked at now and then
                self.loop.jump(0.02)
            assert time.monotonic() < until, "a thread hangs"
            time.sleep(0.0005)

    def _check_dropped(self) -> None:
        """Every answer to nobody was counted, where it is known how many there were."""
        for end, session in self._far.items():
            if not end.line.is_inexact and not end.line.was_touched:
                assert session.pending.dropped == end.line.to_nobody, end.line
        assert self.callers["c"].client.replies_dropped >= 0
        if (z := self.ends.get("z")) and not z.line.is_inexact and not z.line.was_touched:
            assert self.callers["c"].client.replies_dropped == z.line.to_nobody
        for name in "ab":
            caller = self.callers[name]
            if not caller.line.is_inexact and not caller.line.was_touched:
                assert caller.client.replies_dropped == 0

    def close(self) -> list[weakref.ref[Session]]:
        """End everything; gives what should be gone then."""
        closing = [caller.client.close() for caller in self.callers.values()]
        self._run_to_its_end(asyncio.gather(*self._going, *map(self.loop.create_task, closing)))
        for end in self._all_ends:
            end.end("close")
        self._run_to_its_end(self.loop.create_task(self.network.close()))
        dropped = sum(session.pending.dropped for session in self.sessions if session.side == "server")
        assert self.server.counters.replies_dropped == dropped
        assert self.server.counters.connections == 0
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        assert not left, f"tasks are left: {left}"
        assert not any(map(_kept, self.sessions))
        gone = list(map(weakref.ref, self.sessions))
        for kept in (self.sessions, self.callers, self.ends, self.left_ends, self._far, self._going):
            kept.clear()
        return gone

    def _run_to_its_end(self, future: asyncio.Future[Any]) -> None:
        """As long as time passes, it ends."""
        for _ in range(40):
            self.settle()
            if future.done():
                future.result()
                return
            self.loop.jump(1.0)
        raise AssertionError(f"it does not end: {future}")


def _kept(session: Session) -> str:
    """What a session keeps of what should be over."""
    work, flows = session.work, session.flows
    kept = [len(session.pending), flows.out, flows.coming, work.running, work.members, work.load, session.busy]
    return str(kept) if any(kept) else ""
