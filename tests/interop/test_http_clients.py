"""Clients for HTTP that others wrote (PyPI), as they are: jsonrpclib-pelix, pjrpc with requests and with aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest

from .service import CODE, DATA, LARGE, MANY, MEASURED, MESSAGE, TEXT, Service

# What aiohttp says of every large body that is given to it as text.
pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")]


# -- jsonrpclib-pelix -------------------------------------------------------------------------------------------------


@pytest.fixture
def pelix() -> ModuleType:
    module: ModuleType = pytest.importorskip("jsonrpclib", reason="jsonrpclib-pelix is not installed")
    return module


@pytest.fixture(params=["port", "Unix socket"])
def served(request: pytest.FixtureRequest) -> Service:
    """For what speaks HTTP over both."""
    found: Service = request.getfixturevalue("service" if request.param == "port" else "unix_service")
    return found


@pytest.fixture
def proxy(served: Service, pelix: ModuleType) -> Iterator[Any]:
    path = served.address.removeprefix("unix://")
    proxy = pelix.ServerProxy(f"http://{path}" if path == served.address else f"unix+http://{path}")
    yield proxy
    proxy("close")()


def test_jsonrpclib_calls(proxy: Any, served: Service) -> None:
    assert proxy.add(1, 2) == 3
    assert proxy.add(a=1, b=2) == 3
    assert proxy.later(TEXT) == TEXT
    assert proxy.rpc.ping() == "pong"
    assert proxy.echo(None) is None
    assert served.connections == 1


def test_jsonrpclib_is_told_of_errors(proxy: Any, pelix: ModuleType, served: Service) -> None:
    with pytest.raises(pelix.AppError) as caught:
        proxy.refuse()
    assert caught.value.args[0] == (CODE, MESSAGE, DATA)
    assert caught.value.data() == DATA
    for call, code in ((proxy.missing, -32601), (proxy.add, -32602), (proxy.fail, -32603)):
        with pytest.raises(pelix.ProtocolError) as its_error:
            call()
        assert its_error.value.args[0][0] == code
    assert proxy.add(1, 2) == 3
    assert served.connections == 1


def test_jsonrpclib_notifies(proxy: Any, served: Service) -> None:
    assert proxy._notify.note(TEXT) is None
    assert proxy._notify.refuse() is None
    assert proxy._notify.note(value="by name") is None
    assert proxy.add(1, 2) == 3
    assert served.noted(2) == [TEXT, "by name"]
    assert served.connections == 1


def test_jsonrpclib_sends_batches(proxy: Any, pelix: ModuleType, served: Service) -> None:
    batch = pelix.MultiCall(proxy)
    batch.add(1, 1)
    batch.refuse()
    batch._notify.note("in a batch")
    batch.later(TEXT)
    results = batch()
    assert (len(results), results[0], results[2]) == (3, 2, TEXT)
    with pytest.raises(pelix.AppError) as caught:
        results[1]
    assert caught.value.args[0] == (CODE, MESSAGE, DATA)

    silent = pelix.MultiCall(proxy)
    silent._notify.note("alone")
    assert list(silent()) == []
    assert served.noted(2) == ["in a batch", "alone"]
    assert served.connections == 1


def test_jsonrpclib_makes_many_calls_on_one_connection(proxy: Any, served: Service) -> None:
    assert [proxy.add(n, n) for n in range(MANY)] == [n + n for n in range(MANY)]
    assert served.connections == 1


def test_jsonrpclib_sends_and_gets_large_values(proxy: Any, served: Service) -> None:
    assert proxy.measure(LARGE) == MEASURED
    assert proxy.echo(LARGE) == LARGE
    assert served.connections == 1


# -- pjrpc with requests ----------------------------------------------------------------------------------------------


@pytest.fixture
def requesting(service: Service) -> Iterator[Any]:
    backend = pytest.importorskip("pjrpc.client.backend.requests", reason="pjrpc and requests are not installed")
    with backend.Client(f"http://{service.address}") as client:
        yield client


def test_pjrpc_calls_with_requests(requesting: Any, service: Service) -> None:
    assert requesting("add", 1, 2) == 3
    assert requesting.proxy.add(a=1, b=2) == 3
    assert requesting.proxy.later(TEXT) == TEXT
    assert requesting("rpc.ping") == "pong"
    assert service.connections == 1


def test_pjrpc_is_told_of_errors_with_requests(requesting: Any, service: Service) -> None:
    errors = pytest.importorskip("pjrpc").client.exceptions
    with pytest.raises(errors.JsonRpcError) as caught:
        requesting("refuse")
    assert (caught.value.code, caught.value.message, caught.value.data) == (CODE, MESSAGE, DATA)
    with pytest.raises(errors.MethodNotFoundError):
        requesting("missing")
    with pytest.raises(errors.InvalidParamsError) as wrong:
        requesting("add", "x", 2)
    assert wrong.value.data["parameter"] == "a"
    with pytest.raises(errors.InternalError):
        requesting("fail")
    assert service.connections == 1


def test_pjrpc_notifies_with_requests(requesting: Any, service: Service) -> None:
    requesting.notify("note", TEXT)
    requesting.notify("refuse")
    requesting.notify("note", value="by name")
    assert requesting("add", 1, 2) == 3
    assert service.noted(2) == [TEXT, "by name"]
    assert service.connections == 1


def test_pjrpc_sends_batches_with_requests(requesting: Any, service: Service) -> None:
    with requesting.batch() as batch:
        batch("add", 1, 1)
        batch.notify("note", "in a batch")
        batch("later", TEXT)
    assert batch.get_results() == [2, TEXT]
    with requesting.batch() as broken:
        broken("add", 1, 1)
        broken("refuse")
    first, second = broken.get_response()
    assert first.result == 2
    assert (second.error.code, second.error.message, second.error.data) == (CODE, MESSAGE, DATA)
    with requesting.batch() as silent:
        silent.notify("note", "alone")
    assert silent.get_results() == []
    assert service.noted(2) == ["in a batch", "alone"]
    assert service.connections == 1


def test_pjrpc_makes_many_calls_on_one_connection_with_requests(requesting: Any, service: Service) -> None:
    assert [requesting("add", n, n) for n in range(MANY)] == [n + n for n in range(MANY)]
    assert service.connections == 1


def test_pjrpc_sends_and_gets_large_values_with_requests(requesting: Any, service: Service) -> None:
    assert requesting("measure", LARGE) == MEASURED
    assert requesting("echo", LARGE) == LARGE
    assert service.connections == 1


# -- pjrpc with aiohttp -----------------------------------------------------------------------------------------------


@pytest.fixture
async def awaiting(service: Service) -> AsyncIterator[Any]:
    backend = pytest.importorskip("pjrpc.client.backend.aiohttp", reason="pjrpc and aiohttp are not installed")
    async with backend.Client(f"http://{service.address}") as client:
        yield client


async def test_pjrpc_calls_with_aiohttp(awaiting: Any, service: Service) -> None:
    assert await awaiting("add", 1, 2) == 3
    assert await awaiting.proxy.add(a=1, b=2) == 3
    assert await awaiting.proxy.later(TEXT) == TEXT
    assert await awaiting("rpc.ping") == "pong"
    assert service.connections == 1


async def test_pjrpc_is_told_of_errors_with_aiohttp(awaiting: Any, service: Service) -> None:
    errors = pytest.importorskip("pjrpc").client.exceptions
    with pytest.raises(errors.JsonRpcError) as caught:
        await awaiting("refuse")
    assert (caught.value.code, caught.value.message, caught.value.data) == (CODE, MESSAGE, DATA)
    with pytest.raises(errors.MethodNotFoundError):
        await awaiting("missing")
    with pytest.raises(errors.InvalidParamsError):
        await awaiting("add", "x", 2)
    assert service.connections == 1


async def test_pjrpc_notifies_with_aiohttp(awaiting: Any, service: Service) -> None:
    await awaiting.notify("note", TEXT)
    await awaiting.notify("refuse")
    await awaiting.notify("note", value="by name")
    assert await awaiting("add", 1, 2) == 3
    assert service.noted(2) == [TEXT, "by name"]
    assert service.connections == 1


async def test_pjrpc_sends_batches_with_aiohttp(awaiting: Any, service: Service) -> None:
    async with awaiting.batch() as batch:
        batch("add", 1, 1)
        batch.notify("note", "in a batch")
        batch("later", TEXT)
    assert batch.get_results() == [2, TEXT]
    async with awaiting.batch() as broken:
        broken("add", 1, 1)
        broken("refuse")
    first, second = broken.get_response()
    assert first.result == 2
    assert (second.error.code, second.error.message, second.error.data) == (CODE, MESSAGE, DATA)
    async with awaiting.batch() as silent:
        silent.notify("note", "alone")
    assert silent.get_results() == []
    assert service.noted(2) == ["in a batch", "alone"]
    assert service.connections == 1


async def test_pjrpc_makes_many_calls_on_one_connection_with_aiohttp(awaiting: Any, service: Service) -> None:
    assert [await awaiting("add", n, n) for n in range(MANY)] == [n + n for n in range(MANY)]
    assert service.connections == 1


async def test_pjrpc_calls_side_by_side_with_aiohttp(awaiting: Any, service: Service) -> None:
    """aiohttp opens up to a hundred connections, and each answer is that of its own question."""
    calls = (awaiting("later", n) for n in range(MANY))
    assert await asyncio.gather(*calls) == list(range(MANY))
    assert service.connections <= 100


async def test_pjrpc_sends_and_gets_large_values_with_aiohttp(awaiting: Any, service: Service) -> None:
    assert await awaiting("measure", LARGE) == MEASURED
    assert await awaiting("echo", LARGE) == LARGE
    assert service.connections == 1
