"""A server restarted under load while something else keeps its listening sockets, as systemd does: no call is lost.

    python -m tests.server.activation --restarts 20 [--workers 2] [--scheme ws]

The program is a new process each time and gets the sockets as systemd passes them. Connections that come while there is
none wait in the sockets' queues. Beside callers that stay connected there are some that connect for each call, so
that one which is refused or reset is seen. The exit status is 1 if a call failed, or was carried out twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rpcstream import AsyncClient

from ..rolling.harness import Calls, Outcome, Programs, calling, folder_for_logs

#: Puts the descriptors that it is given where systemd puts them, and becomes the program.
PASS_ON = """
import os, sys

given = [os.dup(int(number)) for number in sys.argv[1].split(",")]
for place, number in enumerate(given, 3):
    os.dup2(number, place)
    os.set_inheritable(place, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(given)))
os.environ["LISTEN_FDNAMES"] = ":".join(["rpc"] * len(given))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def activated(sockets: list[socket.socket], folder: Path, workers: int) -> Programs:
    """Programs of so many processes that serve at these sockets; see `tests.rolling.programs`."""
    numbers = [sock.fileno() for sock in sockets]
    before = ("-c", PASS_ON, ",".join(map(str, numbers)))
    return Programs("activated", lambda: str(workers), folder, before=before, pass_fds=numbers)


class ShortCalls:
    """Callers that open a connection for each call; their numbers do not meet those of other callers."""

    def __init__(self, addresses: list[str], outcome: Outcome) -> None:
        self._addresses = addresses
        self._outcome = outcome
        self._numbers = itertools.count(10**9)
        self._is_over = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self._call(address)) for address in self._addresses]
        try:
            yield
        finally:
            self._is_over = True
            await asyncio.gather(*tasks)

    async def _call(self, address: str) -> None:
        while not self._is_over:
            number = next(self._numbers)
            try:
                async with AsyncClient(address, timeout=60) as client:
                    result = await client.call("work", number)
            except Exception as error:
                self._outcome.errors.append(f"one connection a call: {type(error).__name__}: {error}")
            else:
                if result == number:
                    self._outcome.answered.add(number)
                else:
                    self._outcome.errors.append("the answer of another call")
            await asyncio.sleep(0.002)


async def restarted(
    *, restarts: int, calls: int, clients: int = 4, each: int = 8, scheme: str = "tcp", workers: int = 1
) -> tuple[Outcome, float]:
    """Restart a server so often while it is called at a port and at a Unix socket.

    Args:
        restarts: how often.
        calls: that are made between two restarts, at least.
        clients, each: as for `Calls`.
        scheme: of the address at which those that stay connected call.
        workers: processes that serve; with more than one another process passes the connections to them.

    Returns:
        What became of the calls, and the longest time (s) without a server.
    """
    outcome, away = Outcome(), 0.0
    async with folder_for_logs() as folder, contextlib.AsyncExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "sock"))
        unix.listen(1024)
        addresses = [f"127.0.0.1:{tcp.getsockname()[1]}", f"unix://{folder / 'sock'}"]
        programs = activated([tcp, unix], folder, workers)
        running = await programs.start()
        short = ShortCalls(addresses, outcome)
        callers = Calls(f"{scheme}://{addresses[0]}", outcome, clients=clients, each=each, reconnect=True)
        async with short.running(), calling(callers):
            for _ in range(restarts):
                await callers.more(calls)
                ends = time.monotonic()
                await running.stop()
                running = await programs.start()
                away = max(away, time.monotonic() - ends)
                outcome.restarts += 1
            await callers.more(calls)
        await running.stop()
        outcome.executed = programs.executed()
    return outcome, away


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--restarts", type=int, default=20, help="how often (20)")
    parser.add_argument("--calls", type=int, default=2000, help="calls between two restarts (2000)")
    parser.add_argument("--scheme", default="tcp", help="how callers that stay connected call: tcp, ws or http (tcp)")
    parser.add_argument("--workers", type=int, default=1, help="processes that serve (1)")
    options = parser.parse_args()
    outcome, away = asyncio.run(
        restarted(restarts=options.restarts, calls=options.calls, scheme=options.scheme, workers=options.workers)
    )
    print(f"{outcome}; no server for {away:.1f} s at most: {'right' if outcome.is_right else 'WRONG'}")
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
