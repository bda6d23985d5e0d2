"""Passes messages and file descriptors between a supervisor and a worker, over a pair of Unix sockets.

A message is an object with a `type`, and has at most one descriptor. A message that was sent with `ask` is answered by
a message of the type "answer".

The bytes of a message are its length (4 bytes), 1 or 0 for whether it has a descriptor, and the object as MessagePack.
The system delivers a descriptor with the first byte that was sent with it, and ends a read there. A descriptor that a
process has no room for leaves a gap, so that later ones still belong to their messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

Message = dict[str, Any]

_HEAD = struct.Struct("!IB")

#: Bytes of one read.
_READ = 256 * 1024

#: Seconds until a descriptor that the system has no room for is sent again.
_RETRY = 0.05

#: Errors of a socket whose other end is closed.
_GONE = frozenset((errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF))

#: Reads in one turn of the event loop, so that the connections of this process get their turn.
_BURST = 16


class Channel:
    """One end of the pair of sockets, in an event loop, from `start` to `close`.

    Args:
        sock: connected to the other end; this object closes it.
        on_message: called with each message and its descriptor, which the callee must close. None: the message has
            none. -1: it was lost because this process had no room for it.
        on_end: called once, when the other end has closed its socket, or its process has ended.
        on_room: called when all waiting messages have been sent.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, int | None], object],
        on_end: Callable[[], object],
        on_room: Callable[[], object] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._on_room = on_room
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        #: Messages that the system has not taken: bytes, the descriptor that goes with the first one, and the message.
        self._waiting: deque[tuple[memoryview, int | None, Message]] = deque()
        #: Bytes of these messages.
        self.waiting_size = 0
        self._is_writing = self._has_ended = False
        self.is_open = True
        #: The questions that the other end has not answered, by their numbers.
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._last_number = 0

    @property
    def waiting(self) -> int:
        """The number of messages that wait to be sent."""
        return len(self._waiting)

    def start(self) -> None:
        """Receive messages from now on."""
        if self.is_open and not self._has_ended:
            self._sock.setblocking(False)
            self._loop.add_reader(self._sock.fileno(), self.receive)

    def end(self) -> None:
        """Close the sending half; messages from the other end are still received."""
        if self.is_open:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end. Waiting messages and their descriptors are dropped."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, descriptor, _ in self._waiting:
            if descriptor is not None:
                os.close(descriptor)
        for descriptor in self._descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        self._waiting.clear()
        self.waiting_size = 0
        self._descriptors.clear()
        self._give_up_questions()

    # -- sending ----------------------------------------------------------------------------------------------------

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message. Its descriptor belongs to this object, which closes it once it is sent."""
        if not self.is_open:
            if descriptor is not None:
                os.close(descriptor)
            return
        data = _packed(message, descriptor is not None)
        self._waiting.append((memoryview(data), descriptor, message))
        self.waiting_size += len(data)
        if len(self._waiting) == 1:
            self._write()

    def ask(self, question: Message) -> asyncio.Future[Message]:
        """Send a message that the other end answers. The future gets the answer; it is cancelled if none comes."""
        self._last_number = number = self._last_number + 1
        future: asyncio.Future[Message] = self._loop.create_future()
        self._asked[number] = future
        future.add_done_callback(lambda _: self._asked.pop(number, None))
        self.send({**question, "ask": number})
        if not self.is_open or self._has_ended:
            future.cancel()
        return future

    def answer(self, question: Message, answer: Message) -> None:
        """Answer a message that the other end has sent with `ask`."""
        self.send({**answer, "type": "answer", "ask": question["ask"]})

    def _give_up_questions(self) -> None:
        for future in list(self._asked.values()):
            future.cancel()

    def take_back(self) -> list[tuple[Message, int]]:
        """Take back the messages with descriptors that were not sent yet."""
        waiting, self._waiting = self._waiting, deque()
        taken = []
        for data, descriptor, message in waiting:
            if descriptor is None:
                self._waiting.append((data, None, message))
            else:
                taken.append((message, descriptor))
                self.waiting_size -= len(data)
        return taken

    def _write(self) -> None:
        """Send waiting messages as far as the system takes them; continue when it takes more."""
        while self._waiting:
            data, descriptor, message = self._waiting[0]
            try:
                if descriptor is None:
                    sent = self._sock.send(data)
                else:
                    sent = socket.send_fds(self._sock, [data], [descriptor])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno not in _GONE:  # ETOOMANYREFS: the user has too many descriptors on their way
                    self._loop.call_later(_RETRY, self._resume)
                return  # where the other end is gone, that is read as well
            if descriptor is not None:
                os.close(descriptor)
            self.waiting_size -= sent
            if sent == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = (data[sent:], None, message)
        if self._waiting and not self._is_writing:
            self._loop.add_writer(self._sock.fileno(), self._resume)
        elif self._is_writing and not self._waiting:
            self._loop.remove_writer(self._sock.fileno())
        self._is_writing = bool(self._waiting)

    def _resume(self) -> None:
        if self.is_open:
            self._write()
            if not self._waiting:
                self._on_room()

    # -- receiving --------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Handle some messages that have arrived; returns whether there may be more.

        Called by the event loop. Call it as well to read the last messages of a process that has ended.
        """
        for _ in range(_BURST):
            if not self.is_open or self._has_ended:
                return False
            try:
                data, descriptors, flags, _ = socket.recv_fds(self._sock, _READ, 4, _FLAGS)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                data, descriptors, flags = b"", [], 0
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
                self._descriptors.append(descriptor)
            if flags & socket.MSG_CTRUNC and not descriptors:
                self._descriptors.append(-1)
            if not data:
                self._has_ended = True
                self._loop.remove_reader(self._sock.fileno())
                self._give_up_questions()
                self._on_end()
                return False
            self._received += data
            self._handle()
        return True

    def _handle(self) -> None:
        received = self._received
        at = 0
        while len(received) - at >= _HEAD.size:
            length, has_descriptor = _HEAD.unpack_from(received, at)
            start, end = at + _HEAD.size, at + _HEAD.size + length
            if len(received) < end:
                break
            message = msgspec.msgpack.decode(bytes(received[start:end]))
            at = end
            if message["type"] == "answer":
                future = self._asked.get(message["ask"])
                if future is not None and not future.done():
                    future.set_result(message)
                continue
            self._on_message(message, self._descriptors.popleft() if has_descriptor else None)
            if not self.is_open:
                return
        del received[:at]


_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def read_message(sock: socket.socket) -> Message | None:
    """Read one message, and not a byte more; None if the other end has closed its socket. Blocks."""
    head = _read_exactly(sock, _HEAD.size)
    if head is None:
        return None
    data = _read_exactly(sock, _HEAD.unpack(head)[0])
    return None if data is None else msgspec.msgpack.decode(data)


def write_message(sock: socket.socket, message: Message) -> None:
    """Write one message. Blocks.

    Raises:
        OSError: the other end is gone.
    """
    sock.sendall(_packed(message, False))


def _packed(message: Message, has_descriptor: bool) -> bytes:
    data = msgspec.msgpack.encode(message)
    return _HEAD.pack(len(data), has_descriptor) + data


def _read_exactly(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)
