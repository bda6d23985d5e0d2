"""The sync client at a hub: its name, its methods, and threads that wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rpcstream import (
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    InvalidParams,
    MethodNotFound,
    ProviderGone,
    Server,
)
from rpcstream.backoff import Backoff
from rpcstream.testing import serve_in_thread

from ..internals import engine_of
from ..kit import until_in_thread
from .fake_hub import FakeHub
from .test_fork import in_child

AT_ONCE = Backoff(first=0.001, longest=0.01)
WAIT = 20.0


@pytest.fixture
def hub() -> FakeHub:
    hub = FakeHub()
    hub.server.add(lambda: hub.sessions[-1].loop.call_later(0.01, hub.cut) and None, name="cut_soon")
    return hub


@pytest.fixture
def address(hub: FakeHub) -> Iterator[str]:
    with serve_in_thread(hub.server) as address:
        yield address


def offer_add(client: Client) -> None:
    @client
    def add(a: int, b: int = 2) -> int:
        return a + b


def test_name_and_offer(hub: FakeHub, address: str) -> None:
    with Client(address, name="gpu-1") as client:
        offer_add(client)
        client(lambda: 1, name="one", shared=True)
        assert client.registered_name == "gpu-1"
        assert client.who() == "gpu-1"
        assert client.offer() == ["add", "one"]
        assert [method.get("shared") for method in hub.said[-1][1]["methods"]] == [None, True]
        assert client.ask("gpu-1", "add", [1, 5]) == 6
        assert client.withdraw("one") == ["one"]
        assert client.withdraw() == ["add"]
        assert client.who() is None


def test_a_name_that_the_hub_makes(hub: FakeHub, address: str) -> None:
    with Client(address) as client:
        assert client.registered_name is None
        offer_add(client)
        assert client.offer(shared=True) == ["add"]
        assert client.registered_name == client.who() == "client-1"


def test_a_name_that_is_taken(hub: FakeHub, address: str) -> None:
    hub.refused |= {"gpu-1", "add"}
    with Client(address, name="gpu-1") as client, pytest.raises(ConnectFailed, match="gpu-1 is taken"):
        client.who()
    with Client(address) as client:
        offer_add(client)
        with pytest.raises(InvalidParams, match="add is taken"):
            client.offer()


def test_a_server_that_is_no_hub() -> None:
    with serve_in_thread(Server()) as address:
        with Client(address, name="gpu-1") as named, pytest.raises(ConnectFailed, match="is no hub"):
            named.call("rpc.ping")
        with Client(address) as client:
            with pytest.raises(MethodNotFound, match="is no hub"):
                client.offer()
            with pytest.raises(MethodNotFound):
                client.publish("a", 1)


def test_a_hub_that_does_not_answer(hub: FakeHub, address: str) -> None:
    hub.silent = True
    with Client(address, registration_timeout=0.05) as client:
        with pytest.raises(CallTimeout):
            client.offer()
        assert client.who() is None


def test_http_has_no_connection_that_lasts() -> None:
    with pytest.raises(RuntimeError, match="HTTP has none"):
        Client("http://127.0.0.1:1/", name="gpu-1")
    with Client("http://127.0.0.1:1/") as client:
        for attempt in (client.offer, client.withdraw, client.wait_closed):
            with pytest.raises(RuntimeError, match="HTTP has none"):
                attempt()


def test_again_when_the_connection_was_lost(hub: FakeHub, address: str) -> None:
    with Client(address, name="gpu-1", reconnect=AT_ONCE) as client:
        offer_add(client)
        client.offer()
        for times in range(2, 4):
            client.cut_soon()
            until_in_thread(lambda times=times: len(hub.sessions) == times)  # type: ignore[misc]
            assert client.ask("gpu-1", "add", [times, 1]) == times + 1
        assert hub.registrations[-1] == {"name": "gpu-1", "key": "key of gpu-1", "methods": ["add"]}


def test_waiting_until_it_is_closed(hub: FakeHub, address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    client = Client(address, name="gpu-1", reconnect=AT_ONCE)
    client.offer()
    ended: Future[None] = Future()
    thread = threading.Thread(target=lambda: ended.set_result(client.wait_closed()))
    thread.start()
    client.cut_soon()
    until_in_thread(lambda: len(hub.sessions) == 2)
    assert client.who() == "gpu-1"
    assert not ended.done()
    client.close()
    assert ended.result(WAIT) is None
    thread.join()
    client.wait_closed()
    assert caplog.records == []


def test_waiting_ends_with_the_connection(hub: FakeHub, address: str) -> None:
    with Client(address) as client:
        with pytest.raises(ConnectionLost, match="there is no connection"):
            client.wait_closed()
        client.offer()
        client.cut_soon()
        with pytest.raises(ConnectionLost, match="the peer closed it"):
            client.wait_closed()
        assert client.who() == "client-1", "the next call registers it again"


def test_telling_others(hub: FakeHub, address: str) -> None:
    with Client(address, name="gpu-1") as client:
        assert client.publish("a.b", {"x": 1}, retain=True) == 3
        assert client.notify_client("gpu-1", "reload", 1) is True
        with pytest.raises(InvalidParams):
            client.notify_client("gpu-2", "reload")
    with Client(address) as plain:
        assert plain.publish("a.b", 1, timeout=5.0) == 3
        with pytest.raises(TypeError, match="cannot be an iterator"):
            plain.publish("a.b", iter("ab"))
        assert not engine_of(plain).uses_loop, "what is a plain call needs no thread"


def test_call_sync_and_callbacks(hub: FakeHub, address: str) -> None:
    with Client(address) as client:
        assert client.call_sync("who", timeout=WAIT) is None
        assert client.call_sync("rpc.publish", {"topic": "a", "value": 1}) == 3
        assert client.call_sync("rpc.publish", ["a", 1]) == 3
        done: Future[Any] = Future()
        client.submit.work().add_done_callback(lambda future: done.set_result(future.result()))
        assert done.result(WAIT) == "done"


@pytest.mark.parametrize("options", [{}, {"keepalive": 100.0}], ids=["plain", "in a conversation"])
def test_a_provider_that_is_gone(hub: FakeHub, address: str, options: Any) -> None:
    hub.losses = 1
    with Client(address, **options) as unasked, pytest.raises(ProviderGone, match="'work'"):
        unasked.work()
    with Client(address, retries=2, retry="all", **options) as client:
        hub.losses = 2
        assert client.buy() == "done"
        hub.losses = 3
        with pytest.raises(ProviderGone):
            client.buy()
    with Client(address, retries=2, **options) as careful:
        hub.losses = 2
        assert careful.work() == "done"
        hub.losses = 1
        with pytest.raises(ProviderGone, match="'buy'"):
            careful.buy()
        assert hub.worked[-2:] == ["work", "buy"]
        hub.server.add(hub.work, replace=True)  # what a hub offers comes and goes
        hub.losses = 1
        with pytest.raises(ProviderGone):
            careful.work()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_take_the_name(hub: FakeHub, address: str) -> None:
    with Client(address, name="gpu-1") as client:
        offer_add(client)
        client.offer()

        def work() -> None:
            assert client.who() is None
            hub_made = client.registered_name
            assert hub_made is None
            assert client.offer(shared=True) == ["add"]
            assert client.who() == client.registered_name != "gpu-1"
            client.close()

        assert in_child(work) == 0
        assert client.who() == "gpu-1"
