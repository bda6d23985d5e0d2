"""Real NATS servers for the tests of this folder, which are skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..kit.nats_server import NatsCluster, NatsServer, skip_without_program


@pytest.fixture(scope="session")
def shared_nats() -> Iterator[NatsServer]:
    """A plain server, without JetStream, for all tests of one process: each uses subjects of its own."""
    pytest.importorskip("nats")
    skip_without_program()
    with NatsServer() as server:
        yield server


@pytest.fixture
def start_nats() -> Iterator[Callable[..., NatsServer]]:
    """`server = start_nats(jetstream=True)`: a server of the test's own, stopped with it."""
    pytest.importorskip("nats")
    skip_without_program()
    started: list[NatsServer] = []

    def start(**options: Any) -> NatsServer:
        started.append(NatsServer(**options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., NatsCluster]]:
    """`cluster = start_cluster()`: three nodes of the test's own, stopped with it."""
    pytest.importorskip("nats")
    skip_without_program()
    started: list[NatsCluster] = []

    def start(size: int = 3, **options: Any) -> NatsCluster:
        started.append(NatsCluster(size, **options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
