"""One blocking connection of the sync client, shared by any number of threads, with no thread of its own.

Owns the socket, its bytes in both directions and the table of calls. Threads send for themselves; which of those that
wait reads for all is the matter of the reader role. Knows neither methods nor values, and of a message only whose
answer it is.

Locks: `state` guards the table, the role and the end of the connection; it is held for moments and innermost.
`_sending` is held while a message is written.
"""

from __future__ import annotations

import socket
from _thread import allocate_lock
from collections.abc import Callable
from threading import TIMEOUT_MAX
from time import monotonic

import orjson

from ..errors import CallTimeout, ConnectionLost
from ..peer.call import Outgoing
from ..peer.deadline import INFINITE
from ..peer.pending import PendingCalls
from ..peer.pending import Waiter as AnyWaiter
from ..wire.framing import LONG
from ..wire.pieces import Written, parts_of
from .inbox import Inbox
from .readiness import milliseconds, waiter
from .retry import Unsent
from .role import ReaderRole, Waiter
from .settings import Settings

#: Up to this size (bytes) a message is copied together with its delimiter, to be sent with one system call.
JOIN_MAX = 64 * 1024
#: How much is read with one system call: of a small reply, and of a message that did not come whole.
READ_SIZE = 64 * 1024
READ_SIZE_LONG = 1024 * 1024
#: How much of a long message is offered to the system at once; of a longer one the progress is reported.
SEND_SIZE = 1024 * 1024
#: Refusals of the peer's own requests that may wait to be sent (bytes).
REFUSALS_MAX = 256 * 1024
#: While a send is stuck and another thread reads, look this often (s) whether it still does.
GLANCE = 0.01

#: So soon (s) after a call the next is sent without a look at the connection, which takes a twentieth of a short call.
LOOK_AFTER = 0.001

_BRACE, _LINE_FEED = b"{\n"


