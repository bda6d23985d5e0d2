"""One blocking connection of the sync client: a socket, the framing of its messages, and the call that waits on it.

Owns the bytes in both directions, the deadlines of sending and of waiting, what is answered to messages that the server
sends unasked, and how the connection ends. One thread uses it at a time, for one call; the pool sees to that. Other
threads may call `abort` only. Knows neither methods nor values, and of a message only which call it answers.

The socket is non-blocking and waited for with `poll`: a thread that is interrupted (Ctrl-C) while it waits then has
certainly read nothing, and the connection can be kept.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any

import orjson

from ..codec.payloads import CutLine, OverLimit, may_have_payload, read_frame
from ..errors import CallTimeout, ConnectionLost, Unread
from ..local_peer import widen_buffers
from ..peer.marshal import Marshaller, Outgoing
from ..peer.pending import OnProgress, PendingCall, PendingCalls
from ..shared_memory import SharedMemory
from ..text import get_logger
from ..wire import envelope
from ..wire.binary_frame import parts_of_frame, shown
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from ..wire.framing import LineFramer
from ..wire.messages import LONG, BinaryFrame, Message, Oversize, PartialFrame
from .address import Address
from .callbacks import ClientDispatcher
from .options import Settings
from .retry import ClosedAtOnce, Unsent
from .sockets import milliseconds, waiter

#: Up to this size (bytes) a message is copied together with its delimiter, to be sent with one system call.
JOIN_MAX = 64 * 1024
#: How much is read with one system call: of a small reply, and of a message that did not come whole.
READ_SIZE = 64 * 1024
READ_SIZE_LONG = 1024 * 1024
#: The same where binary frames come: a frame of 64 KiB and its header come with one read, mostly.
READ_SIZE_FRAMES = 128 * 1024
#: Bytes of a payload from which on the rest of it is read into its memory, by itself.
TARGET_MIN = 16 * 1024
#: How much of a long message is offered to the system at once; of a longer one the progress is reported.
SEND_SIZE = 1024 * 1024
#: Bytes of short messages (cancels, refusals of the server's requests) that may wait until the socket takes them.
ASIDES_MAX = 256 * 1024
#: Reads of what came between two calls, before the next call is sent.
CATCH_UP_READS = 16

#: So soon (s) after a call the next is sent without a look at the connection, which takes a twentieth of a short call.
LOOK_AFTER = 0.001

_BRACE = ord("{")


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
        pending: the calls without an answer: that of the thread that uses the connection, or those of its batch.
        lost: why the connection is over; None while it is not.
        reporting: the thread that runs an `on_progress` now.
    """

    def __init__(self, sock: socket.socket, settings: Settings, marshaller: Marshaller) -> None:
        sock.setblocking(False)
        limits = settings.limits
        self.pending = PendingCalls()
        self.pending.when_silent = partial(_silence, settings.address)
        self.lost: str | None = None
        self._is_left = False
        self.reporting: int | None = None
        self._socket = sock
        self._on_receive = settings.on_receive
        self._receive = sock.recv if settings.on_receive is None else _reporting(sock.recv, settings.on_receive)
        self._wait_readable = waiter(sock, read=True)
        self._marshaller = marshaller
        self._address = marshaller.address
        self._trace = settings.trace
        self._on_send = settings.on_send
        self._delimiter = settings.delimiter
        self._max_size = limits.max_message_size
        self._limits = limits
        self._parse_long = settings.codec.parse
        self._intake = _SyncIntake(settings, self.pending)
        self._framer = LineFramer(
            max_size=limits.max_message_size,
            delimiter=settings.delimiter,
            intake=self._intake if settings.delimiter == b"\n" else None,
        )
        #: `rpc.hello` is to be said once there is a large payload; it was answered, and frames may be sent.
        self._offers_binary = settings.binary and settings.delimiter == b"\n"
        self._sends_binary = False
        self._read_size = READ_SIZE
        if self._offers_binary and settings.shared_memory and sock.family == getattr(socket, "AF_UNIX", None):
            self._intake.shared = SharedMemory(sock)
        self._dispatcher = ClientDispatcher(settle=self.pending.settle, close=self._lose)
        #: Bytes that end in a line feed may be read without framing, if they are one message.
        self._may_be_plain = settings.trace is None and settings.delimiter == b"\n"
        self._may_be_plain &= limits.max_message_size >= READ_SIZE
        self._is_plain = self._may_be_plain
        #: A message has begun and its end has not come.
        self._is_partial = False
        #: Run when the message that is being handled has been handled whole.
        self._after_message: list[Callable[[], None]] = []
        self._soon = self._after_message.append
        self._asides = bytearray()
        #: A long message is on its way: nothing else may be sent.
        self._is_sending = False
        self._was_used = False
        self._last_sent = 0.0

    # -- a call -------------------------------------------------------------------------------------------------

    def exchange(self, outgoing: Outgoing, deadline: float, on_progress: OnProgress | None = None) -> PendingReply:
        """Send a call and wait for its reply.

        A call that gets none, for lack of time or since the thread was interrupted, is cancelled at the server; the
        connection stays, and drops the reply if it still comes.

        Args:
            outgoing: a call, a request object or a batch.
            deadline: monotonic seconds; may be infinite.
            on_progress: called with what the handler reports.

        Raises, besides what `Outgoing` raises:
            Unsent: the connection was over before the call was sent; another one may be tried.
            ConnectionLost: it ended before the reply came, or as soon as it was made.
            CallTimeout: the server did not take the call, or did not answer, until the deadline.
        """
        if self.lost is not None:
            raise self._unsent(outgoing.method)
        own = PendingReply()
        own.method = outgoing.method
        if on_progress is not None:
            own.on_progress = on_progress
        outgoing.enter(self.pending, own, self._soon)
        may_be_sent = False
        try:
            now = monotonic()
            if now - self._last_sent > LOOK_AFTER and self._wait_readable(0):
                self._catch_up(outgoing.method)
            self._last_sent = now
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
        if self.lost is None and self._wait_readable(0):
            self._catch_up(method)
        if self.lost is not None:
            raise self._unsent(method)
        self._write(message, deadline, method)

    def _give_up(self, outgoing: Outgoing, was_sent: bool) -> None:
        """Forget a call without a reply, and cancel it at the server if it may have arrived there."""
        call_ids = outgoing.leave(self.pending)
        # A server cancels by itself when the connection is lost. Cancels that find no room are left out.
        if was_sent and self.lost is None and len(self._asides) < ASIDES_MAX:
            self._asides += b"".join(envelope.cancel(call_id) + self._delimiter for call_id in call_ids)
            self._send_asides()

    # -- the end ------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the connection while another thread uses it: its call fails, and it closes the socket."""
        if self.lost is None:
            self.lost = reason
        self._shut_down()

    def close(self, reason: str) -> None:
        """Close the connection; no thread uses it now."""
        if self.lost is None:
            self.lost = reason
        self._shut_down()
        self._stop_sharing()
        self._socket.close()

    def abandon(self) -> None:
        """Forget the connection in a process that was forked; it goes on in the one that made it."""
        self.lost = "the connection belongs to the process that this one was forked from"
        self._stop_sharing()
        self._socket.close()

    def _stop_sharing(self) -> None:
        if self._intake.shared is not None:
            self._intake.shared.close()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for the socket
        except OSError:
            pass

    def _lose(self, reason: str) -> None:
        """Note that the connection is over, and fail what waits."""
        if self.lost is None:
            self.lost = self.pending.explained(reason)
        self.pending.fail_all(self._loss)

    def _loss(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.lost or "the connection is over", method=method, address=self._address)

    def _unsent(self, method: str) -> ConnectionLost:
        """The error of a call that was not sent: it may be tried again if the connection worked before."""
        if self._is_left:
            return self._unread(method)
        kind = Unsent if self._was_used else ClosedAtOnce
        return kind(self.lost or "the connection is over", method=method, address=self._address)

    def _not_taken(self, method: str) -> CallTimeout:
        return CallTimeout("the server did not take the call in time", method=method, address=self._address)

    # -- sending ------------------------------------------------------------------------------------------------

    def _write(self, message: Encoded, deadline: float, method: str) -> None:
        self._was_used = True
        if self._offers_binary and may_have_payload(message):
            self._offer_binary(message)
        if self._sends_binary and isinstance(message, AttachedMessage):
            self._write_attached(message, deadline, method)
            return
        if self._trace is not None:
            self._trace("send", bytes(message))
        if type(message) is bytes and len(message) <= JOIN_MAX and not self._asides:
            message += self._delimiter
            try:
                sent = self._socket.send(message)
            except OSError:
                sent = 0  # what is wrong shows with the next attempt
            if sent != len(message):
                self._write_rest([memoryview(message)[sent:]], deadline, method, sent=sent)
        else:
            asides = bytes(self._asides)
            self._asides.clear()
            parts = [memoryview(part) for part in (asides, *parts_of(message), self._delimiter)]
            self._write_rest(parts, deadline, method)

    def _write_attached(self, message: AttachedMessage, deadline: float, method: str) -> None:
        """Send a message as a binary frame. Its payloads are not copied: it is sent before the call returns."""
        shared = self._intake.shared
        parts = parts_of_frame(message, shared)
        if self._trace is not None:
            self._trace("send", shown(parts[0]))
        if self._asides:
            parts.insert(0, bytes(self._asides))
            self._asides.clear()
        try:
            self._write_frame(parts, deadline, method)
        except BaseException:
            if shared is not None and self.lost is None:  # nothing was sent
                shared.take_back()
            raise

    def _offer_binary(self, message: Encoded = b"") -> None:
        """Say that binary frames are read here, and ask whether the server reads some; not waited for.

        Args:
            message: is sent next.
        """
        self._offers_binary = False
        shared = self._intake.shared
        hello = self.pending.add_offer(self._use_binary, message, shared.offer() if shared is not None else None)
        if self._trace is not None:
            self._trace("send", hello)
        self._asides += hello + self._delimiter

    def _use_binary(self, answer: dict[str, Any]) -> None:
        """Send binary frames from now on, by shared memory if the answer of the server permits."""
        self._sends_binary = True
        self._read_size = READ_SIZE_FRAMES
        if self._intake.shared is not None:
            self._intake.shared.accept(answer.get("shm"))
        self._marshaller.attach_payloads()
        widen_buffers(self._socket)

    def _write_frame(self, parts: list[Any], deadline: float, method: str) -> None:
        """Send the parts of a binary frame, with one system call if it takes them all."""
        try:
            sent = self._socket.sendmsg(parts)
        except (OSError, AttributeError):
            sent = 0  # what is wrong shows with the next attempt; or there is no such call (Windows)
        at, rest = sent, []
        for part in parts:
            if at < len(part):
                rest.append(memoryview(part)[at:])
            at = max(0, at - len(part))
        if rest:
            self._write_rest(rest, deadline, method, sent=sent)
        elif self._on_send is not None and sent > SEND_SIZE:
            self._on_send(sent, sent)

    def _write_rest(self, parts: list[memoryview], deadline: float, method: str, *, sent: int = 0) -> None:
        """Send what does not go with one system call. `sent`: bytes of the message that are on their way already."""
        left = sum(map(len, parts))
        total = sent + left
        self._is_sending = True
        try:
            for part in parts:
                at = 0
                while at < len(part):
                    sent = self._send_some(part[at : at + SEND_SIZE], method)
                    at += sent
                    left -= sent
                    if not sent:
                        self._await_writable(deadline, method)
                    elif self._on_send is not None and total > SEND_SIZE:
                        self._on_send(total - left, total)
        except BaseException as error:
            if left and left < total:
                self._lose(f"a message could not be sent whole: {type(error).__name__}")
            raise
        finally:
            self._is_sending = False
        self._send_asides()

    def _send_some(self, data: memoryview, method: str) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            # Perhaps the server has said its last word before it closed the connection.
            for _ in range(CATCH_UP_READS):
                if self.lost is not None or not self._wait_readable(0):
                    break
                self._read()
            self._check_left(method)
            self._lose(error.strerror or str(error))
            raise self._loss(method) from error

    def _check_left(self, method: str) -> None:
        """Raise Unread if the server has left without having read the message that is being sent."""
        if self._is_left and not self.pending:
            raise self._unread(method)

    def _await_writable(self, deadline: float, method: str) -> None:
        """Wait until the server takes more. Read meanwhile: it may take no more before its own messages are read."""
        left = deadline - monotonic()
        if left <= 0:
            raise self._not_taken(method)
        waiter(self._socket, read=True, write=True)(milliseconds(left))
        self._read()
        self._check_left(method)
        if self.lost is not None:
            raise self._loss(method)

    def _send_asides(self) -> None:
        """Send the short messages that wait, as far as that is possible without waiting."""
        if self._asides and not self._is_sending:
            try:
                sent = self._socket.send(self._asides)
            except OSError:
                sent = 0  # what is wrong shows when the connection is read
            del self._asides[:sent]

    # -- reading ------------------------------------------------------------------------------------------------

    def _catch_up(self, method: str) -> None:
        """Read what came since the last call, such as late replies. Raises Unsent if the connection has ended."""
        for _ in range(CATCH_UP_READS):
            self._read()
            if self.lost is not None:
                raise self._unsent(method)
            if not self._wait_readable(0):
                break

    def _read(self) -> None:
        """Read once, without waiting, and handle what came."""
        try:
            if self._is_partial and (target := self._framer.target()) is not None and len(target) >= TARGET_MIN:
                self._read_into(target)
                return
            data = self._receive(READ_SIZE_LONG if self._is_partial else self._read_size)
            if self._is_plain and data[-1:] == b"\n" and data[0] == _BRACE and len(data) < LONG:
                # The common case, without framing: what came is one reply, whole.
                try:
                    message = orjson.loads(data)
                except orjson.JSONDecodeError:
                    message = None
                if message is not None and "method" not in message and ("result" in message or "error" in message):
                    self.pending.settle(message, data)
                    return
            self._handle_bytes(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._lose(error.strerror or str(error))
        except BaseException as error:
            # Bytes may be lost, and it is not known of which message.
            self._lose(f"reading was interrupted: {type(error).__name__}")
            raise

    def _read_into(self, target: memoryview) -> None:
        """Read once into the memory of a payload."""
        count = self._socket.recv_into(target)
        if not count:
            self._handle_bytes(b"")
            return
        if self._on_receive is not None:
            self._on_receive(count)
        self._handle(self._framer.received(count))
        self._after_reading()

    def _handle_bytes(self, data: bytes) -> None:
        """Handle what is not simply one reply; no bytes mean the end of the stream."""
        end = None
        if data:
            self._handle(self._framer.feed(data))
            self._after_reading()
            if self._framer.ended:
                end = self._framer.fault or "the peer ended the conversation with an empty line"
        else:
            end, last = "the peer closed the connection", self._framer.finish()
            if last and not _is_json(last[0]):
                end = "the peer closed the connection within a message"
            else:
                self._handle(last)
        if self._asides:
            self._send_asides()
            if len(self._asides) > ASIDES_MAX:
                self._lose("the peer asks and does not read the answers")
        if end is not None:
            self._lose(end)

    def _after_reading(self) -> None:
        self._is_partial = self._framer.partial
        self._is_plain = self._may_be_plain and not self._is_partial

    def _handle(self, messages: list[Message]) -> None:
        for position, line in enumerate(messages, 1):
            if self._trace is not None:
                self._trace("receive", bytes(line.head if isinstance(line, Oversize) else line))
            self._handle_one(line, messages, position)

    def _handle_one(self, line: Message, messages: list[Message], position: int) -> None:
        if isinstance(line, Oversize):
            self._dispatcher.refuse(line, envelope.refusal_of(line, self._max_size, side="client"))
            return
        if isinstance(line, BinaryFrame):
            self._handle_frame(line)
            return
        text = line
        try:
            if len(line) < LONG:
                message = orjson.loads(line)
            else:
                message, text = self._parse_long(line, self._limits)
                if self._offers_binary and isinstance(text, CutLine) and text.payloads:
                    self._offer_binary()
        except OverLimit as error:
            self._handle_one(error.stand_in(line), messages, position)
            return
        except orjson.JSONDecodeError as error:
            if values := envelope.split_values(line):
                messages[position:position] = values
            else:
                self._dispatcher.refuse({}, envelope.unreadable(line, error))
            return
        self._handle_parsed(message, text)

    def _handle_frame(self, frame: BinaryFrame) -> None:
        message, line = frame.content
        if frame.refusal is None:
            self._handle_parsed(message, line)
        elif type(message) is dict and "method" in message:  # its id is the server's, not that of a call
            refusal = self._dispatcher.refuse(message, frame.refusal) if "id" in message else None
            if refusal is not None:
                self._asides += bytes(refusal) + self._delimiter
        else:  # all calls fail that may be meant
            call_id = message.get("id") if type(message) is dict else None
            self.pending.settle({**envelope.error_reply(None, frame.refusal), "id": call_id}, b"")

    def _handle_parsed(self, message: Any, text: bytes) -> None:
        method = message.get("method") if type(message) is dict and "id" not in message else None
        if method == envelope.PROGRESS:
            self._report(message.get("params"), text)
        elif method == envelope.GO_AWAY:
            self._take_leave(message)
        elif not self.pending.settled(message, text):
            refusal = self._dispatcher.answer_now(message, text)
            if refusal is not None:
                self._asides += refusal + self._delimiter
        for function in self._after_message:
            function()
        self._after_message.clear()

    def _take_leave(self, message: dict[str, Any]) -> None:
        """Note that the server reads no more requests: a call that it has not read fails, and no other is sent."""
        params = message.get("params")
        if type(params) is not dict or message.get("jsonrpc") != envelope.VERSION or self._is_left:
            return
        self._is_left = True
        if self.lost is None:
            self.lost = envelope.reason_of_leave(params)
        for call in self.pending.take_unread(params.get("last", envelope.UNSAYABLE)):
            call.fail(self._unread(call.method))

    def _unread(self, method: str) -> Unread:
        return Unread(self.lost or "the server has left", method=method, address=self._address)

    def _report(self, params: Any, line: bytes | bytearray) -> None:
        """Tell the caller's `on_progress` what the handler reports. What that raises is logged, and ends nothing."""
        pending = self.pending.find(params.get("token")) if type(params) is dict else None
        if pending is None or pending.on_progress is None:
            return
        self.reporting = get_ident()
        try:
            pending.on_progress(self._marshaller.member(pending.method, params, line, "value"))
        except Exception:
            get_logger("rpcstream.client").exception("on_progress of a call of %r failed", pending.method)
        finally:
            self.reporting = None


class _SyncIntake:
    """Takes the binary frames of one blocking connection (`wire.messages.FrameIntake`).

    It has no memory to wait for: only one reply is awaited, and that is as large as `max_message_size` at most.
    """

    def __init__(self, settings: Settings, pending: PendingCalls) -> None:
        self._is_on = settings.binary
        self._limits = settings.limits
        self._pending = pending
        self.shared: SharedMemory | None = None

    def refuses_frames(self) -> str | None:
        return None if self._is_on else "the peer sent a binary frame, and these are switched off (binary=False)"

    def admit(self, json: bytes, sizes: tuple[int, ...]) -> tuple[BinaryFrame, list[memoryview]]:
        frame = read_frame(json, sizes, self._limits, "client")
        message, line = frame.content
        if frame.refusal is not None:
            return frame, []
        if envelope.is_reply(message) and message.get("id") is not None and self._pending.find(message["id"]) is None:
            return frame, []  # it is dropped
        return frame, line.take_memory()

    def grow(self, received: int) -> bool:
        return True

    def begun(self, rest: PartialFrame) -> None:
        """Nothing takes the memory away."""

    def over(self) -> None:
        """Nothing was counted."""


def _reporting(receive: Callable[[int], bytes], on_receive: Callable[[int], object]) -> Callable[[int], bytes]:
    """The receive function of a socket that tells how many bytes came."""

    def received(size: int) -> bytes:
        data = receive(size)
        if data:  # none at the end of the connection
            on_receive(len(data))
        return data

    return received


def _silence(address: Address) -> str:
    from .faults import silence

    return silence(address)


def _is_json(line: Message) -> bool:
    try:
        orjson.loads(line)  # type: ignore[arg-type]
    except orjson.JSONDecodeError:
        return False
    return True
