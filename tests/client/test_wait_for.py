"""`wait_for`: calls that wait for a server that is not there, and at a hub for a provider; both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import (
    AsyncClient,
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    MethodNotFound,
    ProviderGone,
    Server,
)
from rpcstream.backoff import Backoff
from rpcstream.cli.call import main
from rpcstream.client import retry
from rpcstream.client.retry import Attempts, ClosedAtOnce, Unsent, is_awaited, may_have_run
from rpcstream.errors import NotAuthenticated, Unread
from rpcstream.testing import serve_in_thread

from ..kit import until, until_in_thread
from ..kit.scripted import Script, ScriptedConnection
from .conftest import MakeClient

Scripted = Callable[[Script], str]

#: Of a hub: no client offers the method now.
AWAY = {"code": -32601, "message": "Method not found", "data": {"method": "work", "no_provider": True}}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("retry", "pool", "slots"):
        monkeypatch.setattr(f"rpcstream.client.{module}.WAITING", Backoff(first=0.002, longest=0.005))


class Hub:
    """The script of a hub without a provider for the first calls; what it was asked is in `asked`.

    Args:
        times: how many requests are answered so; None: all.
        error: the answer to these.
    """

    def __init__(self, times: int | None = 2, error: Any = AWAY) -> None:
        self._times = times
        self._error = error
        self.asked: list[Any] = []

    def __call__(self, connection: ScriptedConnection) -> None:
        while (message := connection.read()) is not None:
            self.asked.append(message)
            replies = [self._reply(each) for each in (message if isinstance(message, list) else [message])]
            connection.say(replies if isinstance(message, list) else replies[0])

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        is_away = request["method"] == "work" and (self._times is None or self._times > 0)
        if not is_away:
            return {"jsonrpc": "2.0", "id": request["id"], "result": request["method"]}
        if self._times is not None:
            self._times -= 1
        return {"jsonrpc": "2.0", "id": request["id"], "error": self._error}

    @property
    def methods(self) -> list[Any]:
        """The methods that it was asked for, a list for a batch."""
        return [
            [each["method"] for each in message] if isinstance(message, list) else message["method"]
            for message in self.asked
        ]


# -- a provider that comes ------------------------------------------------------------------------------------------


def test_a_provider_is_waited_for(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(times=3)
    assert make_client(scripted(hub), wait_for=60).call("work") == "work"
    assert hub.methods == ["work"] * 4


def test_one_call_may_wait(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(times=3)
    client = make_client(scripted(hub))
    with pytest.raises(MethodNotFound):
        client.call("work")
    assert client.call("work", wait_for=60) == "work"
    with pytest.raises(TypeError):
        client.call("work", wait_for="long")


def test_one_call_may_not_wait(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub()
    client = make_client(scripted(hub), wait_for=60)
    for wait_for in (None, 0):
        with pytest.raises(MethodNotFound):
            client.call("work", wait_for=wait_for)
    assert len(hub.asked) == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": -32601, "message": "no such method", "data": {"method": "work"}}, MethodNotFound),
        ({"code": -32601, "message": "no such method"}, MethodNotFound),
        ({"code": -32601, "message": "no such method", "data": {"no_provider": "true"}}, MethodNotFound),
        # It may have been carried out.
        ({"code": -32007, "message": "gone", "data": {"method": "work", "client": "gpu"}}, ProviderGone),
    ],
)
def test_what_is_not_waited_for(scripted: Scripted, make_client: MakeClient, error: Any, kind: type) -> None:
    hub = Hub(error=error)
    with pytest.raises(kind):
        make_client(scripted(hub), wait_for=60).call("work")
    assert len(hub.asked) == 1


def test_a_provider_that_did_not_get_the_call(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(error={"code": -32007, "message": "gone", "data": {"executed": False, "no_provider": True}}, times=8)
    assert make_client(scripted(hub), wait_for=60).call("work") == "work"


def test_the_wait_has_an_end(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(times=None)
    client = make_client(scripted(hub), wait_for=0.05)
    with pytest.raises(MethodNotFound):
        client.call("work")
    assert len(hub.asked) > 1
    # The time-out is for all of it.
    with pytest.raises((MethodNotFound, CallTimeout)):
        client.call("work", timeout=0.05, wait_for=3600)


def test_a_batch_is_repeated_as_far_as_it_had_no_provider(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(times=2)
    one, work, two = make_client(scripted(hub), wait_for=60).batch(("one",), ("work",), ("two",))
    assert [one.result(), work.result(), two.result()] == ["one", "work", "two"]
    assert hub.methods == [["one", "work", "two"], ["work"], ["work"]]


@pytest.mark.parametrize("wait_for", [None, 0.02])
def test_a_batch_whose_provider_does_not_come(
    scripted: Scripted, make_client: MakeClient, wait_for: float | None
) -> None:
    hub = Hub(times=None)
    one, work = make_client(scripted(hub)).batch(("one",), ("work",), wait_for=wait_for)
    assert one.result() == "one"
    with pytest.raises(MethodNotFound):
        work.result()
    assert (len(hub.asked) > 1) is (wait_for is not None)


def test_a_batch_that_is_lost_while_it_waits(scripted: Scripted, make_client: MakeClient) -> None:
    def script(connection: ScriptedConnection) -> None:
        (one, work) = connection.read()
        connection.say(
            [
                {"jsonrpc": "2.0", "id": one["id"], "result": 1},
                {"jsonrpc": "2.0", "id": work["id"], "error": AWAY},
            ]
        )
        connection.read()

    with pytest.raises(ConnectionLost):
        make_client(scripted(script), wait_for=60).batch(("one",), ("work",))


def test_futures(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(times=5)
    assert make_client(scripted(hub), wait_for=60).together(("work",), ("other",), ("work",)) == [
        "work",
        "other",
        "work",
    ]
    assert hub.methods.count("other") == 1


def test_a_request_object_is_answered_as_it_is(scripted: Scripted, make_client: MakeClient) -> None:
    client = make_client(scripted(Hub()), wait_for=60)
    assert client({"jsonrpc": "2.0", "id": 1, "method": "work"})["error"]["code"] == -32601


def test_a_stream(scripted: Scripted) -> None:
    asked = []

    def script(connection: ScriptedConnection) -> None:
        while (message := connection.read()) is not None:
            asked.append(message["method"])
            call_id = message["id"]
            if len(asked) % 3:
                connection.say({"jsonrpc": "2.0", "id": call_id, "error": AWAY})
            else:
                item = {"jsonrpc": "2.0", "method": "$/item", "params": {"id": call_id, "value": 7}}
                connection.say(item, {"jsonrpc": "2.0", "id": call_id, "result": None})

    with Client(scripted(script), wait_for=60) as client:
        assert list(client.stream.work()) == [7]
        assert len(asked) == 3
        assert list(client.stream_request("work", wait_for=60)) == [7]
        with pytest.raises(MethodNotFound):
            next(client.stream.work(wait_for=None))


async def test_a_call_with_an_iterator_does_not_wait_once_it_was_sent(scripted: Scripted) -> None:
    hub = Hub()
    async with AsyncClient(scripted(hub), wait_for=60) as client:
        with pytest.raises(MethodNotFound):
            await client.work(iter([1, 2]))


async def test_a_call_that_is_given_up_waits_no_longer(scripted: Scripted) -> None:
    hub = Hub(times=None)
    async with AsyncClient(scripted(hub), wait_for=60) as client:
        task = client.submit.work()
        await until(lambda: len(hub.asked) > 2)
        task.cancel()
        await asyncio.wait([task])
        assert await client.other() == "other"
        closing = client.submit.work()
        await until(lambda: hub.methods[-1] == "work")
    with pytest.raises((ConnectionLost, MethodNotFound, RuntimeError)):
        await closing


# -- a server that comes --------------------------------------------------------------------------------------------


@pytest.fixture
def later(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts a server at a Unix socket, in a thread; gives its address."""
    path = tmp_path / "later.sock"
    server = Server(drain_timeout=0.2)
    noted: list[Any] = []
    server.add(lambda *values: noted.append(values) or len(noted), name="note")
    server.add(lambda: iter(range(3)), name="never_streams")
    running: list[Any] = []

    def start() -> str:
        running.append(serve_in_thread(server, unix=path))
        return running[-1].__enter__()

    yield start
    for each in running:
        each.__exit__(None, None, None)


