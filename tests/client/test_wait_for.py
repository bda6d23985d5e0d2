"""`wait_for` and `retry`: calls that wait for a server or at a hub for a provider, and calls that are made again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import (
    AsyncClient,
    Backoff,
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    MethodNotFound,
    Retry,
    RpcError,
)
from rpcstream.errors import ProviderGone
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, reply, request, until
from .conftest import MakeClient, Scripted, item, refusal

#: Of a hub: no client offers the method now.
AWAY = {"code": -32601, "message": "Method not found", "data": {"method": "work", "no_provider": True}}


class Hub:
    """The script of a hub without a provider for the first calls.

    Args:
        times: how many requests are answered so; None: all.
        error: the answer to these.

    Attributes:
        asked: the methods that it was asked for, in order; a list for a batch.
    """

    def __init__(self, times: int | None = 2, error: Any = AWAY) -> None:
        self._times = times
        self._error = error
        self.asked: list[Any] = []

    def __call__(self, line: Any) -> None:
        while (message := line.read()) is not None:
            is_batch = isinstance(message, list)
            self.asked.append([each["method"] for each in message] if is_batch else message["method"])
            line.say([self._reply(each) for each in message] if is_batch else self._reply(message))

    def _reply(self, call: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "work" or self._times == 0:
            return reply(call["id"], call["method"])
        if self._times is not None:
            self._times -= 1
        return {"jsonrpc": "2.0", "id": call["id"], "error": self._error}


def test_a_provider_is_waited_for(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(times=3)
    client = make_client(scripted(hub), wait_for=60)
    assert client.together(("work",), ("other",)) == ["work", "other"]
    assert sorted(hub.asked) == ["other", *["work"] * 4]
    # One that did not get the call was not asked.
    hub = Hub(error={"code": -32007, "message": "gone", "data": {"executed": False, "no_provider": True}}, times=1)
    assert make_client(scripted(hub), wait_for=60).call("work") == "work"
    hub = Hub(times=None)
    ending = make_client(scripted(hub), wait_for=1)
    with pytest.raises(MethodNotFound):
        ending.call("work")
    assert len(hub.asked) > 1
    with pytest.raises((MethodNotFound, CallTimeout)):  # the time-out is for all of it
        ending.call("work", timeout=0.05, wait_for=3600)


def test_one_call_may_wait_or_may_not(scripted: Scripted, make_client: MakeClient) -> None:
    client = make_client(scripted(Hub(times=3)))
    with pytest.raises(MethodNotFound):
        client.call("work")
    assert client.call("work", wait_for=60) == "work"
    hub = Hub()
    client = make_client(scripted(hub), wait_for=60)
    for wait_for in (None, 0):
        with pytest.raises(MethodNotFound):
            client.call("work", wait_for=wait_for)
    assert len(hub.asked) == 2
    # A request object is answered as it is.
    other = make_client(scripted(Hub()), wait_for=60)
    assert other(request("work"))["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *[
            ({"code": -32601, "message": "no such method", "data": data}, MethodNotFound)
            for data in ({"method": "work"}, None, {"no_provider": "true"}, [1])
        ],
        # It may have been carried out.
        ({"code": -32007, "message": "gone", "data": {"method": "work", "client": "gpu"}}, ProviderGone),
    ],
)
def test_what_is_not_waited_for(scripted: Scripted, make_client: MakeClient, error: Any, kind: type) -> None:
    hub = Hub(error=error)
    with pytest.raises(kind):
        make_client(scripted(hub), wait_for=60).call("work")
    assert len(hub.asked) == 1


def test_a_batch_is_repeated_as_far_as_it_had_no_provider(scripted: Scripted, make_client: MakeClient) -> None:
    hub = Hub(times=2)
    one, work, two = make_client(scripted(hub), wait_for=60).batch(("one",), ("work",), ("two",))
    assert [one.result(), work.result(), two.result()] == ["one", "work", "two"]
    assert hub.asked == [["one", "work", "two"], ["work"], ["work"]]
    one, work = make_client(scripted(Hub(times=None))).batch(("one",), ("work",), wait_for=0.05)
    assert one.result() == "one"
    with pytest.raises(MethodNotFound):
        work.result()


def test_a_stream(scripted: Scripted) -> None:
    asked = []

    def script(line: Any) -> None:
        while (message := line.read()) is not None:
            asked.append(message["method"])
            if len(asked) % 3:
                line.say({"jsonrpc": "2.0", "id": message["id"], "error": AWAY})
            else:
                line.say(item(message["id"], 7), reply(message["id"], None))

    with Client(scripted(script), wait_for=60) as client:
        assert list(client.stream.work()) == [7]
        assert len(asked) == 3
        assert list(client.stream_request("work", wait_for=60)) == [7]
        with pytest.raises(MethodNotFound):
            next(client.stream.work(wait_for=None))


async def test_a_call_that_is_given_up_or_has_sent_an_iterator_waits_no_longer(scripted: Scripted) -> None:
    hub = Hub(times=None)
    async with AsyncClient(scripted(hub), wait_for=60) as client:
        task = client.submit.work()
        await until(lambda: len(hub.asked) > 2)
        task.cancel()
        await asyncio.wait([task])
        assert await client.other() == "other"
        with pytest.raises(MethodNotFound):
            await client.work(iter([1, 2]))
        closing = client.submit.work()
        await until(lambda: hub.asked[-2:] == ["work", "work"])
    with pytest.raises((ConnectionLost, MethodNotFound, RuntimeError)):
        await closing


@pytest.fixture
def later(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts a server at a Unix socket, in a thread; gives its address."""
    server = UsualServer(drain_timeout=0.2)
    running: list[Any] = []

    def start() -> str:
        running.append(serve_in_thread(server, unix=tmp_path / "later.sock"))
        return running[-1].__enter__()

    yield start
    for each in running:
        each.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("kind", "reconnect", "what"),
    [("unix", False, "batch"), ("unix", True, "together"), ("unix", True, "notify"), ("http+unix", False, "call")],
)
def test_a_server_is_waited_for(
    later: Callable[[], str], tmp_path: Path, make_client: MakeClient, kind: str, reconnect: bool, what: str
) -> None:
    # A back-off whose pauses the calls do not wait for.
    options = {"reconnect": Backoff(first=1000, longest=1000)} if reconnect else {}
    client = make_client(f"{kind}://{tmp_path / 'later.sock'}", wait_for=60, **options)
    starting = threading.Timer(0.03, later)
    starting.start()
    try:
        match what:
            case "call":
                assert client.call("add", 1, 2) == 3
            case "notify":
                client.notify("note", 1)
            case "batch":
                assert client.batch(("add", 1, 2))[0].result() == 3
            case "together":
                assert client.together(*[("add", n, 1) for n in range(5)]) == [1, 2, 3, 4, 5]
    finally:
        starting.join()


