"""A limit: the least two Python processes can do for one message of `--bytes` bytes there and back.

Blocking sockets, a thread a connection; each side receives the whole message into one buffer that it keeps, and then
sends the whole. The kernel waits for the whole message, which is no slower at any size than taking what there is.
"""

from __future__ import annotations

import socket
import threading

from _common import BACKLOG, HOST, Call, Options, Result, connect, load_with_threads, main, ready


def receive(connection: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer; False at the end of the stream."""
    got = 0
    while got < len(buffer):
        more = connection.recv_into(buffer[got:], 0, socket.MSG_WAITALL)
        if not more:
            return False
        got += more
    return True


def exchange(connection: socket.socket, size: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, memoryview(bytearray(size)) as buffer:
        while receive(connection, buffer):
            connection.sendall(buffer)


def serve(options: Options) -> None:
    with socket.create_server((HOST, 0), backlog=BACKLOG) as listener:
        ready(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=exchange, args=(connection, options.bytes), daemon=True).start()


class Message:
    """The bytes to send, with a number at both ends that is new in each call."""

    def __init__(self, options: Options) -> None:
        self.sent = bytearray(range(256)) * (options.bytes // 256 + 1)
        del self.sent[options.bytes :]
        self.step = max(1, options.bytes // 4096)

    def ask(self, number: int) -> tuple[bytearray]:
        mark = number.to_bytes(4)
        self.sent[:4] = self.sent[-4:] = mark
        return (self.sent,)

    def fits(self, number: int, reply: bytearray) -> bool:
        step = self.step
        ends_fit = reply[:4] == self.sent[:4] and reply[-4:] == self.sent[-4:]
        return bool(ends_fit and reply[::step] == self.sent[::step])


def make_call(options: Options) -> Call:
    connection = connect(options.port)
    received = bytearray(options.bytes)
    buffer = memoryview(received)

    def call(message: bytearray) -> bytearray:
        connection.sendall(message)
        if not receive(connection, buffer):
            raise EOFError("the server closed the connection")
        return received

    return call


def load(options: Options) -> Result:
    return load_with_threads(options, [make_call(options) for _ in range(options.connections)], Message)


if __name__ == "__main__":
    size = {"type": int, "default": 1 << 20, "help": "size of a message, the same for both halves; at least 8"}
    main(serve, load, topics=[], many_in_flight=False, serve_options={"--bytes": size})
