"""Beside web frameworks: a small call over HTTP and over WebSocket, and a page that is always the same."""

from __future__ import annotations

import sys

from .. import calls
from ..calls import SUM
from ..contenders import SERVE_RPCSTREAM, Case, Contender, FromC, Shape, on_lines
from ..process import PEERS, Serving
from .small import (
    FASTAPI_REST,
    FASTAPI_WEBSOCKET,
    JSON_RPC_HTTP,
    fastapi_rest,
    json_rpc_over_http,
    title,
    ucall,
)
from .small import websocket as fastapi_websocket

sys.path.append(str(PEERS))
from _common import PAGE, PAGE_PATH

OVER_HTTP, OVER_WEBSOCKET = "rpcstream over HTTP", "rpcstream over WebSocket"
ON_LINES = "rpcstream on lines"
STATIC, BARE = "rpcstream", "httptools on uvloop"
#: Those that can answer a page. What is measured of each is one process that has one core.
SERVERS = {"Granian": "granian_", "Robyn": "robyn_", "socketify": "socketify_", "gevent's pywsgi": "gevent_"}

SHAPE = Shape(32)
HTTP_TITLE = f"{title(SHAPE.connections)}, by POST"
WEBSOCKET_TITLE = f"{title(SHAPE.connections)}, by WebSocket"
PAGE_TITLE = f"a page of {len(PAGE):,} bytes, {SHAPE.connections} connections"


def http() -> list[Case]:
    """JSON-RPC by POST, the connections kept wherever the peer keeps them."""
    contenders = (
        json_rpc_over_http(OVER_HTTP, SERVE_RPCSTREAM, SUM, SHAPE, reconnect=False),
        on_lines(ON_LINES, SERVE_RPCSTREAM, SUM, SHAPE),
        fastapi_rest(SUM, SHAPE),
        *ucall(SUM, SHAPE),
        json_rpc_over_http(JSON_RPC_HTTP, Serving("jsonrpc_http"), SUM, SHAPE),
    )
    return [Case(title=HTTP_TITLE, contenders=contenders, bases=(FASTAPI_REST, ON_LINES))]


def websocket() -> list[Case]:
    """A message for each call, a message for its reply."""
    request = calls.line(SUM).rstrip()
    load = FromC(protocol="websocket", request=request, reply=calls.fits_reply(SUM), shape=SHAPE)
    contenders = (
        Contender(name=OVER_WEBSOCKET, server=SERVE_RPCSTREAM, load=load),
        on_lines(ON_LINES, SERVE_RPCSTREAM, SUM, SHAPE),
        fastapi_websocket(SHAPE),
    )
    return [Case(title=WEBSOCKET_TITLE, contenders=contenders, bases=(FASTAPI_WEBSOCKET, ON_LINES))]


def page() -> list[Case]:
    """Each body is compared with the page, byte for byte. All requests are the same, as those of a browser are."""
    load = FromC(protocol="http", request=calls.get(PAGE_PATH), reply=PAGE, shape=SHAPE)
    contenders = (
        Contender(name=STATIC, server=SERVE_RPCSTREAM, load=load),
        Contender(name=BARE, server=Serving("bare_page"), load=load),
        *(Contender(name=name, server=Serving(script), load=load) for name, script in SERVERS.items()),
    )
    return [Case(title=PAGE_TITLE, contenders=contenders, bases=(BARE,))]