@pytest.mark.parametrize("kind", ["unix", "http+unix"])
@pytest.mark.parametrize("reconnect", [False, True])
@pytest.mark.parametrize("what", ["call", "notify", "batch", "together"])
def test_a_server_is_waited_for(
    later: Callable[[], str], tmp_path: Path, make_client: MakeClient, kind: str, reconnect: bool, what: str
) -> None:
    if kind != "unix" and (reconnect or what != "call"):
        pytest.skip("as over lines")
    # A back-off whose pauses the calls do not wait for.
    options = {"reconnect": Backoff(first=1000, longest=1000)} if reconnect else {}
    client = make_client(f"{kind}://{tmp_path / 'later.sock'}", wait_for=60, **options)
    starting = threading.Timer(0.03, later)
    starting.start()
    try:
        if what == "batch":
            (call,) = client.batch(("note", 1))
            assert call.result() == 1
        elif what == "together":
            assert sorted(client.together(*[("note", n) for n in range(5)])) == [1, 2, 3, 4, 5]
        else:
            getattr(client, what)("note", 1)
    finally:
        starting.join()
    until_in_thread(lambda: client.call("note") > 1)


@pytest.mark.parametrize("reconnect", [False, True])
def test_a_server_that_does_not_come(tmp_path: Path, make_client: MakeClient, reconnect: bool) -> None:
    client = make_client(f"unix://{tmp_path / 'none'}", wait_for=0.05, reconnect=reconnect, timeout=60)
    with pytest.raises(ConnectFailed, match=r"could not connect: .*No such file.*method 'work'") as caught:
        client.call("work")
    assert not caught.value.is_permanent
    with pytest.raises(ConnectFailed):
        client.notify("work")
    with pytest.raises((ConnectFailed, CallTimeout)):
        client.call("work", timeout=0.05, wait_for=3600)


