"""The server that the foreign clients call, and a record of what it has received.

Knows nothing of the clients; each test file has its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
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

#: Half a MiB and a little more, in characters of one and of two bytes (six where a client escapes them).
LARGE = "0123456789abcde\u00e9" * 2**15

#: The fingerprint of `LARGE` that `measure` answers with.
MEASURED = [len(LARGE), zlib.crc32(LARGE.encode())]

#: What the error of `refuse` has with it.
CODE, MESSAGE = 4711, "refused: gr\u00fc\u00dfe \U0001f600"
DATA = {"why": TEXT, "numbers": [1, -2.5, None, True], "nested": {"": []}}


class Service:
    """A server in a thread of its own, with methods for every kind of answer."""

    def __init__(self, **options: Any) -> None:
        self.address = ""
        self.is_encrypted = options.get("tls") is not None
        self._noted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Lets `drip` give its next item.
        self.let_go = threading.Event()
        self.server = Server(drain_timeout=1, **options)
        for method in (self.add, self.echo, self.later, self.measure, self.note, self.refuse, self.fail):
            self.server.add(method)
        for method in (self.count, self.drip, self.wait, self.climb, self.ask, self.ask_by_name):
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

    async def wait(self, key: str) -> None:
        """Until it is cancelled; notes that it has begun, and its end."""
        self._noted.put(f"{key} began")
        try:
            await asyncio.Event().wait()
        finally:
            self._noted.put(f"{key} ended")

    async def climb(self, ctx: Context, name: str, steps: int) -> str:
        for step in range(steps):
            if step:
                await ctx.peer.call("confirm", name)  # so that each report is on its way before the next
            ctx.progress({"name": name, "step": step})
        return f"{name} is up"

    async def ask(self, ctx: Context, method: str, value: Any) -> Any:
        """Call the caller back, and answer with its answer, or with its error."""
        try:
            return await ctx.peer.call(method, value)
        except RpcError as error:
            return [error.code, error.message, error.data]

    async def ask_by_name(self, ctx: Context, question: str) -> Any:
        return await ctx.peer.call("confirm", question=question)


@contextmanager
def serving(*, unix: Path | None = None, **options: Any) -> Iterator[Service]:
    """Options: of the `Server`."""
    service = Service(**options)
    with serve_in_thread(service.server, unix=unix) as service.address:
        yield service


def check_calls(call: Callable[[str, Any], Any], *, data_of_errors: bool = True) -> None:
    """What every client must get right: a call gives `{"result": …}` or `{"error": [code, message, data]}`."""
    assert call("add", [1, 2]) == {"result": 3}
    assert call("add", {"b": 2, "a": 1}) == {"result": 3}
    value = {"": [1, 2.5, True, {"b": None}], "\u00fc": -(2**53), "text": TEXT}
    for method, text in (("later", value), ("echo", None), ("echo", LARGE)):
        assert call(method, [text]) == {"result": text}
    assert call("measure", [LARGE]) == {"result": MEASURED}
    assert call("rpc.ping", []) == {"result": "pong"}
    found = [call(*each)["error"] for each in (("refuse", []), ("missing", []), ("add", ["x", 2]), ("fail", []))]
    assert [error[0] for error in found] == [CODE, -32601, -32602, -32603]
    assert [error[1].partition(":")[0] for error in found[:2]] == [MESSAGE.partition(":")[0], "Method not found"]
    if data_of_errors:
        assert found[0] == [CODE, MESSAGE, DATA]
        assert (found[1][2]["method"], found[2][2]["parameter"], found[3][2]) == ("missing", "a", None)
    assert call("add", [1, 2]) == {"result": 3}
