"""Spans of calls: which there are, whose parts they are, what they say, and that nothing is imported without them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rpcstream import (
    AsyncClient,
    CallCancelled,
    CallNext,
    CallTimeout,
    Client,
    ConnectFailed,
    Context,
    DeadlineExceeded,
    Depends,
    Hub,
    MethodCall,
    MethodNotFound,
    RpcError,
    Server,
)
from rpcstream.config import client_options, hub_options
from rpcstream.testing import drop_connections, memory_client, serve_in_thread
from tests.kit.asgi import call, connected, post
from tests.kit.raw_connection import RawConnection
from tests.kit.waiting import until

#: Connects to a server: the fixture `connect`.
Connect = Callable[[str], Awaitable[RawConnection]]

#: A caller's trace, span, and the member that names them.
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def line(call_id: int, method: str, params: Any = None, **members: Any) -> str:
    """A request, with a line end."""
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params, **members}) + "\n"


class Spans:
    """The spans that have ended, and a provider for them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        #: The seconds of each call of the method `wait` that has begun.
        self.waiting: list[float] = []

    @property
    def all(self) -> list[ReadableSpan]:
        """In the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    async def wait_for(self, count: int) -> list[ReadableSpan]:
        """All spans, once there are so many."""
        await until(lambda: len(self.all) >= count)
        assert len(self.all) == count, tree(self.all)
        return self.all

    def one(self, name: str, kind: SpanKind = SpanKind.SERVER) -> ReadableSpan:
        found = [span for span in self.all if (span.name, span.kind) == (name, kind)]
        assert len(found) == 1, tree(self.all)
        return found[0]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def tree(spans: list[ReadableSpan]) -> set[tuple[str, ...]]:
    """Each span as the path from the root of its trace: "add CLIENT", "add SERVER"."""
    by_id = {id_of(span): span for span in spans}

    def path(span: ReadableSpan) -> tuple[str, ...]:
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        before = path(above) if above is not None else ()
        return (*before, f"{span.name} {span.kind.name}")

    return {path(span) for span in spans}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span, without the port of a client, which the system has chosen."""
    found = dict(span.attributes or {})
    if span.kind is SpanKind.SERVER:
        found.pop("network.peer.port", None)
    return found


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture(scope="module")
def metrics_reader() -> InMemoryMetricReader:
    """Of the global meter provider, which can be set once."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


def make_server(spans: Spans, **options: Any) -> Server:
    server = Server(tracing=spans.provider, **options)

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def current() -> str:
        return format(trace.get_current_span().get_span_context().span_id, "016x")

    @server
    async def wait(seconds: float) -> None:
        spans.waiting.append(seconds)
        await asyncio.sleep(seconds)

    @server
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    @server
    def fail() -> None:
        raise RpcError(7, "no such thing")

    @server
    def crash() -> None:
        raise ValueError("a secret")

    return server


# -- one trace --------------------------------------------------------------------------------------------------------


async def test_one_trace_goes_from_a_client_through_a_hub_to_its_provider(spans: Spans) -> None:
    async with hub_with_provider(spans) as (address, _), AsyncClient(address, tracing=spans.provider) as client:
        with spans.tracer.start_as_current_span("work"):
            assert await client.adder.add(1, 2) == 3
        found = await spans.wait_for(6)
    path = ("work INTERNAL", "adder.add CLIENT", "adder.add SERVER", "add CLIENT", "add SERVER", "sum INTERNAL")
    assert tree(found) == {path[:length] for length in range(1, 7)}
    assert len({span.context.trace_id for span in found if span.context is not None}) == 1


@asynccontextmanager
async def hub_with_provider(spans: Spans, **options: Any) -> AsyncIterator[tuple[str, AsyncClient]]:
    """A hub with tracing, and a client of it that offers `adder.add`."""
    hub = Hub(**{"tracing": spans.provider, **options})
    async with hub.listening(port=0) as address, AsyncClient(address, name="adder", tracing=spans.provider) as provider:

        @provider
        async def add(a: int, b: int) -> int:
            with spans.tracer.start_as_current_span("sum"):
                return a + b

        @provider
        def fail() -> None:
            raise RpcError(7, "no such thing")

        @provider
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        @provider
        async def wait(seconds: float) -> None:
            spans.waiting.append(seconds)
            await asyncio.sleep(seconds)

        await provider.offer()
        yield address, provider


async def test_a_hub_without_tracing_passes_the_trace_on(spans: Spans) -> None:
    hub = hub_with_provider(spans, tracing=False)
    async with hub as (address, _), AsyncClient(address, tracing=spans.provider) as client:
        await client.adder.add(1, 2)
        found = await spans.wait_for(3)
    assert tree(found) == {
        ("adder.add CLIENT",),
        ("adder.add CLIENT", "add SERVER"),
        ("adder.add CLIENT", "add SERVER", "sum INTERNAL"),
    }


async def test_a_hub_that_traces_puts_its_span_in_the_place_of_its_callers(spans: Spans, connect: Connect) -> None:
    async with Hub(tracing=spans.provider).listening(port=0) as address:
        provider, caller = await connect(address), await connect(address)
        await provider.call("rpc.register", {"methods": ["m"]})
        await caller.send(line(1, "m", {"a": 1}, traceparent=PARENT, x=1e2, tracestate="a=b", timeout=5))
        text = (await provider.reader.readline()).decode()
        request = json.loads(text)
        version, trace_id, span_id, flags = request["traceparent"].split("-")
        assert (version, trace_id, flags, request["tracestate"]) == ("00", TRACE, "01", "a=b")
        assert text.count("traceparent") == text.count("tracestate") == 1
        assert request["x"] == 100
        assert request["params"] == {"a": 1}
        await provider.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": None}) + "\n")
        await caller.reply()
        found = await spans.wait_for(2)
    assert tree(found) == {("m SERVER",), ("m SERVER", "m CLIENT")}
    assert format(id_of(spans.one("m", SpanKind.CLIENT)), "016x") == span_id


async def test_a_trace_goes_through_a_hub_in_every_form_of_a_call(spans: Spans) -> None:
    async with hub_with_provider(spans) as (address, _), AsyncClient(address, tracing=spans.provider) as client:
        assert [item async for item in client.stream.adder.count(2)] == [0, 1]
        await spans.wait_for(4)
        async with client.batch() as batch:
            batch.adder.count(3)
        await spans.wait_for(8)
        await client.notify.adder.count(1)
        found = await spans.wait_for(12)
    path = ("adder.count CLIENT", "adder.count SERVER", "count CLIENT", "count SERVER")
    assert tree(found) == {path[:length] for length in range(1, 5)}
    assert len({span.context.trace_id for span in found if span.context is not None}) == 3


async def test_errors_of_a_provider_are_those_of_each_span(spans: Spans) -> None:
    async with hub_with_provider(spans) as (address, _), AsyncClient(address, tracing=spans.provider) as client:
        with pytest.raises(RpcError):
            await client.adder.fail()
        found = await spans.wait_for(4)
    assert {(span.status.status_code, span.status.description) for span in found} == {
        (StatusCode.ERROR, "no such thing")
    }
    assert {span.attributes["error.type"] for span in found if span.attributes} == {"7"}


async def test_a_call_whose_provider_is_lost_ends_all_spans(spans: Spans) -> None:
    async with hub_with_provider(spans) as (address, provider), AsyncClient(address, tracing=spans.provider) as client:
        task = asyncio.ensure_future(client.adder.wait(60))
        await until(lambda: spans.waiting)
        drop_connections(provider)
        with pytest.raises(RpcError, match="gone"):
            await task
        found = await spans.wait_for(4)
    by_name = {(span.name, span.kind.name): attributes(span)["error.type"] for span in found}
    assert by_name == {
        ("adder.wait", "CLIENT"): "-32007",
        ("adder.wait", "SERVER"): "-32007",
        ("wait", "CLIENT"): "rpcstream.errors.ConnectionLost",
        ("wait", "SERVER"): "-32800",
    }


async def test_a_call_that_a_hub_sends_again_is_one_span_with_two_below(spans: Spans, connect: Connect) -> None:
    async with Hub(tracing=spans.provider).listening(port=0) as address:
        caller, one, two = await connect(address), await connect(address), await connect(address)
        for provider in (one, two):
            await provider.call("rpc.register", {"methods": [{"name": "m", "shared": True}]})
        await caller.send(line(1, "m", traceparent=PARENT))
        request = await one.reply()
        error = {"code": -32800, "message": "Cancelled", "data": {"executed": False}}
        await one.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}) + "\n")
        request = await two.reply()
        await two.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": 5}) + "\n")
        assert (await caller.reply())["result"] == 5
        served, first, second = await spans.wait_for(3)
    assert tree([served, first, second]) == {("m SERVER",), ("m SERVER", "m CLIENT")}
    assert format(id_of(second), "016x") == request["traceparent"].split("-")[2]
    assert attributes(first)["error.type"] == "-32800"
    assert served.status.status_code is second.status.status_code is StatusCode.UNSET


async def test_a_call_that_is_too_late_at_a_hub_says_so(spans: Spans, connect: Connect) -> None:
    async with Hub(tracing=spans.provider, call_timeout=0.02).listening(port=0) as address:
        caller, provider = await connect(address), await connect(address)
        await provider.call("rpc.register", {"methods": ["m"]})
        assert (await caller.call("m"))["error"]["code"] == DeadlineExceeded.CODE
        served, made = await spans.wait_for(2)
    assert attributes(served)["error.type"] == str(DeadlineExceeded.CODE)
    assert attributes(made)["error.type"] == "rpcstream.errors.CallTimeout"


async def test_a_cancelled_call_ends_all_spans_at_a_hub(spans: Spans, connect: Connect) -> None:
    async with Hub(tracing=spans.provider).listening(port=0) as address:
        caller, provider = await connect(address), await connect(address)
        await provider.call("rpc.register", {"methods": ["m"]})
        await caller.send(line(1, "m"))
        await provider.reply()
        await caller.ask('{"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}}')
        found = await spans.wait_for(2)
    assert {attributes(span)["error.type"] for span in found} == {str(CallCancelled.CODE)}


async def test_calls_that_a_hub_holds_and_gives_up_end_their_spans(spans: Spans, connect: Connect) -> None:
    async with Hub(tracing=spans.provider, grace=0.05).listening(port=0) as address:
        caller = await connect(address)
        reply = await caller.call("away", [])
        assert reply["error"]["code"] == MethodNotFound.CODE
        found = await spans.wait_for(1)
        assert attributes(found[0])["rpc.method_original"] == "away"
        assert attributes(found[0])["error.type"] == "-32601"


async def test_calls_that_a_hub_holds_go_on_in_their_trace(spans: Spans, connect: Connect) -> None:
    async with Hub(tracing=spans.provider, grace=20).listening(port=0) as address:
        caller, provider = await connect(address), await connect(address)
        await caller.send(line(1, "later", traceparent=PARENT))
        await caller.call("rpc.ping")
        await provider.send(line(1, "rpc.register", {"methods": ["later"]}))
        messages = [await provider.reply(), await provider.reply()]
        request = next(message for message in messages if "method" in message)
        assert request["traceparent"].split("-")[1] == TRACE
        await provider.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": 5}) + "\n")
        assert (await caller.reply())["result"] == 5
        found = await spans.wait_for(2)
    assert tree(found) == {("jsonrpc SERVER",), ("jsonrpc SERVER", "later CLIENT")}


async def test_calls_through_an_asgi_server_are_spans_of_their_callers_traces(spans: Spans) -> None:
    server = make_server(spans)
    app = server.asgi()
    answer = await post(app, call("current", id=5, traceparent=PARENT))
    websocket = await connected(app)
    websocket.text(call("fail", id=6, traceparent=PARENT))
    await until(lambda: websocket.messages)
    websocket.close()
    await websocket.ended()
    first, second = await spans.wait_for(2)
    assert answer.json["result"] == format(id_of(first), "016x")
    for span, name in ((first, "current"), (second, "fail")):
        assert span.parent is not None
        assert format(span.parent.span_id, "016x") == SPAN
        assert (span.name, span.kind, format(span.parent.trace_id, "032x")) == (name, SpanKind.SERVER, TRACE)
        assert attributes(span)["network.peer.address"] == "127.0.0.1"
    assert (attributes(first)["jsonrpc.request.id"], attributes(second)["error.type"]) == ("5", "7")
    server.stop()
    await until(lambda: not server.is_running)


# -- what a span says -------------------------------------------------------------------------------------------------


async def test_the_attributes_are_those_of_the_conventions_and_no_others(spans: Spans) -> None:
    server = make_server(spans)
    async with server.listening(port=0) as address, AsyncClient(address, tracing=spans.provider) as client:
        await client.add(1, 2)
    port = int(address.rpartition(":")[2])
    both = {
        "rpc.system.name": "jsonrpc",
        "rpc.method": "add",
        "jsonrpc.protocol.version": "2.0",
        "jsonrpc.request.id": "1",
        "network.transport": "tcp",
    }
    made, served = spans.one("add", SpanKind.CLIENT), spans.one("add")
    assert attributes(made) == {**both, "server.address": "127.0.0.1", "server.port": port}
    assert attributes(served) == {**both, "network.peer.address": "127.0.0.1"}
    assert made.status.status_code is served.status.status_code is StatusCode.UNSET
    assert served.instrumentation_scope is not None
    assert served.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


async def test_errors_have_their_code_and_the_text_that_the_caller_gets(spans: Spans) -> None:
    async with memory_client(make_server(spans), tracing=spans.provider) as client:
        for name in ("fail", "crash"):
            with pytest.raises(RpcError):
                await client.call(name)
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        for name, code, text in (("fail", "7", "no such thing"), ("crash", "-32603", "Internal error: see")):
            span = spans.one(name, kind)
            assert attributes(span)["error.type"] == attributes(span)["rpc.response.status_code"] == code
            assert span.status.status_code is StatusCode.ERROR
            assert str(span.status.description).startswith(text)


async def test_unknown_methods_have_one_name_at_the_server(spans: Spans) -> None:
    async with memory_client(make_server(spans)) as client:
        for name in ("nowhere", "n" * 1000):
            with pytest.raises(MethodNotFound):
                await client.call(name)
    for span, original in zip(spans.all, ("nowhere", "n" * 256), strict=True):
        assert (span.name, attributes(span)["rpc.method"]) == ("jsonrpc", "_OTHER")
        assert attributes(span)["rpc.method_original"] == original
        assert attributes(span)["error.type"] == "-32601"


@pytest.mark.parametrize(
    "request_line",
    [
        '{"jsonrpc": "2.0", "id": 1, "method": {"a": 1}}',
        '{"jsonrpc": "2.0", "id": 1, "method": ["add"]}',
        '{"jsonrpc": "2.0", "id": {}, "method": "add"}',
        '{"id": 1, "method": "add", "params": 7}',
        '{"jsonrpc": "2.0", "id": 1, "method": "add", "params": ["a"]}',
    ],
)
async def test_requests_that_are_refused_have_a_span_with_the_error(
    spans: Spans, connect: Connect, request_line: str
) -> None:
    async with make_server(spans).listening(port=0) as address:
        reply = await (await connect(address)).ask(request_line)
    assert attributes(spans.all[0])["error.type"] == str(reply["error"]["code"])


async def test_cancelled_and_late_calls_are_errors(spans: Spans) -> None:
    async with memory_client(make_server(spans), tracing=spans.provider) as client:
        task = asyncio.ensure_future(client.wait(60))
        await until(lambda: spans.waiting)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await spans.wait_for(2)
        assert attributes(spans.one("wait"))["error.type"] == str(CallCancelled.CODE)
        assert attributes(spans.one("wait", SpanKind.CLIENT))["error.type"] == "asyncio.exceptions.CancelledError"
        spans.exporter.clear()
        with pytest.raises((CallTimeout, DeadlineExceeded)):
            await client.wait(60, timeout=0.05)
        await spans.wait_for(2)
        assert attributes(spans.one("wait"))["error.type"] in (str(DeadlineExceeded.CODE), str(CallCancelled.CODE))
        assert spans.one("wait", SpanKind.CLIENT).status.status_code is StatusCode.ERROR


async def test_a_call_that_is_cancelled_before_it_begins_holds_nothing(spans: Spans, connect: Connect) -> None:
    server = Server(tracing=spans.provider)

    @server(ordered=True)
    async def consume(items: AsyncIterator[int]) -> list[int]:
        return [item async for item in items]

    cancel = json.dumps({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}}) + "\n"
    async with server.listening(port=0) as address:
        raw = await connect(address)
        for _ in range(3):  # the stream's name is free again, and so is the call's place in the order
            await raw.send(line(1, "consume", [{"$type": "stream", "id": "s"}]) + cancel)
            reply = await raw.reply()
            while "method" in reply:  # from Python 3.12 on it begins at once, and asks for items
                reply = await raw.reply()
            assert reply["error"]["code"] == CallCancelled.CODE
        found = await spans.wait_for(3)
    assert {attributes(span)["error.type"] for span in found} == {str(CallCancelled.CODE)}


async def test_a_call_without_a_server_is_a_span_with_the_exception(spans: Spans) -> None:
    async with AsyncClient("127.0.0.1:1", tracing=spans.provider) as client:
        with pytest.raises(ConnectFailed):
            await client.add(1, 2)
        with pytest.raises(ConnectFailed):
            async for _ in client.stream.count(1):
                pass
    assert [attributes(span)["error.type"] for span in spans.all] == ["rpcstream.errors.ConnectFailed"] * 2


async def test_a_call_that_is_sent_again_is_one_span_with_an_event(spans: Spans) -> None:
    server = make_server(spans)
    tries = []

    @server
    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            drop_connections(server)
            await asyncio.sleep(60)
        return "done"

    again: dict[str, Any] = {"retries": 2, "retry": "all", "tracing": spans.provider}
    async with server.listening(port=0) as address, AsyncClient(address, **again) as client:
        assert await client.flaky() == "done"
    made = spans.one("flaky", SpanKind.CLIENT)
    assert [event.name for event in made.events] == ["retry"]
    assert made.status.status_code is StatusCode.UNSET
    assert {span.parent.span_id for span in spans.all if span.parent is not None} == {id_of(made)}
    assert len(spans.all) == 3


# -- where a span is the current one ----------------------------------------------------------------------------------


async def test_spans_of_handlers_are_children_wherever_they_run(spans: Spans) -> None:
    server = Server(tracing=spans.provider)

    def work() -> None:
        with spans.tracer.start_as_current_span("work"):
            pass

    async def work_async() -> None:
        await asyncio.sleep(0)
        work()

    def items() -> Iterator[int]:
        work()
        yield 1

    async def items_async() -> AsyncIterator[int]:
        work()
        yield 1

    streamed: set[str] = set()  # a generator is called first, then streamed
    server.add(work, name="plain")
    server.add(work, name="thread", offload="thread")
    server.add(work_async, name="async")
    server.add(items, name="generator")
    server.add(items, name="generator in a thread", offload="thread")
    server.add(items_async, name="async generator")
    generators = ("generator", "generator in a thread", "async generator")
    async with memory_client(server) as client:
        for name in ("plain", "thread", "async", *generators, *generators):
            if name in streamed:
                assert [item async for item in client.stream_request(name)] == [1]
            else:
                await client.call(name)
            streamed.update({name} & set(generators))
            assert tree(spans.all) == {(f"{name} SERVER",), (f"{name} SERVER", "work INTERNAL")}
            spans.exporter.clear()
        assert trace.get_current_span() is trace.INVALID_SPAN


async def test_calls_side_by_side_have_their_own_spans(spans: Spans) -> None:
    server = Server(tracing=spans.provider)

    @server
    async def work(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            with spans.tracer.start_as_current_span(name):
                pass

    async with memory_client(server, tracing=spans.provider) as client:
        names = [f"call {number}" for number in range(5)]

        async def call(name: str) -> None:
            with spans.tracer.start_as_current_span(f"{name} made"):
                await client.work(name)

        await asyncio.gather(*map(call, names))
    expected = {(f"{name} made INTERNAL", "work CLIENT", "work SERVER", f"{name} INTERNAL") for name in names}
    assert {path for path in tree(spans.all) if len(path) == 4} == expected


async def test_middleware_runs_inside_of_the_span(spans: Spans) -> None:
    server = make_server(spans)

    @server.middleware
    async def note(call: MethodCall, call_next: CallNext) -> Any:
        with spans.tracer.start_as_current_span("middleware"):
            return await call_next(call)

    async with memory_client(server) as client:
        assert await client.add(1, 2) == 3
        assert tree(spans.all) == {("add SERVER",), ("add SERVER", "middleware INTERNAL")}


async def test_what_belongs_to_a_call_is_part_of_it_also_after_its_reply(spans: Spans) -> None:
    server = Server(tracing=spans.provider)

    def note(name: str) -> None:
        with spans.tracer.start_as_current_span(name):
            pass

    async def resource() -> AsyncIterator[int]:
        note("open")
        yield 5
        note("close")

    @server
    def use(x: Annotated[int, Depends(resource)], ctx: Context) -> int:
        ctx.after_reply(lambda: note("afterwards"))
        return x

    async with memory_client(server) as client:
        assert await client.use() == 5
        found = await spans.wait_for(4)
    below = {("use SERVER", f"{name} INTERNAL") for name in ("open", "close", "afterwards")}
    assert tree(found) == {("use SERVER",)} | below


@pytest.mark.parametrize("offload", [None, "thread"])
async def test_calls_back_are_part_of_the_trace(spans: Spans, offload: Any) -> None:
    server = Server(tracing=spans.provider)
    if offload is None:

        @server
        async def ask(ctx: Context) -> list[int]:
            ctx.peer.notify.note(1)
            await ctx.peer.confirm()
            return [item async for item in ctx.peer.stream.items()]

    else:

        @server(offload="thread", name="ask")
        def ask_in_thread(ctx: Context) -> list[int]:
            ctx.peer.notify.note(1)
            ctx.peer.confirm()
            return list(ctx.peer.stream.items())

    async with server.listening(port=0) as address, AsyncClient(address, tracing=spans.provider) as client:

        @client
        def note(x: int) -> None: ...

        @client
        def confirm() -> None: ...

        @client
        def items() -> Iterator[int]:
            yield from range(2)

        assert await client.ask() == [0, 1]
        found = await spans.wait_for(8)
    ask_path = ("ask CLIENT", "ask SERVER")
    expected = {ask_path[:1], ask_path}
    for name in ("note", "confirm", "items"):
        expected |= {(*ask_path, f"{name} CLIENT"), (*ask_path, f"{name} CLIENT", f"{name} SERVER")}
    assert tree(found) == expected


# -- every way to call ------------------------------------------------------------------------------------------------


def test_every_way_of_the_sync_client_makes_one_trace(spans: Spans) -> None:
    with serve_in_thread(make_server(spans)) as address, Client(address, tracing=spans.provider) as client:
        ways: list[Any] = [
            lambda: client.add(1, 2),
            lambda: client.request("add", [1, 2]),
            lambda: client({"jsonrpc": "2.0", "id": "raw", "method": "add", "params": [1, 2]}),
            lambda: client.submit.add(1, 2).result(),
            lambda: client.notify.add(1, 2),
            lambda: list(client.stream.count(3)),
            lambda: client.add(1, 2),  # by the event loop, since there was a stream
        ]
        for way in ways:
            spans.exporter.clear()
            with spans.tracer.start_as_current_span("work"):
                way()
            asyncio.run(spans.wait_for(3))
            name = spans.one("work", SpanKind.INTERNAL) and spans.all[1].name
            path = ("work INTERNAL", f"{name} CLIENT", f"{name} SERVER")
            assert tree(spans.all) == {path[:length] for length in range(1, 4)}


def test_raw_requests_keep_a_trace_of_their_own_and_tell_of_errors(spans: Spans) -> None:
    with serve_in_thread(make_server(spans)) as address, Client(address, tracing=spans.provider) as client:
        client({"jsonrpc": "2.0", "id": 5, "method": "fail", "traceparent": PARENT})
        asyncio.run(spans.wait_for(2))
    served, made = spans.one("fail"), spans.one("fail", SpanKind.CLIENT)
    assert served.parent is not None
    assert format(served.parent.span_id, "016x") == SPAN
    assert attributes(made)["error.type"] == "7"
    assert attributes(made)["jsonrpc.request.id"] == "5"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_batch_has_a_span_for_each_of_its_members(spans: Spans, kind: str) -> None:
    with serve_in_thread(make_server(spans)) as address:
        if kind == "sync":
            with Client(address, tracing=spans.provider) as client, client.batch() as batch:
                batch.add(1, 2), batch.fail(), batch.notify.count(1)
        else:

            async def call() -> None:
                async with AsyncClient(address, tracing=spans.provider) as client, client.batch() as batch:
                    batch.add(1, 2), batch.fail(), batch.notify.count(1)

            asyncio.run(call())
        asyncio.run(spans.wait_for(6))
    expected = set[tuple[str, ...]]()
    for name in ("add", "fail", "count"):
        expected |= {(f"{name} CLIENT",), (f"{name} CLIENT", f"{name} SERVER")}
        made, served = spans.one(name, SpanKind.CLIENT), spans.one(name)
        assert attributes(made).get("error.type") == attributes(served).get("error.type")
        assert attributes(made).get("jsonrpc.request.id") == attributes(served).get("jsonrpc.request.id")
    assert tree(spans.all) == expected
    assert attributes(spans.one("fail"))["error.type"] == "7"


def test_a_batch_of_notifications_carries_a_trace_for_each(spans: Spans) -> None:
    with serve_in_thread(make_server(spans)) as address, Client(address, tracing=spans.provider) as client:
        with spans.tracer.start_as_current_span("work"), client.batch() as batch:
            batch.notify.add(1, 2)
            batch.notify.count(1)
        asyncio.run(spans.wait_for(5))
    assert {path[-1] for path in tree(spans.all) if len(path) == 3} == {"add SERVER", "count SERVER"}


async def test_a_stream_is_a_span_until_it_ends(spans: Spans) -> None:
    async with memory_client(make_server(spans), tracing=spans.provider) as client:
        stream = client.stream.count(1000)
        assert await anext(stream) == 0
        assert not spans.all
        await stream.aclose()
        await spans.wait_for(2)
        assert spans.one("count", SpanKind.CLIENT).status.status_code is StatusCode.UNSET  # its reader has had enough
        assert attributes(spans.one("count"))["error.type"] == str(CallCancelled.CODE)
        assert attributes(spans.one("count", SpanKind.CLIENT))["jsonrpc.request.id"] == "1"
        spans.exporter.clear()
        async for _ in client.stream.count(1000):
            break
        await spans.wait_for(2)
        spans.exporter.clear()
        with pytest.raises(RpcError):
            async for _ in client.stream.fail():
                pass
        assert attributes(spans.one("fail", SpanKind.CLIENT))["error.type"] == "7"


async def test_calls_over_http_carry_the_trace_as_headers_too(spans: Spans) -> None:
    bodies: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(int(each[15:]) for each in head.lower().split(b"\r\n") if each.startswith(b"content-length"))
        bodies.extend((head, await reader.readexactly(size)))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n{"jsonrpc":"2.0","id":1,"result":3} ')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AsyncClient(address, tracing=spans.provider) as client:
        assert await client.add(1, 2) == 3
    made = spans.one("add", SpanKind.CLIENT)
    assert made.context is not None
    parent = f"00-{made.context.trace_id:032x}-{id_of(made):016x}-{made.context.trace_flags:02x}"
    assert f"\r\ntraceparent: {parent}\r\n".encode() in bodies[0]
    assert json.loads(bodies[1])["traceparent"] == parent


async def test_one_trace_over_http_and_websocket(spans: Spans) -> None:
    async with make_server(spans).listening(port=0) as address:
        for scheme in ("http", "ws"):
            spans.exporter.clear()
            async with AsyncClient(f"{scheme}://{address}", tracing=spans.provider) as client:
                assert await client.add(1, 2) == 3
                assert [item async for item in client.stream.count(2)] == [0, 1]
                found = await spans.wait_for(4)
            assert tree(found) == {
                ("add CLIENT",),
                ("add CLIENT", "add SERVER"),
                ("count CLIENT",),
                ("count CLIENT", "count SERVER"),
            }
            assert attributes(spans.one("add"))["server.port"] == int(address.rpartition(":")[2])


@pytest.mark.parametrize(
    ("members", "span_id"),
    [({}, SPAN), ({"traceparent": f"00-{TRACE}-{'1' * 16}-01"}, "1" * 16), ({"traceparent": "junk"}, SPAN)],
)
async def test_the_headers_of_http_count_where_the_request_has_no_trace(
    spans: Spans, connect: Connect, members: dict[str, str], span_id: str
) -> None:
    async with make_server(spans).listening(port=0) as address:
        body = line(1, "add", [1, 2], **members)
        head = f"POST / HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\ntraceparent: {PARENT}\r\n"
        raw = await connect(address)
        await raw.send(f"{head}Connection: close\r\nContent-Type: application/json\r\n\r\n{body}")
        await raw.is_over()
    parent = spans.one("add").parent
    assert parent is not None
    assert format(parent.span_id, "016x") == span_id


# -- what peers send --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members",
    [
        {"traceparent": 5},
        {"traceparent": None},
        {"traceparent": ["00"]},
        {"traceparent": ""},
        {"traceparent": "00-4bf9"},
        {"traceparent": PARENT.upper()},
        {"traceparent": PARENT + "-more"},
        {"traceparent": PARENT.replace("00-", "ff-", 1)},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
        {"traceparent": "0" * 100_000},
        {"tracestate": "a=b"},
    ],
)
async def test_a_malformed_trace_is_ignored(spans: Spans, connect: Connect, members: dict[str, Any]) -> None:
    async with make_server(spans).listening(port=0) as address:
        assert (await (await connect(address)).ask(line(1, "add", [1, 2], **members)))["result"] == 3
    assert spans.one("add").parent is None


@pytest.mark.parametrize(
    ("state", "kept"), [("a=b,c=d", {"a": "b", "c": "d"}), (5, {}), ("x" * 100_000, {}), ("no state", {}), ({}, {})]
)
async def test_a_state_is_taken_if_it_is_one(spans: Spans, connect: Connect, state: Any, kept: dict[str, str]) -> None:
    async with make_server(spans).listening(port=0) as address:
        request = line(1, "add", [1, 2], traceparent=PARENT, tracestate=state)
        assert (await (await connect(address)).ask(request))["result"] == 3
    span = spans.one("add")
    assert span.context is not None
    assert span.context.trace_id == int(TRACE, 16)
    assert dict(span.context.trace_state) == kept


async def test_pings_have_no_spans_but_with_a_trace(spans: Spans, connect: Connect) -> None:
    async with make_server(spans).listening(port=0) as address:
        raw = await connect(address)
        await raw.call("rpc.ping")
        assert not spans.all
        await raw.ask(line(1, "rpc.ping", traceparent=PARENT))
        assert spans.one("rpc.ping").parent is not None


async def test_a_trace_that_is_not_sampled_has_no_spans(spans: Spans, connect: Connect) -> None:
    async with make_server(spans).listening(port=0) as address:
        reply = await (await connect(address)).ask(line(1, "current", traceparent=PARENT[:-2] + "00"))
        assert reply["result"] not in (SPAN, "0" * 16)
        assert not spans.all


# -- durations --------------------------------------------------------------------------------------------------------


async def test_durations_are_measured_at_both_ends(spans: Spans, metrics_reader: InMemoryMetricReader) -> None:
    metrics_reader.get_metrics_data()
    name = "add_measured"
    server = make_server(spans)
    server.add(lambda a: a, name=name)
    async with server.listening(port=0) as address, AsyncClient(address, tracing=spans.provider) as client:
        await client.call(name, 1)
        await client.notify(name, 1)
        with pytest.raises(RpcError):
            await client.call(name)
        await spans.wait_for(6)
    data = metrics_reader.get_metrics_data()
    assert data is not None
    points = {
        (metric.name, dict(point.attributes or {}).get("error.type")): (metric.unit, point)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if dict(point.attributes or {})["rpc.method"] == name
    }
    counts = {key: point.count for key, (_, point) in points.items()}
    assert counts == {
        ("rpc.server.call.duration", None): 2,
        ("rpc.server.call.duration", "-32602"): 1,
        ("rpc.client.call.duration", None): 1,  # without the notification
        ("rpc.client.call.duration", "-32602"): 1,
    }
    unit, point = points["rpc.server.call.duration", "-32602"]
    assert unit == "s"
    assert 0 < point.sum < 60
    assert point.explicit_bounds[:3] == (0.005, 0.01, 0.025)
    assert dict(point.attributes or {}) == {
        "rpc.system.name": "jsonrpc",
        "rpc.method": name,
        "error.type": "-32602",
        "rpc.response.status_code": "-32602",
    }


# -- the option -------------------------------------------------------------------------------------------------------


def test_what_is_no_provider_is_refused() -> None:
    for make in (Server, Hub, Client, AsyncClient):
        with pytest.raises(TypeError, match="tracing is True, False or a TracerProvider"):
            make(tracing="yes")


async def test_tracing_is_switched_on_before_the_server_runs(spans: Spans) -> None:
    server = make_server(spans)
    server.trace_calls(False)
    async with memory_client(server) as client:
        await client.add(1, 2)
        with pytest.raises(RuntimeError, match="running"):
            server.trace_calls(spans.provider)
    assert not spans.all
    server.trace_calls(spans.provider)
    async with memory_client(server) as client:
        await client.add(1, 2)
    assert len(spans.all) == 1


def test_configurations_may_ask_for_it(spans: Spans) -> None:
    assert client_options({"tracing": True})["tracing"] is True
    assert client_options({"tracing": True}, {"tracing": spans.provider})["tracing"] is spans.provider
    assert hub_options({"tracing": True}).options["tracing"] is True
    assert hub_options({"tracing": True}, {"tracing": spans.provider}).options["tracing"] is spans.provider


def test_without_the_option_nothing_is_imported_and_with_it_the_global_provider_is_used() -> None:
    code = """
import sys
from rpcstream import Client, Context, Hub, Server
from rpcstream.testing import serve_in_thread

def run(**options):
    server = Server(**options)
    @server
    def add(a: int, b: int, ctx: Context) -> int:
        return a + b
    with serve_in_thread(server) as address, serve_in_thread(Hub(**options)), Client(address, **options) as client:
        assert client.add(1, 2) == client.submit.add(1, 2).result() == 3

run()
assert not [name for name in sys.modules if name.partition(".")[0] == "opentelemetry" or name.endswith(".tracing")]
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


def test_without_the_package_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from rpcstream import Server
Server()
try:
    Server(tracing=True)
except ImportError as error:
    assert "rpcstream[opentelemetry]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
