"""Arrays there and back, and photos: throughput, with each peer's own client in Python."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rpcstream import Codec

from .. import calls
from ..calls import Check
from ..contenders import RPCSTREAM, SERVE_RPCSTREAM, Case, Contender, FromC, OwnClient, Shape
from ..process import PEERS as SCRIPTS
from ..process import Serving

sys.path.append(str(SCRIPTS))
from _common import make_photos, mean_colour

BARE = "bare exchange"
GRPC = "grpc sync"
FROM_C, FASTAPI_FROM_C = "rpcstream, from C", "FastAPI, from C"
NO_CLIENT = "no client: loaded from C with bytes that are ready"
KIB, MIB = 1024, 1024 * 1024
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB}
PHOTO_TITLE = "mean colour of a PNG of 640 x 480, 1 connection"

PEERS = {
    GRPC: "grpc_sync",
    "Arrow Flight": "flight_",
    "pyzmq": "zmq_",
    "RPyC": "rpyc_",
}


def array_title(size: str) -> str:
    return f"echo of a float32 array of {size}, 1 connection"


def array() -> list[Case]:
    return [_echo(array_title(title), size) for title, size in SIZES.items()]


def _echo(title: str, size: int) -> Case:
    data = np.random.default_rng(7).random(size // 4, dtype=np.float32)
    request = our_request("echo", data)
    sent = json.loads(request)["params"][0]
    load = OwnClient(topic="array", options=("--bytes", str(size)))
    exchange = ("--bytes", str(len(request)))
    contenders = (
        Contender(name=RPCSTREAM, server=SERVE_RPCSTREAM, load=load),
        Contender(
            name=BARE,
            server=Serving("bare_exchange", exchange),
            load=OwnClient(topic="array", options=exchange),
            note=f"{len(request):,} bytes, as rpcstream's message",
        ),
        *(Contender(name=name, server=Serving(script), load=load) for name, script in PEERS.items()),
        _ours_from_c(request, lambda result: bool(result == sent)),
        _fastapi_from_c(calls.post("/echo", data.tobytes(), "application/octet-stream"), data.tobytes()),
    )
    return Case(title=title, contenders=contenders, bases=(BARE, RPCSTREAM), payload=size)


def our_request(method: str, value: object) -> bytes:
    """The message that our clients send, line end included."""
    return Codec().dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": [value]}) + b"\n"


def image() -> list[Case]:
    """Clients make a PNG file of their photo in each call, as rpcstream's does."""
    photo = make_photos()[0]
    file = io.BytesIO()
    photo.save(file, "PNG", compress_level=3)
    load = OwnClient(topic="image")

    def is_colour(result: Any) -> bool:
        return all(abs(got - want) < 0.01 for got, want in zip(result, mean_colour(photo), strict=True))

    contenders = (
        Contender(name=RPCSTREAM, server=SERVE_RPCSTREAM, load=load),
        Contender(name=GRPC, server=Serving("grpc_sync"), load=load),
        Contender(name="grpc.aio", server=Serving("grpc_aio"), load=load),
        _ours_from_c(our_request("image", photo), is_colour),
        _fastapi_from_c(calls.post("/image", file.getvalue(), "image/png"), lambda result, n: is_colour(result)),
    )
    return [Case(title=PHOTO_TITLE, contenders=contenders, bases=(RPCSTREAM, FROM_C))]


def _ours_from_c(request: bytes, is_right: Callable[[Any], bool]) -> Contender:
    """What the server does without our client; to be compared with others that are loaded so."""
    load = FromC(
        protocol="line",
        request=request,
        reply=lambda reply, n: isinstance(reply, dict) and reply["id"] == 1 and is_right(reply["result"]),
        shape=Shape(),
    )
    return Contender(name=FROM_C, server=SERVE_RPCSTREAM, load=load, note=NO_CLIENT)


def _fastapi_from_c(request: bytes, reply: bytes | Check) -> Contender:
    load = FromC(protocol="http", request=request, reply=reply, shape=Shape())
    return Contender(name=FASTAPI_FROM_C, server=Serving("fastapi_"), load=load, note=NO_CLIENT)
