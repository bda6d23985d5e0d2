"""Memory of long messages: keeps what the C library would give back, and pauses the garbage collector.

glibc gives back each big block as soon as it is free, and the system clears every page of the next one: for arrays of a
megabyte and more that takes longer than all else that is done to them.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Bytes of a message. glibc uses blocks of less than 128 KiB again in any case, but two of these may come together.
BIG = 64 * 1024
#: Bytes. Blocks up to this size come from the heap, where they are used again: the default of `max_message_size`.
_FROM_HEAP = 64 * 1024 * 1024
#: Bytes. So much of the heap's end may stay free: one message of that size on its way in, as an array, and out again.
_KEPT = 4 * _FROM_HEAP

#: mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> None:
    """Have big blocks of freed memory used again. To be called when there is a message with one; acts once.

    Does nothing where the environment says what malloc is to do, and with C libraries that have no such setting.
    """
    if any(name in os.environ for name in _SETTINGS):
        return
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, TypeError, AttributeError):  # not Linux, or musl
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def without_collector(parse: Callable[[T], Any], text: T) -> Any:
    """Parse a text while the cyclic garbage collector is off: nothing that is made there can be garbage yet."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return parse(text)
    finally:
        if was_on:
            gc.enable()
