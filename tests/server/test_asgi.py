"""A server as an ASGI application: when it starts and stops, in which loop, and what is beside it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient, ConnectFailed, Hub, Server

from ..kit import UsualServer, until
from ..kit.asgi import Driver, call, connected, post, websocket_scope
from ..kit.asgi_servers import mounted, under_uvicorn


class Lived(UsualServer):
    """A server that notes when it starts and stops."""

    def __init__(self, fails: Exception | None = None, *, fails_at_end: Exception | None = None) -> None:
        super().__init__(lifespan=self._lifespan)
        self.fails = fails
        self.fails_at_end = fails_at_end

    @asynccontextmanager
    async def _lifespan(self, server: Server) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        task = asyncio.current_task()
        self.noted.append("started")
        try:
            yield
        finally:
            assert asyncio.current_task() is task
            self.noted.append("stopped")
        if self.fails_at_end is not None:
            raise self.fails_at_end


class Lifespan(Driver):
    """The lifespan of an application."""

    def __init__(self, application: Any) -> None:
        super().__init__(application, {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}})

    async def startup(self) -> str:
        self.give({"type": "lifespan.startup"})
        kind: str = (await self.has_sent(1))[-1]["type"]
        return kind

    async def shutdown(self) -> str:
        self.give({"type": "lifespan.shutdown"})
        await self.ended()
        kind: str = self.sent[-1]["type"]
        return kind


THREE = {"jsonrpc": "2.0", "id": 1, "result": 3}


async def add(application: Any, path: str = "/") -> Any:
    return (await post(application, call("add", 1, 2), path=path)).json


async def test_the_events_of_the_lifespan_start_and_stop_the_server() -> None:
    app = (lived := Lived()).asgi()
    for times in (1, 2):
        lifespan = Lifespan(app)
        assert await lifespan.startup() == "lifespan.startup.complete"
        assert await add(app) == THREE
        assert lived.noted == ["started", "stopped"] * (times - 1) + ["started"]
        assert await lifespan.shutdown() == "lifespan.shutdown.complete"
        assert lived.noted == ["started", "stopped"] * times
        assert (await post(app, call("add", 1, 2))).status == 503


async def test_a_server_that_cannot_start_says_why() -> None:
    server = Lived(fails=OSError("no database"))
    app = server.asgi()
    lifespan = Lifespan(app)
    assert await lifespan.startup() == "lifespan.startup.failed"
    assert lifespan.sent[0]["message"] == "OSError: no database"
    with pytest.raises(OSError, match="no database"):
        await lifespan.task
    with pytest.raises(OSError, match="no database"):
        async with app.lifespan():
            pass
    server.fails = None
    async with app.lifespan():
        assert server.noted == ["started"]


async def test_a_server_whose_lifespan_failed_at_its_end_stays_stopped() -> None:
    lived = Lived(fails_at_end=OSError("no disk"))
    app = lived.asgi()
    with pytest.raises(OSError, match="no disk"):
        async with app.lifespan():
            assert await add(app) == THREE
    assert (await post(app, call("add", 1, 2))).status == 503
    assert lived.noted == ["started", "stopped"]


async def test_without_a_lifespan_the_first_request_starts_the_server_once() -> None:
    lived = Lived(fails=OSError("not yet"))
    app, other = lived.asgi(), lived.asgi()
    for outcome in await asyncio.gather(add(app), add(app), return_exceptions=True):
        assert repr(outcome) == "OSError('not yet')"
    lived.fails = None  # a start that failed is tried again
    assert await asyncio.gather(*(add(each) for each in (app, other, app))) == [THREE] * 3
    websocket = await connected(app)
    assert lived.noted == ["started"]
    websocket.close()
    await websocket.ended()
    lived.stop()
    await until(lambda: not lived.is_running)
    assert lived.noted == ["started", "stopped"]
    assert (await post(app, call("add", 1, 2))).status == 503
    refused = await Driver(other, websocket_scope(), {"type": "websocket.connect"}).ended()
    assert refused.status == 503


def test_a_server_that_a_request_has_started_ends_with_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    app = (lived := Lived()).asgi()
    for _ in range(2):  # another loop afterwards, as with a test client that makes one for each request
        assert asyncio.run(add(app)) == THREE
    gc.collect()
    assert lived.noted == ["started", "stopped"] * 2
    assert not lived.is_running
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_two_applications_of_one_server_have_one_lifespan_and_one_loop() -> None:
    first, second = (lived := Lived()).asgi(), lived.asgi()
    async with first.lifespan():
        async with second.lifespan("the application"):
            assert await add(first) == await add(second) == THREE
        with pytest.raises(RuntimeError, match="this server runs in another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(add(first)))
        assert await add(second) == THREE
        assert lived.noted == ["started"]
    assert lived.noted == ["started", "stopped"]


async def test_a_server_that_listens_by_itself_is_not_mounted_as_well() -> None:
    server = Lived()
    app = server.asgi()
    async with server.listening(port=0):
        with pytest.raises(RuntimeError, match="already listens by itself"):
            await add(app)
    async with app.lifespan():
        with pytest.raises(RuntimeError, match="running already in an ASGI server"):
            async with server.listening(port=0):
                pass


async def calls_of(url: str) -> list[Any]:
    async with AsyncClient(url) as client:
        return [await client.add(1, 2), [await each for each in [client.add(n, 1) for n in range(3)]]]


async def test_two_mounts_of_one_server_and_another_one_in_fastapi() -> None:
    fastapi = pytest.importorskip("fastapi")
    lived, other = Lived(), Lived()
    rpc, beside = lived.asgi(), other.asgi()

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with rpc.lifespan(), beside.lifespan():
            yield

    app = fastapi.FastAPI(lifespan=lifespan)
    app.mount("/a", rpc)
    app.mount("/b/c", lived.asgi())
    app.mount("/rpc", beside)

    @app.post("/own")
    def own() -> dict[str, str]:
        return {"own": "page"}

    async with under_uvicorn(app) as address:
        assert lived.noted == other.noted == ["started"]
        for path in ("a/", "b/c/", "rpc/"):
            for scheme in ("http", "ws"):
                assert await calls_of(f"{scheme}://{address}/{path}") == [3, [1, 2, 3]]
        with pytest.raises(ConnectFailed, match="404"):
            await calls_of(f"http://{address}/none/")
    assert lived.noted == other.noted == ["started", "stopped"]


async def test_a_hub_passes_calls_on_between_mounted_websockets() -> None:
    hub = Hub()
    async with mounted(hub) as address:
        url = f"ws://{address}/rpc/"
        async with AsyncClient(url, name="gpu") as provider, AsyncClient(url) as caller:
            provider(lambda a, b: a * b, name="times", shared=True)
            await provider.offer()
            assert await caller.times(6, 7) == 42
            assert await caller.call("gpu.times", 2, 3) == 6
        async with AsyncClient(f"http://{address}/rpc/") as client:
            assert await client.call("rpc.ping") == "pong"
