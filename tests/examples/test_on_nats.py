"""The example on NATS: two instances share the calls."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ..kit.nats_server import NatsServer, skip_without_program

pytestmark = pytest.mark.slow


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    pytest.importorskip("nats")
    skip_without_program()
    with NatsServer() as server:
        yield server


def test_two_instances_share_the_calls_and_one_takes_all_when_the_other_stops(nats, started, python, promised):
    instances = []
    for _ in range(2):
        line, process = started("examples/on_nats.py", "serve", nats.url)
        assert line == f"serves at {nats.url}/pictures\n"
        instances.append(process)
    assert python("-W", "error", "examples/on_nats.py", nats.url) == promised("on_nats.py")
    instances[0].send_signal(signal.SIGTERM)
    assert instances[0].wait(20) == 0
    output = python("-W", "error", "examples/on_nats.py", nats.url)
    assert output == promised("on_nats.py").replace("2 instances", "1 instances")
