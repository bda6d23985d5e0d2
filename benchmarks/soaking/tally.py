"""The counts of one process of a soak, the state that it reports at rest, and the commands that it obeys.

Owns the commands to the processes: a line on stdin (`rest`, `go`, `end`), answered by a line of JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

#: Of what went wrong, so much is told.
WRONG_MAX = 20

Sample = dict[str, Any]


class Tally(logging.Handler):
    """Counts right and wrong outcomes of each feature. As a log handler it counts logged errors as wrong."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger().setLevel(logging.ERROR)
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.mistake("log", record.getMessage())

    def right(self, feature: str) -> None:
        with self._lock:
            self.counts[feature] += 1

    def mistake(self, feature: str, what: object) -> None:
        with self._lock:
            if len(self.wrong) < WRONG_MAX:
                self.wrong.append(f"{feature}: {what}"[:500])

    def expect(self, feature: str, got: object, wanted: object) -> None:
        if got != wanted:
            self.mistake(feature, f"got {got!r:.100} for {wanted!r:.100}")

    def sample(self, left: list[str]) -> Sample:
        """Measure memory (KiB), allocated blocks, descriptors and objects, after garbage collection.

        Args:
            left: descriptions of calls, tasks or connections that should have ended and have not.
        """
        for _ in range(3):
            gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what is free, but not given back, is not what we look for
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        return {
            "rss": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
            **in_use(),
            "blocks": sys.getallocatedblocks(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "objects": len(gc.get_objects()),
            "threads": threading.active_count(),
            "counts": dict(self.counts),
            "wrong": self.wrong,
            "left": left,
        }


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc; `uordblks` and `hblkhd` are the bytes in use."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def in_use() -> dict[str, int]:
    """Return the memory that malloc has given out (KiB); empty where the C library cannot tell."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2  # glibc 2.33 and newer
    except AttributeError:
        return {}
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return {"malloc": (info.uordblks + info.hblkhd) // 1024}


def answer(sample: Sample) -> None:
    print(json.dumps(sample), flush=True)


def obey(loop: asyncio.AbstractEventLoop, words: dict[str, Callable[[], Awaitable[None]]]) -> None:
    """Start a thread that runs the commands from stdin in the event loop, until `end` or the end of the file."""

    def follow() -> None:
        for line in sys.stdin:
            asyncio.run_coroutine_threadsafe(words[line.strip()](), loop).result()  # type: ignore[arg-type]
            if line.strip() == "end":
                return
        os._exit(1)  # the command is gone

    threading.Thread(target=follow, daemon=True).start()
