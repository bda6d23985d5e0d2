"""Memory for the payloads of binary frames: who gets it, and who loses it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rpcstream import Limits
from rpcstream.errors import ServerBusy
from rpcstream.peer.frame_admission import FrameAdmission
from rpcstream.peer.ledger import PARTLY, Reception, ServerLedger
from rpcstream.wire.binary_frame import header
from rpcstream.wire.envelope import BinaryFrame, Message
from rpcstream.wire.framing import LineFramer

MIB = 1024 * 1024
CALL = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[{"$bin":0}]}\n'
LIMITS = Limits()


class Connection:
    """One that receives frames, and remembers them."""

    def __init__(self, ledger: ServerLedger) -> None:
        session: Any = SimpleNamespace(
            side="server",
            takes_binary=True,
            shared=None,
            counters=None,
            limits=LIMITS,
            server_ledger=ledger,
        )
        self.frames = FrameAdmission(session)
        self.framer = LineFramer(
            max_size=LIMITS.max_message_size, reception=Reception(ledger), intake=cast(Any, self.frames)
        )
        self.seen: list[Message] = []

    def send(self, data: bytes) -> None:
        self.seen += self.framer.feed(data)

    def announce(self, size: int, json: bytes = CALL) -> None:
        self.send(header(len(json), [b"%d" % size]) + json)

    def send_all(self, size: int) -> None:
        self.announce(size)
        for _ in range(0, size, MIB):
            self.send(b"x" * min(MIB, size))

    @property
    def refusal(self) -> Any:
        (message,) = self.seen
        assert isinstance(message, BinaryFrame)
        return message.refusal


@pytest.fixture
def ledger() -> ServerLedger:
    return ServerLedger(32 * MIB)


def test_bytes_are_counted_when_they_have_come(ledger: ServerLedger) -> None:
    one = Connection(ledger)
    one.announce(MIB)
    head = len(header(len(CALL), [b"%d" % MIB]) + CALL)
    assert ledger.waiting.used == 0
    one.send(b"x" * (PARTLY - 1))
    assert ledger.waiting.used == PARTLY - 1 + head
    one.send(b"x" * (MIB - PARTLY))
    assert ledger.waiting.used == MIB - 1 + head
    one.send(b"x")
    assert one.refusal is None
    assert ledger.waiting.used == ledger.frames.used == 0


def test_announced_bytes_cost_others_nothing(ledger: ServerLedger) -> None:
    for _ in range(100):
        Connection(ledger).announce(16 * MIB)
    honest = Connection(ledger)
    honest.send_all(8 * MIB)
    assert honest.refusal is None
    assert ledger.waiting.used == 0


def test_the_frame_of_which_most_has_come_gives_way(ledger: ServerLedger) -> None:
    largest, honest = Connection(ledger), Connection(ledger)
    largest.announce(16 * MIB)
    largest.send(b"x" * 15 * MIB)
    honest.send_all(3 * MIB)
    assert honest.refusal is None
    assert ledger.waiting.used == 0
    # The connection of the other one stays, and its frame is skipped exactly.
    largest.send(b"x" * MIB)
    assert isinstance(largest.refusal, ServerBusy)
    assert largest.refusal.data["limit"] == 32 * MIB
    largest.send(b"[1]\n")
    assert largest.seen[1] == b"[1]"
    assert ledger.waiting.used == ledger.frames.used == 0


def test_what_waits_otherwise_is_not_touched(ledger: ServerLedger) -> None:
    assert ledger.waiting.take(14 * MIB)
    one = Connection(ledger)
    one.announce(4 * MIB)
    one.send(b"x" * 3 * MIB)
    one.send(b"x" * MIB)
    assert isinstance(one.refusal, ServerBusy)
    assert ledger.waiting.used == 14 * MIB


def test_the_largest_frame_is_taken_where_nothing_else_waits() -> None:
    """However small the memory of the server is: the connection has limits of its own."""
    ledger = ServerLedger(2 * MIB)
    one = Connection(ledger)
    one.send_all(10 * MIB)
    long_json = CALL[:-2] + b',"x":"' + b"x" * 2 * MIB + b'"}\n'
    one.send(header(len(long_json), [b"%d" % MIB]) + long_json[: 2 * MIB])
    assert 2 * MIB <= ledger.waiting.used < 2 * MIB + 100  # its JSON, which has come in part
    one.send(long_json[2 * MIB :])
    one.send(b"x" * MIB)
    assert [cast(Any, each).refusal for each in one.seen] == [None, None]
    assert ledger.waiting.used == 0


@pytest.mark.parametrize("json", [CALL.replace(b"$bin", b"$bon"), CALL.replace(b'"$bin":0', b'"$bin":1')])
def test_no_memory_is_taken_for_what_is_refused_anyway(ledger: ServerLedger, json: bytes) -> None:
    one = Connection(ledger)
    one.announce(MIB, json)
    one.send(b"x" * (MIB - 1))
    assert ledger.waiting.used == 0
    one.send(b"x")
    assert one.refusal is not None


def test_one_that_is_lost_counts_no_more(ledger: ServerLedger) -> None:
    one = Connection(ledger)
    one.announce(8 * MIB)
    one.send(b"x" * 4 * MIB)
    assert ledger.waiting.used > 4 * MIB
    one.frames.give_up()
    assert ledger.waiting.used == ledger.frames.used == 0
