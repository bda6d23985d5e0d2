"""Memory for the payloads of binary frames: who gets it, who waits, and who loses it. Time is passed in."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest

from rpcstream import Limits
from rpcstream.codec.payloads import FrameLine
from rpcstream.errors import MethodNotFound, RpcError, ServerBusy
from rpcstream.peer import incoming
from rpcstream.peer.incoming import CHECKED_MIN, LOOK_EVERY, FrameAdmission
from rpcstream.peer.memory import SLOW_AFTER, SLOW_RATE, WAIT_MAX, MessageMemory, Reception
from rpcstream.peer.pending import BinaryOffer, PendingCalls
from rpcstream.peer.state import ConversationState
from rpcstream.wire.binary_frame import header
from rpcstream.wire.framing import LineFramer
from rpcstream.wire.messages import BinaryFrame, Message

MIB = 1024 * 1024
CALL = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[{"$bin":0}]}\n'
REPLY = b'{"jsonrpc":"2.0","id":1,"result":{"$bin":0}}\n'


class Loop:
    """A loop whose time passes by `pass_time` only."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Timer]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, function: Callable[[], object]) -> None:
        self.soon.append(function)

    def call_later(self, seconds: float, function: Callable[[], object]) -> Timer:
        timer = Timer(function)
        self.later.append((self.now + seconds, timer))
        return timer

    def settle(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted((at, number) for number, (at, _) in enumerate(self.later) if at <= end):
            at, timer = self.later.pop(due[0][1])
            self.now = at
            if not timer.is_cancelled:
                timer.function()
            self.settle()
        self.now = end


class Timer:
    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class State:
    """What a connection's admission asks its conversation."""

    side = "server"
    takes_binary = True
    shared = counters = None
    turn_time = 3600.0

    def __init__(self, loop: Loop, memory: MessageMemory, limits: Limits) -> None:
        self.loop = loop
        self.memory = memory
        self.limits = limits
        self.pending = PendingCalls()
        self.asked = 0

    def refusal_of(self, message: dict[str, Any]) -> RpcError | None:
        self.asked += 1
        return MethodNotFound() if message["method"] != "echo" else None


class Connection:
    """One that receives frames, and remembers them."""

    def __init__(self, world: World) -> None:
        self.state = State(world.loop, world.memory, world.limits)
        self.frames = FrameAdmission(cast(ConversationState, self.state), self.go_on)
        self.reception = Reception(world.memory)
        self.framer = LineFramer(max_size=world.limits.max_message_size, reception=self.reception, intake=self.frames)
        self.seen: list[Message] = []

    def send(self, data: bytes) -> None:
        self.seen += self.framer.feed(data)

    def go_on(self) -> None:
        self.seen += self.framer.go_on()

    def announce(self, size: int, json: bytes = CALL) -> None:
        self.send(header(len(json), [size]) + json)

    @property
    def refusal(self) -> RpcError | None:
        (message,) = self.seen
        assert isinstance(message, BinaryFrame)
        return message.refusal


class World:
    def __init__(self, half: int = 16 * MIB) -> None:
        self.loop = Loop()
        self.limits = Limits(max_held_total=2 * half, max_message_size=17 * MIB)
        self.memory = MessageMemory(2 * half, 1)

    def connect(self) -> Connection:
        return Connection(self)

    def check_nothing_left(self) -> None:
        assert self.memory.waiting == 0
        assert not self.memory.receiving
        assert not self.memory.waiters


@pytest.fixture
def world() -> World:
    return World()


def test_memory_is_reserved_for_what_is_announced_and_released_when_it_has_come(world: World) -> None:
    one = world.connect()
    one.announce(MIB)
    assert world.memory.waiting == MIB
    one.send(b"x" * MIB)
    assert one.refusal is None
    world.check_nothing_left()


def test_those_for_whom_there_is_none_wait_in_their_order(world: World) -> None:
    first, *others = [world.connect() for _ in range(4)]
    first.announce(15 * MIB)
    for other in others:
        other.announce(6 * MIB)
    small = world.connect()
    small.announce(MIB // 2)  # it would fit, and others came before
    assert [each.framer.is_waiting for each in (first, *others, small)] == [False, True, True, True, True]
    first.send(b"x" * 15 * MIB)
    world.loop.settle()
    assert [each.framer.is_waiting for each in (*others, small)] == [False, False, True, True]
    others[1].send(b"x" * 6 * MIB)
    world.loop.settle()
    assert [each.framer.is_waiting for each in (*others, small)] == [False, False, False, False]
    others[0].send(b"x" * 6 * MIB)
    others[2].send(b"x" * 6 * MIB)
    small.send(b"x" * (MIB // 2))
    assert [each.refusal for each in (first, *others, small)] == [None] * 5
    world.check_nothing_left()


@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_that_waits_and_is_lost_holds_up_no_other(world: World, position: int) -> None:
    first, *others = [world.connect() for _ in range(4)]
    first.announce(16 * MIB)
    for other in others:
        other.announce(6 * MIB)
    lost = others.pop(position)
    first.send(b"x" * 16 * MIB)  # the first of those that wait is called, and lost before it is its turn
    lost.frames.give_up()
    world.loop.settle()
    assert not any(other.framer.is_waiting for other in others)
    for other in others:
        other.frames.give_up()
    world.check_nothing_left()


def test_one_that_is_lost_within_a_frame_releases_its_memory(world: World) -> None:
    first, second = world.connect(), world.connect()
    first.announce(16 * MIB)
    second.announce(16 * MIB)
    first.send(b"x" * MIB)
    first.frames.give_up()
    world.loop.settle()
    assert not second.framer.is_waiting
    second.framer.finish()
    world.check_nothing_left()


def test_one_whose_stream_ends_while_it_waits(world: World) -> None:
    first, second, third = (world.connect() for _ in range(3))
    first.announce(16 * MIB)
    second.announce(16 * MIB)
    third.announce(1)
    second.framer.finish()
    first.framer.finish()
    world.loop.settle()
    assert not third.framer.is_waiting
    third.framer.finish()
    world.check_nothing_left()


def test_the_largest_frame_is_taken_where_nothing_else_waits() -> None:
    """However small the memory of the server is: the connection has limits of its own."""
    world = World(half=MIB)
    one = world.connect()
    one.announce(10 * MIB)
    assert not one.framer.is_waiting
    one.send(b"x" * 10 * MIB)
    long_json = CALL[:-2] + b',"x":"' + b"x" * 2 * MIB + b'"}\n'
    one.send(header(len(long_json), [MIB]) + long_json[: 2 * MIB])
    assert world.memory.waiting == 2 * MIB  # its JSON, which has come in part
    one.send(long_json[2 * MIB :])
    assert not one.framer.is_waiting
    one.send(b"x" * MIB)
    assert [type(each) for each in one.seen] == [BinaryFrame, BinaryFrame]
    world.check_nothing_left()


# -- frames that come slowly ------------------------------------------------------------------------------------------


def test_announced_bytes_that_do_not_come_cost_others_a_few_seconds(world: World) -> None:
    idle, honest = world.connect(), world.connect()
    idle.announce(16 * MIB)
    idle.send(b"x" * 100)
    honest.announce(MIB)
    world.loop.pass_time(SLOW_AFTER - 0.1)
    assert honest.framer.is_waiting
    world.loop.pass_time(LOOK_EVERY + 0.2)
    assert not honest.framer.is_waiting
    assert world.memory.waiting == MIB
    honest.send(b"y" * MIB)
    assert honest.refusal is None
    # The connection of the other one stays, and its frame is skipped exactly.
    idle.send(b"x" * (16 * MIB - 100))
    assert isinstance(idle.refusal, ServerBusy)
    idle.send(b"[1]\n")
    assert idle.seen[1] == b"[1]"
    world.check_nothing_left()


def test_its_memory_is_freed_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[weakref.ref[Any]] = []
    take = FrameLine.take_memory

    def watched(line: FrameLine) -> list[memoryview]:
        views = take(line)
        taken.extend(weakref.ref(attachment.memory) for attachment in line.attachments)
        return views

    monkeypatch.setattr(FrameLine, "take_memory", watched)
    idle, honest = world.connect(), world.connect()
    idle.announce(16 * MIB)
    honest.announce(MIB)
    world.loop.pass_time(SLOW_AFTER + LOOK_EVERY)
    gc.collect()
    assert [each() is None for each in taken] == [True, False]


def test_what_comes_fast_enough_keeps_its_memory(world: World) -> None:
    steady, honest = world.connect(), world.connect()
    steady.announce(16 * MIB)
    honest.announce(MIB)
    for _ in range(15):
        steady.send(b"x" * (SLOW_RATE + 1000))
        world.loop.pass_time(1.0)
    assert honest.framer.is_waiting
    steady.send(b"x" * (16 * MIB - 15 * (SLOW_RATE + 1000)))
    assert steady.refusal is None
    world.loop.settle()
    assert not honest.framer.is_waiting


def test_what_has_come_fast_and_stops_loses_its_memory(world: World) -> None:
    burst, honest = world.connect(), world.connect()
    burst.announce(16 * MIB)
    burst.send(b"x" * 15 * MIB)
    honest.announce(2 * MIB)
    world.loop.pass_time(2 * (SLOW_AFTER + LOOK_EVERY))
    assert not honest.framer.is_waiting
    burst.send(b"x" * MIB + b"[1]\n")
    assert burst.seen[1] == b"[1]"


def test_what_comes_slowly_keeps_its_memory_while_no_other_needs_it(world: World) -> None:
    slow = world.connect()
    slow.announce(MIB)
    world.loop.pass_time(50)
    slow.send(b"x" * MIB)
    assert slow.refusal is None


def test_bytes_that_are_received_into_its_memory_after_all(world: World) -> None:
    """Some transports take the memory first, and receive into it later."""
    idle, honest = world.connect(), world.connect()
    idle.announce(16 * MIB)
    target = idle.framer.target()
    assert target is not None
    honest.announce(MIB)
    world.loop.pass_time(SLOW_AFTER + LOOK_EVERY)
    target[:100] = b"x" * 100
    assert idle.framer.received(100) == []
    assert idle.framer.target() is None
    idle.send(b"x" * (16 * MIB - 100) + b"[1]\n")
    assert idle.seen[1] == b"[1]"


def test_many_that_announce_and_send_nothing(world: World) -> None:
    """Each round of those that fit costs a few seconds; then it is the turn of who came behind them."""
    idle = [world.connect() for _ in range(4)]
    for each in idle:
        each.announce(16 * MIB)
    honest = world.connect()
    honest.announce(MIB)
    world.loop.pass_time(4 * (SLOW_AFTER + LOOK_EVERY))
    assert not honest.framer.is_waiting
    honest.send(b"x" * MIB)
    assert honest.refusal is None


def test_none_waits_for_ever(world: World) -> None:
    """JSON of frames that wait takes memory as well: all of it may be taken by such."""
    steady, waiting = world.connect(), world.connect()
    steady.announce(16 * MIB - 1)
    waiting.announce(16 * MIB)
    for _ in range(int(WAIT_MAX) + 2):
        world.loop.pass_time(1.0)
        steady.frames.since = world.loop.now  # it comes fast enough
    assert not waiting.framer.is_waiting
    waiting.send(b"x" * 16 * MIB)
    assert isinstance(waiting.refusal, ServerBusy)
    assert list(world.memory.receiving) == [steady.frames]
    assert not world.memory.waiters


# -- what is looked at before memory is taken -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "json",
    [
        CALL.replace(b"echo", b"nope"),
        CALL.replace(b"$bin", b"$bon"),
        CALL.replace(b'"$bin":0', b'"$bin":1'),
        b"[" + CALL[:-1] + b"]\n",
        CALL[:-5] + b"\n",
        REPLY,
        REPLY.replace(b"1,", b'"1",'),
    ],
)
def test_no_memory_is_taken_for_what_is_refused_anyway(world: World, json: bytes) -> None:
    one = world.connect()
    one.announce(MIB, json)
    assert world.memory.waiting == 0
    one.send(b"x" * MIB)
    assert one.refusal is not None
    world.check_nothing_left()


def test_memory_is_taken_for_a_reply_that_is_waited_for(world: World) -> None:
    one = world.connect()
    one.state.pending.add(BinaryOffer(lambda: None))
    one.announce(MIB, REPLY)
    assert world.memory.waiting == MIB
    one.send(b"x" * MIB)
    assert one.refusal is None


def test_a_reply_to_a_call_that_is_made_while_it_comes_is_none(world: World) -> None:
    """Its payloads were skipped; whoever guesses the next id gains nothing."""
    one = world.connect()
    one.announce(100, REPLY)
    one.state.pending.add(BinaryOffer(lambda: None))
    one.send(b"x" * 100)
    assert one.refusal is not None


def test_a_request_is_looked_at_once_however_long_it_waits(world: World) -> None:
    first, second = world.connect(), world.connect()
    first.announce(16 * MIB)
    second.announce(CHECKED_MIN)
    world.loop.pass_time(SLOW_AFTER + LOOK_EVERY)
    assert not second.framer.is_waiting
    assert second.state.asked == 1


# -- turns ------------------------------------------------------------------------------------------------------------


def test_many_small_frames_do_not_keep_the_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(incoming, "perf_counter", lambda: next(clock) / 1000)  # each takes a millisecond
    one = world.connect()
    one.state.turn_time = 0.02
    one.send((header(len(CALL), [1]) + CALL + b"x") * 100)
    turns = [len(one.seen)]
    while one.framer.is_waiting:
        assert len(world.loop.soon) == 1
        world.loop.soon.pop()()
        turns.append(len(one.seen) - sum(turns))
    assert sum(turns) == 100
    assert max(turns) <= 21
    assert len(turns) <= 6
    world.check_nothing_left()
