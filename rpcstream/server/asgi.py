"""Runs a server as an ASGI application: alone, mounted in another application, or in front of one.

This module starts and stops the server; `transports.asgi` serves requests and WebSockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ..text import get_logger
from ..transports.asgi import AsgiEndpoint, path_below, send_response
from ..transports.asgi_http import Event, Receive, Scope, Send
from ..wire.http_messages import problem
from .life import ServerLife

log = get_logger("rpcstream.server")

#: An ASGI 3 application.
Application = Callable[[Any, Any, Any], Awaitable[Any]]

_STOPPED = "the server has stopped"


class AsgiRunner:
    """Runs one server in the event loop of an ASGI server, for all its applications.

    The server lives in a task of its own, so that what its lifespan enters is left in the same task.

    Attributes:
        endpoint: what serves connections; None while the server does not run.
        loop: the event loop in which it does.
    """

    def __init__(self, life: ServerLife) -> None:
        self.endpoint: AsgiEndpoint | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._life = life
        self._task: asyncio.Task[None] | None = None
        #: The outcome of the start: None, or the error.
        self._start: asyncio.Future[BaseException | None] | None = None
        #: The number of open lifespans.
        self._lifespans = 0
        #: The server was stopped, and no request may start it again.
        self._is_stopped = False

    @property
    def is_running(self) -> bool:
        """Whether the server starts, serves or stops."""
        return self._task is not None

    async def for_request(self) -> AsgiEndpoint | None:
        """The endpoint for a request, after starting the server if necessary; None after it was stopped.

        Raises:
            RuntimeError: the server runs in another event loop, or listens by itself.
        """
        self._check_loop()
        if self._task is None and self._is_stopped:
            return None
        await self._started()
        return self.endpoint

    async def begin(self) -> None:
        """Begin a lifespan: start the server unless it runs. Raises as `for_request`, and what its lifespan raises."""
        self._check_loop()
        self._is_stopped = False
        self._lifespans += 1
        try:
            await self._started()
        except BaseException:
            self._lifespans -= 1
            raise

    async def end(self) -> None:
        """End a lifespan; with the last one, stop the server and wait. Raises what its lifespan raises."""
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
        loop = asyncio.get_running_loop()
        if self._task is None:
            return
        if self.loop is loop:
            return
        assert self.loop is not None
        if self.loop.is_closed():  # without having ended the task
            self._task, self.endpoint = None, None
            return
        raise RuntimeError(
            "this server runs in another event loop, and one Server serves in one: make a Server for each loop "
            "(a worker process imports its own)"
        )

    async def _started(self) -> None:
        if self._task is None:
            if self._life.is_running:
                raise RuntimeError(
                    "this server listens by itself (run(), start() and so on): either that, or asgi(), not both"
                )
            self.loop = asyncio.get_running_loop()
            self._start = self.loop.create_future()
            self._task = self.loop.create_task(self._run(self._start), name="rpcstream-asgi")
        assert self._start is not None
        error = await asyncio.shield(self._start)
        if error is not None:
            raise error

    async def _run(self, start: asyncio.Future[BaseException | None]) -> None:
        """Run the server until it is stopped, or the event loop ends and this task is cancelled."""
        try:
            async with self._life.started(" in an ASGI server") as running:
                self.endpoint = running.listener.make_asgi()
                log.info("serving in an ASGI server")
                start.set_result(None)
                await running.stopping.wait()
            self._is_stopped = True
        except BaseException as error:
            if start.done():
                raise
            start.set_result(error)  # raised by the requests that wait for the start
        finally:
            self._task, self.endpoint = None, None


class AsgiApplication:
    """An ASGI 3 application; `Server.asgi` makes it.

    Args:
        runner: of the server.
        application: gets what is not for the server, and the events of the lifespan; None: there is no other one.
        path: of the server within this application; "": all that comes here is for the server.

    Raises:
        ValueError: the path has no slash in front, or one at its end; or there is an application and no path.
    """

    def __init__(self, runner: AsgiRunner, application: Application | None = None, path: str = "") -> None:
        if path and (not path.startswith("/") or path.endswith("/")):
            raise ValueError(f'path: it begins with a slash and does not end with one, as "/rpc", got {path!r}')
        if application is not None and not path:
            raise ValueError('asgi(app): say which paths are for this server, as path="/rpc"')
        self._runner = runner
        self._application = application
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(scope, receive, send)
        elif self._path and not self._is_below(scope):
            if self._application is not None:
                await self._application(scope, receive, send)
            else:
                await send_response(scope, send, problem(404, f"there is nothing here; calls go to {self._path}"))
        else:
            runner = self._runner
            endpoint = runner.endpoint
            if endpoint is None or runner.loop is not asyncio.get_running_loop():
                endpoint = await runner.for_request()
            if self._path:
                scope = {**scope, "root_path": scope.get("root_path", "").rstrip("/") + self._path}
            if endpoint is not None:
                await endpoint(scope, receive, send)
            else:
                await send_response(scope, send, problem(503, _STOPPED, [("Retry-After", "1")]))

    def _is_below(self, scope: Scope) -> bool:
        path = path_below(scope.get("root_path", ""), scope["path"])
        return path == self._path or path.startswith(f"{self._path}/")

    # -- the lifespan -----------------------------------------------------------------------------------------------

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
        await self._runner.begin()
        try:
            yield
        finally:
            await self._runner.end()

    async def _serve_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start the server before the other application, and stop it before that one stops."""
        waiting = [await receive()]
        has_answered = False
        try:
            await self._runner.begin()
        except BaseException as error:
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            raise
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end)

            async def receive_next() -> Event:
                event = waiting.pop() if waiting else await receive()
                if event["type"] == "lifespan.shutdown":
                    await stack.aclose()
                return event

            async def send_on(event: Event) -> None:
                nonlocal has_answered
                has_answered = True
                await send(event)

            if self._application is not None:
                try:
                    await self._application(scope, receive_next, send_on)
                except Exception:
                    if has_answered:
                        raise
            if not has_answered:  # there is no other application, or like Django it does not support lifespans
                await _answer_lifespan(receive_next, send)

    async def _end(self) -> None:
        """End the lifespan; an error is logged, because the other application must end as well."""
        try:
            await self._runner.end()
        except Exception:
            log.exception("the lifespan of the server failed at its end")


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """Answer the events of a lifespan."""
    await send({"type": "lifespan.startup.complete"})
    while (await receive())["type"] != "lifespan.shutdown":
        pass
    await send({"type": "lifespan.shutdown.complete"})
