"""One instance of a service: which message is whose, sessions that come and go, and what is seen of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytest.importorskip("nats")

from rpcstream import ConnectFailed, Logs, Server

from ..kit import UsualServer, batch, frame, logged, request, until
from ..kit.nats_server import NatsServer
from .conftest import Clock
from .service import ADD, Service, call_of

pytestmark = pytest.mark.nats

SECRET = b'{"jsonrpc":"2.0","id":1,"method":"note","params":["secret"]}'


MESSAGES = [
    *(SECRET, b"[" + SECRET + b"]", b" \n" + SECRET, ADD + b"\n" + SECRET, batch(request("add", 1, 2), SECRET)),
    SECRET.replace(b'"id":1,', b""),
    SECRET.replace(b'"note"', b'"add","method":"note"'),
    SECRET.replace(b'"note"', b'"\\u006eote"'),
    ADD[:-1] + b',"\\u006dethod":"note"}',
    SECRET[:-1] + b',"\\u006dethod":"note"}',
    SECRET[:-1] + b',"x":"' + b"x" * 300_000 + b'"}',
    SECRET.replace(b'"method"', b'"x":"' + b"x" * 300_000 + b'","method":"add","method"'),
    *(frame(SECRET), frame(SECRET.replace(b'"note"', b'"add","method":"note"'))),
    *(frame(b"[" + SECRET + b"]"), frame(ADD, SECRET)),
]


async def test_a_message_calls_the_method_of_its_subject_or_nothing(service: Service) -> None:
    """NATS permits subjects: whoever may publish to one method must not call another one there."""
    server = UsualServer()
    async with service.serving(server), service.raw("plain.*", "mine.rpcstream.*") as raw:
        for number, message in enumerate(MESSAGES):
            for answer in ("plain.1", "mine.rpcstream.1"):
                raw.publish(f"{service.root}add", message, answer)
                raw.publish(f"{service.root}add", call_of("add", 1, 2, call_id=number + 9), answer)
                while b'"id":%d,"result":3' % (number + 9) not in (await raw.next()).data:
                    pass
            assert server.noted == [], message


async def test_the_method_of_a_subject_of_the_instance(service: Service) -> None:
    server = UsualServer()
    async with service.serving(server), service.raw("mine.rpcstream.*") as raw:
        own = (await raw.request(f"{service.root}add", ADD, "mine.rpcstream.1")).reply
        for subject in (own, f"{own}.add", f"{own}.%FF", f"{own}.$batch"):
            for text in (SECRET, b"[" + SECRET + b"]"):
                assert b"-32600" in (await raw.request(subject, text, "mine.rpcstream.2")).data, subject
        assert server.noted == []
        await raw.request(f"{own}.note", SECRET, "mine.rpcstream.2")
        assert server.noted == ["secret"]


async def test_the_number_of_a_session_is_not_to_be_guessed(service: Service) -> None:
    async with service.serving(), service.raw("*.rpcstream.*") as raw:
        numbers = set[str]()
        for name in "abcdefgh":
            own, again = [
                (await raw.request(f"{service.root}add", ADD, f"{name}.rpcstream.{n}")).reply for n in range(2)
            ]
            assert again == own
            numbers.add(own.rpartition(".")[2])
    assert len(numbers) == 8
    assert all(len(number) == 16 for number in numbers)


async def test_a_silent_caller_is_forgotten_and_may_come_back(clock: Clock, service: Service) -> None:
    server = UsualServer()
    async with service.serving(server), service.client(timeout=None) as client, service.client() as other:
        held = asyncio.create_task(client.call("wait", 1))
        await until(lambda: server.begun)
        for _ in range(2):
            assert await other.call("add", 2, 2) == 4
            assert server.stats()["connections"] == 2
            await clock.until(lambda: server.stats()["connections"] == 1, step=10)  # that of the call which waits
        server.release()
        assert await held == 1


async def test_methods_that_are_added_while_it_runs(service: Service) -> None:
    server = UsualServer()
    async with service.serving(server), service.client() as client:
        assert await client.call("add", 1, 2) == 3
        server.add(lambda x: x * 2, name="later")
        assert await client.call("later", 4, wait_for=20) == 8


async def test_a_stream_waits_while_nats_takes_nothing(start_nats: Callable[..., NatsServer]) -> None:
    """A caller who gives credit without end, and a NATS server that stands still, do not fill the memory."""
    service, server, made = Service(start_nats()), UsualServer(), 0

    @server
    async def many() -> object:
        nonlocal made
        while True:
            made += 1
            yield "x" * 10_000

    async with service.serving(server), service.raw("mine.rpcstream.*") as raw:
        raw.publish(f"{service.root}many", call_of("many", stream=1), "mine.rpcstream.1")
        while b'"$/item"' not in (message := await raw.next()).data:
            pass
        credit = b'{"jsonrpc":"2.0","method":"$/credit","params":{"id":1,"n":1000000}}'
        raw.publish(message.reply, credit, "mine.rpcstream.i1")
        await until(lambda: made > 100)
        service.nats.pause()
        before = -1
        while made != before:
            before = made
            await asyncio.sleep(0.1)
        assert made < 5000, "50 MB wait for NATS"
        service.nats.resume()
        await until(lambda: made > before + 100)


async def test_metrics_and_the_access_log(service: Service) -> None:
    server = UsualServer(metrics=True, logs=Logs(access_log="text"))
    with logged("rpcstream.access", alone=True) as log:
        async with service.serving(server), service.client() as client:
            assert await client.add(1, 2) == 3
            text = server.metrics_text()
    assert 'rpcstream_connections{transport="nats"} 1' in text
    assert 'rpcstream_calls_total{method="add",code="0"} 1' in text
    (line,) = log.lines
    assert " nats - add id=1 code=0" in line
    assert "nats:_INBOX." in line


async def test_one_trace_over_both_ends(service: Service) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with service.serving(UsualServer(tracing=provider)), service.client(tracing=provider) as client:

        @client
        def answer() -> int:
            return 42

        for call, names in ((client.add(1, 2), ["add"]), (client.ask("answer"), ["answer", "ask"])):
            await call
            spans = exporter.get_finished_spans()
            exporter.clear()
            assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
            by_kind: dict[str, list[ReadableSpan]] = {"CLIENT": [], "SERVER": []}
            for span in spans:
                by_kind[span.kind.name].append(span)
            for found in by_kind.values():
                assert sorted(span.name for span in found) == names
            assert len([span for span in by_kind["CLIENT"] if span.parent is None]) == 1
        assert [each async for each in client.stream.count(2)] == [0, 1]
        ended = [(span.kind.name, span.name) for span in exporter.get_finished_spans()]
        assert sorted(ended) == [("CLIENT", "count"), ("SERVER", "count")]


async def test_a_server_that_is_stopped_while_it_starts_leaves(service: Service) -> None:
    """It stops once it has joined: an instance that nobody ends would take calls and not answer them."""

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        server.stop()
        yield

    async with service.serving(Server(lifespan=lifespan)):
        pass
    with pytest.raises(ConnectFailed, match="no instance of the service"):
        async with service.client() as client:
            await client.call("rpc.ping")
