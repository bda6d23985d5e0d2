"""vscode-jsonrpc (npm) on the other end: calls, cancellation, calls back and progress, both ways.

`vscode_jsonrpc/peer.cjs` holds that end in a Node process and does what these tests say.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import subprocess
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, Context, MethodNotFound, RpcError, Server
from rpcstream.testing import serve_in_thread

PEER = Path(__file__).parent / "vscode_jsonrpc" / "peer.cjs"
INSTALL = "npm install --prefix tests/interop/vscode_jsonrpc"
IS_INSTALLED = (PEER.parent / "node_modules" / "vscode-jsonrpc").is_dir()

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js (node)"),
    pytest.mark.skipif(not IS_INSTALLED, reason=f"vscode-jsonrpc is not there ({INSTALL})"),
]

#: Seconds; only what fails is waited for that long.
PATIENCE = 10

CANCELLED = {"error": [-32800, "Cancelled", None]}


# -- the other end ----------------------------------------------------------------------------------------------------


class Node:
    """A Node process with an end of conversations in it; see `peer.cjs` for what it can be told and what it reports."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._reports: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._numbers = count(1)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def end(self) -> None:
        self._process.kill()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(tuple(json.loads(line)))
        self._said.put(("trouble", "Node has ended"))

    def tell(self, *orders: list[Any]) -> None:
        """Have it do all this in one go."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(json.dumps(order) + "\n" for order in orders))
        self._process.stdin.flush()

    def hear(self, key: str) -> Any:
        """Its next report under this key."""
        while not self._reports[key]:
            reported, report = self._said.get(timeout=PATIENCE)
            assert reported != "trouble", report
            self._reports[reported].append(report)
        return self._reports[key].popleft()

    @property
    def unheard(self) -> dict[str, list[Any]]:
        return {key: list(reports) for key, reports in self._reports.items() if reports}

    def request(self, method: str, params: Any = None) -> str:
        """Call; gives the key under which the outcome is to be heard."""
        key = f"call {next(self._numbers)}"
        self.tell(["request", key, method, params])
        return key

    def call(self, method: str, params: Any = None) -> Any:
        return self.hear(self.request(method, params))

    def cancel(self, key: str) -> None:
        self.tell(["cancel", key])

    def notify(self, method: str, params: Any = None) -> None:
        self.tell(["notify", method, params])

    def connect(self, address: str, framing: str) -> None:
        self.tell(["connect", int(address.rpartition(":")[2]), framing])
        self.hear("connect")


@pytest.fixture
def peer() -> Iterator[Node]:
    """Not connected yet."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen(["node", str(PEER)], **pipes) as process:
        node = Node(process)
        try:
            yield node
        finally:
            node.end()


# -- this end ---------------------------------------------------------------------------------------------------------


class Service:
    """A server with handlers that tell what becomes of them: the queues hold what they were called with."""

    def __init__(self) -> None:
        self.began: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.cancelled: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.cleaned_up: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.noted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._released = asyncio.Event()
        self.server = Server(drain_timeout=1)
        for handler in (self.add, self.echo, self.soon, self.note, self.refuse, self.fail, self.wait, self.release):
            self.server.add(handler)
        for handler in (self.ask, self.ask_by_name, self.be_refused, self.pass_on, self.climb):
            self.server.add(handler)
        self.address = ""

    def add(self, a: int, b: int) -> int:
        return a + b

    def echo(self, value: Any) -> Any:
        return value

    async def soon(self, value: Any) -> Any:
        await asyncio.sleep(0.01)
        return value

    def note(self, text: str) -> None:
        self.noted.put(text)

    def refuse(self, data: Any) -> None:
        raise RpcError(4711, "out of \u00e4nything \U0001f600", data)

    def fail(self) -> None:
        raise ZeroDivisionError("not to be shown")

    async def wait(self, key: str) -> str:
        self.began.put(key)
        try:
            await self._released.wait()
            return f"{key} has waited"
        except asyncio.CancelledError:
            self.cancelled.put(key)
            raise
        finally:
            self.cleaned_up.put(key)

    def release(self) -> None:
        self._released.set()

    async def ask(self, ctx: Context, question: str) -> Any:
        return await ctx.peer.call("confirm", question)

    async def ask_by_name(self, ctx: Context, question: str) -> Any:
        return await ctx.peer.call("confirm", question=question)

    async def be_refused(self, ctx: Context, method: str, data: Any) -> list[Any]:
        try:
            await ctx.peer.call(method, data)
        except RpcError as error:
            return [error.code, error.message, error.data]
        return []

    async def pass_on(self, ctx: Context, key: str) -> Any:
        return await ctx.peer.call("wait", key)

    async def climb(self, ctx: Context, name: str, steps: int) -> str:
        for step in range(steps):
            if step:
                await ctx.peer.call("confirm", name)  # so that each report is on its way before the next
            ctx.progress({"name": name, "step": step})
        return f"{name} is up"


