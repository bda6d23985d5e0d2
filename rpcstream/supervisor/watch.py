"""Watches Python files for `--reload`, with watchfiles (extra `reload`)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable, Collection, Iterator

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
def watched(
    folders: Collection[str], on_change: Callable[[list[str]], object], *, files: Collection[str] | None = None
) -> Iterator[None]:
    """Watch Python files in some folders while the block runs.

    Args:
        folders: their paths.
        on_change: called in the running event loop with the paths that have changed.
        files: watch only these files in the folders. None: watch all Python files in the folders and below, except in
            hidden folders, virtual environments and caches.
    """
    from watchfiles import PythonFilter, watch

    is_python = PythonFilter()

    loop = asyncio.get_running_loop()
    over = threading.Event()

    def run() -> None:
        changes = watch(
            *folders,
            watch_filter=is_python if files is None else lambda change, path: path in files,
            recursive=files is None,
            stop_event=over,
            debounce=LONGEST,
            step=STEP,
            rust_timeout=LOOK,
            yield_on_timeout=False,
            raise_interrupt=False,
        )
        for found in changes:
            changed = sorted({os.path.relpath(path) for _, path in found})
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(on_change, changed)

    thread = threading.Thread(target=run, name="rpcstream-reload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
