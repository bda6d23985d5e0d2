"""One blocking connection of the sync client: a socket, made again after it was lost, and one call at a time on it.

One thread uses a connection at a time; the pool sees to that. Other threads may only call `abort`. The socket is
non-blocking, and `poll` waits for it: a thread that is interrupted (Ctrl-C) while it waits has read nothing, so the
connection can be kept.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectionLost, MethodNotFound, RpcError
from ..local_peer import milliseconds, waiter, widen_buffers
from ..peer.calls import Call
from ..peer.deadline import INFINITE
from ..peer.marshal import Marshaller
from ..peer.pending import OnProgress, PendingCall
from ..peer.shared_memory import SharedMemory
from ..transports.awake import Watch
from ..wire.buffers import Encoded
from .address import Address
from .conversation import READ_SIZE, ClientConversation
from .options import Settings

if TYPE_CHECKING:
    import ssl

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

#: Seconds. A call that follows another one so soon is sent without a look whether the connection has ended, because
#: that takes a twentieth of a short call.
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
    """A connection for one thread at a time. The first call connects it, and so does the next call after it was lost.

    Args:
        settings: with the address.
        marshaller: writes calls and reads replies.

    Attributes:
        conversation: what is said on the connection; lost while it is not connected.
        losses: how often it was closed so far.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller) -> None:
        self.conversation = ClientConversation(settings, marshaller)
        self.conversation.lost = "not connected"
        self._settings = settings
        self._marshaller = marshaller
        self._address = marshaller.address
        self.losses, self._watch = 0, Watch()
        #: None while it is not connected.
        self._socket: Any = None
        #: Nothing was sent on the present socket but the token.
        self._is_new = False
        #: Why no call is made any more.
        self._ended: str | None = None
        self._on_send = settings.on_send
        self._can_send_parts = hasattr(socket.socket, "sendmsg") and settings.tls is None  # Windows has no such call
        #: What a socket raises that has nothing to read, or no room.
        self._not_ready: tuple[type[OSError], ...] = (BlockingIOError, InterruptedError)
        if settings.tls is not None:
            import ssl

            self._not_ready += (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        #: When the last call began (monotonic seconds).
        self._used = 0.0

    # -- connecting -------------------------------------------------------------------------------------------------

    def _connect(self, method: str, deadline: float) -> ClientConversation:
        """Connect to the server, and send the token.

        Raises:
            ConnectFailed, CallTimeout: there is no connection.
            NotAuthenticated: the server does not take the token.
            Unsent: the connection was over as soon as it was made; or the client was closed.
        """
        if self._is_new or self._ended is not None:
            raise self.conversation.unsent(method)
        self.close()
        limit, began = self._settings.connect_timeout, monotonic()
        ends = min(deadline, INFINITE if limit is None else began + limit)
        try:
            if deadline <= began:
                raise TimeoutError
            self._use(dial(self._settings, None if ends == INFINITE else ends - began))
            if self._settings.token is not None:
                self._log_in(ends)
        except BaseException as error:
            self.close()
            if isinstance(error, RpcError):
                error.method = method
            if not isinstance(error, OSError):
                raise
            from .faults import connect_failed, is_own_timeout

            if is_own_timeout(error) and ends == deadline:
                raise CallTimeout("no connection in time", method=method, address=self._address) from error
            raise connect_failed(error, limit, self._settings.address, method) from error
        self._is_new = True
        return self.conversation

    def _use(self, sock: socket.socket) -> None:
        """Begin a conversation on a connected socket."""
        settings, shared = self._settings, None
        sock.setblocking(False)
        if settings.binary and settings.delimiter == b"\n" and sock.family == getattr(socket, "AF_UNIX", None):
            shared = SharedMemory(sock)
        self._receive = sock.recv
        self._read_size = READ_SIZE
        self._wait_readable = wait = waiter(sock, read=True)
        if settings.tls is not None:
            self._wait_readable = lambda timeout: sock.pending() or wait(timeout)  # type: ignore[attr-defined]
        self._socket, self._is_new = sock, True
        self.conversation = ClientConversation(settings, self._marshaller, shared)
        self.conversation.lost = self._ended  # the client may have been closed meanwhile

    def _log_in(self, deadline: float) -> None:
        """Send the token, before anything else. A server that does not know the method needs no token."""
        call = Call(self._marshaller, "rpc.authenticate", {"token": self._settings.token})
        got = self.exchange(call, deadline)
        try:
            call.outcome(got.reply, got.line)
        except MethodNotFound:
            pass

    # -- a call -----------------------------------------------------------------------------------------------------

    def exchange(self, outgoing: Call, deadline: float, on_progress: OnProgress | None = None) -> PendingReply:
        """Send a call and wait for its reply.

        A call that gets none, because it timed out or the thread was interrupted, is cancelled at the server. The
        connection stays open, and drops the reply if it still arrives.

        Args:
            outgoing: a call, a request object, a batch or a notification.
            deadline: monotonic seconds; may be infinite.
            on_progress: called with what the handler reports.

        Raises, besides what `Call` raises:
            ConnectFailed, NotAuthenticated, Unsent: there is no connection.
            ConnectionLost: it ended before the reply came.
            CallTimeout: there was no connection until the deadline; the server did not take the call until then, and
                the connection is lost; or it did not answer.
        """
        conversation, now = self.conversation, monotonic()
        if now - self._used > LOOK_AFTER:
            self._catch_up()
        self._used = now
        if conversation.lost is not None:
            conversation, now = self._connect(outgoing.method, deadline), monotonic()
        left = deadline - now
        if left <= 0:
            raise self._not_taken(outgoing.method)
        own = PendingReply()
        own.method = outgoing.method
        if on_progress is not None:
            own.on_progress = on_progress
        outgoing.enter(conversation.pending, own)
        is_sent = False
        try:
            message = outgoing.encode(left)
            is_sent = True
            self._write(message, deadline, outgoing.method)
            self._poll_for_reply(own)
            while not own.done:
                left = deadline - monotonic()
                if left <= 0:
                    raise CallTimeout("no answer in time", method=outgoing.method, address=self._address)
                if self._wait_readable(milliseconds(left)):
                    self._read()
                    if conversation.outgoing:
                        self._flush()
        finally:
            if not own.done:
                call_ids = outgoing.leave(conversation.pending)
                if is_sent:
                    conversation.cancel(call_ids)
                    self._flush()
        if own.error is not None:
            raise own.error
        return own

    # -- the end ------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the connection for good while another thread uses it: its call fails, and it closes the socket."""
        self._ended = reason
        self.conversation.lost = self.conversation.lost or reason
        sock = self._socket
        if sock is not None:
            try:
                # Wakes a thread that waits for the socket. The method of a TLS socket would disturb that thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Close the connection, which no other thread uses now, until the next call."""
        conversation, self._is_new = self.conversation, False
        conversation.lost = conversation.lost or "the connection was closed"
        if conversation.shared is not None:
            conversation.shared.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.losses += 1

    def _not_taken(self, method: str) -> CallTimeout:
        return CallTimeout("the server did not take the call in time", method=method, address=self._address)

    # -- sending ------------------------------------------------------------------------------------------------

    def _write(self, message: Encoded, deadline: float, method: str) -> None:
        """Send a message, most often with one system call. The connection is lost if that cannot be done whole."""
        self._is_new = False
        conversation, outgoing = self.conversation, self.conversation.outgoing
        conversation.send(message)
        total, done = 0 if self._on_send is None else sum(map(len, outgoing)), 0
        try:
            while outgoing:
                sent = self._offer(method)
                if not sent:
                    self._await_writable(deadline, method)
                elif self._on_send is not None and total > SEND_SIZE:
                    done += sent
                    self._on_send(min(done, total), total)
        except BaseException as error:
            conversation.lose(f"a message could not be sent whole: {type(error).__name__}")
            raise

    def _offer(self, method: str) -> int:
        """Send what the system takes at once, and return how many bytes that is. Raises ConnectionLost, Unread."""
        outgoing = self.conversation.outgoing
        try:
            if len(outgoing) == 1 or not self._can_send_parts:
                sent: int = self._socket.send(outgoing[0][:SEND_SIZE])
            else:
                sent = self._socket.sendmsg(outgoing[:PARTS_MAX])
        except self._not_ready:
            return 0
        except OSError as error:
            self._catch_up()  # perhaps the server has said why before it closed the connection
            make_error = self._loss()
            self.conversation.lose(_why(error))
            raise make_error(method) from error
        left = sent
        while outgoing and left >= len(outgoing[0]):
            left -= len(outgoing.pop(0))
        if left:
            outgoing[0] = outgoing[0][left:]
        return sent

    def _await_writable(self, deadline: float, method: str) -> None:
        """Wait until the server takes more. Read meanwhile: it may take no more before its own messages are read."""
        left = deadline - monotonic()
        if left <= 0:
            raise self._not_taken(method)
        waiter(self._socket, read=True, write=True)(milliseconds(left))
        self._read()
        if self.conversation.lost is not None:
            raise self._loss()(method)

    def _loss(self) -> Callable[[str], ConnectionLost]:
        """Return what makes the error of a message that was not sent whole: Unread if the server left before it."""
        conversation = self.conversation
        return conversation.unsent if conversation.has_left and not conversation.pending else conversation.loss

    def _flush(self) -> None:
        """Send the replies and cancels that wait, as far as that is possible without waiting."""
        try:
            while self.conversation.outgoing and self._offer(""):
                pass
        except OSError:
            pass  # what is wrong shows when the connection is read
        except BaseException as error:
            self.conversation.lose(f"a message could not be sent whole: {type(error).__name__}")
            raise

    # -- reading ------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Read what has come, such as late replies."""
        for _ in range(CATCH_UP_READS):
            if self.conversation.lost is not None or not self._wait_readable(0):
                return
            self._read()

    def _poll_for_reply(self, own: PendingReply) -> None:
        """Poll for a reply for a moment, on a connection whose arrays are sent in shared memory."""
        shared, watch = self.conversation.shared, self._watch
        if shared is None or own.done or not (shared.placed or shared.received) or not watch.begin():
            return
        while watch.goes_on():
            if self._wait_readable(0):
                watch.found()
                return

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
        if conversation.sends_binary and self._read_size == READ_SIZE:
            self._read_size = READ_SIZE_FRAMES
            widen_buffers(self._socket)

    def _read_more(self) -> None:
        """Read more of a message that did not come whole, into the memory of its payload if it has a long one."""
        target = self.conversation.target()
        if target is None or len(target) < TARGET_MIN:
            self.conversation.receive(self._receive(READ_SIZE_LONG))
            return
        self.conversation.received(self._socket.recv_into(target))


def _why(error: OSError) -> str:
    """Why a connection was lost, for people."""
    if getattr(error, "library", None) != "SSL":
        return error.strerror or str(error)
    from ..transports.connection import why_lost

    return why_lost(error)


def dial(settings: Settings, seconds: float | None) -> socket.socket:
    """Connect to a TCP, TLS or Unix address, and block until that is done.

    Args:
        settings: with the address.
        seconds: that this may take for each IP address of the host (of several servers: for all but the last); None for
            no limit.

    Raises:
        OSError: the server cannot be reached, or TLS failed; TimeoutError without errno: the time is over.
    """
    if settings.address.kind == "unix":
        return _dial_unix(settings.address.path, seconds)
    *first, last = settings.address.in_turn
    share = None if seconds is None else seconds / (len(first) + 1)
    for address in first:
        try:
            return _dial_tcp(address, settings.tls, share)
        except OSError:
            continue
    return _dial_tcp(last, settings.tls, seconds)


def _dial_tcp(address: Address, tls: ssl.SSLContext | None, seconds: float | None) -> socket.socket:
    # As bytes, where they say the same: for a text the codec of international names is imported, for 2 ms.
    name: Any = address.host.encode() if address.host.isascii() else address.host
    sock = socket.create_connection((name, address.port), timeout=seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if tls is None:
        return sock
    try:
        return tls.wrap_socket(sock, server_hostname=address.host.partition("%")[0])
    except BaseException:
        sock.close()
        raise


def _dial_unix(path: str, seconds: float | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
