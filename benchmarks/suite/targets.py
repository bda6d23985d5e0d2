"""The targets of the project, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .contenders import RPCSTREAM, UVLOOP_ECHO
from .results import Results, Spread, find, ratio, spread
from .topics import before, clients, hub, idle, large, many, memory, metrics, nats, small, startup, web, workers

Sense = Literal["at least", "at most"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound on one entry of a table, or on its ratio to another entry of the same table, round by round.

    A ratio of rates is wanted "at least", a ratio of times, or of bytes, "at most".
    """

    case: str
    topic: str
    title: str
    entry: str
    base: str | None = None
    bound: float
    sense: Sense
    #: Times are compared, while the figures are rates: so the other way round.
    inverse: bool = False
    #: What the bound counts, where it is no ratio; and how many of the figure's own units that is.
    unit: str = "x"
    scale: float = 1.0

    @property
    def text(self) -> str:
        return f"{self.sense} {self.bound:g} {self.unit}"


@dataclass(frozen=True)
class Verdict:
    target: Target
    measured: Spread | None
    #: None where it was not measured; then `why` says what kept it.
    met: bool | None
    why: str = ""


def evaluate(target: Target, results: Results) -> Verdict:
    """Compare the median of the rounds with the bound."""
    table = find(results, target.topic, target.title)
    if table is None:
        return Verdict(target, None, None, f"the topic {target.topic} was not run")
    for name in filter(None, (target.entry, target.base)):
        if not table.figures(name):
            entry = table.entry(name)
            return Verdict(target, None, None, f"{name}: {(entry and entry.problem) or 'left out'}")
    figures = table.figures(target.entry)
    if target.base is None:
        measured = spread(figure / target.scale for figure in figures)
    elif target.inverse:
        measured = ratio(table.figures(target.base), figures)
    else:
        measured = ratio(figures, table.figures(target.base))
    met = measured.median >= target.bound if target.sense == "at least" else measured.median <= target.bound
    return Verdict(target, measured, met)


def _rate(case: str, topic: str, title: str, entry: str, base: str, bound: float) -> Target:
    return Target(case=case, topic=topic, title=title, entry=entry, base=base, bound=bound, sense="at least")


def _time(case: str, topic: str, title: str, entry: str, base: str, bound: float, *, inverse: bool = True) -> Target:
    return Target(
        case=case, topic=topic, title=title, entry=entry, base=base, bound=bound, sense="at most", inverse=inverse
    )


def _least(case: str, topic: str, title: str, entry: str, bound: float, unit: str, *, scale: float = 1.0) -> Target:
    return Target(
        case=case, topic=topic, title=title, entry=entry, bound=bound, sense="at least", unit=unit, scale=scale
    )


def _most(case: str, topic: str, title: str, entry: str, bound: float, unit: str, *, scale: float) -> Target:
    return Target(
        case=case, topic=topic, title=title, entry=entry, bound=bound, sense="at most", unit=unit, scale=scale
    )


_SMALL_1, _SMALL_32 = ("small-1", small.title(1)), ("small-32", small.title(32))
_ONE, _MANY = ("clients", clients.ONE_TITLE), ("clients", clients.MANY_TITLE)
_1_MIB, _16_MIB = (("array", large.array_title(size)) for size in ("1 MiB", "16 MiB"))
#: Of 64 KiB, 1 MiB and 16 MiB.
_ARRAYS = {large.FLIGHT: (1.0, 1.6, 1.3), large.RAW_PYZMQ: (0.7, 0.9, 0.9), large.GRPC: (2.5, 5, 8)}
_SEEDS = ("http-seeds", small.SEEDS_TITLE)
_HUB_SMALL = ("hub-small", hub.SMALL_TITLE)
_HUB_LARGE = {"text": ("hub-large", hub.TEXT_TITLE), "array": ("hub-large", hub.ARRAY_TITLE)}
_MEGABIT = 1e6 / (8 * hub.LARGE)  # a second, in calls of that payload a second

