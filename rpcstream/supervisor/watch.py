"""Watches the Python files of a folder, for development; by watchfiles (extra `reload`).

Owns the thread that waits for changes. Does not know what becomes of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator

#: Milliseconds: changes that come within the second of these after each other are told together, but not later than the
#: first after the first change. An editor writes a file in some milliseconds, a checkout many files in half a second.
LONGEST, STEP = 500, 50

#: Milliseconds after which the thread looks whether it is to end.
LOOK = 200


def check_installed() -> None:
    """Raise RuntimeError unless files can be watched."""
    if importlib.util.find_spec("watchfiles") is None:
        raise RuntimeError('--reload needs watchfiles: pip install "rpcstream[reload]"')


@contextlib.contextmanager
def watched(folder: str, on_change: Callable[[list[str]], object]) -> Iterator[None]:
    """Watch the Python files in a folder and below while the block runs.

    Hidden folders, and those of virtual environments and caches, are left out.

    Args:
        folder: its path.
        on_change: called in the running event loop with the paths that have changed, relative to the folder.
    """
    from watchfiles import PythonFilter, watch

    loop = asyncio.get_running_loop()
    over = threading.Event()

    def run() -> None:
        changes = watch(
            folder,
            watch_filter=PythonFilter(),
            stop_event=over,
            debounce=LONGEST,
            step=STEP,
            rust_timeout=LOOK,
            yield_on_timeout=False,
            raise_interrupt=False,
        )
        for found in changes:
            files = sorted({os.path.relpath(path, folder) for _, path in found})
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(on_change, files)

    thread = threading.Thread(target=run, name="rpcstream-reload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
