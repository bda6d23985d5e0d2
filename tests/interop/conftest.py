"""Fixtures: the server for foreign clients, at a port and at a Unix socket."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .service import Service, serving


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have local addresses reached without a proxy: some of the clients obey these variables."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def unix_service() -> Iterator[Service]:
    """Its address is `unix://` and the path, which is short: the system allows about 100 bytes."""
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("there are no Unix sockets here")
    with tempfile.TemporaryDirectory(prefix="rpc") as folder, serving(unix=Path(folder) / "s") as service:
        yield service
