"""Memory for the payloads of binary frames: who gets it, who waits, and who loses it. Time is passed in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from rpcstream import Limits
from rpcstream.errors import MethodNotFound, RpcError, ServerBusy
from rpcstream.peer.incoming import LOOK_EVERY, FrameAdmission
from rpcstream.peer.memory import PARTLY, SLOW_AFTER, MessageMemory, Reception
from rpcstream.peer.pending import BinaryOffer, PendingCalls
from rpcstream.peer.state import ConversationState
from rpcstream.wire.binary_frame import header
from rpcstream.wire.framing import LineFramer
from rpcstream.wire.messages import BinaryFrame, Message

from ..kit.loops import SteppedLoop

MIB = 1024 * 1024
CALL = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[{"$bin":0}]}\n'
REPLY = b'{"jsonrpc":"2.0","id":1,"result":{"$bin":0}}\n'


class State:
    """What a connection's admission asks its conversation."""

    side = "server"
    takes_binary = True
    shared = counters = None
    turn_time = 3600.0

    def __init__(self, loop: SteppedLoop, memory: MessageMemory, limits: Limits) -> None:
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

    def announce_and_send(self, size: int, sent: int) -> None:
        """Send the beginning of a frame, as long as it is read."""
        self.announce(size)
        self.send(b"x" * sent)

    @property
    def refusal(self) -> RpcError | None:
        (message,) = self.seen
        assert isinstance(message, BinaryFrame)
        return message.refusal


class World:
    def __init__(self, half: int) -> None:
        self.loop = SteppedLoop()
        self.limits = Limits(max_held_total=2 * half, max_message_size=17 * MIB)
        self.memory = MessageMemory(2 * half, 1)

    def connect(self) -> Connection:
        return Connection(self)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.loop.jump(0.1)
            self.loop.settle()

    def check_nothing_left(self) -> None:
        assert self.memory.waiting == 0
        assert not self.memory.receiving
        assert not self.memory.waiters


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(half=getattr(request, "param", 16 * MIB))
    yield made
    made.loop.dispose()


def test_bytes_are_counted_when_they_have_come(world: World) -> None:
    one = world.connect()
    one.announce(MIB)
    assert world.memory.waiting == 0
    one.send(b"x" * (PARTLY - 1))
    assert world.memory.waiting == 0
    one.send(b"x")
    assert world.memory.waiting == PARTLY
    one.send(b"x" * (MIB - PARTLY - 1))
    assert world.memory.waiting == MIB - 1
    one.send(b"x")
    assert one.refusal is None
    world.check_nothing_left()


def test_announced_bytes_cost_others_nothing(world: World) -> None:
    for _ in range(100):
        world.connect().announce(16 * MIB)
    honest = world.connect()
    honest.announce(8 * MIB)
    honest.send(b"x" * 8 * MIB)
    assert honest.refusal is None
    assert world.memory.waiting == 0


