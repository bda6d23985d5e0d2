"""Micro-batches for a model, and streams in place of calls."""

from __future__ import annotations

from ..contenders import Case, Contender, OwnClient, Shape
from ..process import Serving

CALLERS = 64
BATCHING_TITLE = f"embedding of a text, {CALLERS} callers"
BATCHED, AT_ONCE = "batched, max_wait=0.002", "batched, max_wait=0"
ALONE, IN_THREADS = "one by one, in the event loop", "one by one, in threads"

WINDOW = 16  # calls in flight for what a stream has by default
ONE_WAY = "items go one way only"
ONE_CALL, CALLS = "calls, one at a time", f"calls, {WINDOW} in flight"
BOTH, BACK, THERE = "stream there and back", "stream to the caller", "stream to the server"
SMALL_TITLE = "small items"
FRAME = 1024 * 1024
FRAMES_TITLE = "float32 arrays of 1 MiB"


def batching() -> list[Case]:
    shape = Shape(CALLERS)
    methods = {ALONE: "alone", IN_THREADS: "alone_in_threads", BATCHED: "batched", AT_ONCE: "batched_at_once"}
    contenders = tuple(
        Contender(name=name, server=Serving("embedding_"), load=_client("--method", method, shape))
        for name, method in methods.items()
    )
    return [Case(title=BATCHING_TITLE, contenders=contenders, bases=(ALONE,))]


def streams() -> list[Case]:
    return [
        Case(title=SMALL_TITLE, contenders=_ways("sum"), bases=(ONE_CALL,), unit="items/s"),
        Case(title=FRAMES_TITLE, contenders=_ways("array"), bases=(ONE_CALL,), unit="items/s", payload=FRAME),
    ]


def _ways(topic: str) -> tuple[Contender, ...]:
    ways = {
        ONE_CALL: ("call", Shape(), ""),
        CALLS: ("call", Shape(in_flight=WINDOW), ""),
        BOTH: ("both", Shape(), ""),
        BACK: ("back", Shape(), ONE_WAY),
        THERE: ("there", Shape(), ONE_WAY),
    }
    return tuple(
        Contender(name=name, server=Serving("streams_"), load=_client("--way", way, shape, topic), note=note)
        for name, (way, shape, note) in ways.items()
    )


def _client(option: str, value: str, shape: Shape, topic: str = "") -> OwnClient:
    return OwnClient(topic=topic, shape=shape, options=(option, value))
