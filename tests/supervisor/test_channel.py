"""Messages and descriptors between a supervisor and its workers."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream.errors import InternalError
from rpcstream.supervisor.channel import MAX_SIZE, Channel, Message, read_message, write_message

from ..kit import until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks at descriptors in /proc")]


class End:
    """One end, and what it has received."""

    def __init__(self, sock: socket.socket, may_receive: Callable[[], bool] = lambda: True) -> None:
        self.messages: list[Any] = []
        self.descriptors: list[int] = []
        self.has_ended = False
        self.channel = Channel(sock, self._take, self._end, may_receive=may_receive)

    def _take(self, message: Message, descriptor: int | None) -> None:
        self.messages.append((message["n"], descriptor is not None))
        if descriptor is not None and descriptor >= 0:
            self.descriptors.append(descriptor)

    def _end(self) -> None:
        self.has_ended = True


@asynccontextmanager
async def ends() -> AsyncIterator[tuple[End, End]]:
    one, other = (End(sock) for sock in socket.socketpair())
    yield one, other
    for end in (one, other):
        end.channel.close()
        for descriptor in end.descriptors:
            os.close(descriptor)


async def test_messages_and_descriptors_come_in_order() -> None:
    async with ends() as (one, other):
        other.channel.start()
        files = [os.memfd_create(str(n)) for n in range(40)]
        for n, file in enumerate(files):
            one.channel.send({"n": 2 * n, "text": "x" * (n * 100)}, file)
            one.channel.send({"n": 2 * n + 1})
        await until(lambda: len(other.messages) == 80)
        assert other.messages == [(n, n % 2 == 0) for n in range(80)]
        names = [os.readlink(f"/proc/self/fd/{each}").split(":")[1].split()[0] for each in other.descriptors]
        assert names == [str(n) for n in range(40)]
        assert not any(os.get_inheritable(each) for each in other.descriptors)
        for file in files:  # sent, so closed here
            if file not in other.descriptors:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(file)


async def test_what_the_other_end_does_not_take_waits_and_can_be_taken_back() -> None:
    async with ends() as (one, other):
        one.channel.start()
        number = 0
        while one.channel.waiting < 10:
            one.channel.send({"n": number}, os.open(os.devnull, os.O_RDONLY))
            number += 1
        one.channel.send({"n": -1})
        taken = one.channel.take_back()
        assert [message["n"] for message, _ in taken] == list(range(number - 10, number))
        for _, descriptor in taken:
            os.close(descriptor)
        other.channel.start()
        await until(lambda: other.messages[-1:] == [(-1, False)])
        assert [n for n, _ in other.messages[:-1]] == list(range(number - 10))


async def test_the_end_is_told_once_what_came_before_is_handled() -> None:
    async with ends() as (one, other):
        one.channel.send({"n": 1})
        one.channel.close()
        other.channel.start()
        await until(lambda: other.has_ended)
        assert other.messages == [(1, False)]
        other.channel.send({"n": 2})  # goes nowhere
        await asyncio.sleep(0)


async def test_descriptors_that_were_not_sent_are_closed() -> None:
    async with ends() as (one, _):
        one.channel.close()
        file = os.open(os.devnull, os.O_RDONLY)
        one.channel.send({"n": 1}, file)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


def test_before_there_is_a_loop_messages_are_read_one_by_one() -> None:
    one, other = socket.socketpair()
    with one, other:
        write_message(one, {"n": 1})
        write_message(one, {"n": 2})
        assert read_message(other) == {"n": 1}
        assert read_message(other) == {"n": 2}
        one.close()
        assert read_message(other) is None


def test_a_message_that_is_too_long_is_refused() -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(InternalError, match="bytes"):
        write_message(one, {"n": "x" * MAX_SIZE})


async def test_messages_have_bodies_of_any_size() -> None:
    one, other = socket.socketpair()
    bodies: list[bytes] = []
    sent = [b"", b"\n\0", b"x" * 3_000_000, b"", os.urandom(1000)]
    taking = Channel(other, lambda message, descriptor: bodies.append(message.get("body", b"")), lambda: None)
    sending = Channel(one, lambda message, descriptor: None, lambda: None)
    sending.start()
    taking.start()
    for body in sent:
        sending.send({"n": 1, "body": body} if body else {"n": 1})
    assert sending.waiting_size > 0
    await until(lambda: len(bodies) == len(sent))
    assert bodies == sent
    assert sending.waiting_size == 0
    sending.close()
    taking.close()


def test_a_message_with_a_body_is_read_without_a_loop() -> None:
    one, other = socket.socketpair()
    with one, other:
        write_message(one, {"n": 1, "body": b"abc"})
        write_message(one, {"n": 2})
        assert read_message(other) == {"n": 1, "body": b"abc"}
        assert read_message(other) == {"n": 2}
