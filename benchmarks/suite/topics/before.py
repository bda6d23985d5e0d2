"""Small calls beside those of another checkout, as of the commit before: both its server and its clients.

The scripts are the ones here; only the package comes from there.
"""

from __future__ import annotations

from pathlib import Path

from ..calls import SUM
from ..contenders import RPCSTREAM, Case, Contender, OwnClient, Shape, on_lines
from ..process import Serving

BEFORE = "before"
#: The load, and how many connections it has with how many calls in flight.
FROM_C = {
    "sum, 1 connection, from C": Shape(),
    "sum, 32 connections, from C": Shape(32),
    "sum, 32 connections, 16 in flight on each, from C": Shape(32, 16),
}
BY_CLIENTS = {
    "sum by Client, one call at a time": ("sync", Shape()),
    "sum by AsyncClient, 64 in flight": ("async", Shape(in_flight=64)),
}
TITLES = (*FROM_C, *BY_CLIENTS)


def before(checkout: Path | None) -> list[Case]:
    """Return the cases; none without a checkout to compare with."""
    if checkout is None:
        return []
    servers = {RPCSTREAM: Serving("rpcstream_"), BEFORE: Serving("rpcstream_", checkout=checkout)}
    cases = [(title, [on_lines(*server, SUM, shape) for server in servers.items()]) for title, shape in FROM_C.items()]
    for title, (client, shape) in BY_CLIENTS.items():
        load = OwnClient(shape=shape, options=("--client", client))
        cases.append((title, [Contender(name=name, server=server, load=load) for name, server in servers.items()]))
    return [
        Case(title=title, contenders=tuple(contenders), bases=(BEFORE,), restarts=True) for title, contenders in cases
    ]
