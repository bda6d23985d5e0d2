"""Many calls at once on a connection: pipelined, in a batch, and to async handlers."""

from __future__ import annotations

from .. import calls
from ..calls import SUM, SUM_LATER
from ..contenders import (
    ECHOES,
    RPCSTREAM,
    SERVE_RPCSTREAM,
    Case,
    Contender,
    FromC,
    Shape,
    echoes,
    on_lines,
)
from ..process import Serving
from .small import AIORPCX, JSON_RPC_HTTP, json_rpc_over_http

BATCH = 100
UNPIPELINED = "rpcstream, 1 in flight"
BATCHED, ALONE, IN_FLIGHT = "rpcstream, batch", "rpcstream, one by one", f"rpcstream, {BATCH} in flight"
SYNC, ASYNC = "rpcstream, sync handler", "rpcstream, async handler"
MANY = Shape(32, 16)
TITLE = "sum, 32 connections, 16 in flight on each"
ASYNC_TITLES = {
    "async handler that does not wait, 32 connections": Shape(32),
    "async handler that does not wait, 32 connections, 16 in flight on each": MANY,
}


def pipelined() -> list[Case]:
    contenders = (
        on_lines(RPCSTREAM, SERVE_RPCSTREAM, SUM, MANY),
        on_lines(UNPIPELINED, SERVE_RPCSTREAM, SUM, Shape(MANY.connections)),
        *echoes(calls.line(SUM), MANY),
        on_lines(AIORPCX, Serving("aiorpcx_"), SUM, MANY),
        *(
            json_rpc_over_http(f"ucall {engine}", Serving("ucall_", ("--engine", engine)), SUM, MANY, reconnect=False)
            for engine in ("posix", "uring")
        ),
    )
    return [Case(title=TITLE, contenders=contenders, bases=(UNPIPELINED, *ECHOES))]


def batch() -> list[Case]:
    one, request = Shape(), calls.batch(BATCH)
    contenders = (
        batched(BATCHED, SERVE_RPCSTREAM),
        on_lines(ALONE, SERVE_RPCSTREAM, SUM, one),
        on_lines(IN_FLIGHT, SERVE_RPCSTREAM, SUM, Shape(in_flight=BATCH)),
        *echoes(request, one, BATCH),
        batched(f"{AIORPCX}, batch", Serving("aiorpcx_")),
        Contender(
            name=f"{JSON_RPC_HTTP}, batch",
            server=Serving("jsonrpc_http"),
            load=FromC(
                protocol="http",
                request=calls.post("/", request.rstrip()),
                reply=calls.fits_batch(BATCH),
                shape=one,
                reconnect=True,
            ),
            calls=BATCH,
        ),
    )
    return [Case(title=f"batch of {BATCH} sums, 1 connection", contenders=contenders, bases=(ALONE, *ECHOES))]


def batched(name: str, server: Serving) -> Contender:
    load = FromC(protocol="line", request=calls.batch(BATCH), reply=calls.fits_batch(BATCH), shape=Shape())
    return Contender(name=name, server=server, load=load, calls=BATCH)


def async_handler() -> list[Case]:
    return [
        Case(
            title=title,
            contenders=(
                on_lines(SYNC, SERVE_RPCSTREAM, SUM, shape),
                on_lines(ASYNC, SERVE_RPCSTREAM, SUM_LATER, shape),
                *echoes(calls.line(SUM_LATER), shape),
            ),
            bases=(SYNC, *ECHOES),
        )
        for title, shape in ASYNC_TITLES.items()
    ]
