"""The server that the foreign clients call, and a record of what it has received.

Knows nothing of the clients; each test file has its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpcstream import Context, RpcError, Server
from rpcstream.testing import serve_in_thread

#: Seconds; only what fails is waited for that long.
PATIENCE = 15

#: Calls on one connection: enough that a client which opens one for each call is seen at once.
MANY = 300

#: Whatever escaping and encoding can go wrong with.
TEXT = 'gr\u00fc\u00dfe, \u4e16\u754c \U0001f600 \u2028\u2029 "\\/" \b\f\n\r\t\x7f'

#: 1 MiB and a little more, in characters of one and of two bytes (six where a client escapes them).
LARGE = "0123456789abcde\u00e9" * 2**16

#: The fingerprint of `LARGE` that `measure` answers with.
MEASURED = [len(LARGE), zlib.crc32(LARGE.encode())]

#: What the error of `refuse` has with it.
CODE, MESSAGE = 4711, "refused: gr\u00fc\u00dfe \U0001f600"
DATA = {"why": TEXT, "numbers": [1, -2.5, None, True], "nested": {"": []}}


class Service:
    """A server in a thread of its own, with methods for every kind of answer."""

    def __init__(self, **options: Any) -> None:
        self.address = ""
        self._noted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Lets `drip` give its next item.
        self.let_go = threading.Event()
        self.server = Server(drain_timeout=1, **options)
        for method in (self.add, self.echo, self.later, self.measure, self.note, self.refuse, self.fail):
            self.server.add(method)
        for method in (self.count, self.ask, self.drip):
            self.server.add(method)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def connections(self) -> int:
        """How many there were until now."""
        return self.server.counters.connections_total

    def noted(self, number: int = 1) -> list[Any]:
        """What came by notifications, in order; waits for so many."""
        return [self._noted.get(timeout=PATIENCE) for _ in range(number)]

    @property
    def nothing_noted(self) -> bool:
        return self._noted.empty()

    # -- remote methods -----------------------------------------------------------------------------------------------

    def add(self, a: int, b: int) -> int:
        return a + b

    def echo(self, value: Any) -> Any:
        return value

    async def later(self, value: Any) -> Any:
        return value

    def measure(self, text: str) -> list[int]:
        return [len(text), zlib.crc32(text.encode())]

    def note(self, value: Any) -> None:
        self._noted.put(value)

    def refuse(self) -> None:
        raise RpcError(CODE, MESSAGE, DATA)

    def fail(self) -> None:
        raise ZeroDivisionError("not to be shown")

    def count(self, to: int) -> Iterator[int]:
        yield from range(to)

    async def drip(self) -> AsyncIterator[str]:
        """Two items; the second one not before the test has seen the first."""
        yield "first"
        if not await asyncio.to_thread(self.let_go.wait, PATIENCE):
            raise TimeoutError("nobody has seen the first item")
        yield "second"

    async def ask(self, ctx: Context, method: str, value: Any) -> Any:
        """Call the caller back, and answer with its answer."""
        return await ctx.peer.call(method, value)


@contextmanager
def serving(*, unix: Path | None = None, **options: Any) -> Iterator[Service]:
    """Options: of the `Server`."""
    service = Service(**options)
    with serve_in_thread(service.server, unix=unix) as service.address:
        yield service