TARGETS = (
    _time("small call, 1 connection: round trip / bare uvloop echo", *_SMALL_1, RPCSTREAM, UVLOOP_ECHO, 1.10),
    _rate("small call, 32 connections / bare uvloop echo", *_SMALL_32, RPCSTREAM, UVLOOP_ECHO, 0.65),
    _rate("small call, 32 connections / FastAPI REST", *_SMALL_32, RPCSTREAM, small.FASTAPI_REST, 9),
    _rate("small call, 32 connections / grpc sync", *_SMALL_32, RPCSTREAM, small.GRPC_SYNC, 12),
    _rate("small call, 32 connections / aiorpcX", *_SMALL_32, RPCSTREAM, small.AIORPCX, 4.5),
    _rate("POST, 32 connections / FastAPI REST", "http", web.HTTP_TITLE, web.OVER_HTTP, small.FASTAPI_REST, 8),
    _rate("static page, 32 connections / bare httptools on uvloop", "page", web.PAGE_TITLE, web.STATIC, web.BARE, 0.7),
    _rate(
        "WebSocket, 32 connections / FastAPI WebSocket",
        "websocket",
        web.WEBSOCKET_TITLE,
        web.OVER_WEBSOCKET,
        small.FASTAPI_WEBSOCKET,
        5,
    ),
    _rate("32 connections, 16 in flight / unpipelined", "pipelined", many.TITLE, RPCSTREAM, many.UNPIPELINED, 3.5),
    *(
        _rate(f"{title} / sync handler", "async-handler", title, many.ASYNC, many.SYNC, 0.5)
        for title in many.ASYNC_TITLES
    ),
    _time("Client, one call at a time / bare blocking socket", *_ONE, clients.SYNC, clients.BARE, 1.25),
    _rate("AsyncClient, 64 in flight / server's rate with C load", *_MANY, clients.ASYNC, clients.FROM_C, 0.3),
    *(
        _rate(f"array of {size} / {peer}", "array", large.array_title(size), RPCSTREAM, peer, bound)
        for peer, bounds in _ARRAYS.items()
        for size, bound in zip(large.SIZES, bounds, strict=True)
    ),
    *(
        _rate(
            f"array of {size}, Unix socket / pyzmq ipc, raw bytes", "array-unix", title, RPCSTREAM, large.RAW_PYZMQ, 1.5
        )
        for size, title in ((size, large.unix_title(size)) for size in large.UNIX_SIZES)
    ),
    _rate(
        "array of 1 MiB through the hub / called directly", "array-hub", hub.CLIENT_TITLE, hub.THROUGH, hub.DIRECT, 0.5
    ),
    _most(
        "memory of the server for the echo of 16 MiB, above idle",
        "array-memory",
        memory.TITLE,
        RPCSTREAM,
        2.2,
        "arrays",
        scale=memory.SIZE,
    ),
    _time("array of 1 MiB / bare exchange of the bytes", *_1_MIB, RPCSTREAM, large.BARE, 2.5),
    _time("array of 16 MiB / bare exchange of the bytes", *_16_MIB, RPCSTREAM, large.BARE, 3),
    *(
        _rate(
            f"image of 640 x 480, our client / C load, {what} ready", "image", large.IMAGE_TITLE, RPCSTREAM, load, 0.7
        )
        for what, load in (("PNG as text", large.FROM_C), ("our client's bytes", large.FRAMES_FROM_C))
    ),
    *(
        _rate(f"JPEG of 12 megapixels by {how} / by its bytes", "photo", large.PHOTO_TITLE, how, large.FILE_BYTES, 0.9)
        for how in (large.OPENED, large.BY_PATH)
    ),
    *(_rate(f"{title} / before", "before", title, RPCSTREAM, before.BEFORE, 0.98) for title in before.TITLES),
    *(_rate(f"{title} / without", "metrics", title, metrics.OBSERVED, RPCSTREAM, 0.97) for title in metrics.SHAPES),
    _rate(f"{workers.TITLE}: 2 workers / 1", "workers", workers.TITLE, workers.TWO, workers.ONE, 1.5),
    *(
        _rate(f"NATS: small call, {count} in flight / nats-py", "nats", title, nats.OURS, nats.PLAIN, 0.6)
        for count, title in ((count, nats.small_title(count)) for count in (1, nats.MANY))
    ),
    _rate("NATS: array of 1 MiB by ticket / in messages", "nats", nats.ARRAY_TITLE, nats.TICKET, nats.MESSAGE, 5),
    _rate("hub: text of 50 bytes, 10 callers / called directly", *_HUB_SMALL, hub.THROUGH, hub.DIRECT, 0.4),
    _least("hub: text of 50 bytes, 10 callers, as the fourth seed", *_HUB_SMALL, hub.THROUGH, 24_000, "calls/s"),
    *(
        _rate(f"hub: {kind} of 100 KiB, 50 callers / called directly", *where, hub.THROUGH, hub.DIRECT, 0.5)
        for kind, where in _HUB_LARGE.items()
    ),
    *(
        _least(f"hub: {kind} of 100 KiB, as the fourth seed", *where, hub.THROUGH, 1_400, "Mbit/s", scale=_MEGABIT)
        for kind, where in _HUB_LARGE.items()
    ),
    _time("hub: a call among 2,000 clients / among 10", "hub-many", hub.MANY_TITLE, hub.ON_MANY, hub.ON_FEW, 1.2),
    _most("server memory of an idle connection", "idle", idle.TITLE, RPCSTREAM, 8, "KiB", scale=1024),
    _time(
        "rpcstream sum a=1 b=2 / python -c 'import socket, json'",
        "startup",
        startup.TITLE,
        startup.COMMAND,
        startup.PYTHON,
        3,
        inverse=False,
    ),
    *(
        _rate(f"first seed: {peer}, {how}", *where, RPCSTREAM, peer, bound)
        for peer, bound in ((small.JSON_RPC_HTTP, 8), (small.XML_RPC, 14))
        for how, where in (("one call at a time", _SEEDS), ("32 connections", _SMALL_32))
    ),
)