async def test_a_stream_that_is_entered_waits_for_its_server(later: Callable[[], str], tmp_path: Path) -> None:
    async with AsyncClient(f"unix://{tmp_path / 'later.sock'}", wait_for=60) as client:
        starting = threading.Timer(0.03, later)
        starting.start()
        async with client.stream.count(3) as items:
            assert [item async for item in items] == [0, 1, 2]
        starting.join()


def test_a_server_that_does_not_come(tmp_path: Path, make_client: MakeClient) -> None:
    for reconnect in (False, True):
        client = make_client(f"unix://{tmp_path / 'none'}", wait_for=0.05, reconnect=reconnect, timeout=60)
        with pytest.raises(ConnectFailed, match=r"could not connect: .*No such file.*method 'work'") as caught:
            client.call("work")
        assert not caught.value.is_permanent
        with pytest.raises(ConnectFailed):
            client.notify("work")
        with pytest.raises((ConnectFailed, CallTimeout)):
            client.call("work", timeout=0.05, wait_for=3600)


async def test_a_subscription_and_an_offer_wait(later: Callable[[], str], tmp_path: Path) -> None:
    async with AsyncClient(f"unix://{tmp_path / 'later.sock'}", wait_for=60) as client:
        client(lambda: 1, name="one")
        starting = threading.Timer(0.03, later)
        starting.start()
        async with client.subscribe("ticks"):
            pass
        starting.join()
        with pytest.raises(MethodNotFound, match="is not a hub"):
            await client.offer()


class Losing:
    """A script that hangs up on some calls, and says of itself which methods may be repeated.

    Args:
        lost: the methods that are hung up on, as often as they stand there; "batch" for any batch.
        methods: the answers to `rpc.discover` in turn, the last one for all that follow; None: an error.
        gone: calls that are no batch are not hung up on, but answered as by a hub whose provider is gone.
    """

    def __init__(self, lost: str, *methods: Any, gone: bool) -> None:
        self._lost = lost.split()
        self._methods = [*methods]
        self._gone = gone
        self.asked: list[str] = []

    def __call__(self, line: Any) -> None:
        while (message := line.read()) is not None:
            method = "batch" if isinstance(message, list) else message["method"].replace("rpc.discover", "?")
            self.asked.append(method)
            if method in self._lost:
                self._lost.remove(method)
                if method in ("batch", "?") or not self._gone:
                    return
                line.say(refusal(message["id"], -32007, "gone", data={"method": method}))
            elif method == "batch":
                line.say([reply(each["id"], "here") for each in message])
            elif method != "?":
                line.answer(message, "here")
            else:
                methods = self._methods.pop(0) if len(self._methods) > 1 else self._methods[0]
                line.say(refusal(message["id"]) if methods is None else reply(message["id"], {"methods": methods}))