class Connection:
    """A connected socket and the calls that wait on it; safe to use from several threads.

    For a call there is `exchange`; for what somebody else waits for, `check`, `enter_held` and `send`.

    Args:
        sock: connected; from here on it belongs to this object.
    """

    def __init__(self, sock: socket.socket, settings: Settings) -> None:
        sock.setblocking(False)
        max_size = settings.limits.max_message_size
        self.address = str(settings.address)
        self.pending = PendingCalls()
        self.state = allocate_lock()
        self.role = ReaderRole(self.state)
        #: Why the connection is over; None while it is not.
        self.lost: str | None = None
        #: Run, with no lock held, when what was read has been handled; appended to while `state` is held.
        self.afterwards: list[Callable[[], None]] = []
        self._socket = sock
        self._trace = settings.trace
        self._on_send = settings.on_send
        self._delimiter = settings.delimiter
        #: Bytes that end in a line feed may be read without framing, if they are one message.
        self._is_plain = settings.delimiter == b"\n" and max_size >= READ_SIZE and settings.trace is None
        #: A message has begun and its end has not come.
        self._is_partial = False
        later = lambda function: self.afterwards.append(function)  # noqa: E731
        self._inbox = Inbox(self.pending, self.state, settings, lose=self._lose_held, afterwards=later)
        self._soon = self._inbox.soon.append
        self._refusals = bytearray()
        self._sending = allocate_lock()
        self._was_used = False
        self._last_sent = 0.0
        self._wait_readable = waiter(sock, read=True)

    # -- a call -----------------------------------------------------------------------------------------------

    def exchange(self, outgoing: Outgoing, deadline: float) -> Waiter:
        """Send a call and wait until it is answered, the connection lost or the time over (then it is not `done`).

        Raises what `Outgoing` and `send` raise; Unsent if the connection was over before the call was sent.
        """
        own = Waiter()
        own.method = outgoing.method
        role = self.role
        state = self.state
        state.acquire()  # here and below not `with`: that takes twice as long, on the way of every call
        try:
            if self.lost is not None:
                raise self._unsent(outgoing.method)
            outgoing.enter(self.pending, own, self._soon)
            leads = not role.taken
            if leads:
                role.taken = True
        finally:
            state.release()
        try:
            now = monotonic()
            if leads and now - self._last_sent > LOOK_AFTER and self._wait_readable(0):
                self._catch_up(outgoing.method)
            self._last_sent = now
            left = deadline - now
            if left <= 0:
                raise self._unsent_in_time(outgoing.method)
            message = outgoing.encode(left)
            if self._sending.acquire(False):
                self._write(message, deadline, outgoing.method, leads)
            else:
                if leads:  # whoever sends may wait until somebody reads
                    leads = False
                    self._leave_role()
                self.send(message, deadline, outgoing.method)
            if not leads:
                leads = role.take_or_sleep(own, deadline)
            if leads:
                self._read_for(own, deadline)
        finally:
            state.acquire()
            try:
                if leads:
                    role.pass_on()
                if not own.done:
                    outgoing.leave(self.pending)
            finally:
                state.release()
            if self.lost is not None:
                self._close_if_left()
        return own

    def check(self, method: str) -> None:
        """See whether the connection is open, as far as that shows without waiting.

        The server may have closed it while nobody looked; that must be found before anything is sent.

        Raises:
            Unsent: it is over, and was in use before; another one may be tried.
            ConnectionLost: it was over as soon as it was made.
        """
        if self.lost is None and self.role.try_take():
            try:
                if self._wait_readable(0):
                    self._catch_up(method)
            finally:
                self._leave_role()
        if self.lost is not None:
            raise self._unsent(method)

    def enter_held(self, outgoing: Outgoing, own: AnyWaiter) -> None:
        """Enter a call in the table, while `state` is held. Unsent if the connection is over."""
        if self.lost is not None:
            raise self._unsent(outgoing.method)
        outgoing.enter(self.pending, own, self._soon)

    def read_while(self, wanted: Callable[[], object]) -> None:
        """Read for others as long as `wanted` gives true; for a thread that was handed the role."""
        try:
            while wanted() and self.lost is None:
                if self._wait_readable(milliseconds(INFINITE)):
                    self._read()
        finally:
            self._leave_role()

    def close(self, reason: str) -> None:
        """End the connection; every call that waits fails with the reason."""
        self._lose(reason)
        self._close_if_left()

    def abandon(self) -> None:
        """Forget the connection in a process that was forked; it goes on in the one that made it."""
        self.lost = "the connection belongs to the process that this one was forked from"
        self._socket.close()

    # -- sending ----------------------------------------------------------------------------------------------

    def send(self, message: Written, deadline: float, method: str) -> None:
        """Write one message.

        Raises:
            ConnectionLost: the connection is over.
            CallTimeout: the server did not take the message until `deadline`. If it had taken a part, the connection
                is lost: the rest cannot be left out.
        """
        if not self._sending.acquire(False):
            left = min(deadline - monotonic(), TIMEOUT_MAX)
            if left <= 0 or not self._sending.acquire(timeout=left):
                raise self._unsent_in_time(method)
        self._write(message, deadline, method, False)

    def _write(self, message: Written, deadline: float, method: str, reads: bool) -> None:
        """The same for a thread that holds `_sending`, which is released. `reads`: it has the reader role too."""
        self._was_used = True
        try:
            if self._trace is not None:
                self._trace("send", bytes(message))
            if isinstance(message, bytes) and len(message) <= JOIN_MAX and not self._refusals:
                message += self._delimiter
                try:
                    sent = self._socket.send(message)
                except OSError:
                    sent = 0  # what is wrong shows with the next attempt
                if sent != len(message):
                    self._send_rest([memoryview(message)[sent:]], deadline, method, reads, begun=bool(sent))
            else:
                refusals = self._take_refusals()
                parts = [memoryview(part) for part in (refusals, *parts_of(message), self._delimiter)]
                self._send_rest(parts, deadline, method, reads, begun=bool(refusals))
        finally:
            self._sending.release()
            if self.lost is not None:
                self._close_if_left()
            elif self._refusals:
                self._send_refusals()

    def _send_some(self, data: bytes | memoryview, method: str) -> int:
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose(error.strerror or str(error))
            raise self._loss(method) from error
        return sent

    def _send_rest(self, parts: list[memoryview], deadline: float, method: str, reads: bool, *, begun: bool) -> None:
        """Send what does not go with one system call. `begun`: something of it is on its way already."""
        left = total = sum(map(len, parts))
        try:
            for part in parts:
                at = 0
                while at < len(part):
                    sent = self._send_some(part[at : at + SEND_SIZE], method)
                    at += sent
                    left -= sent
                    if not sent:
                        self._await_writable(deadline, method, reads)
                    elif self._on_send is not None and total > SEND_SIZE:
                        self._on_send(total - left, total)
        except BaseException as error:
            if left and (begun or left < total):
                self._lose(f"a message could not be sent whole: {type(error).__name__}")
            raise

    def _await_writable(self, deadline: float, method: str, reads: bool) -> None:
        """Wait until the server takes more. Read meanwhile: perhaps it waits until we do."""
        left = deadline - monotonic()
        if left <= 0:
            raise self._unsent_in_time(method)
        if not (reads or self.role.try_take()):
            waiter(self._socket, write=True)(milliseconds(min(left, GLANCE)))
        else:
            try:
                waiter(self._socket, read=True, write=True)(milliseconds(left))
                self._read()
            finally:
                if not reads:
                    self._leave_role()
        if self.lost is not None:
            raise self._loss(method)

    def _take_refusals(self) -> bytes:
        with self.state:
            refusals = bytes(self._refusals)
            self._refusals.clear()
        return refusals

    def _send_refusals(self) -> None:
        """Answer the peer's own requests, as far as that is possible without waiting."""
        if self._sending.acquire(False):
            try:
                refusals = self._take_refusals()
                try:
                    sent = self._socket.send(refusals)
                except OSError:
                    sent = 0  # what is wrong shows when the connection is read
                with self.state:
                    self._refusals[:0] = refusals[sent:]
            finally:
                self._sending.release()
        if len(self._refusals) > REFUSALS_MAX:
            self._lose("the peer asks and does not read the answers")

    # -- reading, for the thread that has the role ------------------------------------------------------------

    def _read_for(self, own: Waiter, deadline: float) -> None:
        """Read until `own` is done or out of time, and for everybody else meanwhile."""
        while not own.done and (left := deadline - monotonic()) > 0:
            if self._wait_readable(milliseconds(left)):
                self._read()

    def _catch_up(self, method: str) -> None:
        """Read what came while nobody waited: late answers perhaps, and perhaps the end. Unsent if it is."""
        for _ in range(16):
            self._read()
            if self.lost is not None:
                raise self._unsent(method)
            if not self._wait_readable(0):
                break

    def _read(self) -> None:
        """Read once, without waiting, and handle what came."""
        if self.lost is not None:
            return
        try:
            data = self._socket.recv(READ_SIZE_LONG if self._is_partial else READ_SIZE)
            is_one = 0 < len(data) < LONG and data[0] == _BRACE and data[-1] == _LINE_FEED
            if is_one and self._is_plain and not self._is_partial:
                # The common case, without framing: what came is one reply, whole.
                try:
                    message = orjson.loads(data)
                except orjson.JSONDecodeError:
                    message = None
                if message is not None and "method" not in message and ("result" in message or "error" in message):
                    state = self.state
                    state.acquire()
                    try:
                        self.pending.settle(message, data)
                    finally:
                        state.release()
                    if self.afterwards:
                        self._run_afterwards()
                    return
            refusals, end = self._inbox.receive(data)
            self._is_partial = self._inbox.partial
            if refusals:
                with self.state:
                    self._refusals += b"".join(refusal + self._delimiter for refusal in refusals)
                self._send_refusals()
            if end is not None:
                self._lose(end)
            if self.afterwards:
                self._run_afterwards()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._lose(error.strerror or str(error))
        except BaseException as error:
            # Bytes may be lost, and nobody can say whose they were.
            self._lose(f"reading was interrupted: {type(error).__name__}")
            raise

    def _run_afterwards(self) -> None:
        with self.state:
            functions, self.afterwards = self.afterwards, []
        for function in functions:
            function()

    def _leave_role(self) -> None:
        with self.state:
            self.role.pass_on()
        if self.lost is not None:
            self._close_if_left()

    # -- the end ----------------------------------------------------------------------------------------------

    def _lose(self, reason: str) -> None:
        """The connection is over: everything that waits fails, at once."""
        with self.state:
            self._lose_held(reason)
        self._run_afterwards()

    def _lose_held(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = self.pending.explained(reason)
        self.pending.fail_all(self._loss)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for the socket
        except OSError:
            pass

    def _close_if_left(self) -> None:
        """Close the socket of a lost connection, unless a thread still uses it; then that one will, when it leaves."""
        if self._sending.acquire(False):
            try:
                with self.state:
                    if not self.role.taken:
                        self._socket.close()
            finally:
                self._sending.release()

    def _loss(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.lost or "the connection is over", method=method, address=self.address)

    def _unsent(self, method: str) -> ConnectionLost:
        """Nothing of the call was sent. A connection that was never good for anything is not worth another attempt."""
        kind = Unsent if self._was_used else ConnectionLost
        return kind(self.lost or "the connection is over", method=method, address=self.address)

    def _unsent_in_time(self, method: str) -> CallTimeout:
        return CallTimeout("the server did not take the call in time", method=method, address=self.address)
