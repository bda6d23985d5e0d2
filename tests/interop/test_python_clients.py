"""Clients in Python that others wrote (PyPI): pjrpc by HTTP, aiorpcX by lines and by WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ..kit import client_side, server_tls
from .service import CODE, LARGE, MANY, MEASURED, TEXT, Service, check_calls, serving

# What aiohttp says of every large body that is given to it as text.
pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")]

TOKEN = "s3cret-~_token"


class Pjrpc:
    """Its client with aiohttp."""

    calls_back = False

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def connected(cls, service: Service, *, token: str | None = None) -> AsyncIterator[Any]:
        backend = pytest.importorskip("pjrpc.client.backend.aiohttp", reason="pjrpc and aiohttp are not installed")
        import aiohttp

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connector = aiohttp.TCPConnector(ssl=client_side())
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            scheme = "https" if service.is_encrypted else "http"
            yield cls(backend.Client(f"{scheme}://127.0.0.1:{service.port}", session=session))

    async def call(self, method: str, params: Any) -> Any:
        by_name = isinstance(params, dict)
        try:
            return {"result": await self._client(method, *(() if by_name else params), **(params if by_name else {}))}
        except pytest.importorskip("pjrpc").client.exceptions.JsonRpcError as error:
            return {"error": [error.code, error.message, error.data or None]}

    async def notify(self, method: str, *args: Any) -> None:
        await self._client.notify(method, *args)

    async def batch(self, note: Any, *calls: tuple[str, Any]) -> list[Any]:
        async with self._client.batch() as batch:
            batch.notify("note", note)
            for method, *args in calls:
                batch(method, *args)
        return [each.error.code if each.is_error else each.result for each in batch.get_response() or ()]


class AiorpcX:
    """Its session over the line stream. It has no place for the data of an error."""

    calls_back = True

    def __init__(self, session: Any) -> None:
        self._session = session
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    @classmethod
    def connecting(cls, aiorpcx: Any, service: Service) -> Any:
        return aiorpcx.connect_rs("127.0.0.1", service.port, ssl=client_side() if service.is_encrypted else None)

    @classmethod
    @asynccontextmanager
    async def connected(cls, service: Service, *, token: str | None = None) -> AsyncIterator[Any]:
        aiorpcx = pytest.importorskip("aiorpcx", reason="aiorpcX is not installed")
        async with cls.connecting(aiorpcx, service) as session:
            client = cls(session)

            async def double(value: Any) -> Any:
                return [value, value]

            async def event(**event: Any) -> None:
                client.events.put_nowait(event)

            async def handle_request(request: Any) -> Any:
                handler = {"double": double, "$/event": event}.get(request.method)
                return await aiorpcx.handler_invocation(handler, request)()

            session.handle_request = handle_request  # `connect_ws` forgets the `session_factory` that it is given
            if token is not None:
                await session.send_request("rpc.authenticate", {"token": token})
            yield client

    async def call(self, method: str, params: Any) -> Any:
        try:
            return {"result": await self._session.send_request(method, params)}
        except pytest.importorskip("aiorpcx").RPCError as error:
            return {"error": [error.code, error.message]}

    async def notify(self, method: str, *args: Any) -> None:
        await self._session.send_notification(method, args)

    async def batch(self, note: Any, *calls: tuple[str, Any]) -> list[Any]:
        async with self._session.send_batch() as batch:
            batch.add_notification("note", [note])
            for method, *args in calls:
                batch.add_request(method, args)
        return [getattr(each, "code", each) for each in batch.results]


class AiorpcXWebSocket(AiorpcX):
    """The same over WebSocket."""

    @classmethod
    def connecting(cls, aiorpcx: Any, service: Service) -> Any:
        if not service.is_encrypted:
            return aiorpcx.connect_ws(f"ws://127.0.0.1:{service.port}")
        return aiorpcx.connect_ws(f"wss://127.0.0.1:{service.port}", ssl=client_side())


KINDS: list[Any] = [Pjrpc, AiorpcX, AiorpcXWebSocket]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def client(kind: Any, service: Service) -> AsyncIterator[Any]:
    async with kind.connected(service) as client:
        yield client


async def test_calls_errors_and_notifications(client: Any, service: Service) -> None:
    loop = asyncio.get_running_loop()

    def call(method: str, params: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(client.call(method, params), loop).result()

    await asyncio.to_thread(check_calls, call, data_of_errors=not client.calls_back)
    await client.notify("note", TEXT)
    await client.notify("refuse")
    assert service.noted() == [TEXT]
    assert [await client.call("add", [n, n]) for n in range(MANY)] == [{"result": n + n} for n in range(MANY)]
    assert service.connections == 1
    many = await asyncio.gather(*(client.call("later", [n]) for n in range(MANY)))
    assert many == [{"result": n} for n in range(MANY)]


async def test_batches(client: Any, service: Service) -> None:
    calls = (("add", 1, 1), ("refuse",), ("later", TEXT))
    assert await client.batch("in a batch", *calls) == [2, CODE, TEXT]
    assert service.noted() == ["in a batch"]
    if not client.calls_back:  # the other one waits for a reply to every batch
        assert await client.batch("alone") == []
        assert service.noted() == ["alone"]
    assert service.connections == 1


@pytest.mark.parametrize("kind", [AiorpcX, AiorpcXWebSocket])
async def test_calls_back_and_events(client: Any, service: Service) -> None:
    asked = (client.call("ask", ["double", n]) for n in range(50))
    assert await asyncio.gather(*asked) == [{"result": [n, n]} for n in range(50)]
    await client.call("rpc.subscribe", {"topic": "ticks"})
    for n in range(10):
        service.server.publish("ticks", [n, TEXT])
    seen = [await asyncio.wait_for(client.events.get(), 20) for _ in range(10)]
    assert [(event["topic"], event["value"]) for event in seen] == [("ticks", [n, TEXT]) for n in range(10)]


async def test_encrypted_with_a_token(kind: Any) -> None:
    """Without it by HTTP and WebSocket 401 or an error; a line stream has no head: the error comes with a call."""
    with serving(tls=server_tls(), token=TOKEN) as guarded:
        for token in (None, TOKEN + "?"):

            async def attempt(token: str | None = token) -> None:
                async with kind.connected(guarded, token=token) as client:
                    assert "result" in await client.call("note", [1])

            with pytest.raises(Exception, match=r"401|-32005|[Nn]ot authenticated|Unauthorized"):
                await attempt()
        assert guarded.nothing_noted
        async with kind.connected(guarded, token=TOKEN) as client:
            assert await client.call("measure", [LARGE]) == {"result": MEASURED}
