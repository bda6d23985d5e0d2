"""What is seen of calls that come by NATS: metrics, the access log, one trace over both ends."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ..kit import UsualServer, logged
from .service import Service

pytestmark = pytest.mark.nats


async def test_metrics_and_the_access_log(service: Service) -> None:
    server = UsualServer(metrics=True, access_log="text")
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
            (root,) = [span for span in by_kind["CLIENT"] if span.parent is None]
            assert (root.attributes or {})["network.protocol.name"] == "nats"
        assert [each async for each in client.stream.count(2)] == [0, 1]
        ended = [(span.kind.name, span.name) for span in exporter.get_finished_spans()]
        assert sorted(ended) == [("CLIENT", "count"), ("SERVER", "count")]
