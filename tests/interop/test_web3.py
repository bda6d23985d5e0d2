"""web3 (PyPI) on the other end: its providers for HTTP, WebSocket and IPC, which is a Unix socket with lines on it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from .service import CODE, DATA, LARGE, MANY, MEASURED, MESSAGE, TEXT, Service

_depth = sys.getrecursionlimit()
web3 = pytest.importorskip("web3", reason="web3 is not installed (pip install 'rpcstream[interop]')")
sys.setrecursionlimit(_depth)  # a package of web3's sets it so high that deep values end in a crash

# What aiohttp says of every large body that is given to it as bytes.
pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")]

ERROR = {"code": CODE, "message": MESSAGE, "data": DATA}


def without_id(response: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key not in ("id", "jsonrpc")}


# -- the blocking providers -------------------------------------------------------------------------------------------


@pytest.fixture(params=["HTTP", "IPC"])
def served(request: pytest.FixtureRequest) -> Service:
    """At a port or at a Unix socket, as the provider needs it."""
    found: Service = request.getfixturevalue("unix_service" if request.param == "IPC" else "service")
    return found


@pytest.fixture
def provider(served: Service) -> Iterator[Any]:
    if served.address.startswith("unix://"):
        provider = web3.IPCProvider(served.address.removeprefix("unix://"))
        yield provider
        provider._socket.sock.close()  # it has no way of its own to close
    else:
        import requests

        with requests.Session() as session:
            yield web3.HTTPProvider(f"http://{served.address}", session=session)


def test_a_call_and_its_errors(provider: Any, served: Service) -> None:
    reply = provider.make_request("add", [1, 2])
    assert (reply["jsonrpc"], reply["result"], reply["id"]) == ("2.0", 3, 0)
    assert without_id(provider.make_request("add", {"a": 1, "b": 2})) == {"result": 3}
    assert without_id(provider.make_request("later", [TEXT])) == {"result": TEXT}
    assert without_id(provider.make_request("refuse", [])) == {"error": ERROR}
    assert provider.make_request("missing", [])["error"]["code"] == -32601
    assert provider.make_request("add", ["x", 2])["error"]["code"] == -32602
    error = provider.make_request("fail", [])["error"]
    assert (error.pop("message")[:15], error) == ("Internal error:", {"code": -32603})
    assert served.connections == 1


def test_a_batch_is_answered_with_a_batch(provider: Any, served: Service) -> None:
    replies = provider.make_batch_request([("add", [1, 1]), ("refuse", []), ("later", [TEXT])])
    assert [without_id(reply) for reply in replies] == [{"result": 2}, {"error": ERROR}, {"result": TEXT}]
    assert served.connections == 1


def test_many_calls_on_one_connection(provider: Any, served: Service) -> None:
    assert [provider.make_request("add", [n, n])["result"] for n in range(MANY)] == [n + n for n in range(MANY)]
    assert served.connections == 1


def test_a_large_argument(provider: Any, served: Service) -> None:
    assert provider.make_request("measure", [LARGE])["result"] == MEASURED
    assert provider.make_request("echo", [LARGE[: 2**16]])["result"] == LARGE[: 2**16]
    assert served.connections == 1


def test_is_connected_asks_for_a_method_that_is_not_there(provider: Any) -> None:
    """An answer with an error is no connection to web3; it ends well all the same, and the next call is right."""
    assert provider.is_connected() is False
    assert provider.make_request("add", [1, 2])["result"] == 3


# -- the async providers ----------------------------------------------------------------------------------------------


def connections(kind: str, calls: int) -> int:
    """That the calls took: the async provider for HTTP says `Connection: close` with each."""
    return calls if kind == "HTTP" else 1


@pytest.fixture(params=["HTTP", "WebSocket, binary", "WebSocket, text", "IPC"])
def async_served(request: pytest.FixtureRequest) -> tuple[str, Service]:
    kind = request.param
    return kind, request.getfixturevalue("unix_service" if kind == "IPC" else "service")


@pytest.fixture
async def async_provider(async_served: tuple[str, Service]) -> AsyncIterator[Any]:
    kind, service = async_served
    if kind == "HTTP":
        provider = web3.AsyncHTTPProvider(f"http://{service.address}")
        yield provider
        await provider.disconnect()
        return
    # Without `silence_…`, an error in answer to a bare `make_request` ends its reader.
    options = {"silence_listener_task_exceptions": True, "max_connection_retries": 1}
    if kind == "IPC":
        provider = web3.AsyncIPCProvider(service.address.removeprefix("unix://"), **options)
    else:
        text = kind == "WebSocket, text"
        provider = web3.WebSocketProvider(f"ws://{service.address}", use_text_frames=text, **options)
    await provider.connect()
    yield provider
    await provider.disconnect()


async def test_async_calls_and_their_errors(async_provider: Any, async_served: tuple[str, Service]) -> None:
    call = async_provider.make_request
    assert without_id(await call("add", [1, 2])) == {"result": 3}
    assert without_id(await call("add", {"a": 1, "b": 2})) == {"result": 3}
    assert without_id(await call("later", [TEXT])) == {"result": TEXT}
    assert without_id(await call("refuse", [])) == {"error": ERROR}
    assert (await call("missing", []))["error"]["code"] == -32601
    assert async_served[1].connections == connections(async_served[0], 5)


async def test_an_error_is_raised_by_web3_itself(async_provider: Any, async_served: tuple[str, Service]) -> None:
    client = web3.AsyncWeb3(async_provider)
    assert await client.manager.coro_request("add", [1, 2]) == 3
    with pytest.raises(web3.exceptions.Web3RPCError) as caught:
        await client.manager.coro_request("refuse", [])
    assert caught.value.rpc_response["error"] == ERROR
    assert await client.manager.coro_request("add", [2, 2]) == 4
    assert async_served[1].connections == connections(async_served[0], 3)


async def test_an_async_batch(async_provider: Any, async_served: tuple[str, Service]) -> None:
    replies = await async_provider.make_batch_request([("add", [1, 1]), ("refuse", []), ("later", [TEXT])])
    assert [without_id(reply) for reply in replies] == [{"result": 2}, {"error": ERROR}, {"result": TEXT}]
    assert async_served[1].connections == connections(async_served[0], 1)


async def test_many_async_calls_on_one_connection(async_provider: Any, async_served: tuple[str, Service]) -> None:
    for n in range(MANY):
        assert (await async_provider.make_request("add", [n, n]))["result"] == n + n
    assert async_served[1].connections == connections(async_served[0], MANY)


async def test_async_calls_side_by_side(async_provider: Any, async_served: tuple[str, Service]) -> None:
    calls = (async_provider.make_request("later", [n]) for n in range(50))
    assert [reply["result"] for reply in await asyncio.gather(*calls)] == list(range(50))
    assert async_served[1].connections == connections(async_served[0], 50)


async def test_a_large_argument_of_an_async_call(async_provider: Any, async_served: tuple[str, Service]) -> None:
    assert (await async_provider.make_request("measure", [LARGE]))["result"] == MEASURED
    large = LARGE[: 2**18]
    assert (await async_provider.make_request("echo", [large]))["result"] == large
    assert async_served[1].connections == connections(async_served[0], 2)
