"""A hub that is restarted under load: providers and callers reconnect, and no call fails.

    python -m tests.hub.restarts --restarts 20            # SIGTERM: methods that may run once only
    python -m tests.hub.restarts --restarts 20 --kill     # SIGKILL: idempotent methods, which may be repeated
    python -m tests.hub.restarts --hubs 2                 # two hubs in one address, restarted in turn

Prints how many calls were made and which errors they had; the exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from contextlib import AsyncExitStack
from typing import Any

from rpcstream import AsyncClient, Retry

from ..rolling.harness import Calls, Outcome, calling

#: Seconds for which calls wait for the hub and its providers.
WAIT_FOR = 45.0


class HubProcess:
    """A hub in a process of its own, always at the same port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self.address = f"127.0.0.1:{self._port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rpcstream.cli.serve", "--hub", "-p", self._port),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert b"listening" in await self._process.stdout.readline()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.communicate()


async def provide(stack: AsyncExitStack, address: str, name: str, outcome: Outcome) -> None:
    """Offer `work` at the hub for as long as the stack is open."""
    client = await stack.enter_async_context(AsyncClient(address, name=name, reconnect=True, wait_for=WAIT_FOR))

    @client(shared=True, idempotent=True)
    async def work(number: int) -> int:
        outcome.executed[number] += 1
        await asyncio.sleep(0.002)
        return number

    await client.offer()


async def run(restarts: int, *, kills: bool, reconnect: bool, calls: int = 500, hubs: int = 1) -> Outcome:
    """Restart a hub so often under load.

    Args:
        restarts: how often.
        kills: with SIGKILL, and the calls may be repeated.
        reconnect: the callers connect again by themselves, not with their next call.
        calls: that are made between two restarts, at least.
        hubs: in the address of all clients; restarted in turn.
    """
    processes, outcome = [HubProcess() for _ in range(hubs)], Outcome()
    address = ",".join([each.address for each in processes])
    options: dict[str, Any] = {"wait_for": WAIT_FOR, "reconnect": reconnect}
    if kills:
        options["retry"] = Retry(times=3)
    async with AsyncExitStack() as stack:
        for hub in processes:
            await hub.start()
            stack.push_async_callback(hub.end)
        for name in ("one", "two"):
            await provide(stack, address, name, outcome)
        async with calling(Calls(address, outcome, clients=2, each=8, **options)) as callers:
            for outcome.restarts in range(1, restarts + 1):
                await callers.more(calls)
                hub = processes[outcome.restarts % hubs]
                await hub.end(signal.SIGKILL if kills else signal.SIGTERM)
                await hub.start()
            await callers.more(calls)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--kill", action="store_true", help="end the hub with SIGKILL; the calls may be repeated")
    parser.add_argument("--hubs", type=int, default=1, help="hubs in one address")
    options = parser.parse_args()
    is_right = True
    for reconnect in (False, True):
        outcome = asyncio.run(run(options.restarts, kills=options.kill, reconnect=reconnect, hubs=options.hubs))
        print(outcome)
        is_right &= not outcome.errors and (options.kill or outcome.is_right)
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
