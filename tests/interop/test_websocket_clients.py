"""JSON-RPC clients for WebSocket that others wrote (PyPI), as they are: aiorpcX and jsonrpc-websocket.

aiorpcX does the same over the line stream. The client of the websockets library, and that of web3, are seen elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from .service import CODE, DATA, LARGE, MANY, MEASURED, MESSAGE, PATIENCE, TEXT, Service, serving

pytestmark = pytest.mark.tools

# -- aiorpcX ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def aiorpcx() -> ModuleType:
    module: ModuleType = pytest.importorskip("aiorpcx", reason="aiorpcX is not installed")
    return module


@pytest.fixture(params=["WebSocket", "line stream"])
async def session(request: pytest.FixtureRequest, service: Service, aiorpcx: ModuleType) -> AsyncIterator[Any]:
    if request.param == "WebSocket":
        connecting = aiorpcx.connect_ws(f"ws://{service.address}")
    else:
        connecting = aiorpcx.connect_rs("127.0.0.1", service.port)
    async with connecting as session:
        yield session


async def test_aiorpcx_calls(session: Any, service: Service) -> None:
    assert await session.send_request("add", [1, 2]) == 3
    assert await session.send_request("add", {"a": 1, "b": 2}) == 3
    assert await session.send_request("later", [TEXT]) == TEXT
    assert await session.send_request("echo", [None]) is None
    assert service.connections == 1


async def test_aiorpcx_is_told_of_errors(session: Any, aiorpcx: ModuleType, service: Service) -> None:
    """It has no place for the data of an error."""
    for method, code, message in (
        ("refuse", CODE, MESSAGE),
        ("missing", -32601, "Method not found"),
        ("fail", -32603, "Internal error"),
    ):
        with pytest.raises(aiorpcx.RPCError) as caught:
            await session.send_request(method)
        assert (caught.value.code, caught.value.message.partition(": see")[0]) == (code, message)
    assert await session.send_request("add", [1, 2]) == 3
    assert service.connections == 1


async def test_aiorpcx_notifies(session: Any, service: Service) -> None:
    await session.send_notification("note", [TEXT])
    await session.send_notification("refuse")
    await session.send_notification("note", {"value": "by name"})
    assert await session.send_request("add", [1, 2]) == 3
    assert service.noted(2) == [TEXT, "by name"]


async def test_aiorpcx_sends_batches(session: Any, aiorpcx: ModuleType, service: Service) -> None:
    async with session.send_batch() as batch:
        batch.add_request("add", [1, 1])
        batch.add_notification("note", ["in a batch"])
        batch.add_request("refuse")
        batch.add_request("later", [TEXT])
    assert batch.results[0::2] == (2, TEXT)
    assert batch.results[1] == aiorpcx.RPCError(CODE, MESSAGE)
    assert service.noted() == ["in a batch"]


async def test_aiorpcx_makes_many_calls_on_one_connection(session: Any, service: Service) -> None:
    assert [await session.send_request("add", [n, n]) for n in range(MANY)] == [n + n for n in range(MANY)]
    calls = (session.send_request("later", [n]) for n in range(MANY))
    assert await asyncio.gather(*calls) == list(range(MANY))
    assert service.connections == 1


async def test_aiorpcx_sends_large_values(session: Any, service: Service) -> None:
    """It takes less than it sends: a megabyte in a line."""
    assert await session.send_request("measure", [LARGE]) == MEASURED
    assert await session.send_request("echo", [LARGE[: 2**19]]) == LARGE[: 2**19]
    assert service.connections == 1


async def test_aiorpcx_is_called_back(session: Any, aiorpcx: ModuleType, service: Service) -> None:
    async def double(value: Any) -> Any:
        return [value, value]

    async def handle_request(request: Any) -> Any:
        handler = double if request.method == "double" else None
        return await aiorpcx.handler_invocation(handler, request)()

    session.handle_request = handle_request  # `connect_ws` forgets the `session_factory` that it is given
    assert await session.send_request("ask", ["double", TEXT]) == [TEXT, TEXT]
    calls = (session.send_request("ask", ["double", n]) for n in range(50))
    assert await asyncio.gather(*calls) == [[n, n] for n in range(50)]
    with pytest.raises(aiorpcx.RPCError) as caught:
        await session.send_request("ask", ["unheard of", 1])
    assert caught.value.code in (-32601, -32603)
    assert service.connections == 1


# -- jsonrpc-websocket ------------------------------------------------------------------------------------------------


@pytest.fixture
async def its_server(service: Service) -> AsyncIterator[Any]:
    """What it calls a server is its end of the connection."""
    module = pytest.importorskip("jsonrpc_websocket", reason="jsonrpc-websocket is not installed")
    server = module.Server(f"ws://{service.address}", timeout=20)
    reading = await server.ws_connect()
    yield server
    await server.close()
    await asyncio.wait_for(reading, 20)


async def test_jsonrpc_websocket_calls(its_server: Any, service: Service) -> None:
    assert await its_server.add(1, 2) == 3
    assert await its_server.add(a=1, b=2) == 3
    assert await its_server.later(TEXT) == TEXT
    assert await its_server.rpc.ping() == "pong"
    assert service.connections == 1


async def test_jsonrpc_websocket_is_told_of_errors(its_server: Any, service: Service) -> None:
    from jsonrpc_base import ProtocolError

    with pytest.raises(ProtocolError) as caught:
        await its_server.refuse()
    code, message, reply = caught.value.args
    assert (code, message, reply["error"]["data"]) == (CODE, MESSAGE, DATA)
    for call, code in ((its_server.missing, -32601), (its_server.add, -32602), (its_server.fail, -32603)):
        with pytest.raises(ProtocolError) as caught:
            await call()
        assert caught.value.args[0] == code
    assert await its_server.add(1, 2) == 3
    assert service.connections == 1


async def test_jsonrpc_websocket_notifies(its_server: Any, service: Service) -> None:
    await its_server.note(TEXT, _notification=True)
    await its_server.refuse(_notification=True)
    await its_server.note(value="by name", _notification=True)
    assert await its_server.add(1, 2) == 3
    assert service.noted(2) == [TEXT, "by name"]


async def test_jsonrpc_websocket_makes_many_calls_on_one_connection(its_server: Any, service: Service) -> None:
    assert [await its_server.add(n, n) for n in range(MANY)] == [n + n for n in range(MANY)]
    assert await asyncio.gather(*(its_server.later(n) for n in range(MANY))) == list(range(MANY))
    assert service.connections == 1


async def test_jsonrpc_websocket_sends_and_gets_large_values(its_server: Any, service: Service) -> None:
    """It takes four megabytes in a message, and says each character that is not ASCII in six."""
    assert await its_server.measure(LARGE) == MEASURED
    assert await its_server.echo(LARGE) == LARGE
    assert service.connections == 1


async def test_jsonrpc_websocket_is_called_back(its_server: Any, service: Service) -> None:
    async def double(value: Any) -> Any:
        return [value, value]

    its_server.double = double
    assert await its_server.ask("double", TEXT) == [TEXT, TEXT]
    assert await asyncio.gather(*(its_server.ask("double", n) for n in range(50))) == [[n, n] for n in range(50)]
    assert service.connections == 1


async def test_jsonrpc_websocket_gets_events(its_server: Any, service: Service) -> None:
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    setattr(its_server, "$/event", lambda **event: events.put_nowait(event))
    await its_server.rpc.subscribe(topic="ticks")
    for n in range(10):
        service.server.publish("ticks", [n, TEXT])
    seen = [await asyncio.wait_for(events.get(), PATIENCE) for _ in range(10)]
    assert [(event["topic"], event["value"]) for event in seen] == [("ticks", [n, TEXT]) for n in range(10)]


async def test_jsonrpc_websocket_is_told_that_the_server_ends() -> None:
    module = pytest.importorskip("jsonrpc_websocket", reason="jsonrpc-websocket is not installed")
    with ExitStack() as stack:
        server = module.Server(f"ws://{stack.enter_context(serving()).address}", timeout=20)
        reading = await server.ws_connect()
        assert await server.add(1, 2) == 3
        socket = server._client
        await asyncio.to_thread(stack.close)  # the server drains, which takes this loop to answer
        await asyncio.wait_for(reading, 20)
        assert not server.connected
        assert socket.close_code == 1001
