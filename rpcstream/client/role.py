"""Who reads: of the threads that wait on one connection, one has the *reader role*.

It hands the replies of others to them and, when it has its own, the role to another that waits. So a plain call needs
no thread but its caller's. Owns the role and the sleep of those that have not got it; knows no socket and no message.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Callable
from threading import TIMEOUT_MAX
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..peer.outgoing import OnProgress


class Waiter:
    """A thread that waits for one answer. Made without arguments, `method` is set: on the way of every call, and so
    without an `__init__` to run."""

    method: str

    done = False
    error: Exception | None = None
    reply: dict[str, Any]
    line: bytes | bytearray = b""
    #: Told what the handler says on its way, by the thread that reads.
    on_progress: OnProgress | None = None
    #: Locked while the thread sleeps; None while it does not.
    wake: LockType | None = None
    #: The reader role was handed to it.
    leads = False

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.reply, self.line, self.done = reply, line, True
        if self.wake is not None:
            self.rouse()

    def fail(self, error: Exception) -> None:
        self.error, self.done = error, True
        self.rouse()

    def rouse(self) -> None:
        wake = self.wake
        if wake is not None:
            self.wake = None
            wake.release()


class ReaderRole:
    """The role of one connection.

    Args:
        state: the connection's lock. It guards the role too; methods whose text says so are called while it is held.
    """

    __slots__ = ("_sleepers", "_state", "background", "taken")

    def __init__(self, state: LockType) -> None:
        self._state = state
        self._sleepers: dict[Waiter, None] = {}
        #: Somebody has the role.
        self.taken = False
        #: Takes the role, and says so, when nobody else wants it and futures wait. Called while the lock is held.
        self.background: Callable[[], bool] | None = None

    def try_take(self) -> bool:
        """Take the role if nobody has it."""
        if self.taken:
            return False
        with self._state:
            if self.taken:
                return False
            self.taken = True
            return True

    def take_or_sleep(self, own: Waiter, deadline: float) -> bool:
        """Wait until `own` is done, or out of time, or has the role; true in the last case."""
        with self._state:
            if own.done:
                return False
            if not self.taken:
                self.taken = True
                return True
            wake = own.wake = allocate_lock()
            wake.acquire()
            self._sleepers[own] = None
        interrupted = True
        try:
            while not (own.done or own.leads):
                left = deadline - monotonic()
                if left <= 0:
                    break
                wake.acquire(timeout=min(left, TIMEOUT_MAX))
            interrupted = False
        finally:
            with self._state:
                del self._sleepers[own]
                own.wake = None
                leads = own.leads
                if leads and (own.done or interrupted):
                    leads = False
                    self.pass_on()
        return leads

    def pass_on(self) -> None:
        """Hand the role on, while the lock is held: to a thread that sleeps, else to the background, else to nobody."""
        for sleeper in self._sleepers:
            if not sleeper.done and not sleeper.leads:
                sleeper.leads = True
                sleeper.rouse()
                return
        self.taken = self.background is not None and self.background()

    def call_background(self) -> None:
        """Futures wait (the lock is held): if nobody reads, let the background do it."""
        if not self.taken and self.background is not None:
            self.taken = self.background()
