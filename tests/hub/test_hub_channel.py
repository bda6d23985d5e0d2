"""The channel between two hubs: its window, and messages in pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import Limits
from rpcstream.hub import channel as hub_channel
from rpcstream.hub.channel import HubChannel
from rpcstream.nats.channel import HeldMessages
from rpcstream.wire.messages import Oversize


class FakeLink:
    """Keeps what is published."""

    max_payload = 1000

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: Any = None) -> None:
        assert len(payload) <= self.max_payload
        self.sent.append((subject, payload))


class FakeSession:
    """Keeps what is received."""

    sends_binary = False
    counters = shared = None
    peer_is_leaving = False

    def __init__(self) -> None:
        self.channel: Any = None
        self.received: list[Any] = []
        self.is_blocked = False

    def receive(self, messages: list[Any]) -> None:
        self.received += messages

    def blocked(self, blocked: bool) -> None:
        self.is_blocked = blocked

    def connected(self, channel: Any, **options: Any) -> None:
        self.channel = channel

    def lost(self, make_error: Any) -> None:
        self.channel = None


def new_channel(**limits: int) -> tuple[HubChannel, FakeLink, FakeSession]:
    link, session = FakeLink(), FakeSession()
    made: Any = HubChannel(
        link,  # type: ignore[arg-type]
        session,  # type: ignore[arg-type]
        Limits(**limits),  # type: ignore[arg-type]
        target="to",
        own="own",
        address="hub:other",
        held=HeldMessages(10**6),
    )
    made.connect()
    return made, link, session


def hand_over(link: FakeLink, to: HubChannel) -> None:
    """Deliver what one end has sent to the other."""
    sent, link.sent = link.sent, []
    for subject, payload in sent:
        token = subject.partition(".")[2]
        if token == "taken":
            to.take_acknowledged(payload)
        elif token:
            to.take_part(payload, is_last=token == "last")
        else:
            to.receive(payload)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_channel, "ACKNOWLEDGE_EVERY", 800)


async def test_a_long_message_goes_in_pieces() -> None:
    one, link, _ = new_channel()
    other, _, session = new_channel()
    messages = [b'{"a":1}', b'"%b"' % (b"x" * 12_345), b'{"b":2}']
    one.send(list(messages))
    assert [subject for subject, _ in link.sent] == ["to", *["to.part"] * 12, "to.last", "to"]
    hand_over(link, other)
    assert session.received == messages


async def test_no_more_is_sent_than_the_other_end_takes() -> None:
    one, link, session = new_channel()
    other, back, receiver = new_channel()
    one.window = 5000
    messages = [b'"%04d%b"' % (n, b"x" * 500) for n in range(100)]
    for message in messages:
        one.send([message])
    under_way = sum(len(payload) for _, payload in link.sent)
    assert under_way < 5000
    assert session.is_blocked
    assert one.is_sending
    other.pause()  # its session takes nothing: it acknowledges nothing
    hand_over(link, other)
    assert not back.sent
    assert not receiver.received
    other.resume()
    await asyncio.sleep(0)
    while back.sent or link.sent:
        assert sum(len(payload) for _, payload in link.sent) < 5000
        hand_over(back, one)
        hand_over(link, other)
    assert receiver.received == messages
    assert not session.is_blocked
    assert not one.is_sending


async def test_a_message_longer_than_the_window_is_sent_when_nearly_nothing_is_under_way() -> None:
    one, link, session = new_channel()
    one.window = 100
    one.send([b"x" * 900])
    one.send([b"y" * 900])
    assert [payload[:1] for _, payload in link.sent] == [b"x"]
    for wrong in (b"", b"-5", b"x", b"9" * 30):
        one.take_acknowledged(wrong)
    assert len(link.sent) == 1
    one.take_acknowledged(b"1100")
    assert [payload[:1] for _, payload in link.sent] == [b"x", b"y"]
    assert not session.is_blocked


async def test_what_is_longer_than_it_may_be_is_refused() -> None:
    other, _, session = new_channel(max_message_size=10_000)
    for _ in range(20):
        other.take_part(b'{"id":5,' + b" " * 992, is_last=False)
    assert sum(map(len, other.parts)) <= 10_000 + 4096
    other.take_part(b"}", is_last=True)
    [refused] = session.received
    assert isinstance(refused, Oversize)
    assert refused.size == 20_001
    assert refused.head.startswith(b'{"id":5,')
    other.take_part(b"1", is_last=True)
    assert session.received[1:] == [b"1"]


async def test_it_closes_when_all_was_sent() -> None:
    one, link, session = new_channel()
    one.window = 100
    one.send([b"x" * 900])
    one.send([b"y" * 900])
    one.close()
    assert session.channel is one
    one.take_acknowledged(b"1100")
    assert session.channel is None
    assert len(link.sent) == 2


async def test_it_waits_for_the_connection_and_for_the_window() -> None:
    one, _, session = new_channel()
    one.set_link_full(True)
    assert session.is_blocked
    one.window = 100
    one.send([b"x" * 900])
    one.send([b"y" * 900])
    one.set_link_full(False)
    assert session.is_blocked
    one.take_acknowledged(b"1100")
    assert not session.is_blocked
    assert hub_channel.WINDOW_TOTAL <= 32 * 1024 * 1024  # a NATS server lets 64 MiB wait
