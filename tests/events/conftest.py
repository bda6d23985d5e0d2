"""Every test of events runs in memory, on a loop whose time jumps to the next timer when there is nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rpcstream.testing import FakeTimeLoop


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    return {"fake-time": FakeTimeLoop}
