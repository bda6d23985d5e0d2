"""How the task of an ASGI connection waits for the memory of a binary frame."""

from __future__ import annotations

import asyncio

import pytest

from rpcstream.transports.asgi_transport import FrameWait
from rpcstream.wire.binary_frame import FrameError
from rpcstream.wire.frame_messages import FrameBody

from .raw_frames import TakeAll, array_at, binary_frame, request

BODY = binary_frame(request("f", array_at(0, 3)), b"abc")


def waiting_frame(body: bytes) -> tuple[TakeAll, FrameBody]:
    intake = TakeAll()
    intake.has_room = False
    frame = FrameBody(intake, 10_000, None)
    frame.append(body)
    assert frame.is_waiting
    return intake, frame


async def test_it_goes_on_when_there_is_memory_and_not_before() -> None:
    intake, frame = waiting_frame(BODY)
    wait = FrameWait()
    wait.go_on()  # nothing waits yet
    task = asyncio.ensure_future(wait.memory_for(frame))
    for _ in range(3):
        await asyncio.sleep(0)
        wait.go_on()
    assert not task.done()
    intake.has_room = True
    wait.go_on()
    wait.go_on()
    await task
    assert frame.end() is not None
    assert intake.finished == 1


async def test_what_is_wrong_with_the_rest_is_raised_where_it_is_waited_for() -> None:
    intake, frame = waiting_frame(BODY + b"more")
    wait = FrameWait()
    task = asyncio.ensure_future(wait.memory_for(frame))
    await asyncio.sleep(0)
    intake.has_room = True
    wait.go_on()
    with pytest.raises(FrameError, match="bytes stand behind the binary frame"):
        await task


async def test_a_wait_that_was_cancelled_is_over() -> None:
    intake, frame = waiting_frame(BODY)
    wait = FrameWait()
    task = asyncio.ensure_future(wait.memory_for(frame))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    intake.has_room = True
    wait.go_on()
    assert frame.is_waiting
