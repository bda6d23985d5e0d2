"""Fixtures: routes to send requests to, and the threads and processes that run their handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rpcstream.methods.invoke import Invoker

from .routes_client import RoutesClient


@pytest.fixture
async def invoker() -> AsyncIterator[Invoker]:
    made = Invoker(threads=4, processes=1, max_queue=100)
    yield made
    made.close()


@pytest.fixture
async def site(invoker: Invoker) -> RoutesClient:
    return RoutesClient(invoker)
