"""Calls over NATS, beside direct calls and beside what nats-py does by itself.

The nats-server shares the servers' core with the service, as a server of ours has that core alone when it is called
directly; the caller has the other core.
"""

from __future__ import annotations

from ..contenders import SERVE_RPCSTREAM, Case, Contender, OwnClient, Shape
from ..process import Serving
from .large import MIB, array_load

DIRECT = "rpcstream over TCP"
OURS, PLAIN = "rpcstream over NATS", "nats-py"
TICKET, MESSAGE = "over NATS, by claim ticket", "over NATS, in messages"
PLAIN_MESSAGE = "nats-py, raw bytes in messages"
MANY = 64
LARGE = ("--large",)
LARGE_NOTE = "max_payload of the nats-server is 8 MiB, otherwise 1 MiB as it comes"

ARRAY_TITLE = "echo of a float32 array of 1 MiB, 1 AsyncClient"


def small_title(in_flight: int) -> str:
    return f"sum over NATS, 1 AsyncClient, {in_flight} in flight"


def nats() -> list[Case]:
    return [_small(1), _small(MANY), _array()]


def _small(in_flight: int) -> Case:
    shape = Shape(in_flight=in_flight)
    ours = OwnClient(shape=shape, options=("--client", "async"))
    contenders = (
        Contender(name=OURS, server=Serving("over_nats"), load=OwnClient(shape=shape)),
        Contender(name=PLAIN, server=Serving("nats_"), load=OwnClient(shape=shape)),
        Contender(name=DIRECT, server=SERVE_RPCSTREAM, load=ours),
    )
    return Case(title=small_title(in_flight), contenders=contenders, bases=(PLAIN, DIRECT))


def _array() -> Case:
    load = array_load(MIB)
    contenders = (
        Contender(name=TICKET, server=Serving("over_nats"), load=load),
        Contender(name=MESSAGE, server=Serving("over_nats", LARGE), load=load, note=LARGE_NOTE),
        Contender(name=PLAIN_MESSAGE, server=Serving("nats_", LARGE), load=load, note=LARGE_NOTE),
        Contender(name=DIRECT, server=SERVE_RPCSTREAM, load=array_load(MIB, "--client", "async")),
    )
    return Case(title=ARRAY_TITLE, contenders=contenders, bases=(MESSAGE, DIRECT), payload=MIB)
