"""One blocking connection of the sync client, shared by any number of threads, with no thread of its own.

Owns the bytes in both directions. Threads send for themselves; which of those that wait reads for all is the matter of
the reader role. Knows neither methods nor values, and of a message only whose answer it is. (Locks: see `state`.)
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import TIMEOUT_MAX
from time import monotonic
from typing import TYPE_CHECKING

import orjson

from ..errors import CallTimeout
from ..peer.deadline import INFINITE
from ..peer.marshal import Outgoing
from ..peer.pending import Waiter as AnyWaiter
from ..wire import envelope
from ..wire.buffers import Encoded, parts_of
from ..wire.framing import LONG
from .inbox import Inbox
from .options import Settings
from .readiness import milliseconds, waiter
from .role import Waiter
from .state import ConnectionState

if TYPE_CHECKING:
    from ..peer.outgoing import OnProgress  # imports asyncio, which plain calls do without

#: Up to this size (bytes) a message is copied together with its delimiter, to be sent with one system call.
JOIN_MAX = 64 * 1024
#: How much is read with one system call: of a small reply, and of a message that did not come whole.
READ_SIZE = 64 * 1024
READ_SIZE_LONG = 1024 * 1024
#: How much of a long message is offered to the system at once; of a longer one the progress is reported.
SEND_SIZE = 1024 * 1024
#: Bytes that are said in passing (refusals of the peer's requests, cancels of our own) and may wait to be sent.
ASIDES_MAX = 256 * 1024
#: While a send is stuck and another thread reads, look this often (s) whether it still does.
GLANCE = 0.01

#: So soon (s) after a call the next is sent without a look at the connection, which takes a twentieth of a short call.
LOOK_AFTER = 0.001

_BRACE, _LINE_FEED = b"{\n"


class SyncConnection(ConnectionState):
    """A connected socket and the calls that wait on it; safe to use from several threads.

    For a call there is `exchange`; for what somebody else waits for, `check`, `enter_held`, `send` and `give_up_held`.

    Args:
        sock: connected; from here on it belongs to this object.
    """

    def __init__(self, sock: socket.socket, settings: Settings) -> None:
        sock.setblocking(False)
        super().__init__(sock, str(settings.address))
        self._trace = settings.trace
        self._on_send = settings.on_send
        self._delimiter = settings.delimiter
        #: Bytes that end in a line feed may be read without framing, if they are one message.
        self._is_plain = settings.trace is None and settings.delimiter == b"\n"
        self._is_plain &= settings.limits.max_message_size >= READ_SIZE
        #: A message has begun and its end has not come.
        self._is_partial = False
        self._inbox = Inbox(self.pending, self.state, settings, lose=self._lose_held)
        self._soon = self._inbox.soon.append
        self._asides = bytearray()
        self._last_sent = 0.0
        self._wait_readable = waiter(sock, read=True)

    # -- a call -----------------------------------------------------------------------------------------------

    def exchange(self, outgoing: Outgoing, deadline: float, on_progress: OnProgress | None = None) -> Waiter:
        """Send a call and wait until it is answered, the connection lost or the time over (then it is not `done`).

        A call that is left unanswered, for lack of time or since the thread was interrupted, is cancelled at the peer.

        Raises what `Outgoing` and `send` raise; Unsent if the connection was over before the call was sent.
        """
        own = Waiter()
        own.method = outgoing.method
        if on_progress is not None:
            own.on_progress = on_progress
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
        was_sent = False
        try:
            now = monotonic()
            if not leads:
                self._inbox.check_may_wait(outgoing.method)
            elif now - self._last_sent > LOOK_AFTER and self._wait_readable(0):
                self._catch_up(outgoing.method)
            self._last_sent = now
            left = deadline - now
            if left <= 0:
                raise self._unsent_in_time(outgoing.method)
            message = outgoing.encode(left)
            was_sent = True  # or it will be: if this thread is interrupted meanwhile, nobody can say
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
        except CallTimeout:  # of sending
            was_sent = False
            raise
        finally:
            state.acquire()
            try:
                if not own.done:
                    self.give_up_held(outgoing, was_sent)
                if leads:
                    role.pass_on()
            finally:
                state.release()
            if self.lost is not None:
                self._close_if_left()
            elif not own.done:
                self.say_asides()
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

    def give_up_held(self, outgoing: Outgoing, was_sent: bool = True) -> None:
        """Nobody waits for the call any more (`state` is held); the peer learns it with `say_asides`."""
        call_ids = outgoing.leave(self.pending)
        # The peer cancels by itself when the connection is lost. Cancels that find no room are left out.
        if was_sent and len(self._asides) < ASIDES_MAX:
            self._asides += b"".join(envelope.cancel(call_id) + self._delimiter for call_id in call_ids)

    def read_while(self, wanted: Callable[[], object]) -> None:
        """Read for others as long as `wanted` gives true; for a thread that was handed the role."""
        try:
            while wanted() and self.lost is None:
                if self._wait_readable(milliseconds(INFINITE)):
                    self._read()
        finally:
            self._leave_role()

    # -- sending ----------------------------------------------------------------------------------------------

    def send(self, message: Encoded, deadline: float, method: str) -> None:
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

    def _write(self, message: Encoded, deadline: float, method: str, reads: bool) -> None:
        """The same for a thread that holds `_sending`, which is released. `reads`: it has the reader role too."""
        self._was_used = True
        try:
            if self._trace is not None:
                self._trace("send", bytes(message))
            if isinstance(message, bytes) and len(message) <= JOIN_MAX and not self._asides:
                message += self._delimiter
                try:
                    sent = self._socket.send(message)
                except OSError:
                    sent = 0  # what is wrong shows with the next attempt
                if sent != len(message):
                    self._send_rest([memoryview(message)[sent:]], deadline, method, reads, begun=bool(sent))
            else:
                asides = self._take_asides()
                parts = [memoryview(part) for part in (asides, *parts_of(message), self._delimiter)]
                self._send_rest(parts, deadline, method, reads, begun=bool(asides))
        finally:
            self._sending.release()
            if self.lost is not None:
                self._close_if_left()
            elif self._asides:
                self.say_asides()

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

    def _take_asides(self) -> bytes:
        with self.state:
            asides = bytes(self._asides)
            self._asides.clear()
        return asides

    def say_asides(self) -> None:
        """Send what is said in passing, as far as that is possible without waiting."""
        while self._asides and self._sending.acquire(False):
            try:
                asides = self._take_asides()
                try:
                    sent = self._socket.send(asides)
                except OSError:
                    sent = 0  # what is wrong shows when the connection is read
                with self.state:
                    self._asides[:0] = asides[sent:]
            finally:
                self._sending.release()
            if sent < len(asides):
                break

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
                    self._asides += b"".join(refusal + self._delimiter for refusal in refusals)
                self.say_asides()
                if len(self._asides) > ASIDES_MAX:
                    self._lose("the peer asks and does not read the answers")
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
