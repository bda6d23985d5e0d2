"""Small calls on a server with metrics, beside the same server without."""

from __future__ import annotations

from ..calls import SUM
from ..contenders import RPCSTREAM, SERVE_RPCSTREAM, Case, Shape, on_lines
from ..process import Serving

OBSERVED = "rpcstream with metrics"
SHAPES = {
    "sum with and without metrics, 1 connection": Shape(),
    "sum with and without metrics, 32 connections": Shape(32),
}


def metrics() -> list[Case]:
    servers = {RPCSTREAM: SERVE_RPCSTREAM, OBSERVED: Serving("rpcstream_", ("--metrics",))}
    return [
        Case(
            title=title,
            contenders=tuple(on_lines(*server, SUM, shape) for server in servers.items()),
            bases=(RPCSTREAM,),
            restarts=True,
        )
        for title, shape in SHAPES.items()
    ]
