"""A server whose pages are asked for in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .routes_client import RoutesClient


@pytest.fixture
async def site() -> AsyncIterator[RoutesClient]:
    async with RoutesClient(processes=1) as site:
        yield site
