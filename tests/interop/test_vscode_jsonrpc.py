"""vscode-jsonrpc (npm) on the other end: calls, cancellation, calls back and progress, both ways.

`vscode_jsonrpc/peer.cjs` holds that end in a Node process and does what these tests say.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, MethodNotFound, RpcError

from .foreign import Foreign, needs_node, running
from .service import TEXT, Service, check_calls

FOLDER = Path(__file__).parent / "vscode_jsonrpc"

pytestmark = [pytest.mark.tools, *needs_node(FOLDER)]

CANCELLED = {"error": [-32800, "Cancelled", None]}


class Node:
    """A Node process with an end of conversations in it; see `peer.cjs` for what it can be told and what it reports."""

    def __init__(self, program: Foreign) -> None:
        self._program = program
        self._reports: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._numbers = count(1)
        self.tell = program.order

    def hear(self, key: str) -> Any:
        """Its next report under this key."""
        while not self._reports[key]:
            reported, report = self._program.hear()
            assert reported != "trouble", report
            self._reports[reported].append(report)
        return self._reports[key].popleft()

    @property
    def unheard(self) -> dict[str, list[Any]]:
        return {key: list(reports) for key, reports in self._reports.items() if reports}

    def request(self, method: str, params: Any = None) -> str:
        """Call; gives the key under which the outcome is to be heard."""
        key = f"call {next(self._numbers)}"
        self.tell(("request", key, method, params))
        return key

    def call(self, method: str, params: Any = None) -> Any:
        return self.hear(self.request(method, params))


@pytest.fixture
def peer() -> Iterator[Node]:
    """Not connected yet."""
    with running("node", FOLDER / "peer.cjs") as program:
        yield Node(program)


@pytest.fixture(params=["lines", "Content-Length"])
def node(request: pytest.FixtureRequest, service: Service, peer: Node) -> Iterator[Node]:
    """Connected, by lines, which take a reader and a writer of these tests, or as the library speaks as it comes.

    Whatever a test did, the connection answers after it, and nothing more was said than was heard.
    """
    peer.tell(("connect", service.port, request.param))
    peer.hear("connect")
    yield peer
    assert peer.call("rpc.ping") == {"result": "pong"}
    assert peer.unheard == {}


def test_calls_errors_and_notifications(node: Node, service: Service) -> None:
    check_calls(node.call)
    for method, params in (("note", ["by position"]), ("note", {"value": TEXT}), ("refuse", []), ("missing", None)):
        node.tell(("notify", method, params))
    assert node.call("add", [1, 2]) == {"result": 3}
    assert service.noted(2) == ["by position", TEXT]


def test_answers_go_to_whom_they_belong(node: Node) -> None:
    keys = [f"caller {number}" for number in range(100)]
    node.tell(*(("request", key, "later" if number % 3 else "echo", [key]) for number, key in enumerate(keys)))
    assert {key: node.hear(key) for key in keys} == {key: {"result": key} for key in keys}


def test_a_cancelled_call_ends_its_handler(node: Node, service: Service) -> None:
    call = node.request("wait", ["it"])  # the first request of a connection: its id is 0
    assert service.noted() == ["it began"]
    node.tell(("cancel", call))
    assert node.hear(call) == CANCELLED
    assert service.noted() == ["it ended"]


def test_a_late_cancel_is_harmless(node: Node) -> None:
    node.tell(("request", "it", "add", [1, 2]), ("cancel", "it"))
    assert node.hear("it") == {"result": 3}
    node.tell(("notify", "$/cancelRequest", {"id": 0}))


def test_a_handler_calls_its_caller(node: Node) -> None:
    assert node.call("ask", ["confirm", "sell it?"]) == {"result": {"confirmed": ["sell it?"]}}
    assert node.call("ask_by_name", ["sell it?"]) == {"result": {"confirmed": [{"question": "sell it?"}]}}
    error = [4711, "out of \u00e4nything \U0001f600", {"why": None}]
    assert node.call("ask", ["refuse", {"why": None}]) == {"result": error}
    assert node.call("ask", ["missing", None])["result"][0] == -32601


def test_a_cancel_goes_on_to_what_the_handler_waits_for(node: Node) -> None:
    call = node.request("ask", ["wait", "its handler"])
    assert node.hear("its handler") == "began"
    node.tell(("cancel", call))
    assert node.hear("its handler") == "cancelled"
    assert node.hear(call) == CANCELLED


def test_progress_comes_with_the_id_of_the_call_and_before_its_result(node: Node) -> None:
    node.tell(("request", "a", "climb", ["a", 5]), ("request", "b", "climb", {"name": "b", "steps": 3}))
    for name, steps in (("a", 5), ("b", 3)):
        reports = [node.hear(name) for _ in range(steps + 1)]
        assert reports[:-1] == [{"progress": {"name": name, "step": step}} for step in range(steps)]
        assert reports[-1] == {"result": f"{name} is up"}


async def test_our_client_calls_its_server(peer: Node) -> None:
    peer.tell(("listen",))
    async with AsyncClient(f"127.0.0.1:{peer.hear('listen')}") as client:
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
        given_up, kept = client.submit.wait("given up"), client.submit.wait("kept")
        for key in ("given up", "kept"):
            assert await asyncio.to_thread(peer.hear, key) == "began"
        given_up.cancel()
        assert await asyncio.to_thread(peer.hear, "given up") == "cancelled"
        assert await client.confirm("the next") == {"confirmed": ["the next"]}
        assert not kept.done()
        kept.cancel()
        assert await asyncio.to_thread(peer.hear, "kept") == "cancelled"
    assert peer.unheard == {}
