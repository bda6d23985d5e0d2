"""Watches Python files for `--reload`, with watchfiles (extra `reload`)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Self

#: Milliseconds: changes that come within the second of these after each other are told together, but not later than the
#: first after the first change. An editor writes a file in some milliseconds, a checkout many files in half a second.
LONGEST, STEP = 500, 50

#: Milliseconds after which the thread looks whether it is to end.
LOOK = 200


def check_installed() -> None:
    """Raise RuntimeError unless files can be watched."""
    if importlib.util.find_spec("watchfiles") is None:
        raise RuntimeError('--reload needs watchfiles: pip install "rpcstream[reload]"')


class ProgramFiles(contextlib.ExitStack):
    """Watches the Python files of a program while the block runs: those in a folder, and those that are added.

    Args:
        folder: its path. Hidden folders, virtual environments and caches below it are not watched.
        on_change: called in the running event loop with the paths that have changed.
    """

    def __init__(self, folder: str, on_change: Callable[[list[str]], object]) -> None:
        super().__init__()
        self._folder = folder
        self._on_change = on_change
        #: Files from outside the folder, and the folders that they are in.
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def __enter__(self) -> Self:
        self.enter_context(_watched([self._folder], self._on_change))
        return super().__enter__()

    def add(self, files: Iterable[str]) -> None:
        """Also watch these files, such as those of a package under development."""
        self._files.update(file for file in files if not file.startswith(self._folder + os.sep))
        folders = {os.path.dirname(file) for file in self._files} - self._folders
        if folders:
            self._folders |= folders
            self.enter_context(_watched(folders, self._on_change, files=self._files))


@contextlib.contextmanager
def _watched(
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
