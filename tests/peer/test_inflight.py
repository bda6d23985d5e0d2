"""Running calls: a cancel finds the call with its id, and no other."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.peer.inflight import ForwardedCall, RunningCalls
from rpcstream.peer.memory import MessageMemory

from ..internals import has_cancel_index

IDS = st.sampled_from([1, 2, 1.0, True, None, "1", "2", "i1", "s1", "", "'1'", -1, 2**70])

STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "member", "enter", "cancel", "cancel", "finish"]), IDS, st.integers(0, 9)),
    max_size=40,
)


class Call(ForwardedCall):
    """Remembers that it was cancelled."""

    __slots__ = ("is_cancelled",)

    def __init__(self, call_id: Any) -> None:
        super().__init__(call_id)
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


async def followed(steps: list[tuple[str, Any, int]]) -> None:
    memory = MessageMemory(10**6, 1)
    running, there = RunningCalls(memory), list[tuple[Any, Any]]()
    keeper = asyncio.create_task(asyncio.sleep(3600))
    running.start(keeper, [{}])  # the batch that members belong to
    for step, call_id, number in steps:
        if step == "enter":
            call = Call(call_id)
            running.enter(call)
            there.append((call, call_id))
        elif step in ("start", "member"):
            task = asyncio.create_task(asyncio.sleep(3600))
            message = {"id": call_id, "method": "m"} if call_id is not None else {"method": "m"}
            if step == "start":
                running.start(task, message, number)
            else:
                running.start_member(task, message)
            there.append((task, call_id))
        elif step == "cancel" and type(call_id) in (int, str):
            wanted = [what for what, own in there if same(own, call_id)]
            before = [is_cancelled(what) for what in wanted]
            assert running.cancel(call_id) is bool(wanted)
            after = [is_cancelled(what) for what in wanted]
            assert sum(after) <= sum(before) + 1
            assert any(after) or not wanted
            assert not any(is_cancelled(what) for what, own in there if not was_asked(own, steps))
        elif step == "finish" and there:
            what, _ = there.pop(number % len(there))
            if isinstance(what, Call):
                assert running.leave(what)
            elif what in running.handlers:
                running.finish(what)
            else:
                what.cancel()
                while what in running.batch_members:
                    await asyncio.sleep(0)
                # Other members that were cancelled before have ended meanwhile, too.
                there = [(each, own) for each, own in there if isinstance(each, Call) or each in running.tasks]
    assert running.held == memory.at_work
    for what, _ in there:
        if isinstance(what, Call):
            running.leave(what)
        elif what in running.handlers:
            running.finish(what)
    tasks = [keeper, *[what for what, _ in there if isinstance(what, asyncio.Task)]]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    running.finish(keeper)
    assert (running.load, running.held, memory.at_work, bool(running)) == (0, 0, 0, False)
    assert not running.cancel(1)
    assert not has_cancel_index(running)


def is_cancelled(what: Any) -> bool:
    return what.is_cancelled if isinstance(what, Call) else bool(what.cancelling() or what.cancelled())


def was_asked(call_id: Any, steps: list[tuple[str, Any, int]]) -> bool:
    return any(step == "cancel" and same(asked, call_id) for step, asked, _ in steps)


@settings(deadline=None)
@given(STEPS)
def test_a_cancel_finds_its_call(steps: list[tuple[str, Any, int]]) -> None:
    asyncio.run(followed(steps))


async def test_of_several_calls_with_one_id_the_first_is_cancelled_until_it_has_ended() -> None:
    running = RunningCalls(MessageMemory(10**6, 1))
    tasks = [asyncio.create_task(asyncio.sleep(3600)) for _ in range(3)]
    messages = [{"id": 7}, {"id": 7}, {"id": "7"}]
    for task, message in zip(tasks, messages, strict=True):
        running.start(task, message)
    assert running.cancel(7)
    assert running.cancel(7)
    assert [bool(task.cancelling()) for task in tasks] == [True, False, False]
    await asyncio.wait(tasks[:1])
    running.finish(tasks[0])
    assert running.cancel(7)
    assert [bool(task.cancelling()) for task in tasks] == [True, True, False]
    await asyncio.wait(tasks[:2])
    running.finish(tasks[1])
    assert not running.cancel(7)
    assert running.cancel("7")
    await asyncio.wait(tasks)
    running.finish(tasks[2])


async def test_an_idle_connection_keeps_nothing_for_cancels() -> None:
    running = RunningCalls(MessageMemory(10**6, 1))
    for call_id in range(100):
        assert not running.cancel(call_id)
    assert not has_cancel_index(running)