SAFE = [{"name": "safe", "x-idempotent": True}, {"name": "unsafe"}, {"x-idempotent": True}]
WAITS = {"wait_for": 60}

ONCE, TWICE = {"retry": Retry(times=1)}, {"retry": Retry(times=2)}
ALL_ONCE, ALL_TWICE = {"retry": Retry(times=1, repeats="all")}, {"retry": Retry(times=2, repeats="all")}
UNDECLARED = r"is not declared idempotent \(repeats=\"all\" repeats every call\)"

#: The methods that are lost, once for each time that they stand there; the answers of `rpc.discover` ("?") in turn;
#: options; calls, each with what is said if it fails; and what the server was asked.
REPEATED: dict[str, tuple[str, list[Any], dict[str, Any], list[tuple[str, str]], str]] = {
    "one that is idempotent": ("safe", [SAFE], TWICE, [("safe", "")], "safe ? safe"),
    "not another": ("unsafe", [SAFE], TWICE, [("unsafe", UNDECLARED)], "unsafe ?"),
    "a batch of them": ("batch", [SAFE], TWICE, [("safe,safe", "")], "batch ? batch"),
    "not with another": ("batch", [SAFE], TWICE, [("safe,unsafe", "not declared idempotent")], "batch ?"),
    "and the question itself": ("safe ?", [SAFE], TWICE, [("safe", "")], "safe ? ? safe"),
    "not after an error": ("safe", [None], ONCE, [("safe", "did not say what is idempotent.*'safe'")], "safe ?"),
    "nor without an answer": ("safe ? ?", [SAFE], ONCE, [("safe", "did not say.*'safe'")], "safe ? ?"),
    # After a hub was killed its providers come back later than this caller.
    "until it is listed": ("safe", [[], [], SAFE], ONCE | WAITS, [("safe", "")], "safe ? ? ? safe"),
    "not if it is listed otherwise": (
        "unsafe batch",
        [SAFE],
        ONCE | WAITS,
        [("unsafe", UNDECLARED), ("unsafe,unsafe", "declared idempotent")],
        "unsafe ? batch",
    ),
    "all if so asked": ("unsafe unsafe", [None], ALL_TWICE, [("unsafe", "")], "unsafe unsafe unsafe"),
    "so often": ("unsafe unsafe", [None], ALL_ONCE, [("unsafe", "peer closed"), ("unsafe", "")], "unsafe " * 3),
    "nothing by default": ("safe", [SAFE], {}, [("safe", "peer closed"), ("safe", "")], "safe safe"),
}


@pytest.mark.parametrize("gone", [False, True], ids=["lost", "gone"])
@pytest.mark.parametrize("name", REPEATED)
def test_what_is_repeated(scripted: Scripted, make_client: MakeClient, name: str, gone: bool) -> None:
    """A provider that is gone is like a connection that was lost."""
    lost, methods, options, calls, asked = REPEATED[name]
    script = Losing(lost, *methods, gone=gone)
    client = make_client(scripted(script), **options)

    def make(what: str) -> None:
        if "," in what:
            assert {call.result() for call in client.batch(*[(each,) for each in what.split(",")])} == {"here"}
        else:
            assert client.call(what) == "here"

    for what, said in calls:
        if said:
            with pytest.raises(
                ConnectionLost if "," in what or not gone else ProviderGone, match=None if gone else said
            ):
                make(what)
        else:
            make(what)
    assert script.asked == asked.split()


def test_what_is_no_loss_is_not_repeated(make_client: MakeClient, served: str, server: UsualServer) -> None:
    client = make_client(served, retry=Retry(times=5, repeats="all"))
    before = len(server.noted), len(server.begun)
    with pytest.raises(RpcError):
        client.call("fail", 1, "once")
    client.call("note", "once")
    with pytest.raises(TimeoutError):
        client.call("wait", timeout=0.2)
    client.call("add", 1, 2)
    assert len(server.noted) == before[0] + 1
    assert len(server.begun) <= before[1] + 1


def test_a_client_that_pauses_before_it_reconnects_sets_no_timer_meanwhile(free_address: str) -> None:
    timers: list[Any] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
            timers.append(callback)
            return super().call_at(when, callback, *args, context=context)

    async def pause() -> None:
        async with AsyncClient(free_address, reconnect=Backoff(first=60, longest=60)) as client:
            await until(lambda: client.state == "waiting")
            timers.clear()
            await asyncio.sleep(0.3)
            assert len(timers) == 1  # of this sleep

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(pause())
