"""A limit for rpcstream's clients: the bytes of a call and of its reply on a blocking socket, not encoded or parsed.

Only a driver; the server is rpcstream_.py. The messages are made beforehand and each reply is compared, so that what
is measured is the least that any client in Python takes.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from _common import Call, Options, Result, connect, load_with_threads, main, seven_digits

MESSAGES = 4096  # what is made beforehand; then over again
LARGEST = 4096


class Lines:
    """The bytes that `Client.sum` sends for the topic's arguments, and those that must come back."""

    def __init__(self, options: Options) -> None:
        numbers = [(number + 1, seven_digits(number)) for number in range(MESSAGES)]
        self.requests = [b'{"jsonrpc":"2.0","id":%d,"method":"sum","params":[%d,1]}\n' % pair for pair in numbers]
        self.replies = [b'{"jsonrpc":"2.0","id":%d,"result":%d}\n' % (one, first + 1) for one, first in numbers]

    def ask(self, number: int) -> tuple[bytes]:
        return (self.requests[number % MESSAGES],)

    def fits(self, number: int, reply: bytes) -> bool:
        return reply == self.replies[number % MESSAGES]


def make_call(options: Options) -> Call:
    connection = connect(options.port)
    connection.settimeout(None)  # a socket with a time-out asks the kernel twice
    send, receive = connection.sendall, connection.recv

    def call(message: bytes) -> bytes:
        send(message)
        reply = receive(LARGEST)
        while not reply.endswith(b"\n"):
            more = receive(LARGEST)
            if not more:
                raise EOFError("the server closed the connection")
            reply += more
        return reply

    return call


def load(options: Options) -> Result:
    return load_with_threads(options, [make_call(options) for _ in range(options.connections)], Lines)


def serve(options: Options) -> NoReturn:
    sys.exit("bare_call.py only calls: the server is rpcstream_.py")


if __name__ == "__main__":
    main(serve, load, topics=["sum"], many_in_flight=False)
