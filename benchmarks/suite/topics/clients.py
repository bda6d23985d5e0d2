"""Our own clients: what they add to the least that a call takes, and how near they come to the server's rate."""

from __future__ import annotations

from ..calls import SUM
from ..contenders import SERVE_RPCSTREAM, Case, Contender, OwnClient, Shape, on_lines

BARE = "bare blocking socket"
SYNC, ASYNC, SUBMIT = "Client", "AsyncClient", "Client.submit"
FROM_C = "load from C"
IN_FLIGHT = 64

THREADS = 8
ONE_CLIENT, CLIENT_EACH = "one Client", "a Client each"

ONE_TITLE = "one call at a time, 1 connection"
MANY_TITLE = f"{IN_FLIGHT} calls in flight, 1 connection"
THREADS_TITLE = f"{THREADS} threads, one call at a time each"


def clients() -> list[Case]:
    one, many, threads = Shape(), Shape(in_flight=IN_FLIGHT), Shape(connections=THREADS)
    bare = Contender(name=BARE, server=SERVE_RPCSTREAM, load=OwnClient(script="bare_call"))
    return [
        Case(
            title=ONE_TITLE,
            contenders=(bare, _client(SYNC, one), _client(ASYNC, one), on_lines(FROM_C, SERVE_RPCSTREAM, SUM, one)),
            bases=(BARE, FROM_C),
        ),
        Case(
            title=MANY_TITLE,
            contenders=(on_lines(FROM_C, SERVE_RPCSTREAM, SUM, many), _client(ASYNC, many), _client(SUBMIT, many)),
            bases=(FROM_C,),
        ),
        Case(
            title=THREADS_TITLE,
            contenders=(
                on_lines(FROM_C, SERVE_RPCSTREAM, SUM, threads),
                _client(CLIENT_EACH, threads),
                _client(ONE_CLIENT, threads),
            ),
            bases=(FROM_C, CLIENT_EACH),
        ),
    ]


def _client(name: str, shape: Shape) -> Contender:
    kind = {SYNC: "sync", ASYNC: "async", SUBMIT: "submit", CLIENT_EACH: "sync", ONE_CLIENT: "pool"}[name]
    load = OwnClient(shape=shape, options=("--client", kind))
    return Contender(name=name, server=SERVE_RPCSTREAM, load=load)
