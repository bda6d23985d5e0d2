"""Random runs of clients and a server: equal ids, cancels, time-outs, late, forged and repeated replies, disconnects.

Every answer reaches the call it belongs to, exactly once; the tables of pending calls, streams and handlers end empty;
no task, no session is left behind; nothing is logged as an error that is none. Both ends call and stream. Time passes
only when a step says so. With many more examples, and longer ones:

    RPCSTREAM_EXAMPLES=20000 RPCSTREAM_STEPS=80 python -m pytest tests/conversation_properties --timeout=0
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, rule

from ..kit.example_count import IS_THOROUGH
from ..kit.random_runs import RandomRun, run_settings
from .reference_model import ExpectedCall
from .scripted_peer import IDS, MANNERS
from .service import BACK, PLAIN, STREAMS
from .simulation import Simulation

pytestmark = pytest.mark.usefixtures("fast_collections")

EXAMPLES = int(os.environ.get("RPCSTREAM_EXAMPLES", "60" if IS_THOROUGH else "12"))
STEPS = int(os.environ.get("RPCSTREAM_STEPS", "30"))

clients = st.sampled_from("ab")
raw_peers = st.sampled_from("xy")
members = st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3)
limited = st.booleans()
few = st.integers(0, 6)


class Conversation(RandomRun):
    """The steps of a run; what they do is in `simulation`."""

    expected_calls = Bundle("questions")
    streams = Bundle("streams")
    uploads = Bundle("uploads")

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation()
        self.simulation.open()

    @rule(target=expected_calls, name=st.sampled_from("abc"), kind=st.sampled_from(PLAIN + BACK), limited=limited)
    def call(self, name: str, kind: str, limited: bool) -> ExpectedCall:
        return self.simulation.call(name, kind, limited=limited)

    @rule(target=expected_calls, name=clients, kinds=members, limited=limited)
    def batch(self, name: str, kinds: list[str], limited: bool) -> Any:
        return multiple(*self.simulation.batch(name, kinds, limited=limited))

    @rule(
        target=expected_calls, name=clients, kind=st.sampled_from(STREAMS), n=few, stop=st.none() | few, limited=limited
    )
    def stream(self, name: str, kind: str, n: int, stop: int | None, limited: bool) -> ExpectedCall:
        return self.simulation.stream(name, kind, n, stop=stop, limited=limited)

    @rule(
        target=expected_calls,
        name=clients,
        n=few,
        source=st.sampled_from(["sync", "async", "gated", "broken"]),
        limited=limited,
    )
    def upload(self, name: str, n: int, source: str, limited: bool) -> ExpectedCall:
        return self.simulation.upload(name, n, source, limited=limited)

    @rule(
        target=expected_calls,
        name=st.sampled_from("abxy"),
        kind=st.sampled_from(["confirm", "confirm_later", "confirmations"]),
        limited=limited,
    )
    def ask(self, name: str, kind: str, limited: bool) -> Any:
        expected = self.simulation.ask(name, kind, limited=limited)
        return multiple() if expected is None else expected

    @rule(expected=expected_calls)
    def cancel(self, expected: ExpectedCall) -> None:
        self.simulation.cancel(expected)

    @rule(expected=expected_calls)
    def open_gate(self, expected: ExpectedCall) -> None:
        self.simulation.model.gate(expected.number).open()

    @rule(name=st.sampled_from("xyz"), place=few, manner=st.sampled_from(MANNERS))
    def answer(self, name: str, place: int, manner: str) -> None:
        if name in self.simulation.peers:
            if manner == "null":
                self.simulation.settle()
            self.simulation.peers[name].answer(place, manner)
            if manner == "null":
                self.simulation.settle()

    @rule(name=raw_peers, kind=st.sampled_from(PLAIN + BACK), text=st.sampled_from(IDS), limited=limited)
    def request(self, name: str, kind: str, text: str, limited: bool) -> None:
        self.simulation.request(name, kind, text, limited=limited)

    @rule(name=raw_peers, text=st.sampled_from(IDS))
    def cancel_request(self, name: str, text: str) -> None:
        self.simulation.peers[name].cancel(text)

    @rule(target=streams, name=raw_peers, n=few, credit=few)
    def request_stream(self, name: str, n: int, credit: int) -> Any:
        expected = self.simulation.peers[name].request_stream(n, credit)
        return multiple() if expected is None else (self.simulation.peers[name], expected)

    @rule(stream=streams, n=few)
    def permit(self, stream: Any, n: int) -> None:
        peer, expected = stream
        peer.permit(expected, n)

    @rule(target=uploads, name=raw_peers)
    def request_upload(self, name: str) -> Any:
        expected = self.simulation.peers[name].request_upload()
        return multiple() if expected is None else (self.simulation.peers[name], expected)

    @rule(upload=uploads)
    def item(self, upload: Any) -> None:
        peer, expected = upload
        peer.item(expected)

    @rule(upload=consumes(uploads))
    def end_upload(self, upload: Any) -> None:
        peer, expected = upload
        peer.end_upload(expected)

    @rule(name=st.sampled_from("abc"), how=st.sampled_from(["abort", "abort far", "drain", "leave"]))
    def disturb(self, name: str, how: str) -> None:
        self.simulation.disturb(name, how)

    @rule(name=st.sampled_from("xyz"), how=st.sampled_from(["half", "empty", "close", "abort"]))
    def end(self, name: str, how: str) -> None:
        if name in self.simulation.peers:
            self.simulation.end(name, how)

    @rule(name=st.sampled_from("abcxyz"), wanted=st.booleans())
    def read(self, name: str, wanted: bool) -> None:
        self.simulation.read(name, wanted)


TestConversation = Conversation.TestCase
TestConversation.settings = run_settings(STEPS, EXAMPLES)
