"""Our own clients: what they add to the least that a call takes, and how near they come to the server's rate."""

from __future__ import annotations

from ..calls import SUM
from ..contenders import SERVE_RPCSTREAM, Case, Contender, OwnClient, Shape, on_lines

BARE = "bare blocking socket"
SYNC, ASYNC, SUBMIT = "Client", "AsyncClient", "Client.submit"
FROM_C = "load from C"
IN_FLIGHT = 64

ONE_TITLE = "one call at a time, 1 connection"
MANY_TITLE = f"{IN_FLIGHT} calls in flight, 1 connection"


def clients() -> list[Case]:
    one, many = Shape(), Shape(in_flight=IN_FLIGHT)
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
    ]


def _client(name: str, shape: Shape) -> Contender:
    kind = {SYNC: "sync", ASYNC: "async", SUBMIT: "submit"}[name]
    load = OwnClient(shape=shape, options=("--client", kind))
    return Contender(name=name, server=SERVE_RPCSTREAM, load=load)