def test_those_for_whom_there_is_none_wait_in_their_order(world: World) -> None:
    first, *others = [world.connect() for _ in range(4)]
    first.announce_and_send(16 * MIB, 15 * MIB)
    for other in others:
        other.announce_and_send(6 * MIB, 2 * MIB)
    medium, small = world.connect(), world.connect()
    medium.announce_and_send(MIB, MIB // 2)  # it would fit, and others came before
    small.announce(PARTLY - 1)
    small.send(b"x" * (PARTLY - 1))
    assert small.refusal is None
    assert [each.framer.is_waiting for each in (first, *others, medium)] == [False, True, True, True, True]
    first.send(b"x" * MIB)
    world.loop.settle()
    assert [each.framer.is_waiting for each in (*others, medium)] == [False] * 4
    for other in others:
        other.send(b"x" * 4 * MIB)
    medium.send(b"x" * (MIB // 2))
    assert [each.refusal for each in (first, *others, medium)] == [None] * 5
    world.check_nothing_left()


def test_the_oldest_frame_never_waits_so_that_not_all_wait_for_each_other(world: World) -> None:
    all_of_them = [world.connect() for _ in range(5)]
    for each in all_of_them:
        each.announce_and_send(16 * MIB, MIB)
    left = dict.fromkeys(all_of_them, 15)
    while any(left.values()):
        able = [each for each in all_of_them if left[each] and not each.framer.is_waiting]
        assert able
        for each in able:
            each.send(b"x" * MIB)
            left[each] -= 1
            world.loop.settle()
    assert [each.refusal for each in all_of_them] == [None] * 5
    world.check_nothing_left()


@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_that_waits_and_is_lost_holds_up_no_other(world: World, position: int) -> None:
    first, *others = [world.connect() for _ in range(4)]
    first.announce_and_send(17 * MIB - 1000, 16 * MIB)
    for other in others:
        other.announce_and_send(6 * MIB, MIB)
        assert other.framer.is_waiting
    lost = others.pop(position)
    first.send(b"x" * (MIB - 1000))  # the first of those that wait is called, and lost before it is its turn
    lost.frames.give_up()
    world.loop.settle()
    assert not any(other.framer.is_waiting for other in others)
    for other in others:
        other.frames.give_up()
    world.check_nothing_left()


@pytest.mark.parametrize("world", [MIB], indirect=True)
def test_the_largest_frame_is_taken_where_nothing_else_waits(world: World) -> None:
    """However small the memory of the server is: the connection has limits of its own."""
    one = world.connect()
    one.announce(10 * MIB)
    one.send(b"x" * 10 * MIB)
    long_json = CALL[:-2] + b',"x":"' + b"x" * 2 * MIB + b'"}\n'
    one.send(header(len(long_json), [MIB]) + long_json[: 2 * MIB])
    assert world.memory.waiting == 2 * MIB  # its JSON, which has come in part
    one.send(long_json[2 * MIB :])
    assert not one.framer.is_waiting
    one.send(b"x" * MIB)
    assert [type(each) for each in one.seen] == [BinaryFrame, BinaryFrame]
    world.check_nothing_left()


def test_what_has_come_and_stops_costs_others_a_few_seconds(world: World) -> None:
    idle, honest = world.connect(), world.connect()
    idle.announce_and_send(17 * MIB - 1000, 16 * MIB)
    honest.announce_and_send(MIB, MIB // 2)
    world.pass_time(SLOW_AFTER - 0.1)
    assert honest.framer.is_waiting
    world.pass_time(2 * (SLOW_AFTER + LOOK_EVERY))
    assert not honest.framer.is_waiting
    assert world.memory.waiting == MIB // 2
    honest.send(b"y" * (MIB // 2))
    assert honest.refusal is None
    # The connection of the other one stays, and its frame is skipped exactly.
    idle.send(b"x" * (MIB - 1000))
    assert isinstance(idle.refusal, ServerBusy)
    idle.send(b"[1]\n")
    assert idle.seen[1] == b"[1]"
    world.check_nothing_left()


def test_what_comes_fast_enough_keeps_its_memory(world: World) -> None:
    steady, honest = world.connect(), world.connect()
    steady.announce_and_send(16 * MIB, 15 * MIB)
    honest.announce_and_send(3 * MIB, 2 * MIB)
    assert honest.framer.is_waiting
    world.pass_time(SLOW_AFTER - LOOK_EVERY)
    assert honest.framer.is_waiting
    steady.send(b"x" * MIB)
    assert steady.refusal is None
    world.loop.settle()
    assert not honest.framer.is_waiting


@pytest.mark.parametrize(
    "json",
    [
        *(CALL.replace(b"echo", b"nope"), CALL.replace(b"$bin", b"$bon"), CALL.replace(b'"$bin":0', b'"$bin":1')),
        *(b"[" + CALL[:-1] + b"]\n", CALL[:-5] + b"\n", REPLY, REPLY.replace(b"1,", b'"1",')),
    ],
)
def test_no_memory_is_taken_for_what_is_refused_anyway(world: World, json: bytes) -> None:
    one = world.connect()
    one.announce(MIB, json)
    assert world.memory.waiting == 0
    one.send(b"x" * MIB)
    assert one.refusal is not None
    world.check_nothing_left()


def test_a_reply_to_a_call_that_is_made_while_it_comes_is_none(world: World) -> None:
    """Its payloads were skipped; whoever guesses the next id gains nothing."""
    one = world.connect()
    one.announce(100, REPLY)
    one.state.pending.add(BinaryOffer(lambda: None))
    one.send(b"x" * 100)
    assert one.refusal is not None