def test_a_server_that_closes_each_connection_at_once(scripted: Scripted, make_client: MakeClient) -> None:
    """As one does that is stopping, or is not ready."""
    lock, count = threading.Lock(), [0]

    def script(connection: ScriptedConnection) -> None:
        with lock:
            count[0] += 1
            is_ready = count[0] > 3
        if is_ready:
            Hub(times=0)(connection)

    # Whether the call was sent before the connection was closed is chance; it may be repeated.
    client = make_client(scripted(script), wait_for=60, retries=3, retry="all")
    assert client.call("work") == "work"


async def test_a_subscription_and_an_offer_wait(later: Callable[[], str], tmp_path: Path) -> None:
    async with AsyncClient(f"unix://{tmp_path / 'later.sock'}", wait_for=60) as client:
        client(lambda: 1, name="one")
        starting = threading.Timer(0.03, later)
        starting.start()
        async with client.subscribe("ticks"):
            pass
        starting.join()
        with pytest.raises(MethodNotFound, match="is no hub"):
            await client.offer()


def test_the_command_line(later: Callable[[], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--uri", f"unix://{tmp_path / 'later.sock'}", "note", "--positional", "1"]
    assert main([*call, "--wait-for", "0"]) == 3
    assert main([*call, "--wait-for", "0.03"]) == 3
    starting = threading.Timer(0.03, later)
    starting.start()
    assert main([*call, "--wait-for", "60"]) == 0
    starting.join()
    assert capsys.readouterr().out == "1\n"


@pytest.mark.parametrize("wait_for", [0, -1, float("nan")])
def test_times_that_make_no_sense(wait_for: float) -> None:
    with pytest.raises(ValueError, match="wait_for must be positive or None"):
        Client(wait_for=wait_for)


# -- what may have been carried out ---------------------------------------------------------------------------------


def test_an_idempotent_method_is_waited_for_until_it_is_listed(scripted: Scripted, make_client: MakeClient) -> None:
    """After a hub was killed: its providers come back later than this caller."""
    asked: list[str] = []

    def script(connection: ScriptedConnection) -> None:
        while (message := connection.read()) is not None:
            asked.append(message["method"])
            if len(asked) == 1:
                return
            if message["method"] == "rpc.discover":
                methods = [{"name": "work", "x-idempotent": True}] if asked.count("rpc.discover") > 2 else []
                connection.answer(message, {"methods": methods})
            else:
                connection.answer(message, "done")

    client = make_client(scripted(script), wait_for=60, retries=1)
    assert client.call("work") == "done"
    assert asked == ["work", "rpc.discover", "rpc.discover", "rpc.discover", "work"]


def test_a_method_that_is_not_idempotent_is_not_waited_for(scripted: Scripted, make_client: MakeClient) -> None:
    asked: list[str] = []

    def script(connection: ScriptedConnection) -> None:
        while (message := connection.read()) is not None:
            asked.append("batch" if isinstance(message, list) else message["method"])
            if asked[-1] != "rpc.discover":
                return
            connection.answer(message, {"methods": [{"name": "work"}]})

    client = make_client(scripted(script), wait_for=60, retries=1)
    with pytest.raises(ConnectionLost, match="not declared idempotent"):
        client.call("work")
    with pytest.raises(ConnectionLost, match="not declared idempotent"):
        client.batch(("work",))
    assert asked == ["work", "rpc.discover", "batch"]


# -- the rules alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "waits", "may_run"),
    [
        (ConnectFailed("refused"), True, False),
        (ConnectFailed("a certificate", is_permanent=True), False, False),
        (Unsent("lost"), True, False),
        (ClosedAtOnce("lost"), True, False),
        (Unread("it leaves"), True, False),
        (ConnectionLost("lost"), False, True),
        (ProviderGone(data={"executed": False}), True, False),
        (ProviderGone(data={"client": "x"}), False, True),
        (MethodNotFound(data={"no_provider": True}), True, False),
        (MethodNotFound(data=[1]), False, True),
        (NotAuthenticated(), False, True),
    ],
    ids=repr,
)
def test_errors(error: Exception, waits: bool, may_run: bool) -> None:
    assert is_awaited(error) is waits
    assert may_have_run(error) is may_run


class TestAttempts:
    @pytest.fixture(autouse=True)
    def _no_chance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retry, "WAITING", Backoff(first=1, longest=4, random=lambda: 1.0))

    def test_the_last_attempt_is_made_when_the_wait_is_over(self) -> None:
        attempts, now, pauses = Attempts(0, 9, 9), 0.0, []
        while (pause := attempts.pause(ConnectFailed("refused"), now, 100)) is not None:
            pauses.append(pause)
            now += pause
        assert pauses == [1, 2, 4, 2]

    def test_an_attempt_is_made_before_the_time_out(self) -> None:
        attempts = Attempts(0, 100, 100)
        assert attempts.pause(ConnectFailed("refused"), 0, 0.9) == 0.45
        assert attempts.pause(ConnectFailed("refused"), 0.895, 0.9) is None
        assert attempts.pause(ConnectFailed("refused"), 1, 0.9) is None

    def test_a_call_that_was_sent_may_wait_anew(self) -> None:
        attempts = Attempts(1, 5, 5)
        assert attempts.pause(ConnectFailed("refused"), 4, 100) == 1
        assert attempts.pause(ConnectionLost("lost"), 50, 100) == 0
        assert attempts.until == 55
        assert attempts.pause(ConnectFailed("refused"), 50, 100) == 1
        assert attempts.pause(ConnectionLost("lost"), 52, 100) is None

    def test_without_it(self) -> None:
        assert Attempts(0, None, None).pause(ConnectFailed("refused"), 0, 100) is None
        assert Attempts(0, None, None).pause(MethodNotFound(data={"no_provider": True}), 0, 100) is None
        assert Attempts(1, None, None).pause(ConnectFailed("refused"), 0, 100) == 0
        # A provider that is missing is no loss.
        assert Attempts(9, None, None).pause(MethodNotFound(data={"no_provider": True}), 0, 100) is None
