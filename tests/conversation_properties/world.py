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
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from rpcstream import AsyncClient
from rpcstream.peer.session import Session
from rpcstream.transports.stream import LineStream

from .asking import LIMIT, Asking, Caller
from .book import Book, Line
from .clock import SteppedLoop
from .ends import Memory, Tcp, read
from .hand import Hand
from .service import CLIENT_LIMITS, SERVER_LIMITS, make_server, offered


class World(Asking):
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
        self.far: dict[Hand, Session] = {}
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
        unaware = [caller.line for caller in self.callers.values() if caller.is_unaware]
        for line in self.lines:
            line.is_shaky = line.is_shaky and line in unaware

    @property
    def lines(self) -> list[Line]:
        return [caller.line for caller in self.callers.values()] + [end.line for end in self._all_ends]

    @property
    def _all_ends(self) -> list[Hand]:
        return [*self.ends.values(), *self.left_ends]

    # -- clients ----------------------------------------------------------------------------------------------------

    async def _make_client(self, caller: Caller) -> None:
        async def connect(make_stream: Callable[[], LineStream]) -> LineStream:
            caller.stream, caller.reads = make_stream(), True
            stream = caller.stream
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

    # -- by hand ----------------------------------------------------------------------------------------------------

    def reconnect(self, name: str) -> None:
        """A new connection for one that is worked by hand; the old one goes on as it can."""
        if name in self.ends:
            self.left_ends.append(self.ends[name])
        end = self.ends[name] = self._hand(name)
        self.far[end] = self.run(self._connected(end))

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
            self.callers[name].reads = wanted

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
        for end, session in self.far.items():
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
        for kept in (self.sessions, self.callers, self.ends, self.left_ends, self.far, self._going):
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
    kept = [len(session.pending), flows.senders, flows.receivers, work.running, work.members, work.load, session.busy]
    return str(kept) if any(kept) else ""
