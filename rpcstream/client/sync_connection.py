"""One blocking connection of the sync client: a socket, and the call that a thread makes on it.

One thread uses it at a time; the pool sees to that. Other threads may call `abort` only. The socket is non-blocking and
waited for with `poll`: a thread that is interrupted (Ctrl-C) while it waits then has certainly read nothing, and the
connection can be kept.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from ..codec.payloads import may_have_payload
from ..errors import CallTimeout
from ..local_peer import widen_buffers
from ..peer.calls import Call
from ..peer.marshal import Marshaller
from ..peer.pending import OnProgress, PendingCall
from ..shared_memory import SharedMemory
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from .conversation import ASIDES_MAX, READ_SIZE, ClientConversation
from .options import Settings
from .sockets import Wait, milliseconds, waiter

#: Up to this size (bytes) a message is copied together with its delimiter, to be sent with one system call.
JOIN_MAX = 64 * 1024
#: How much is read with one system call of a message that did not come whole.
READ_SIZE_LONG = 1024 * 1024
#: The same where binary frames come: a frame of 64 KiB and its header come with one read, mostly.
READ_SIZE_FRAMES = 128 * 1024
#: Bytes of a payload from which on the rest of it is read into its memory, by itself.
TARGET_MIN = 16 * 1024
#: How much of a long message is offered to the system at once; of a longer one the progress is reported.
SEND_SIZE = 1024 * 1024
#: Parts of a message that are offered to the system at once.
PARTS_MAX = 512
#: Reads of what came between two calls, before the next call is sent.
CATCH_UP_READS = 16

#: So soon (s) after a call the next is sent without a look at the connection, which takes a twentieth of a short call.
LOOK_AFTER = 0.001


class PendingReply(PendingCall):
    """The reply that a thread waits for: an entry in the table of pending calls.

    Made without arguments, and `method` is set: every call makes one, and so there is no `__init__` to run.

    Attributes:
        done: there is a reply, or an error in its place.
        reply: the reply object; `line` is the message that it stood in.
        on_progress: called with what the handler reports before it has answered.
    """

    reply: dict[str, Any]

    done = False
    error: Exception | None = None
    line: bytes | bytearray = b""

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.reply, self.line, self.done = reply, line, True

    def fail(self, error: Exception) -> None:
        self.error, self.done = error, True


class SyncConnection:
    """A connected socket, used by one thread at a time.

    Args:
        sock: connected; from here on it belongs to this object.
        marshaller: reads what handlers report on their way.

    Attributes:
        conversation: what is said on it.
    """

    def __init__(self, sock: socket.socket, settings: Settings, marshaller: Marshaller) -> None:
        sock.setblocking(False)
        shared = None
        if settings.binary and settings.delimiter == b"\n":
            shared = SharedMemory(sock) if sock.family == getattr(socket, "AF_UNIX", None) else None
        self.conversation = ClientConversation(settings, marshaller, shared)
        self._socket = sock
        self._on_receive = settings.on_receive
        self._receive = sock.recv if settings.on_receive is None else _reporting(sock.recv, settings.on_receive)
        self._read_size = READ_SIZE
        self._wait_readable = waiter(sock, read=True)
        self._is_tls = settings.tls is not None
        self._can_send_parts = hasattr(sock, "sendmsg") and not self._is_tls  # Windows has no such call
        #: What a socket raises that has nothing to read, or no room.
        self._not_ready: tuple[type[OSError], ...] = (BlockingIOError, InterruptedError)
        if self._is_tls:
            import ssl

            self._not_ready += (ssl.SSLWantReadError, ssl.SSLWantWriteError)
            self._wait_readable = _decrypting(sock, self._wait_readable)
        self._address = marshaller.address
        self._trace = settings.trace
        self._on_send = settings.on_send
        self._delimiter = settings.delimiter
        #: A long message is on its way: nothing else may be sent.
        self._is_sending = False
        self._last_sent = 0.0

    # -- a call -------------------------------------------------------------------------------------------------

    def exchange(self, outgoing: Call, deadline: float, on_progress: OnProgress | None = None) -> PendingReply:
        """Send a call and wait for its reply.

        A call that gets none, for lack of time or since the thread was interrupted, is cancelled at the server; the
        connection stays, and drops the reply if it still comes.

        Args:
            outgoing: a call, a request object or a batch.
            deadline: monotonic seconds; may be infinite.
            on_progress: called with what the handler reports.

        Raises, besides what `Call` raises:
            Unsent: the connection was over before the call was sent; another one may be tried.
            ConnectionLost: it ended before the reply came, or as soon as it was made.
            CallTimeout: the server did not take the call, or did not answer, until the deadline.
        """
        conversation = self.conversation
        if conversation.lost is not None:
            raise conversation.unsent(outgoing.method)
        own = PendingReply()
        own.method = outgoing.method
        if on_progress is not None:
            own.on_progress = on_progress
        now = monotonic()
        # Before the call is entered: a connection that has ended meanwhile is no answer to it.
        if now - self._last_sent > LOOK_AFTER and self._wait_readable(0):
            self._catch_up(outgoing.method)
        self._last_sent = now
        outgoing.enter(conversation.pending, own, conversation.soon)
        may_be_sent = False
        try:
            left = deadline - now
            if left <= 0:
                raise self._not_taken(outgoing.method)
            message = outgoing.encode(left)
            may_be_sent = True
            try:
                self._write(message, deadline, outgoing.method)
            except CallTimeout:
                may_be_sent = False  # not whole, and the connection is lost if it was sent in part
                raise
            while not own.done:
                left = deadline - monotonic()
                if left <= 0:
                    raise CallTimeout("no answer in time", method=outgoing.method, address=self._address)
                if self._wait_readable(milliseconds(left)):
                    self._read()
        finally:
            if not own.done:
                self._give_up(outgoing, may_be_sent)
        if own.error is not None:
            raise own.error
        return own

    def send(self, message: Encoded, deadline: float, method: str) -> None:
        """Send a message that has no reply.

        Raises:
            Unsent: the connection was over before; another one may be tried.
            ConnectionLost: it ended meanwhile, or as soon as it was made.
            CallTimeout: the server did not take the message until `deadline`. If it had taken a part, the connection
                is lost: the rest cannot be left out.
        """
        if self.conversation.lost is None and self._wait_readable(0):
            self._catch_up(method)
        if self.conversation.lost is not None:
            raise self.conversation.unsent(method)
        self._write(message, deadline, method)

    def _give_up(self, outgoing: Call, was_sent: bool) -> None:
        """Forget a call without a reply, and cancel it at the server if it may have arrived there."""
        call_ids = outgoing.leave(self.conversation.pending)
        if was_sent:  # a server cancels by itself when the connection is lost
            self.conversation.cancel(call_ids)
            self._send_asides()

    # -- the end ------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the connection while another thread uses it: its call fails, and it closes the socket."""
        self.conversation.lost = self.conversation.lost or reason
        try:
            # Wakes a thread that waits for the socket. The method of a TLS socket would disturb that thread.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self, reason: str) -> None:
        """Close the connection; no thread uses it now."""
        self.abort(reason)
        self.abandon(reason)

    def abandon(self, reason: str = "the connection belongs to the process that this one was forked from") -> None:
        """Forget the connection in a process that was forked; it goes on in the one that made it."""
        self.conversation.lost = self.conversation.lost or reason
        if self.conversation.shared is not None:
            self.conversation.shared.close()
        self._socket.close()

    def _not_taken(self, method: str) -> CallTimeout:
        return CallTimeout("the server did not take the call in time", method=method, address=self._address)

    # -- sending ------------------------------------------------------------------------------------------------

    def _write(self, message: Encoded, deadline: float, method: str) -> None:
        conversation = self.conversation
        conversation.was_used = True
        if conversation.offers_binary and may_have_payload(message):
            conversation.offer_binary(message)
        if type(message) is bytes and len(message) <= JOIN_MAX and self._trace is None and not conversation.asides:
            self._write_parts([memoryview(message + self._delimiter)], deadline, method)
            return
        shared = None
        if conversation.sends_binary and isinstance(message, AttachedMessage):
            # The payloads are not copied: the frame is sent before the call returns.
            shared = conversation.shared
            parts, shown = [*parts_of_frame(message, shared)], message.shown
        else:
            parts, shown = [*parts_of(message), self._delimiter], message.__bytes__
        if self._trace is not None:
            self._trace("send", shown())
        if conversation.asides:
            parts.insert(0, bytes(conversation.asides))
            conversation.asides.clear()
        if sum(map(len, parts)) <= JOIN_MAX:
            parts = [b"".join(parts)]
        try:
            self._write_parts([memoryview(part) for part in parts], deadline, method)
        except BaseException:
            if shared is not None and conversation.lost is None:  # nothing was sent
                shared.take_back()
            raise

    def _write_parts(self, parts: list[memoryview], deadline: float, method: str) -> None:
        """Send the parts of a message, most often with one system call."""
        total = left = sum(map(len, parts))
        self._is_sending = True
        try:
            while True:
                sent = self._send_some(parts, method)
                left -= sent
                if sent and self._on_send is not None and total > SEND_SIZE:
                    self._on_send(total - left, total)
                if not left:
                    break
                parts = _behind(parts, sent)
                if not sent:
                    self._await_writable(deadline, method)
        except BaseException as error:
            # A record of TLS may be on its way of which the socket has not told that it was sent.
            if left and (left < total or self._is_tls):
                self.conversation.lose(f"a message could not be sent whole: {type(error).__name__}")
            raise
        finally:
            self._is_sending = False
        if self.conversation.asides:
            self._send_asides()

    def _send_some(self, parts: list[memoryview], method: str) -> int:
        try:
            if len(parts) == 1 or not self._can_send_parts:
                return self._socket.send(parts[0][:SEND_SIZE])
            return self._socket.sendmsg(parts[:PARTS_MAX])
        except self._not_ready:
            return 0
        except OSError as error:
            # Perhaps the server has said its last word before it closed the connection.
            for _ in range(CATCH_UP_READS):
                if self.conversation.lost is not None or not self._wait_readable(0):
                    break
                self._read()
            self._check_left(method)
            self.conversation.lose(_why(error))
            raise self.conversation.loss(method) from error

    def _check_left(self, method: str) -> None:
        """Raise Unread if the server has left without having read the message that is being sent."""
        if self.conversation.has_left and not self.conversation.pending:
            raise self.conversation.unsent(method)

    def _await_writable(self, deadline: float, method: str) -> None:
        """Wait until the server takes more. Read meanwhile: it may take no more before its own messages are read."""
        left = deadline - monotonic()
        if left <= 0:
            raise self._not_taken(method)
        waiter(self._socket, read=True, write=True)(milliseconds(left))
        self._read()
        self._check_left(method)
        if self.conversation.lost is not None:
            raise self.conversation.loss(method)

    def _send_asides(self) -> None:
        """Send the short messages that wait, as far as that is possible without waiting."""
        asides = self.conversation.asides
        if asides and not self._is_sending:
            try:
                sent = self._socket.send(asides)
            except OSError:
                sent = 0  # what is wrong shows when the connection is read
            del asides[:sent]

    # -- reading ------------------------------------------------------------------------------------------------

    def _catch_up(self, method: str) -> None:
        """Read what came since the last call, such as late replies. Raises Unsent if the connection has ended."""
        for _ in range(CATCH_UP_READS):
            self._read()
            if self.conversation.lost is not None:
                raise self.conversation.unsent(method)
            if not self._wait_readable(0):
                break

    def _read(self) -> None:
        """Read once, without waiting, and handle what came."""
        conversation = self.conversation
        try:
            if conversation.is_partial:
                self._read_more()
            else:
                conversation.receive(self._receive(self._read_size))
        except self._not_ready:
            return
        except OSError as error:
            conversation.lose(_why(error))
        except BaseException as error:
            # Bytes may be lost, and it is not known of which message.
            conversation.lose(f"reading was interrupted: {type(error).__name__}")
            raise
        if conversation.asides:
            self._send_asides()
            if len(conversation.asides) > ASIDES_MAX:
                conversation.lose("the peer asks and does not read the answers")
        if conversation.sends_binary and self._read_size == READ_SIZE:
            self._read_size = READ_SIZE_FRAMES
            widen_buffers(self._socket)

    def _read_more(self) -> None:
        """Read more of a message that did not come whole, into the memory of its payload if it has a long one."""
        target = self.conversation.target()
        if target is None or len(target) < TARGET_MIN:
            self.conversation.receive(self._receive(READ_SIZE_LONG))
            return
        count = self._socket.recv_into(target)
        if count and self._on_receive is not None:
            self._on_receive(count)
        self.conversation.received(count)


def _behind(parts: list[memoryview], count: int) -> list[memoryview]:
    """The parts that are left after `count` bytes were sent."""
    for position, part in enumerate(parts):
        if count < len(part):
            return [part[count:], *parts[position + 1 :]]
        count -= len(part)
    return []


def _decrypting(sock: Any, wait: Wait) -> Wait:
    """The function that waits until a TLS socket is readable, which may have more than the system knows of."""

    def wait_decrypting(milliseconds: int) -> object:
        return sock.pending() or wait(milliseconds)

    return wait_decrypting


def _why(error: OSError) -> str:
    """Why a connection was lost, for people."""
    if getattr(error, "library", None) != "SSL":
        return error.strerror or str(error)
    from ..transports.connection import why_lost

    return why_lost(error)


def _reporting(receive: Callable[[int], bytes], on_receive: Callable[[int], object]) -> Callable[[int], bytes]:
    """The receive function of a socket that tells how many bytes came."""

    def received(size: int) -> bytes:
        data = receive(size)
        if data:  # none at the end of the connection
            on_receive(len(data))
        return data

    return received