def take(names: queue.SimpleQueue[str], number: int) -> set[str]:
    return {names.get(timeout=PATIENCE) for _ in range(number)}


@pytest.fixture
def service() -> Iterator[Service]:
    served = Service()
    with serve_in_thread(served.server) as served.address:
        yield served


@pytest.fixture(params=["lines", "Content-Length"])
def framing(request: pytest.FixtureRequest) -> str:
    """Lines, with a reader and a writer of these tests; or what the library speaks as it comes."""
    return str(request.param)


@pytest.fixture
def node(service: Service, peer: Node, framing: str) -> Iterator[Node]:
    """Connected. Whatever a test did, the connection answers after it, and nothing more was said than was heard."""
    peer.connect(service.address, framing)
    yield peer
    assert peer.call("rpc.ping") == {"result": "pong"}
    assert peer.unheard == {}


# -- calls ------------------------------------------------------------------------------------------------------------


def test_parameters_go_by_position_and_by_name(node: Node) -> None:
    assert node.call("add", [1, 2]) == {"result": 3}
    assert node.call("add", {"b": 2, "a": 1}) == {"result": 3}
    assert node.call("soon", ["later"]) == {"result": "later"}


@pytest.mark.parametrize(
    "value",
    [None, [], {}, [1, None, 2.5], {"": "\n\r\u2028\u2029\x7f\u00e9\U0001f600"}, "x" * 10**6],
    ids=["null", "empty array", "empty object", "array", "hard text", "long text"],
)
def test_values_come_back(node: Node, value: Any) -> None:
    assert node.call("echo", [value]) == {"result": value}


def test_a_notification_is_carried_out_and_not_answered(node: Node, service: Service) -> None:
    node.notify("note", ["by position"])
    node.notify("note", {"text": "by name"})
    node.notify("refuse", [None])
    node.notify("missing")
    assert node.call("add", [1, 2]) == {"result": 3}
    assert [service.noted.get(timeout=PATIENCE) for _ in range(2)] == ["by position", "by name"]


def test_an_error_has_code_message_and_data(node: Node) -> None:
    data = {"text": "\n\u2028\U0001f600", "list": [1, None, 2.5]}
    assert node.call("refuse", [data]) == {"error": [4711, "out of \u00e4nything \U0001f600", data]}
    assert node.call("refuse", [None]) == {"error": [4711, "out of \u00e4nything \U0001f600", None]}
    code, message, data = node.call("fail")["error"]
    assert (code, message[:15], data) == (-32603, "Internal error:", None)


def test_the_errors_of_the_protocol(node: Node) -> None:
    code, message, data = node.call("missing")["error"]
    assert (code, message, data["method"]) == (-32601, "Method not found", "missing")
    code, _, data = node.call("add", {"a": 1, "b": "2"})["error"]
    assert (code, data["parameter"]) == (-32602, "b")


def test_answers_go_to_whom_they_belong(node: Node, service: Service) -> None:
    waiting = [f"waiter {number}" for number in range(100)]
    at_once = [f"echo {number}" for number in range(100)]
    node.tell(*(["request", key, "wait", [key]] for key in waiting))
    node.tell(*(["request", key, "echo", {"value": key}] for key in at_once))
    assert {key: node.hear(key) for key in at_once} == {key: {"result": key} for key in at_once}
    assert take(service.began, 100) == set(waiting)
    assert node.call("release") == {"result": None}
    assert {key: node.hear(key) for key in waiting} == {key: {"result": f"{key} has waited"} for key in waiting}


