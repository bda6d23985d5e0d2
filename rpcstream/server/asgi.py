"""Runs a server as an ASGI application: alone, or mounted in another application.

This module starts and stops the server; `transports.asgi` serves requests and WebSockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ..text import get_logger
from ..transports.asgi import AsgiEndpoint, Receive, Scope, Send, send_response
from ..wire.http_messages import problem
from .life import ServerLife

log = get_logger("rpcstream.server")

_STOPPED = "the server has stopped"


class AsgiApplication:
    """An ASGI 3 application that runs one server in the event loop of an ASGI server; `Server.asgi` makes it.

    The server lives in a task of its own, so that what its lifespan enters is left in the same task.
    """

    def __init__(self, life: ServerLife) -> None:
        self._life = life
        #: Serves connections; None while the server does not run. And the event loop in which it does.
        self._endpoint: AsgiEndpoint | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        #: The outcome of the start: None, or the error.
        self._start: asyncio.Future[BaseException | None] | None = None
        #: The number of open lifespans.
        self._lifespans = 0
        #: The server was stopped, and no request may start it again.
        self._is_stopped = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan. The first request starts the server, unless a lifespan has.

        Raises:
            RuntimeError: the server runs in another event loop, or listens by itself.
        """
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
            return
        endpoint = self._endpoint
        if endpoint is None or self._loop is not asyncio.get_running_loop():
            self._check_loop()
            if self._task is not None or not self._is_stopped:
                await self._started()
            endpoint = self._endpoint
        if endpoint is not None:
            await endpoint(scope, receive, send)
        else:
            await send_response(scope, send, problem(503, _STOPPED, [("Retry-After", "1")]))

    @asynccontextmanager
    async def lifespan(self, application: Any = None) -> AsyncIterator[None]:
        """Run the server while the block runs, for applications that do not pass the lifespan on to mounted ones.

        As the lifespan of FastAPI and Starlette, `FastAPI(lifespan=rpc.lifespan)`; or within one of your own,
        `async with rpc.lifespan(): ...`. Leaving the block lets calls in flight finish for `drain_timeout` seconds.

        Args:
            application: what FastAPI and Starlette give; it does not matter.

        Raises:
            RuntimeError: the server runs in another event loop, or listens by itself.
        """
        await self._begin()
        try:
            yield
        finally:
            await self._end()

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Start and stop the server with the ASGI server."""
        await receive()
        try:
            await self._begin()
        except BaseException as error:
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            raise
        try:
            await send({"type": "lifespan.startup.complete"})
            while (await receive())["type"] != "lifespan.shutdown":
                pass
        finally:
            try:
                await self._end()
            except Exception:
                log.exception("the lifespan of the server failed at its end")
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        """Begin a lifespan: start the server unless it runs. Raises what its own lifespan raises, too."""
        self._check_loop()
        self._is_stopped = False
        self._lifespans += 1
        try:
            await self._started()
        except BaseException:
            self._lifespans -= 1
            raise

    async def _end(self) -> None:
        """End a lifespan; with the last one, stop the server and wait. Raises what its own lifespan raises."""
        self._lifespans -= 1
        task = self._task
        if self._lifespans or task is None:
            return
        self._life.stop()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            self._life.abort()
            raise
        if not task.cancelled():
            task.result()

    def _check_loop(self) -> None:
        if self._task is None or self._loop is asyncio.get_running_loop():
            return
        assert self._loop is not None
        if self._loop.is_closed():  # without having ended the task
            self._task, self._endpoint = None, None
            return
        raise RuntimeError(
            "this server runs in another event loop: create a Server for each event loop "
            "(a worker process imports its own)"
        )

    async def _started(self) -> None:
        if self._task is None:
            if self._life.is_running:
                raise RuntimeError(
                    "this server already listens by itself (run(), listening()): use either that or asgi()"
                )
            self._loop = asyncio.get_running_loop()
            self._start = self._loop.create_future()
            self._task = self._loop.create_task(self._run(self._start), name="rpcstream-asgi")
        assert self._start is not None
        error = await asyncio.shield(self._start)
        if error is not None:
            raise error

    async def _run(self, start: asyncio.Future[BaseException | None]) -> None:
        """Run the server until it is stopped, or the event loop ends and this task is cancelled."""
        try:
            async with self._life.started(" in an ASGI server") as running:
                self._endpoint = running.listener.make_asgi()
                log.info("serving in an ASGI server")
                start.set_result(None)
                await running.stopping.wait()
                self._is_stopped = True
        except BaseException as error:
            if start.done():
                raise
            start.set_result(error)  # raised by the requests that wait for the start
        finally:
            self._task, self._endpoint = None, None
