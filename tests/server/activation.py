"""A server restarted under load while something else keeps its listening sockets, as systemd does: no call is lost.

    python -m tests.server.activation --restarts 20 [--workers 2] [--scheme ws]

The program is a new process each time and gets the sockets as systemd passes them. Beside callers that stay connected
there are some that connect for each call. The exit status is 1 if a call failed, or was carried out twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import socket
import sys
import time
from collections.abc import Iterator

from rpcstream import AsyncClient

from ..rolling.harness import Calls, Outcome, Programs, calling, folder_for_logs, stop

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


async def short_calls(address: str, numbers: Iterator[int], outcome: Outcome, is_over: asyncio.Event) -> None:
    """Call with a connection for each call."""
    while not is_over.is_set():
        number = next(numbers)
        try:
            async with AsyncClient(address, timeout=60) as client:
                result = await client.call("work", number)
        except Exception as error:
            outcome.errors.append(f"one connection a call: {type(error).__name__}: {error}")
        else:
            if result == number:
                outcome.answered.add(number)
            else:
                outcome.errors.append("the answer of another call")
        await asyncio.sleep(0.002)


async def restarted(*, restarts: int, calls: int, scheme: str = "tcp", workers: int = 1) -> tuple[Outcome, float]:
    """Restart a server while it is called; gives what became of the calls, and the longest time without one (s)."""
    outcome, away, is_over = Outcome(), 0.0, asyncio.Event()
    async with folder_for_logs() as folder, contextlib.AsyncExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "sock"))
        unix.listen(1024)
        addresses = [f"127.0.0.1:{tcp.getsockname()[1]}", f"unix://{folder / 'sock'}"]
        numbers = [sock.fileno() for sock in (tcp, unix)]
        before = ("-c", PASS_ON, ",".join(map(str, numbers)))
        programs = Programs("activated", lambda: str(workers), folder, before=before, pass_fds=numbers)
        running = await programs.start()
        count = itertools.count(10**9)  # these do not meet the numbers of other callers
        callers = Calls(f"{scheme}://{addresses[0]}", outcome, reconnect=True)
        async with asyncio.TaskGroup() as group, calling(callers):
            for address in addresses:
                group.create_task(short_calls(address, count, outcome, is_over))
            for _ in range(restarts):
                await callers.more(calls)
                ends = time.monotonic()
                await stop(running)
                running = await programs.start()
                away = max(away, time.monotonic() - ends)
                outcome.restarts += 1
            await callers.more(calls)
            is_over.set()
        await stop(running)
        outcome.executed = programs.executed()
    return outcome, away


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--restarts", type=int, default=20, help="how often (20)")
    parser.add_argument("--calls", type=int, default=2000, help="calls between two restarts (2000)")
    parser.add_argument("--scheme", default="tcp", help="how callers that stay connected call: tcp, ws or http (tcp)")
    parser.add_argument("--workers", type=int, default=1, help="processes that serve (1)")
    outcome, away = asyncio.run(restarted(**vars(parser.parse_args())))
    print(f"{outcome}; no server for {away:.1f} s at most: {'right' if outcome.is_right else 'WRONG'}")
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
