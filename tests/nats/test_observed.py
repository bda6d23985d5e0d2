"""What is seen of calls that come by NATS: metrics, the access log, one trace over both ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rpcstream import AsyncClient, Context, Server

from ..kit.nats_server import NatsServer

pytestmark = pytest.mark.nats


def joined(nats: NatsServer, service: str, **options: Any) -> Server:
    """A server with a few methods, which joins a service."""
    server = Server(**options)

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def count(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield each

    @server
    async def ask(ctx: Context) -> int:
        answer: int = await ctx.peer.answer()
        return answer

    server.join_nats(nats.url, service=service, only=True)
    return server


async def test_metrics_and_the_access_log(shared_nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    server = joined(shared_nats, "observed", metrics=True, access_log="text")
    caplog.set_level(logging.INFO, "rpcstream.access")
    async with server.listening() as address, AsyncClient(address) as client:
        assert await client.add(1, 2) == 3
        assert [each async for each in client.stream.count(3)] == [0, 1, 2]
        text = server.metrics_text()
        assert (await client.call("rpc.stats"))["connections"] == 1
    assert 'rpcstream_connections{transport="nats"} 1' in text
    assert 'rpcstream_calls_total{method="add",code="0"} 1' in text
    (logged,) = [record.message for record in caplog.records if " add " in record.message]
    assert " nats - add id=1 code=0" in logged
    assert "nats:_INBOX." in logged


async def test_one_trace_over_both_ends(shared_nats: NatsServer) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = joined(shared_nats, "traced", tracing=provider)
    async with server.listening() as address, AsyncClient(address, tracing=provider) as client:

        @client
        def answer() -> int:
            return 42

        for call in (client.add(1, 2), client.ask()):
            await call
            by_kind: dict[str, list[ReadableSpan]] = {}
            spans = exporter.get_finished_spans()
            exporter.clear()
            assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
            for span in spans:
                by_kind.setdefault(span.kind.name, []).append(span)
            called = [span.name for span in by_kind["SERVER"]]
            assert sorted(called) == sorted(span.name for span in by_kind["CLIENT"])
            ends = [span for span in by_kind["CLIENT"] if span.parent is None]
            assert [(span.attributes or {})["network.protocol.name"] for span in ends] == ["nats"]
        assert called == ["answer", "ask"]
        assert [each async for each in client.stream.count(2)] == [0, 1]
        names = [(span.kind.name, span.name) for span in exporter.get_finished_spans()]
        assert sorted(names) == [("CLIENT", "count"), ("SERVER", "count")]
