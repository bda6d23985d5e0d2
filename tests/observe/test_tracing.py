"""Spans of calls: which there are, whose parts they are, what they say, and that nothing is imported without them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rpcstream import AsyncClient, Client, ConnectFailed, Context, Depends, Hub, Retry, RpcError, Server
from rpcstream.client.config import client_options
from rpcstream.hub.config import hub_options
from rpcstream.testing import drop_connections, memory_client, serve_in_thread

from ..kit import RawPeer, UsualServer, parsed, raw_peers, request, until
from ..kit.asgi import post

#: A caller's trace, span, and the member that names them.
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"

CANCELLED, LATE, GONE = "-32800", "-32003", "-32007"


class Spans:
    """The spans that have ended, and a provider for them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.clear = self.exporter.clear
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.within: Callable[[str], Any] = self.provider.get_tracer("test").start_as_current_span

    def note(self, name: str) -> None:
        """Make a span that ends at once."""
        with self.within(name):
            pass

    @property
    def all(self) -> list[ReadableSpan]:
        """In the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def errors(self) -> list[str | None]:
        return [attributes(span).get("error.type") for span in self.all]

    def one(self, name: str, kind: SpanKind = SpanKind.SERVER) -> ReadableSpan:
        (found,) = [span for span in self.all if (span.name, span.kind) == (name, kind)]
        return found

    async def are(self, *paths: tuple[str, ...], count: int | None = None) -> None:
        """Wait for all spans: they are those of paths from the root of a trace, ("add CLIENT", "add SERVER")."""
        expected = {path[:length] for path in paths for length in range(1, len(path) + 1)}
        await until(lambda: len(self.all) >= (count or len(expected)))
        by_id = {id_of(span): span for span in self.all}

        def path(span: ReadableSpan) -> tuple[str, ...]:
            above = by_id.get(parent_of(span))
            return (*(path(above) if above is not None else ()), f"{span.name} {span.kind.name}")

        assert {path(span) for span in self.all} == expected
        assert len(self.all) == (count or len(expected))


def id_of(span: ReadableSpan) -> str:
    return "" if span.context is None else format(span.context.span_id, "016x")


def parent_of(span: ReadableSpan) -> str:
    return "" if span.parent is None else format(span.parent.span_id, "016x")


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def server(spans: Spans) -> UsualServer:
    return UsualServer(tracing=spans.provider)


@pytest.mark.parametrize("traces", [True, False])
async def test_one_trace_goes_from_a_client_through_a_hub_to_its_provider(spans: Spans, traces: bool) -> None:
    options: dict[str, Any] = {"tracing": spans.provider}
    async with (
        Hub(**options if traces else {}).listening(port=0) as at,
        AsyncClient(at, **options) as client,
        AsyncClient(at, name="p", **options) as provider,
    ):

        @provider
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        await provider.offer()

        async def in_batch() -> None:
            async with client.batch() as batch:
                batch.p.count(3), batch.notify.p.count(3)

        async def streamed() -> None:
            assert [item async for item in client.stream.p.count(2)] == [0, 1]

        ways = (lambda: client.p.count(3), lambda: client(request("p.count", 3)), lambda: client.notify.p.count(3))
        of_hub = ("p.count SERVER", "count CLIENT") if traces else ()
        path = ("p.count CLIENT", *of_hub, "count SERVER")
        for way in (*ways, streamed, in_batch):
            spans.clear()
            with spans.within("work"):
                await way()
            await spans.are(("work INTERNAL", *path), count=1 + len(path) * (2 if way == in_batch else 1))


def fail(peer: RawPeer, asked: Any, code: int, **data: Any) -> None:
    peer.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": "as asked", "data": data}})


#: How a call ends, and the error of both spans of the hub.
ENDS: dict[str, tuple[Callable[[RawPeer, RawPeer, Any], None], str]] = {
    "an error": (lambda provider, caller, asked: fail(provider, asked, 7), "7"),
    "a cancel": (lambda provider, caller, asked: caller.cancel(1), CANCELLED),
    "a lost provider": (lambda provider, caller, asked: provider.close(), GONE),
    "a deadline": (lambda provider, caller, asked: None, LATE),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_hub_puts_its_span_in_the_place_of_its_callers_and_says_how_the_call_ends(
    spans: Spans, end: str
) -> None:
    act, error = ENDS[end]
    async with raw_peers(Hub(tracing=spans.provider, call_timeout=0.02 if end == "a deadline" else 20)) as connect:
        provider, caller = await connect(), await connect()
        await provider.result("rpc.register", params={"methods": ["m"]})
        caller.call("m", 1, traceparent=PARENT, x=100, tracestate="a=b")
        text = await provider.receive_bytes() or b""
        assert text.count(b"traceparent") == text.count(b"tracestate") == 1
        asked = parsed(text)
        assert (asked["x"], asked["params"], asked["tracestate"]) == (100, [1], "a=b")
        act(provider, caller, asked)
        assert str(await caller.code()) == error
        await spans.are(("m SERVER", "m CLIENT"))
    assert spans.errors == [error, error]
    assert asked["traceparent"] == f"00-{TRACE}-{id_of(spans.one('m', SpanKind.CLIENT))}-01"
    assert parent_of(spans.one("m")) == SPAN


async def test_a_call_that_a_hub_sends_again_is_one_span_with_two_below(spans: Spans) -> None:
    async with raw_peers(Hub(tracing=spans.provider)) as connect:
        caller, one, two = await connect(), await connect(), await connect()
        for provider in (one, two):
            await provider.result("rpc.register", params={"methods": [{"name": "m", "shared": True}]})
        caller.call("m")
        fail(one, await one.receive(), int(CANCELLED), executed=False)
        two.answer(asked := await two.receive(), 5)
        assert await caller.result() == 5
        await spans.are(("m SERVER", "m CLIENT"), count=3)
    assert spans.errors == [None, CANCELLED, None]
    assert id_of(spans.all[2]) == asked["traceparent"].split("-")[2]


async def test_the_attributes_are_those_of_the_conventions_and_no_others(spans: Spans, server: UsualServer) -> None:
    async with server.listening(port=0) as address, AsyncClient(address, tracing=spans.provider) as client:
        await client.add(1, 2)
    both = {
        **{"rpc.system.name": "jsonrpc", "rpc.method": "add", "network.transport": "tcp"},
        **{"jsonrpc.protocol.version": "2.0", "jsonrpc.request.id": "1"},
    }
    made, served, port = spans.one("add", SpanKind.CLIENT), spans.one("add"), int(address.rpartition(":")[2])
    assert attributes(made) == {**both, "server.address": "127.0.0.1", "server.port": port}
    own = attributes(served)
    assert own.pop("network.peer.port") != port
    assert own == {**both, "network.peer.address": "127.0.0.1"}
    assert made.status.status_code is served.status.status_code is StatusCode.UNSET
    assert "https://opentelemetry.io/schemas/1.44.0" in str(served.instrumentation_scope)


async def test_errors_have_their_code_and_the_text_that_the_caller_gets(spans: Spans, server: UsualServer) -> None:
    async with memory_client(server, tracing=spans.provider) as client:
        for method, name, code, text in (
            ("fail", "fail", "1", "as asked"),
            ("crash", "crash", "-32603", "Internal error: see"),
            ("nowhere" * 50, "jsonrpc", "-32601", "Method not found"),
        ):
            spans.clear()
            with pytest.raises(RpcError):
                await client.call(method)
            for span in (spans.one(method, SpanKind.CLIENT), spans.one(name)):
                assert attributes(span)["error.type"] == attributes(span)["rpc.response.status_code"] == code
                assert span.status.status_code is StatusCode.ERROR
                assert str(span.status.description).startswith(text)
    assert attributes(span)["rpc.method"] == "_OTHER", "what a caller makes up is no name of a span"
    assert attributes(span)["rpc.method_original"] == ("nowhere" * 50)[:256]


async def test_a_request_that_is_refused_has_a_span_with_the_error(spans: Spans, server: UsualServer) -> None:
    names = [{**request("add", 1, 2), "method": each} for each in ({"a": 1}, ["add"])]
    others = [request("add", id={}), {"id": 1, "method": "add", "params": 7}, request("add", "a")]
    async with raw_peers(server) as connect:
        peer = await connect()
        codes = [str((await peer.ask(message))["error"]["code"]) for message in (*names, *others)]
    assert spans.errors == codes


async def test_calls_and_streams_that_are_cancelled_are_errors(spans: Spans, server: UsualServer) -> None:
    async with memory_client(server, tracing=spans.provider) as client:
        task = asyncio.ensure_future(client.wait())
        await until(lambda: server.begun)
        task.cancel()
        await asyncio.wait([task])
        await spans.are(("wait CLIENT", "wait SERVER"))
        assert spans.errors == ["asyncio.exceptions.CancelledError", CANCELLED]
        spans.clear()
        stream = client.stream.count(1000)
        assert await anext(stream) == 0
        assert not spans.all, "it lasts until it ends"
        await stream.aclose()
        await spans.are(("count CLIENT", "count SERVER"))
        assert spans.errors == [None, CANCELLED], "its reader has had enough"


async def test_a_call_without_a_server_is_a_span_with_the_exception(spans: Spans) -> None:
    async with AsyncClient("127.0.0.1:1", tracing=spans.provider) as client:
        with pytest.raises(ConnectFailed):
            await client.add(1, 2)
    assert spans.errors == ["rpcstream.errors.ConnectFailed"]


async def test_a_call_that_is_sent_again_is_one_span_with_an_event(spans: Spans, server: UsualServer) -> None:
    again: dict[str, Any] = {"retry": Retry(times=2, repeats="all"), "tracing": spans.provider}
    async with server.listening(port=0) as address, AsyncClient(address, **again) as client:
        task = asyncio.ensure_future(client.wait(5))
        await until(lambda: server.begun)
        drop_connections(server)
        await until(lambda: len(server.begun) == 2)
        server.release()
        assert await task == 5
        await spans.are(("wait CLIENT", "wait SERVER"), count=3)
    made = spans.one("wait", SpanKind.CLIENT)
    assert [event.name for event in made.events] == ["retry"]
    assert made.status.status_code is StatusCode.UNSET


async def test_what_a_handler_does_is_part_of_its_call_wherever_it_runs(spans: Spans) -> None:
    server = Server(tracing=spans.provider)

    async def resource() -> AsyncIterator[int]:
        spans.note("open")
        yield 5
        spans.note("close")

    def use(x: Annotated[int, Depends(resource)], ctx: Context) -> None:
        ctx.after_reply(lambda: spans.note("afterwards"))

    def items() -> Iterator[int]:
        spans.note("work")
        yield 1

    async def items_async() -> AsyncIterator[int]:
        await asyncio.sleep(0)
        spans.note("work")
        yield 1

    server.add(lambda: spans.note("work"), name="plain")
    server.add(lambda: spans.note("work"), name="thread", offload="thread")
    server.add(items, name="generator")
    server.add(items_async, name="async generator")
    server.add(use)
    with spans.within("around"):  # of who starts the server, and no part of the calls
        async with memory_client(server) as client:
            for name in ("use", "plain", "thread", "generator", "async generator"):
                parts = ("open", "close", "afterwards") if name == "use" else ("work",)
                for streamed in (False, True) if "generator" in name else (False,):
                    spans.clear()
                    if streamed:
                        assert [item async for item in client.stream_request(name)] == [1]
                    else:
                        await client.call(name)
                    await spans.are(*((f"{name} SERVER", f"{part} INTERNAL") for part in parts))
    await spans.are((f"{name} SERVER", "work INTERNAL"), ("around INTERNAL",))


async def test_calls_back_are_part_of_the_trace(spans: Spans) -> None:
    server = Server(tracing=spans.provider)

    @server
    async def ask(ctx: Context) -> list[int]:
        ctx.peer.notify.note()
        await ctx.peer.note()
        return [item async for item in ctx.peer.stream.items()]

    @server(offload="thread")
    def ask_in_thread(ctx: Context) -> list[int]:
        ctx.peer.notify.note()
        ctx.peer.note()
        return list(ctx.peer.stream.items())

    async with memory_client(server, tracing=spans.provider) as client:

        @client
        def note() -> None: ...

        @client
        def items() -> Iterator[int]:
            yield from range(2)

        for name in ("ask", "ask_in_thread"):
            spans.clear()
            assert await client.call(name) == [0, 1]
            ways = [(f"{each} CLIENT", f"{each} SERVER") for each in (name, "note", "items")]
            await spans.are(ways[0] + ways[1], ways[0] + ways[2], count=8)


def test_every_way_of_the_sync_client_makes_one_trace(spans: Spans, server: UsualServer) -> None:
    with serve_in_thread(server) as address, Client(address, tracing=spans.provider) as client:

        def in_batch() -> None:
            with client.batch() as batch:
                batch.fail(), batch.notify.fail()

        ways: dict[str, Callable[[], Any]] = {
            "add": lambda: client.add(1, 2),
            "echo": lambda: client(request("echo", 1, id="raw")),
            "echo_after": lambda: client.submit.echo_after(1, 0).result(),
            "note": lambda: client.notify.note(1),
            "fail": in_batch,
            "count": lambda: list(client.stream.count(3)),
            "echo_in_thread": lambda: client.echo_in_thread(1),  # by the event loop, since there was a stream
        }
        for name, way in ways.items():
            spans.clear()
            with spans.within("work"):
                way()
            path = ("work INTERNAL", f"{name} CLIENT", f"{name} SERVER")
            asyncio.run(spans.are(path, count=5 if name == "fail" else 3))
            if name == "fail":
                assert [error for error in spans.errors if error] == ["1"] * 3, "a notification has no reply"
        spans.clear()
        with client.batch() as batch:
            batch.notify.note(1)
        asyncio.run(spans.are(("note CLIENT", "note SERVER"), count=2))
        spans.clear()
        client(request("fail", id=5, traceparent=PARENT))  # has a trace of its own
        asyncio.run(spans.are(("fail CLIENT",), ("fail SERVER",)))
    assert parent_of(spans.one("fail")) == SPAN
    assert attributes(spans.one("fail", SpanKind.CLIENT))["jsonrpc.request.id"] == "5"


async def test_calls_over_http_carry_the_trace_as_headers_too(spans: Spans) -> None:
    def headers(ctx: Context) -> str:
        return ctx.headers["traceparent"]

    server = Server()
    server.add(headers)
    async with server.listening(port=0) as at, AsyncClient(f"http://{at}", tracing=spans.provider) as client:
        assert (await client.headers()).split("-")[2] == id_of(spans.one("headers", SpanKind.CLIENT))


async def test_the_headers_of_http_count_where_the_request_has_no_trace(spans: Spans, server: UsualServer) -> None:
    app, other = server.asgi(), "1" * 16
    for parent, member in ((SPAN, "junk"), (SPAN, None), (other, f"00-{TRACE}-{other}-01")):
        spans.clear()
        await post(app, request("add", 1, 2, traceparent=member), traceparent=PARENT, host="localhost:8545")
        assert parent_of(spans.one("add")) == parent
    assert attributes(spans.one("add"))["network.peer.address"] == "127.0.0.1"
    assert attributes(spans.one("add"))["server.port"] == 8545
    server.stop()
    await until(lambda: not server.is_running)


async def test_of_what_peers_send_the_context_is_read_if_it_is_one(spans: Spans, server: UsualServer) -> None:
    server.add(lambda: format(trace.get_current_span().get_span_context().span_id, "016x"), name="current")
    parents: list[Any] = [
        *(5, None, ["00"], "", "00-4bf9", PARENT.upper(), PARENT + "-more", PARENT.replace("00-", "ff-", 1)),
        PARENT.replace("00-", "01-", 1) + "-" + "x" * 600,
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", "0" * 100_000),
    ]
    states: list[Any] = ["a=b,c=d", 5, "x" * 100_000, "no state"]
    async with raw_peers(server) as connect:
        peer = await connect()
        for parent in parents:
            await peer.result("add", 1, 2, traceparent=parent, tracestate="a=b")
        assert [span.parent for span in spans.all] == [None] * len(parents)
        spans.clear()
        for state in states:
            await peer.result("add", 1, 2, traceparent=PARENT, tracestate=state)
        contexts = [span.context for span in spans.all if span.context is not None]
        assert [format(each.trace_id, "032x") for each in contexts] == [TRACE] * len(states)
        assert [dict(each.trace_state) for each in contexts] == [{"a": "b", "c": "d"}, {}, {}, {}]
        spans.clear()
        await peer.result("rpc.ping")
        assert await peer.result("current", traceparent=PARENT[:-2] + "00") not in (SPAN, "0" * 16)
        assert not spans.all, "a ping has a span in a trace alone, and what is not sampled has none"
        await peer.result("rpc.ping", traceparent=PARENT)
        assert parent_of(spans.one("rpc.ping")) == SPAN


async def test_without_tracing_there_is_no_span(spans: Spans) -> None:
    for make in (Server, Hub, Client, AsyncClient):
        with pytest.raises(TypeError, match="tracing is True, False or a TracerProvider"):
            make(tracing="yes")
    for tracing, count in ((False, 0), (spans.provider, 1)):
        async with memory_client(UsualServer(tracing=tracing)) as client:
            await client.add(1, 2)
        assert len(spans.all) == count
    for given, found in (({}, True), ({"tracing": spans.provider}, spans.provider)):  # configurations may ask for it
        assert client_options({"tracing": True}, given)["tracing"] is found
        assert hub_options({"tracing": True}, given).options["tracing"] is found


@pytest.mark.slow
def test_without_the_option_nothing_is_imported_and_with_it_the_global_provider_is_used() -> None:
    code = """
import sys
import pytest
from rpcstream import Client, Hub, Server
from rpcstream.testing import serve_in_thread

def run(**options):
    server = Server(**options)
    server.add(lambda a, b: a + b, name="add")
    with serve_in_thread(server) as address, serve_in_thread(Hub(**options)), Client(address, **options) as client:
        assert client.add(1, 2) == client.submit.add(1, 2).result() == 3

run()
assert not [name for name in sys.modules if name.partition(".")[0] == "opentelemetry" or name.endswith(".tracing")]
sys.modules["opentelemetry"] = None
with pytest.raises(ImportError, match=r"rpcstream\\[opentelemetry\\]"):
    Server(tracing=True)
del sys.modules["opentelemetry"]
run(tracing=True)  # without an SDK there are no spans, and calls go as before
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
run(tracing=True)
assert len(exporter.get_finished_spans()) == 4, exporter.get_finished_spans()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
