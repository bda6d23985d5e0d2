"""What the tests of pages share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rpcstream.methods.invoke import Invoker

from .asking import Site


@pytest.fixture
async def invoker() -> AsyncIterator[Invoker]:
    made = Invoker(threads=4, processes=1, max_queue=100)
    yield made
    made.close()


@pytest.fixture
async def site(invoker: Invoker) -> Site:
    return Site(invoker)
