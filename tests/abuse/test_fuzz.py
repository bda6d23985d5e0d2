"""Random conversations, also at `max_calls`: another caller never waits for long, and nothing is left over.

Hypothesis puts together what one peer says: requests that wait, cancels of known and unknown calls, replies to calls
that were never made, batches, items, credit, long values, pieces of messages, nonsense; and when that peer does not
read. After every step another caller asks `rpc.ping`; what the server works until its answer comes, in processor time,
is at most the budget. `RPCSTREAM_FUZZ=1000 pytest tests/abuse/test_fuzz.py --hypothesis-seed=7`: that many examples.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from rpcstream import Limits, Logs

from ..kit import RawPeer, UsualServer
from ..kit.example_count import IS_THOROUGH
from ..kit.loops import new_loop
from ..kit.memory import join
from .harness import WAIT, WAIT_IN_SUITE

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("RPCSTREAM_FUZZ", "24" if IS_THOROUGH else "6"))

#: Processor seconds that another caller may wait for; more where other tests run beside this one.
LONGEST = WAIT if "RPCSTREAM_FUZZ" in os.environ else WAIT * WAIT_IN_SUITE
#: Bytes of one step at most, so that the peer that says it does not take long itself.
STEP_MAX = 1024 * 1024


def fuzzed(max_calls: int) -> UsualServer:
    """A server with one handler of each kind."""
    server = UsualServer(limits=Limits(max_calls=max_calls), logs=Logs(slow_call=3600), drain_timeout=0.01)

    @server(ordered=True)
    async def in_order(value: Any = None) -> Any:
        await asyncio.sleep(0)
        return value

    return server


METHODS = ["wait", "echo_after", "echo", "in_order", "count", "total", "ask", "rpc.discover", "rpc.ping", "no_such"]

ids = st.one_of(
    st.integers(0, 40),
    st.sampled_from(["a", "1", "", "\u0000", "x" * 200]),
    st.sampled_from([None, 1.0, 1e300, True, [], {}, 2**64]),
)
values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        [{"$type": "stream", "id": "s1"}, {"$type": "stream", "id": "s2"}, {"$type": "bytes", "data": "AA=="}]
    ),
    st.builds(lambda n: [0] * n, st.integers(0, 20_000)),
    st.builds(lambda n: "é" * n, st.integers(0, 40_000)),
    st.builds(
        lambda n: {"$type": "ndarray", "dtype": "|u1", "shape": [3 * n], "data": "AAAA" * n}, st.integers(0, 9_000)
    ),
)


@st.composite
def one_message(draw: st.DrawFn) -> dict[str, Any]:
    """A message of any kind, right or wrong."""
    call_id, value, token = draw(ids), draw(values), draw(st.sampled_from(["s1", "s2", "s3"]))
    call: dict[str, Any] = {"method": draw(st.sampled_from(METHODS)), "params": [value, 0][: draw(st.integers(1, 2))]}
    if draw(st.integers(0, 3)) == 0:
        call["stream"] = draw(st.integers(0, 5))
    if draw(st.integers(0, 5)) == 0:
        call["timeout"] = draw(st.sampled_from([0.001, 10, -1, "x"]))
    kinds: list[dict[str, Any]] = [
        {**call, "id": call_id},
        {**call, "id": call_id},
        call,
        {"method": "$/cancelRequest", "params": {"id": call_id}},
        {"id": call_id, "result": value},
        {"id": call_id, "error": {"code": 1, "message": "no", "data": value}},
        {"method": "$/item", "params": {"stream": token, "value": value}},
        {"method": "$/end", "params": {"stream": token}},
        {"method": "$/credit", "params": {"id": call_id, "n": draw(st.integers(-1, 100))}},
    ]
    return {"jsonrpc": "2.0", **kinds[draw(st.integers(0, len(kinds) - 1))]}


def line(message: Any) -> bytes:
    try:
        return orjson.dumps(message) + b"\n"
    except TypeError:  # an integer of more than 64 bits
        return b'{"jsonrpc":"2.0","id":18446744073709551616,"method":"echo","params":[18446744073709551616]}\n'


def many(message: Any, n: int) -> bytes:
    """The same line so often, within the limit of a step; ids that are numbers go on counting."""
    lines, size = [], 0
    for place in range(n):
        if isinstance(message, dict) and type(message.get("id")) is int:
            message = {**message, "id": (message["id"] + place) % 5000}
        lines.append(line(message))
        size += len(lines[-1])
        if size > STEP_MAX:
            break
    return b"".join(lines)


def together(message: Any, n: int) -> bytes:
    """The same in one array so often, within the limit of a step."""
    return line([message] * min(n, 1 + STEP_MAX // len(line(message))))


def opening(max_calls: int, kind: str) -> bytes:
    """What fills the room for calls, or nearly, before the fuzzing begins."""
    calls = [line({"jsonrpc": "2.0", "id": place, "method": "wait"}) for place in range(max_calls)]
    asked = line({"jsonrpc": "2.0", "id": "asked", "method": "ask", "params": ["question"]})
    stream = line({"jsonrpc": "2.0", "id": "up", "method": "total", "params": [{"$type": "stream", "id": "s1"}]})
    return {
        "nothing": b"",
        "full": b"".join(calls),
        "full, and asked something": b"".join((asked, *calls)),
        "full, with a stream": b"".join((stream, *calls)),
    }[kind]


openings = st.sampled_from(["nothing", "full", "full, and asked something", "full, with a stream"])
counts = st.sampled_from([1, 1, 2, 10, 300, 3000, 15_000])
nonsense = st.sampled_from(
    [
        b"{\n",
        b"]\n",
        b"[" * 5000 + b"\n",
        b"[" * 200 + b"]" * 200 + b"\n",
        b'{"jsonrpc":"2.0","id":null,"error":' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}\n",
        b'{"jsonrpc":"2.0","id":7,"method":"echo","params":["\\ud800"]}\n',
        b'{"jsonrpc":"2.0","id":7,"method":"echo","params":[1e400]}\n',
        b"\xff\xfe\n",
        b'[1]{"a":1}[2]\n',
        b'"text"\n',
        b"[" + b"[]," * 30_000 + b"[]]\n",
        b"{}" * 2000 + b"\n",
    ]
)
steps = st.one_of(
    st.builds(many, one_message(), counts),
    st.builds(lambda messages: b"".join(map(line, messages)), st.lists(one_message(), max_size=20)),
    st.builds(lambda messages: line(messages), st.lists(one_message(), max_size=30)),
    st.builds(together, one_message(), counts),
    st.builds(lambda text, n: text * min(n, 1 + STEP_MAX // len(text)), nonsense, st.sampled_from([1, 5, 100])),
    st.sampled_from(["stop reading", "read again", "in pieces"]),
)


class Deaf(RawPeer):
    """Keeps nothing of what comes: that would be measured as well."""

    def data_received(self, data: bytes) -> None:
        pass


async def wait_of(caller: RawPeer) -> float:
    """Processor seconds from a question of the other caller to its answer."""
    before = time.thread_time()
    assert await caller.result("rpc.ping") == "pong"
    return time.thread_time() - before


async def converse(max_calls: int, first: str, said: list[bytes | str]) -> float:
    """The longest wait of another caller while one peer says all this."""
    longest, pieces = 0.0, False
    async with fuzzed(max_calls).in_memory() as make_stream:
        caller, peer = RawPeer(), Deaf()
        join(make_stream(), caller)
        join(make_stream(), peer)
        for step in [opening(max_calls, first), *said]:
            if peer.is_over:
                join(make_stream(), peer := Deaf())
            if step == "stop reading":
                peer.transport.pause_reading()
            elif step == "read again":
                peer.transport.resume_reading()
            elif isinstance(step, str):
                pieces = not pieces
            elif pieces:
                for start in range(0, len(step), 70_001):
                    peer.transport.write(step[start : start + 70_001])
                    await asyncio.sleep(0)
            else:
                peer.transport.write(step)
            longest = max(longest, await wait_of(caller))
        peer.transport.abort()
        longest = max(longest, await wait_of(caller))
        caller.transport.abort()
    return longest


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # of long examples, when one fails
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@example(max_calls=4, first="full, and asked something", said=[(b"{}" * 2000 + b"\n") * 100])
@given(max_calls=st.sampled_from([4, 64, 1024]), first=openings, said=st.lists(steps, min_size=1, max_size=12))
def test_another_caller_never_waits_for_long(max_calls: int, first: str, said: list[bytes | str]) -> None:
    gc.collect()
    # What a fuzzer says fills pages of log, and the tests' own handler keeps them all.
    logging.disable(logging.ERROR)
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(converse(max_calls, first, said)) <= LONGEST
    finally:
        logging.disable(logging.NOTSET)
