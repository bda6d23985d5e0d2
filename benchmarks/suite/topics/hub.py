"""The hub: what a call costs that goes through it to a client, beside the same call to the same methods on a server.

The hub has the servers' core to itself; its provider shares the other one with the load. Called directly, the provider
has the servers' core.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .. import calls
from ..calls import Call, Check
from ..contenders import Case, Contender, FromC, OwnClient, Shape
from ..machine import cores
from ..process import Serving
from ..templates import NUMBER
from .large import MIB, array_load, our_request

DIRECT, THROUGH = "provider as a server", "provider on the hub"
BARE_DIRECT, BARE_THROUGH = "bare provider as a server", "bare provider on the hub"
BARE_NOTE = "JSON in, JSON out, nothing checked"

#: As in the fourth seed's own test.
SMALL, SMALL_CALLERS = 50, 10
LARGE, LARGE_CALLERS = 102_400, 50
SMALL_TITLE = f"echo of a text of {SMALL} bytes, {SMALL_CALLERS} callers"
TEXT_TITLE = f"echo of a text of {LARGE:,} bytes, {LARGE_CALLERS} callers"
ARRAY_TITLE = f"echo of a float32 array of {LARGE:,} bytes, {LARGE_CALLERS} callers"

CLIENT_TITLE = "echo of a float32 array of 1 MiB, 1 Client"

SUBSCRIBERS = {1: 16, 10: 16, 1000: 4}  # and the events that are on their way at once
FEW, MANY = 10, 2000
MANY_TITLE = "echo of a text of 50 bytes, 1 caller, on a hub of many"
ON_FEW, ON_MANY = (f"{count:,} clients with 10 methods each" for count in (FEW, MANY))


def publish_title(subscribers: int) -> str:
    return f"an event of a small value to {subscribers:,} subscriber{'' if subscribers == 1 else 's'}"


def small() -> list[Case]:
    return [_text(SMALL_TITLE, SMALL, Shape(SMALL_CALLERS))]


def large() -> list[Case]:
    shape = Shape(LARGE_CALLERS)
    data = np.random.default_rng(7).random(LARGE // 4, dtype=np.float32)
    request = our_request("echo_array", data)
    sent = json.loads(request)["params"][0]
    numbered = request.replace(b'"id":1,', b'"id":%b,' % NUMBER)

    def fits(reply: Any, number: int) -> bool:
        return bool(reply == {"jsonrpc": "2.0", "id": number, "result": sent})

    return [
        _text(TEXT_TITLE, LARGE, shape, payload=LARGE),
        _case(ARRAY_TITLE, numbered, fits, shape, payload=LARGE),
    ]


def client_array() -> list[Case]:
    """A large array by our own client, one call at a time, as it sends it by default."""
    load = array_load(MIB, "--method", "echo_array", script="rpcstream_")
    contenders = tuple(
        Contender(name=name, server=_serving(direct=direct), load=load)
        for name, direct in ((DIRECT, True), (THROUGH, False))
    )
    return [Case(title=CLIENT_TITLE, contenders=contenders, bases=(DIRECT,), payload=MIB)]


def publish() -> list[Case]:
    return [
        Case(
            title=publish_title(count),
            contenders=(
                Contender(
                    name="events delivered",
                    server=Serving("publish_"),
                    load=OwnClient(topic="", shape=Shape(count, in_flight)),
                    calls=count,
                    note=f"{in_flight} events on their way at once; times are until all have an event",
                ),
            ),
            unit="items/s",
        )
        for count, in_flight in SUBSCRIBERS.items()
    ]


def many() -> list[Case]:
    call, shape = _echo(SMALL), Shape()
    contenders = (
        _provider(name, calls.line(call), calls.fits_reply(call), shape, clients=count - 1)
        for name, count in ((ON_FEW, FEW), (ON_MANY, MANY))
    )
    return [Case(title=MANY_TITLE, contenders=tuple(contenders), bases=(ON_FEW,))]


def _echo(size: int) -> Call:
    """With a text of so many bytes that is new in each call."""

    def text(number: int) -> str:
        return f"{number} {'text ' * (size // 5)}"[:size]

    return Call("echo_text", lambda number: {"text": text(number)}, text)


def _text(title: str, size: int, shape: Shape, payload: int = 0) -> Case:
    call = _echo(size)
    return _case(title, calls.line(call), calls.fits_reply(call), shape, payload)


def _case(title: str, request: bytes, fits: Check, shape: Shape, payload: int) -> Case:
    """Both kinds of a provider, each with and without a hub before it."""

    def contender(name: str, kind: str, *, direct: bool) -> Contender:
        return _provider(name, request, fits, shape, kind, direct=direct)

    contenders = (
        contender(DIRECT, "real", direct=True),
        contender(THROUGH, "real", direct=False),
        contender(BARE_DIRECT, "bare", direct=True),
        contender(BARE_THROUGH, "bare", direct=False),
    )
    return Case(title=title, contenders=contenders, bases=(DIRECT, BARE_DIRECT), payload=payload)


def _provider(
    name: str,
    request: bytes,
    fits: Check,
    shape: Shape,
    kind: str = "real",
    *,
    direct: bool = False,
    clients: int = 0,
) -> Contender:
    load = FromC(protocol="line", request=request, reply=fits, shape=shape)
    note = BARE_NOTE if kind == "bare" else ""
    return Contender(name=name, server=_serving(kind, direct=direct, clients=clients), load=load, note=note)


def _serving(kind: str = "real", *, direct: bool, clients: int = 0) -> Serving:
    options = ["--provider", kind, "--clients", str(clients)]
    core = cores().load
    if direct:
        options.append("--direct")
    elif core is not None:
        options += ["--core", str(core)]
    return Serving("hub_", tuple(options))
