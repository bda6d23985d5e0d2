"""A hub that is restarted under load: providers and callers reconnect, and no call fails.

    python -m tests.hub.restarts --restarts 20            # SIGTERM: methods that may run once only
    python -m tests.hub.restarts --restarts 20 --kill     # SIGKILL: idempotent methods, which may be repeated

Prints how many calls were made and which errors they had; the exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from rpcstream import AsyncClient, Client

#: Seconds for which the calls of one kind wait for the hub and its providers.
WAIT_FOR = 45.0


class HubProcess:
    """A hub in a process of its own, always at the same port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rpcstream.cli.serve", "--hub", "-p", str(self.port)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert b"listening" in await self._process.stdout.readline()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.communicate()


class Load:
    """Calls that are made again and again: how many had a result, and the errors of the others."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors: Counter[str] = Counter()
        self.is_over = False

    def count(self, expected: int, call: Any) -> None:
        try:
            got = call()
        except Exception as error:
            self.errors[f"{type(error).__name__}: {error}"] += 1
        else:
            self.calls += 1
            if got != expected:
                self.errors[f"{got} in place of {expected}"] += 1

    async def loop(self, client: AsyncClient) -> None:
        number = 0
        while not self.is_over:
            number += 1
            done = await asyncio.wait([asyncio.ensure_future(client.double(number))])
            self.count(2 * number, done[0].pop().result)

    def loop_in_thread(self, client: Client) -> None:
        number = 0
        while not self.is_over:
            number += 1
            self.count(2 * number, lambda number=number: client.double(number))


async def provide(stack: AsyncExitStack, address: str, name: str) -> None:
    """Offer `double` at the hub for as long as the stack is open."""
    client = await stack.enter_async_context(AsyncClient(address, name=name, reconnect=True, wait_for=WAIT_FOR))

    @client(shared=True, idempotent=True)
    async def double(number: int) -> int:
        await asyncio.sleep(0.002)
        return 2 * number

    await client.offer()


async def run(restarts: int, *, kills: bool = False, interval: float = 1.0, loops: int = 8) -> Load:
    """Restart a hub so often under load.

    Args:
        restarts: how often.
        kills: with SIGKILL, and the calls are of methods that may be repeated.
        interval: seconds between two restarts.
        loops: calls at once of each client.
    """
    hub, load = HubProcess(), Load()
    options: dict[str, Any] = {"wait_for": WAIT_FOR}
    if kills:
        options |= {"retries": 3, "retry": "idempotent"}
    async with AsyncExitStack() as stack:
        await hub.start()
        stack.push_async_callback(hub.end)
        for name in ("one", "two"):
            await provide(stack, hub.address, name)
        callers = [
            await stack.enter_async_context(AsyncClient(hub.address, **options)),
            await stack.enter_async_context(AsyncClient(hub.address, reconnect=True, **options)),
        ]
        tasks = [asyncio.ensure_future(load.loop(client)) for client in callers for _ in range(loops)]
        sync = [Client(hub.address, **options), Client(hub.address, reconnect=True, **options)]
        threads = [threading.Thread(target=load.loop_in_thread, args=(client,)) for client in sync for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(restarts):
            await asyncio.sleep(interval)
            await hub.end(signal.SIGKILL if kills else signal.SIGTERM)
            await hub.start()
        await asyncio.sleep(interval)
        load.is_over = True
        await asyncio.gather(*tasks)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        for client in sync:
            await asyncio.to_thread(client.close)
    return load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--kill", action="store_true", help="end the hub with SIGKILL; the calls may be repeated")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two restarts")
    options = parser.parse_args()
    began = time.monotonic()
    load = asyncio.run(run(options.restarts, kills=options.kill, interval=options.interval))
    failed = load.errors.total()
    print(f"{options.restarts} restarts in {time.monotonic() - began:.0f} s")
    print(f"{load.calls} calls, {failed} errors")
    for text, count in load.errors.most_common():
        print(f"  {count} x {text}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