# -- cancellation -----------------------------------------------------------------------------------------------------


def test_a_cancelled_call_ends_its_handler(node: Node, service: Service) -> None:
    call = node.request("wait", ["for ever"])  # the first request of a connection: its id is 0
    assert service.began.get(timeout=PATIENCE) == "for ever"
    node.cancel(call)
    assert node.hear(call) == CANCELLED
    assert service.cancelled.get(timeout=PATIENCE) == "for ever"
    assert service.cleaned_up.get(timeout=PATIENCE) == "for ever"


def test_a_late_cancel_is_harmless(node: Node) -> None:
    node.tell(["request", "it", "add", [1, 2]], ["cancel", "it"])
    assert node.hear("it") == {"result": 3}
    node.notify("$/cancelRequest", {"id": 0})
    assert node.call("add", [3, 4]) == {"result": 7}


# -- calls back, and progress -----------------------------------------------------------------------------------------


def test_a_handler_calls_its_caller(node: Node) -> None:
    assert node.call("ask", ["sell it?"]) == {"result": {"confirmed": ["sell it?"]}}
    assert node.call("ask_by_name", ["sell it?"]) == {"result": {"confirmed": [{"question": "sell it?"}]}}


def test_a_handler_sees_the_error_of_its_caller(node: Node) -> None:
    error = [4711, "out of \u00e4nything \U0001f600", {"why": None}]
    assert node.call("be_refused", ["refuse", {"why": None}]) == {"result": error}
    assert node.call("be_refused", ["missing", None])["result"][0] == -32601


def test_a_cancel_goes_on_to_what_the_handler_waits_for(node: Node) -> None:
    call = node.request("pass_on", ["its handler"])
    assert node.hear("its handler") == "began"
    node.cancel(call)
    assert node.hear("its handler") == "cancelled"
    assert node.hear(call) == CANCELLED


def test_progress_comes_with_the_id_of_the_call_and_before_its_result(node: Node) -> None:
    node.tell(["request", "a", "climb", ["a", 5]], ["request", "b", "climb", {"name": "b", "steps": 3}])
    for name, steps in (("a", 5), ("b", 3)):
        reports = [node.hear(name) for _ in range(steps + 1)]
        assert reports[:-1] == [{"progress": {"name": name, "step": step}} for step in range(steps)]
        assert reports[-1] == {"result": f"{name} is up"}


# -- the other end as the server --------------------------------------------------------------------------------------


@pytest.fixture
def its_address(peer: Node) -> str:
    peer.tell(["listen"])
    return f"127.0.0.1:{peer.hear('listen')}"


async def test_our_client_calls_its_server(its_address: str) -> None:
    async with AsyncClient(its_address) as client:
        assert await client.confirm("a", 2) == {"confirmed": ["a", 2]}
        assert await client.confirm(question="a") == {"confirmed": [{"question": "a"}]}
        assert await client.confirm() == {"confirmed": []}
        answers = await asyncio.gather(*(client.confirm(number) for number in range(200)))
        assert answers == [{"confirmed": [number]} for number in range(200)]
        with pytest.raises(RpcError) as caught:
            await client.refuse({"why": None})
        assert (caught.value.code, caught.value.data) == (4711, {"why": None})
        with pytest.raises(MethodNotFound):
            await client.missing()


async def test_a_call_that_is_given_up_is_cancelled_there(peer: Node, its_address: str) -> None:
    async with AsyncClient(its_address) as client:
        given_up, kept = client.submit.wait("given up"), client.submit.wait("kept")
        for key in ("given up", "kept"):
            assert await asyncio.to_thread(peer.hear, key) == "began"
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await asyncio.to_thread(peer.hear, "given up") == "cancelled"
        assert await client.confirm("the next") == {"confirmed": ["the next"]}
        assert not kept.done()
        kept.cancel()
        assert await asyncio.to_thread(peer.hear, "kept") == "cancelled"
    assert peer.unheard == {}
