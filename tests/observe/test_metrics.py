"""The text of metrics: histograms, labels, what the system tells of the process; as Prometheus reads it."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rpcstream import Hub, Server
from rpcstream.testing import memory_client

from ..kit import UsualServer, batch, client_side, raw_peers, request, server_tls, until
from .reading import check_with_promtool, outcomes, samples, value


@pytest.mark.parametrize("seconds", [0.0, 0.003, 0.03])
async def test_a_call_counts_in_each_bucket_from_its_duration_on(seconds: float) -> None:
    server = UsualServer(metrics=True)
    async with memory_client(server) as client:
        await client.echo_after(1, seconds)
        text = server.metrics_text()
    took = value(text, "rpcstream_call_duration_seconds_sum", method="echo_after") or 0
    for bound in ("5e-05", "0.0025", "0.005", "0.025", "0.05", "10.0", "+Inf"):
        count = value(text, "rpcstream_call_duration_seconds_bucket", method="echo_after", le=bound)
        assert count == (took <= float(bound)), bound


async def test_methods_that_members_offer_have_labels_up_to_a_limit() -> None:
    hub = Hub(metrics=True)
    names = [f"m{number}" for number in range(1050)]
    async with raw_peers(hub) as connect:
        *providers, caller = await connect(), await connect(), await connect()
        for begin in range(0, len(names), 50):
            asked, provider = names[begin : begin + 50], providers[begin // 1000]
            await provider.result("rpc.register", params={"methods": asked})
            caller.send(batch(*(request(name, id=name) for name in (*asked, asked[0]))))
            for _ in range(51):
                provider.answer(await provider.receive())
            await caller.receive()
        text = hub.metrics_text()  # of so much text the parser takes a second
    found = dict(re.findall(r'^rpcstream_calls_total\{method="(m\d+|other)",code="0"\} (\d+)$', text, re.MULTILINE))
    assert len(found) == 1000
    assert (found["m0"], found["m1"], found["other"]) == ("2", "1", "52")


async def test_hostile_names_stay_inside_their_label() -> None:
    names = ['a"b', "a\\b", "a\nb", "ä€\u2028", "a\\n\\", 'x"} 1\nforged_total 7']
    server = Server(metrics=True)
    for name in names:
        server.add(lambda: 1, name=name)
    async with memory_client(server) as client:
        for name in names:
            await client.call(name)
        text = server.metrics_text()
    assert outcomes(text) == {(name, "0"): 1 for name in names}
    families = {each.name for each in text_string_to_metric_families(text)}
    assert {each.partition("_")[0] for each in families} == {"rpcstream", "process"}
    check_with_promtool(text)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc")
class TestProcess:
    def test_the_system_tells_of_this_process(self) -> None:
        """Whose name may have blanks and brackets."""
        name = Path("/proc/self/comm")
        before = name.read_text()
        name.write_text("a ) b")
        try:
            text = Server(metrics=True).metrics_text()
        finally:
            name.write_text(before)
        resident = value(text, "process_resident_memory_bytes") or 0
        assert 10_000_000 < resident < 10_000_000_000
        assert time.process_time() - 5 < (value(text, "process_cpu_seconds_total") or 0) < time.process_time() + 0.1
        assert abs((value(text, "process_open_fds") or 0) - len(os.listdir("/proc/self/fd"))) < 5
        assert time.time() - 36_000 < (value(text, "process_start_time_seconds") or 0) < time.time()

    def test_without_proc_the_process_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_proc(path: Any) -> list[str]:
            raise FileNotFoundError(path)

        monkeypatch.setattr(os, "listdir", no_proc)
        text = Server(metrics=True).metrics_text()
        assert "rpcstream_" in text
        assert "process_" not in text.replace("rpcstream_worker_process", "")


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
async def test_counters_do_not_go_backwards_when_connections_close(tls: bool) -> None:
    server = UsualServer(metrics=True, tls=server_tls() if tls else None)

    def counters() -> dict[Any, float]:
        counting = ("_total", "_count", "_sum", "_bucket")
        return {key: each for key, each in samples(server.metrics_text()).items() if key[0].endswith(counting)}

    async with raw_peers(server, tls=client_side() if tls else None) as connect:
        seen = [counters()]
        for _ in range(2):
            peer = await connect()
            assert await peer.result("echo", "abc" * 1000) == "abc" * 1000
            seen.append(counters())
            peer.close()
            await until(lambda: server.counters.connections == 0)
            seen.append(counters())
    for before, after in itertools.pairwise(seen):
        assert not {key: (value, after.get(key)) for key, value in before.items() if after.get(key, 0) < value}
