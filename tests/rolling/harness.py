"""Callers that never stop calling, while what answers them is restarted; and the count of what became of each call.

Each call has a number of its own, and whoever carries it out notes that number: so a call that was lost, carried out
twice, or answered with the result of another one is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpcstream import AsyncClient
from rpcstream.hub import Hub

#: Seconds that a program has to begin and to end.
PATIENCE = 60


@dataclass
class Outcome:
    """What became of the calls."""

    #: The numbers of calls that were answered with their own number, and what others ended with.
    answered: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    #: How often each number was carried out.
    executed: Counter[int] = field(default_factory=Counter)
    #: How often something was restarted.
    restarts: int = 0

    @property
    def twice(self) -> list[int]:
        """The numbers that were carried out more than once."""
        return [number for number, count in self.executed.items() if count > 1]

    @property
    def is_right(self) -> bool:
        """Every call was answered, and carried out once."""
        return not self.errors and not self.twice and self.answered == self.executed.keys()

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(self.errors).most_common(5))
        return (
            f"{self.restarts} restarts, {len(self.answered)} calls answered, {len(self.errors)} errors"
            f"{f' ({kinds})' if kinds else ''}, {len(self.twice)} carried out twice"
        )


class Calls:
    """Callers in this process, `each` on a connection: each makes a call, waits for the answer, and makes the next."""

    def __init__(self, address: str, outcome: Outcome, *, clients: int = 4, each: int = 8, **options: Any) -> None:
        self._outcome = outcome
        self._clients = [AsyncClient(address, **options) for _ in range(clients)]
        self._each = each
        self._numbers = itertools.count()
        self._is_over = False
        self._progress = asyncio.Event()

    async def run(self) -> None:
        try:
            await asyncio.gather(*(self._call(client) for client in self._clients for _ in range(self._each)))
        finally:
            await asyncio.gather(*(client.close() for client in self._clients))

    async def _call(self, client: AsyncClient) -> None:
        while not self._is_over:
            number = next(self._numbers)
            try:
                result = await client.call("work", number, timeout=PATIENCE)
                assert result == number, "the answer of another call"
                self._outcome.answered.add(number)
            except Exception as error:
                self._outcome.errors.append(f"{type(error).__name__}: {error}".replace(str(number), "N"))
                await asyncio.sleep(0.01)
            self._progress.set()

    async def more(self, count: int) -> None:
        """Wait until so many more calls have ended."""
        outcome = self._outcome
        until = len(outcome.answered) + len(outcome.errors) + count
        async with asyncio.timeout(PATIENCE):
            while len(outcome.answered) + len(outcome.errors) < until:
                self._progress.clear()
                await self._progress.wait()

    def stop(self) -> None:
        self._is_over = True


class Programs:
    """Providers or servers as processes: `kind` and `where` as for `programs`; `before` are arguments of Python."""

    def __init__(
        self, kind: str, where: Callable[[], str], folder: Path, *, before: tuple[str, ...] = (), **options: Any
    ) -> None:
        self._command = lambda: (*before, "-m", "tests.rolling.programs", kind, where(), str(self._log))
        self._log = folder / kind
        self._options = options
        self.said = ""

    async def start(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command(), stdout=asyncio.subprocess.PIPE, **self._options
        )
        assert process.stdout is not None
        self.said = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode().strip()
        return process

    def executed(self) -> Counter[int]:
        return Counter(map(int, self._log.read_text().split())) if self._log.exists() else Counter()


async def stop(process: Process) -> None:
    """End it in an orderly way, and wait for that."""
    process.terminate()
    status = await asyncio.wait_for(process.wait(), PATIENCE)
    assert status == 0, f"a program ended with status {status}"


# -- what is shown; with so many calls between two restarts, at least --------------------------------------------------


async def providers_restarted(*, rounds: int, calls: int = 100) -> Outcome:
    """Three programs share a method at a hub; one after the other is replaced, `rounds` times, while it is called."""
    outcome = Outcome()
    async with Hub().listening(port=0) as address, folder_for_logs() as folder:
        providers = Programs("provider", lambda: address, folder)
        running = [await providers.start() for _ in range(3)]
        async with calling(Calls(address, outcome)) as callers:
            for place in [*range(3)] * rounds:
                await callers.more(calls)
                before, running[place] = running[place], await providers.start()
                await stop(before)
                outcome.restarts += 1
            await callers.more(calls)
        for each in running:
            await stop(each)
        outcome.executed = providers.executed()
    return outcome


async def server_restarted(*, rounds: int, calls: int = 100, scheme: str = "tcp") -> Outcome:
    """A server is stopped with requests in flight and started again at its address; callers reconnect by themselves."""
    outcome, port = Outcome(), 0
    async with folder_for_logs() as folder:
        servers = Programs("server", lambda: str(port), folder)
        running = await servers.start()
        port = int(servers.said.rpartition(":")[2])
        patient: Any = {"wait_for": PATIENCE} if scheme == "http" else {"reconnect": True}
        async with calling(Calls(f"{scheme}://127.0.0.1:{port}", outcome, **patient)) as callers:
            for _ in range(rounds):
                await callers.more(calls)
                await stop(running)
                running = await servers.start()
                outcome.restarts += 1
            await callers.more(calls)
        await stop(running)
        outcome.executed = servers.executed()
    return outcome


@contextlib.asynccontextmanager
async def calling(callers: Calls) -> AsyncIterator[Calls]:
    task = asyncio.ensure_future(callers.run())
    try:
        yield callers
    finally:
        callers.stop()
        await task


@contextlib.asynccontextmanager
async def folder_for_logs() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
