"""Clients in Python that others wrote (PyPI): pjrpc by HTTP, aiorpcX by lines and WebSocket, jsonrpc-websocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient, InvalidParams, MethodNotFound, RpcError

from ..kit import authority, client_side, server_tls
from .service import CODE, DATA, LARGE, MANY, MEASURED, MESSAGE, TEXT, Service, serving

# What aiohttp says of every large body that is given to it as text.
pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")]

TOKEN = "s3cret-~_token"


class Pjrpc:
    """Its client with aiohttp."""

    calls_back = False
    notes_alone = True

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def connected(cls, service: Service, *, token: str | None = None, tls: bool = False) -> AsyncIterator[Any]:
        backend = pytest.importorskip("pjrpc.client.backend.aiohttp", reason="pjrpc and aiohttp are not installed")
        import aiohttp

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connector = aiohttp.TCPConnector(ssl=client_side()) if tls else None
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            url = f"{'https' if tls else 'http'}://127.0.0.1:{service.port}"
            yield cls(backend.Client(url, session=session))

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._client(method, *args, **kwargs)

    async def notify(self, method: str, *args: Any, **kwargs: Any) -> None:
        await self._client.notify(method, *args, **kwargs)

    async def batch(self, note: Any, *calls: tuple[str, Any]) -> list[Any]:
        async with self._client.batch() as batch:
            batch.notify("note", note)
            for method, *args in calls:
                batch(method, *args)
        return [each.error.code if each.is_error else each.result for each in batch.get_response() or ()]

    async def error(self, method: str, *args: Any) -> tuple[int, str, Any]:
        with pytest.raises(pytest.importorskip("pjrpc").client.exceptions.JsonRpcError) as caught:
            await self.call(method, *args)
        data = caught.value.data
        return caught.value.code, caught.value.message, DATA if data == DATA else None


class AiorpcX:
    """Its session over the line stream. It has no place for the data of an error."""

    calls_back = True
    notes_alone = False

    def __init__(self, session: Any) -> None:
        self._session = session

    @classmethod
    def connecting(cls, aiorpcx: Any, service: Service, tls: bool) -> Any:
        return aiorpcx.connect_rs("127.0.0.1", service.port, ssl=client_side() if tls else None)

    @classmethod
    @asynccontextmanager
    async def connected(cls, service: Service, *, token: str | None = None, tls: bool = False) -> AsyncIterator[Any]:
        aiorpcx = pytest.importorskip("aiorpcx", reason="aiorpcX is not installed")
        async with cls.connecting(aiorpcx, service, tls) as session:

            async def double(value: Any) -> Any:
                return [value, value]

            async def handle_request(request: Any) -> Any:
                handler = double if request.method == "double" else None
                return await aiorpcx.handler_invocation(handler, request)()

            session.handle_request = handle_request  # `connect_ws` forgets the `session_factory` that it is given
            if token is not None:
                await session.send_request("rpc.authenticate", {"token": token})
            yield cls(session)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._session.send_request(method, kwargs or list(args))

    async def notify(self, method: str, *args: Any, **kwargs: Any) -> None:
        await self._session.send_notification(method, kwargs or list(args))

    async def batch(self, note: Any, *calls: tuple[str, Any]) -> list[Any]:
        async with self._session.send_batch() as batch:
            batch.add_notification("note", [note])
            for method, *args in calls:
                batch.add_request(method, args)
        return [getattr(each, "code", each) for each in batch.results]

    async def error(self, method: str, *args: Any) -> tuple[int, str, Any]:
        with pytest.raises(pytest.importorskip("aiorpcx").RPCError) as caught:
            await self.call(method, *args)
        found: Any = caught.value
        return found.code, found.message, DATA if method == "refuse" else None


class AiorpcXWebSocket(AiorpcX):
    """The same over WebSocket."""

    @classmethod
    def connecting(cls, aiorpcx: Any, service: Service, tls: bool) -> Any:
        scheme = "wss" if tls else "ws"
        return aiorpcx.connect_ws(f"{scheme}://127.0.0.1:{service.port}", **({"ssl": client_side()} if tls else {}))


class JsonrpcWebsocket:
    """What it calls a server is its end of the connection. It has no batches."""

    calls_back = True
    notes_alone = False

    def __init__(self, server: Any) -> None:
        self.server = server

    @classmethod
    @asynccontextmanager
    async def connected(cls, service: Service, *, token: str | None = None, tls: bool = False) -> AsyncIterator[Any]:
        module = pytest.importorskip("jsonrpc_websocket", reason="jsonrpc-websocket is not installed")
        options: dict[str, Any] = {"ssl": client_side()} if tls else {}
        if token is not None:
            options["headers"] = {"Authorization": f"Bearer {token}"}
        server = module.Server(f"{'wss' if tls else 'ws'}://127.0.0.1:{service.port}", timeout=20, **options)

        async def double(value: Any) -> Any:
            return [value, value]

        server.double = double
        try:
            reading = await server.ws_connect()
        except BaseException:
            await server.close()
            raise
        yield cls(server)
        await server.close()
        await asyncio.wait_for(reading, 20)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.server, method)(*args, **kwargs)

    async def notify(self, method: str, *args: Any, **kwargs: Any) -> None:
        await getattr(self.server, method)(*args, _notification=True, **kwargs)

    async def batch(self, note: Any, *calls: tuple[str, Any]) -> list[Any]:
        pytest.skip("it has no batches")

    async def error(self, method: str, *args: Any) -> tuple[int, str, Any]:
        with pytest.raises(pytest.importorskip("jsonrpc_base").ProtocolError) as caught:
            await self.call(method, *args)
        code, message, reply = caught.value.args
        return code, message, DATA if reply["error"].get("data") == DATA else None


KINDS: list[Any] = [Pjrpc, AiorpcX, AiorpcXWebSocket, JsonrpcWebsocket]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def client(kind: Any, service: Service) -> AsyncIterator[Any]:
    async with kind.connected(service) as client:
        yield client


async def test_calls_notifications_and_errors(client: Any, service: Service) -> None:
    assert await client.call("add", 1, 2) == 3
    assert await client.call("add", a=1, b=2) == 3
    assert await client.call("later", TEXT) == TEXT
    assert await client.call("echo", None) is None
    assert await client.error("refuse") == (CODE, MESSAGE, DATA)
    for method, code, message in (("missing", -32601, "Method not found"), ("fail", -32603, "Internal error")):
        found = await client.error(method)
        assert (found[0], found[1].partition(": see")[0]) == (code, message)
    assert (await client.error("add", "x", 2))[0] == -32602
    await client.notify("note", TEXT)
    await client.notify("refuse")
    await client.notify("note", value="by name")
    assert await client.call("add", 1, 2) == 3
    assert service.noted(2) == [TEXT, "by name"]
    assert service.connections == 1


async def test_batches(client: Any, service: Service) -> None:
    calls = (("add", 1, 1), ("refuse",), ("later", TEXT))
    assert await client.batch("in a batch", *calls) == [2, CODE, TEXT]
    assert service.noted() == ["in a batch"]
    if client.notes_alone:  # the others wait for a reply to every batch
        assert await client.batch("alone") == []
        assert service.noted() == ["alone"]
    assert service.connections == 1


async def test_many_calls_and_large_values_on_one_connection(client: Any, service: Service) -> None:
    assert [await client.call("add", n, n) for n in range(MANY)] == [n + n for n in range(MANY)]
    assert await client.call("measure", LARGE) == MEASURED
    large = LARGE[: 2**19]  # aiorpcX takes less than it sends
    assert await client.call("echo", large) == large
    assert service.connections == 1
    assert await asyncio.gather(*(client.call("later", n) for n in range(MANY))) == list(range(MANY))


async def test_calls_back(client: Any) -> None:
    if not client.calls_back:
        pytest.skip("by HTTP there are none")
    assert await client.call("ask", "double", TEXT) == [TEXT, TEXT]
    asked = (client.call("ask", "double", n) for n in range(50))
    assert await asyncio.gather(*asked) == [[n, n] for n in range(50)]


async def test_events_of_jsonrpc_websocket(service: Service) -> None:
    async with JsonrpcWebsocket.connected(service) as client:
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        setattr(client.server, "$/event", lambda **event: events.put_nowait(event))
        await client.server.rpc.subscribe(topic="ticks")
        for n in range(10):
            service.server.publish("ticks", [n, TEXT])
        seen = [await asyncio.wait_for(events.get(), 20) for _ in range(10)]
    assert [(event["topic"], event["value"]) for event in seen] == [("ticks", [n, TEXT]) for n in range(10)]


async def test_encrypted(kind: Any) -> None:
    with serving(tls=server_tls()) as service:
        async with kind.connected(service, tls=True) as client:
            assert [await client.call("later", TEXT), await client.call("measure", LARGE)] == [TEXT, MEASURED]
        assert service.connections == 1


async def test_with_a_token(kind: Any) -> None:
    with serving(token=TOKEN) as guarded:
        async with kind.connected(guarded, token=TOKEN) as client:
            assert [await client.call("later", TEXT), await client.call("add", 1, 2)] == [TEXT, 3]


@pytest.mark.parametrize("token", [None, TOKEN + "?"], ids=["no token", "a wrong one"])
async def test_without_the_token(kind: Any, token: str | None) -> None:
    """By HTTP and WebSocket 401 or an error; a line stream has no head: the error comes with the first call."""
    with serving(token=TOKEN) as guarded:

        async def attempt() -> None:
            async with kind.connected(guarded, token=token) as client:
                await client.call("note", 1)

        with pytest.raises(Exception, match=r"401|-32005|[Nn]ot authenticated|Unauthorized"):
            await attempt()
        assert guarded.nothing_noted


def test_pjrpc_with_requests(service: Service) -> None:
    backend = pytest.importorskip("pjrpc.client.backend.requests", reason="pjrpc and requests are not installed")
    import requests

    with serving(tls=server_tls()) as encrypted, requests.Session() as session:
        session.trust_env = False  # else a variable may put another authority before the session's
        client = backend.Client(f"https://127.0.0.1:{encrypted.port}", session=session)
        with pytest.raises(requests.exceptions.SSLError):
            client("note", 1)
        session.verify = str(authority())
        assert [client("later", TEXT), client("measure", LARGE), client.proxy.add(a=1, b=2)] == [TEXT, MEASURED, 3]
        assert (encrypted.connections, encrypted.nothing_noted) == (1, True)


# -- its server -------------------------------------------------------------------------------------------------------


async def test_our_client_calls_a_server_of_aiorpcx() -> None:
    aiorpcx = pytest.importorskip("aiorpcx", reason="aiorpcX is not installed")
    notified: list[Any] = []

    async def add(a: int, b: int) -> int:
        return a + b

    async def later(text: str) -> str:
        await asyncio.sleep(0.01)
        return text

    async def note(value: Any) -> None:
        notified.append(value)

    handlers: dict[str, Callable[..., Any]] = {"add": add, "later": later, "note": note}

    class Session(aiorpcx.RPCSession):  # type: ignore[misc, name-defined]
        async def handle_request(self, request: Any) -> Any:
            return await aiorpcx.handler_invocation(handlers.get(request.method), request)()

    server = await aiorpcx.serve_rs(Session, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        async with AsyncClient(f"{host}:{port}") as client:
            assert (await client.add(1, 2), await client.add(a=1, b=2)) == (3, 3)
            assert await asyncio.gather(*(client.later(str(n)) for n in range(20))) == [str(n) for n in range(20)]
            await client.notify.note("hello")
            with pytest.raises(InvalidParams):
                await client.add(1)
            with pytest.raises(MethodNotFound):
                await client.missing()
            async with client.batch() as batch:
                first, missing, second = batch.add(1, 1), batch.missing(), batch.later("x")
            assert (first.result(), second.result()) == (2, "x")
            with pytest.raises(RpcError):
                missing.result()
        assert notified == ["hello"]
    finally:
        server.close()
        await server.wait_closed()
