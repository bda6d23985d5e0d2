"""Random runs of a hub: equal ids, providers that answer late, twice, with foreign ids or never, slow subscribers.

No answer ever crosses, nothing hangs past its deadline, and the tables end empty. Time passes only when a step says so.
With many more examples, and longer ones:

    RPCSTREAM_EXAMPLES=20000 RPCSTREAM_STEPS=80 python -m pytest tests/hub/test_routing.py --timeout=0
"""

from __future__ import annotations

import os

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from ..kit.example_count import example_count
from ..kit.random_runs import RandomRun, run_settings
from .simulation import MANNERS, NAMES, RIGHT, HubSimulation

pytestmark = pytest.mark.usefixtures("fast_collections")

EXAMPLES = int(os.environ.get("RPCSTREAM_EXAMPLES", example_count(30)))
STEPS = int(os.environ.get("RPCSTREAM_STEPS", "40"))

#: Ids as JSON: several callers have the same, and so has one caller for one call after the other.
IDS = ("1", "1", "2", '"1"', '"x"', "1.0", "1.5", "1000.0", "null", "9223372036854775808", "-0.0")

names = st.sampled_from(NAMES)
methods = st.sampled_from(
    ["one", "two", "many", "a.one", "b.one", "c.many", "d.many", "b.many", "a.many", "unknown", "rooms.one"]
)
offers = st.lists(st.sampled_from(["one", "two", "many", "rooms.one"]), max_size=3, unique=True)
ids = st.sampled_from(IDS)
limited = st.booleans()
few = st.integers(0, 6)
busy = st.sampled_from(["one", "two", "many", "c.many"])


class Routing(RandomRun):
    """The steps of a run; what they do is in `simulation`."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = HubSimulation()
        # Most runs would take long to come to a call that is carried out.
        for name, offered in (("c", ["one", "rooms.one"]), ("d", ["two"])):
            self.simulation.register(name, offered, shared=False, with_key=False)
            self.simulation.register(name, ["many"], shared=True, with_key=False)
        self.simulation.settle()

    @rule(name=names, method=methods, call_id=ids, limited=limited)
    def call(self, name: str, method: str, call_id: str, limited: bool) -> None:
        self.simulation.call(name, method, call_id, limited=limited)

    @rule(name=names, method=methods, limited=limited)
    def notify(self, name: str, method: str, limited: bool) -> None:
        self.simulation.call(name, method, "", limited=limited)

    @rule(name=names, method=methods, call_ids=st.lists(ids | st.just(""), min_size=1, max_size=4), limited=limited)
    def batch(self, name: str, method: str, call_ids: list[str], limited: bool) -> None:
        self.simulation.batch(name, method, call_ids, limited=limited)

    @rule(name=st.sampled_from("ab"), method=busy, credit=few, limited=limited)
    def stream(self, name: str, method: str, credit: int, limited: bool) -> None:
        self.simulation.call(name, method, "", limited=limited, credit=credit)

    @rule(name=st.sampled_from("ab"), method=busy, limited=limited)
    def upload(self, name: str, method: str, limited: bool) -> None:
        number = len(self.simulation.peers[name].sent)  # so that several peers have streams of one name
        self.simulation.call(name, method, "", limited=limited, upload=f"s{number}")

    @rule(name=names, place=few, n=few)
    def say_of_stream(self, name: str, place: int, n: int) -> None:
        self.simulation.say_of_stream(name, place, n)

    @rule(name=names, place=st.integers(0, 20))
    def cancel(self, name: str, place: int) -> None:
        self.simulation.cancel(name, place)

    @rule(name=names, place=few, manner=st.sampled_from(MANNERS))
    def answer(self, name: str, place: int, manner: str) -> None:
        self.simulation.answer(name, place, manner)

    @rule(name=st.sampled_from("cd"), place=few, manner=st.sampled_from((*RIGHT, "items", "items", "progress")))
    def answer_well(self, name: str, place: int, manner: str) -> None:
        self.simulation.loop.settle()
        self.simulation.answer(name, place, manner)

    @rule(name=names, methods=offers, shared=st.booleans(), with_key=st.booleans())
    def register(self, name: str, methods: list[str], shared: bool, with_key: bool) -> None:
        self.simulation.register(name, methods, shared=shared, with_key=with_key)

    @rule(name=names, methods=st.none() | offers)
    def unregister(self, name: str, methods: list[str] | None) -> None:
        self.simulation.call_hub(
            self.simulation.peers[name], "rpc.unregister", {} if methods is None else {"methods": methods}
        )

    @rule(name=names, how=st.sampled_from(["half", "empty", "close", "abort"]))
    def end(self, name: str, how: str) -> None:
        self.simulation.end(name, how)

    @rule(name=names, wanted=st.booleans())
    def read(self, name: str, wanted: bool) -> None:
        self.simulation.peers[name].read(wanted)


TestRouting = Routing.TestCase
TestRouting.settings = run_settings(STEPS, EXAMPLES)
