"""A server, its clients and scripted peers, driven one step at a time.

"a" and "b" are clients of the server; "x" and "y" are scripted peers that are connected to it; "c" is a client of the
scripted peer "z". Nothing here goes on by itself: what was begun goes on when the loop turns.
"""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from rpcstream import AsyncClient
from rpcstream.peer.session import Session

from ..kit import leftovers
from ..kit.loops import SteppedLoop
from ..kit.memory import join
from .call_actions import LIMIT, CallActions, SimulatedClient
from .reference_model import ConnectionModel, ReferenceModel
from .scripted_peer import ScriptedPeer
from .service import CLIENT_LIMITS, SERVER_LIMITS, make_server, offered


class Simulation(CallActions):
    """The server, clients and scripted peers of one run."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.model = ReferenceModel(crowd=min(SERVER_LIMITS.max_calls, CLIENT_LIMITS.max_calls) - 1)
        self.server = make_server(self.model)
        self.sessions: list[Session] = []
        self._stack = AsyncExitStack()
        self.callers = {name: SimulatedClient(name) for name in "abc"}
        self.peers: dict[str, ScriptedPeer] = {}
        self.former_peers: list[ScriptedPeer] = []
        self.far: dict[ScriptedPeer, Session] = {}
        self._going: list[asyncio.Task[Any]] = []

    def open(self) -> None:
        self._accept = self.run(self._stack.enter_async_context(self.server.in_memory()))
        for caller in self.callers.values():
            self.run(self._make_client(caller))
        for name in "xy":
            self.reconnect(name)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def settle(self) -> None:
        """Turn the loop until nothing is left to do. Then both ends know what was done to their connection."""
        self.loop.settle()
        unaware = [caller.connection for caller in self.callers.values() if caller.is_unaware]
        for connection in self.connections:
            connection.is_shaky = connection.is_shaky and connection in unaware

    @property
    def connections(self) -> list[ConnectionModel]:
        return [caller.connection for caller in self.callers.values()] + [peer.connection for peer in self._all_peers]

    @property
    def _all_peers(self) -> list[ScriptedPeer]:
        return [*self.peers.values(), *self.former_peers]

    async def _make_client(self, caller: SimulatedClient) -> None:
        async def connect(make_stream: Callable[[], Any]) -> Any:
            caller.stream, caller.reads = make_stream(), True
            stream = caller.stream
            begin = stream.connection_made

            def connection_made(transport: Any) -> None:
                caller.transport = transport
                begin(transport)

            stream.connection_made = connection_made
            self.sessions.append(stream.session)
            if caller.name != "c":
                caller.far = await self._connected(stream)
            else:
                if "z" in self.peers:
                    self.former_peers.append(self.peers["z"])
                self.peers["z"] = self._scripted_peer("z")
                join(stream, self.peers["z"])
            return stream

        caller.client = AsyncClient(connect, timeout=None, connect_timeout=None, limits=CLIENT_LIMITS)
        for function in offered(self.model, caller.name):
            caller.client(function)

    async def _connected(self, near: Any) -> Session:
        """Connect a protocol to the server; returns the server's session."""
        join(near, far := self._accept())
        self.sessions.append(far.session)
        session: Session = far.session
        return session

    def reconnect(self, name: str) -> None:
        """Connect a scripted peer anew; its old connection goes on as it can."""
        if name in self.peers:
            self.former_peers.append(self.peers[name])
        peer = self.peers[name] = self._scripted_peer(name)
        self.far[peer] = self.run(self._connected(peer))

    def request(self, name: str, kind: str, text: str, *, limited: bool) -> None:
        self.peers[name].request(kind, LIMIT if limited else None, text, self.loop.time())

    def _scripted_peer(self, name: str) -> ScriptedPeer:
        calls_on = self.callers["c"].connection if name == "z" else None
        return ScriptedPeer(ConnectionModel(name), self.model, lambda: list(self.peers.values()), calls_on)

    def disturb(self, name: str, how: str) -> None:
        """Do something to the connection of a client: "abort" it, "abort far" at the server, "drain", or "leave"."""
        caller = self.callers[name]
        if caller.stream is None:
            return
        caller.connection.touch()
        if "z" in self.peers and name == "c":
            self.peers["z"].connection.touch()
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
        self.peers[name].end(how)
        if name == "z":
            self.callers["c"].connection.touch()
        else:
            self.reconnect(name)

    def read(self, name: str, wanted: bool) -> None:
        """Resume or pause reading at a client or scripted peer."""
        if name in self.peers:
            self.peers[name].read(wanted)
        elif name in self.callers and (stream := self.callers[name].stream) is not None:
            transport = self.callers[name].transport
            if transport is not None and not transport.is_closing() and not stream.is_paused:
                (transport.resume_reading if wanted else transport.pause_reading)()
            self.callers[name].reads = wanted

    def advance(self, seconds: float) -> None:
        self.loop.jump(seconds)
        if seconds >= SERVER_LIMITS.write_timeout:  # type: ignore[operator]
            for connection in self.connections:  # the server closes connections that are not read for so long
                connection.touch()

    def finish(self) -> None:
        """Let every call come to its end, and assert that it was a right one."""
        for name in self.callers:
            self.read(name, True)
        for peer in self._all_peers:
            peer.read(True)
        self.model.open_all()
        self._wait(lambda: not sum(peer.finish() for peer in self._all_peers) and self._is_over)
        self.model.check()
        now = self.loop.time()
        for expected in self.model.expected_calls:
            if expected.task is not None:
                expected.check(now)
            # A stream that was left without being closed ends when it is dropped, with what ended its reader.
            expected.task = None
        for peer in self._all_peers:
            peer.check(now)
        gc.collect()
        self._wait(lambda: not any(map(leftovers, self.sessions)))
        for session in self.sessions:
            assert not leftovers(session), f"kept at the {session.side}: {leftovers(session)}"

    @property
    def _is_over(self) -> bool:
        expected_calls = [expected for expected in self.model.expected_calls if expected.task is not None]
        return all(expected.is_over for expected in expected_calls) and all(peer.is_over for peer in self._all_peers)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Turn the loop until the condition holds or nothing has happened for a while."""
        idle, until = 0, time.monotonic() + 20
        while True:
            self.settle()
            if is_over() or idle > 2000:
                break
            idle += 1
            assert time.monotonic() < until, "a thread hangs"
            time.sleep(0.0005)

    def close(self) -> list[weakref.ref[Session]]:
        """Close everything; returns references to the sessions, which should be gone soon."""
        closing = [caller.client.close() for caller in self.callers.values()]
        self._run_to_its_end(asyncio.gather(*self._going, *map(self.loop.create_task, closing)))
        for peer in self._all_peers:
            peer.end("close")
        self._run_to_its_end(self.loop.create_task(self._stack.aclose()))
        dropped = sum(session.pending.dropped for session in self.sessions if session.side == "server")
        assert self.server.counters.replies_dropped == dropped
        assert self.server.counters.connections == 0
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        assert not left, f"tasks are left: {left}"
        assert not any(map(leftovers, self.sessions))
        gone = list(map(weakref.ref, self.sessions))
        for kept in (self.sessions, self.callers, self.peers, self.former_peers, self.far, self._going):
            kept.clear()
        return gone

    def _run_to_its_end(self, future: asyncio.Future[Any]) -> None:
        """Let time pass until it is done."""
        for _ in range(40):
            self.settle()
            if future.done():
                future.result()
                return
            self.loop.jump(1.0)
        raise AssertionError(f"it does not end: {future}")
