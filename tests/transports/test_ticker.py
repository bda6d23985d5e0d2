"""The clock that looks after time limits."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rpcstream.transports.ticker import Ticker


def tickers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rpcstream-ticker"]


async def test_it_strikes_in_the_loop_until_it_is_stopped() -> None:
    struck: asyncio.Queue[int] = asyncio.Queue()
    before = tickers()  # of a server whose loop was closed under it, perhaps
    ticker = Ticker(0.001, lambda: struck.put_nowait(threading.get_ident()))
    assert {await struck.get() for _ in range(3)} == {threading.get_ident()}
    ticker.stop()
    while not struck.empty():
        struck.get_nowait()
    assert set(tickers()) <= set(before)
    await asyncio.sleep(0.01)
    assert struck.empty()


def test_it_ends_with_its_loop() -> None:
    before = tickers()

    async def begin() -> None:
        Ticker(0.001, lambda: None)

    asyncio.run(begin())
    for thread in set(tickers()) - set(before):
        thread.join(10)
        assert not thread.is_alive()


async def test_a_failure_is_the_loops_to_report() -> None:
    reported: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def fail() -> None:
        raise LookupError("broken")

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if not reported.done():
            reported.set_result(repr(context["exception"]))

    asyncio.get_running_loop().set_exception_handler(report)
    ticker = Ticker(0.001, fail)
    assert "broken" in await asyncio.wait_for(reported, 10)
    ticker.stop()


@pytest.mark.parametrize("times", [1, 2])
async def test_it_may_be_stopped_again(times: int) -> None:
    ticker = Ticker(1000, lambda: None)
    for _ in range(times):
        ticker.stop()
