"""Small calls: a sum on 1, 32 and 1,000 connections, and a login with strings; every peer for remote calls."""

from __future__ import annotations

from .. import calls
from ..calls import LOGIN, SUM, Call
from ..contenders import (
    BY_CLIENT,
    ECHOES,
    RPCSTREAM,
    SERVE_RPCSTREAM,
    Case,
    Contender,
    FromC,
    OwnClient,
    Shape,
    echoes,
    on_lines,
)
from ..process import Serving

AIORPCX, FASTAPI_REST, GRPC_SYNC = "aiorpcX", "FastAPI REST", "grpc sync"
FASTAPI_WEBSOCKET = "FastAPI WebSocket"
JSON_RPC_HTTP, XML_RPC = "JSON-RPC over HTTP", "XML-RPC"
BY_OWN_CLIENT = {"RPyC": "rpyc_", "Pyro5": "pyro_", "zerorpc": "zerorpc_"}
NEW_CONNECTION = "a new connection for each call"
SEEDS_TITLE = "sum, one call at a time, against what the first seed was compared with"


def title(connections: int) -> str:
    return f"sum(a: int, b: int), {connections:,} connection{'' if connections == 1 else 's'}"


def small(connections: int) -> list[Case]:
    shape = Shape(connections)
    contenders = (*rpc_peers(SUM, shape), websocket(shape))
    return [Case(title=title(connections), contenders=contenders, bases=ECHOES)]


def http_seeds() -> list[Case]:
    shape = Shape()
    contenders = (
        on_lines(RPCSTREAM, SERVE_RPCSTREAM, SUM, shape),
        *echoes(calls.line(SUM), shape),
        *seeds(SUM, shape),
    )
    return [Case(title=SEEDS_TITLE, contenders=contenders, bases=(RPCSTREAM, *ECHOES))]


def login() -> list[Case]:
    shape = Shape(32)
    name = "login(user, password, remember), 32 connections"
    return [Case(title=name, contenders=rpc_peers(LOGIN, shape), bases=ECHOES)]


def rpc_peers(call: Call, shape: Shape) -> tuple[Contender, ...]:
    """Everybody who can be called so, each connection with one call at a time."""
    return (
        on_lines(RPCSTREAM, SERVE_RPCSTREAM, call, shape),
        *echoes(calls.line(call), shape),
        on_lines(AIORPCX, Serving("aiorpcx_"), call, shape),
        fastapi_rest(call, shape),
        *(grpc(name, script, call, shape) for name, script in (("grpc.aio", "grpc_aio"), (GRPC_SYNC, "grpc_sync"))),
        *ucall(call, shape),
        *(by_own_client(name, script, call, shape) for name, script in BY_OWN_CLIENT.items()),
        *seeds(call, shape),
    )


def seeds(call: Call, shape: Shape) -> tuple[Contender, ...]:
    """What the first seed was and what it was compared with."""
    return (
        on_lines("threads and json", Serving("threads_seed"), call, shape),
        json_rpc_over_http(JSON_RPC_HTTP, Serving("jsonrpc_http"), call, shape),
        Contender(
            name=XML_RPC,
            server=Serving("xmlrpc_"),
            load=FromC(
                protocol="http",
                request=calls.post("/RPC2", calls.xml_request(call), "text/xml"),
                reply=calls.xml_reply(call),
                shape=shape,
                reconnect=True,
            ),
            note=NEW_CONNECTION,
        ),
    )


def json_rpc_over_http(name: str, server: Serving, call: Call, shape: Shape, *, reconnect: bool = True) -> Contender:
    load = FromC(
        protocol="http",
        request=calls.post("/", calls.line(call).rstrip()),
        reply=calls.fits_reply(call),
        shape=shape,
        reconnect=reconnect,
    )
    return Contender(name=name, server=server, load=load, note=NEW_CONNECTION if reconnect else "")


def ucall(call: Call, shape: Shape) -> tuple[Contender, ...]:
    """Over HTTP, since it answers bare JSON without a line end. Without io_uring it closes after each answer."""
    return tuple(
        json_rpc_over_http(f"ucall {engine}", Serving("ucall_", ("--engine", engine)), call, shape, reconnect=closes)
        for engine, closes in (("posix", True), ("uring", False))
    )


def fastapi_rest(call: Call, shape: Shape) -> Contender:
    load = FromC(
        protocol="http",
        request=calls.post(f"/{call.method}", calls.named(call)),
        reply=calls.fits_result(call),
        shape=shape,
    )
    return Contender(name=FASTAPI_REST, server=Serving("fastapi_"), load=load)


def websocket(shape: Shape) -> Contender:
    load = FromC(protocol="websocket", path="/ws", request=calls.named(SUM), reply=calls.fits_result(SUM), shape=shape)
    return Contender(name=FASTAPI_WEBSOCKET, server=Serving("fastapi_"), load=load)


def grpc(name: str, script: str, call: Call, shape: Shape) -> Contender:
    request, reply = calls.grpc_templates(call)
    path = f"/bench.Bench/{call.method.title()}"
    load = FromC(protocol="grpc", path=path, request=request, reply=reply, shape=shape)
    return Contender(name=name, server=Serving(script), load=load)


def by_own_client(name: str, script: str, call: Call, shape: Shape) -> Contender:
    return Contender(name=name, server=Serving(script), load=OwnClient(topic=call.method, shape=shape), note=BY_CLIENT)
