"""Arrays there and back over TCP and over a Unix socket, and pictures, with each peer's own client in Python."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rpcstream import Codec
from rpcstream.wire.binary_frame import parts_of_frame
from rpcstream.wire.buffers import AttachedMessage

from .. import calls
from ..calls import Check
from ..contenders import RPCSTREAM, SERVE_RPCSTREAM, Case, Contender, FromC, OwnClient, Shape
from ..process import PEERS as SCRIPTS
from ..process import Serving
from ..templates import NEXT, NUMBER

sys.path.append(str(SCRIPTS))
from _common import make_photos, mean_colour

BARE = "bare exchange"
GRPC = "grpc sync"
TEXT = "rpcstream, binary=False"
FROM_C, FASTAPI_FROM_C = "rpcstream, from C", "FastAPI, from C"
FRAMES_FROM_C = "rpcstream, frames from C"
NO_CLIENT = "no client: loaded from C with bytes that are ready"
AS_OURS = "no client: the bytes that our client sends, ready"
KIB, MIB = 1024, 1024 * 1024
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB}
UNIX_SIZES = ("1 MiB", "16 MiB")
IMAGE_TITLE = "mean colour of an image of 640 x 480, 1 connection"

FLIGHT, PYZMQ, RAW_PYZMQ, RPYC = "Arrow Flight", "pyzmq", "pyzmq, raw bytes", "RPyC"
RAW_NOTE = "no method, no type: the bytes of the array and nothing else"
OVER_TCP = "rpcstream over TCP"

PHOTO_TITLE = "a JPEG file of 12 megapixels, 1 connection"
OPENED, BY_PATH, FILE_BYTES, COUNTED = (
    "Image.open(path)",
    "the path",
    "bytes, opened by the handler",
    "bytes, not opened",
)
PHOTO_WAYS = {OPENED: "open", BY_PATH: "path", FILE_BYTES: "bytes", COUNTED: "counted"}


def array_title(size: str) -> str:
    return f"echo of a float32 array of {size}, 1 connection"


def unix_title(size: str) -> str:
    return f"echo of a float32 array of {size}, 1 connection, Unix socket"


def array() -> list[Case]:
    return [_echo(array_title(title), size) for title, size in SIZES.items()]


def array_unix() -> list[Case]:
    """Both ends on one machine, as most programs that hand each other arrays are."""
    return [_echo_unix(unix_title(title), SIZES[title]) for title in UNIX_SIZES]


def array_load(size: int, *options: str, script: str | None = None) -> OwnClient:
    """One call at a time, with the client of the server's own script or of another one."""
    return OwnClient(topic="array", options=("--bytes", str(size), *options), script=script)


def raw_pyzmq(size: int, *options: str, first: int | None = None) -> Contender:
    load = array_load(size, "--raw", *_first(first))
    return Contender(name=RAW_PYZMQ, server=Serving("zmq_", ("--raw", *options)), load=load, note=RAW_NOTE)


def peer(name: str, script: str, size: int, *options: str, first: int | None = None) -> Contender:
    return Contender(name=name, server=Serving(script, options), load=array_load(size, *_first(first)))


def _first(size: int | None) -> tuple[str, ...]:
    """The option for the size of the array of the first call; none for that of the others."""
    return () if size is None else ("--first-bytes", str(size))


def _echo(title: str, size: int) -> Case:
    data = np.random.default_rng(7).random(size // 4, dtype=np.float32)
    request = our_request("echo", data)
    sent = json.loads(request)["params"][0]
    framed = len(our_frame("echo", data))
    exchange = ("--bytes", str(framed))
    contenders = (
        Contender(name=RPCSTREAM, server=SERVE_RPCSTREAM, load=array_load(size)),
        Contender(name=TEXT, server=SERVE_RPCSTREAM, load=array_load(size, "--text")),
        Contender(
            name=BARE,
            server=Serving("bare_exchange", exchange),
            load=OwnClient(topic="array", options=exchange),
            note=f"{framed:,} bytes, as rpcstream's message",
        ),
        peer(GRPC, "grpc_sync", size),
        peer(FLIGHT, "flight_", size),
        peer(PYZMQ, "zmq_", size),
        raw_pyzmq(size),
        peer(RPYC, "rpyc_", size),
        _ours_from_c(request, lambda result: bool(result == sent)),
        _fastapi_from_c(calls.post("/echo", data.tobytes(), "application/octet-stream"), data.tobytes()),
    )
    return Case(title=title, contenders=contenders, bases=(BARE, RPCSTREAM), payload=size)


def _echo_unix(title: str, size: int) -> Case:
    contenders = (
        Contender(name=RPCSTREAM, server=Serving("rpcstream_", ("--unix",)), load=array_load(size)),
        Contender(name=OVER_TCP, server=SERVE_RPCSTREAM, load=array_load(size)),
        peer(PYZMQ, "zmq_", size, "--unix"),
        raw_pyzmq(size, "--unix"),
    )
    return Case(title=title, contenders=contenders, bases=(RPCSTREAM, RAW_PYZMQ), payload=size)


def our_request(method: str, value: object) -> bytes:
    """The message that our clients send as text, line end included."""
    return Codec().dumps(_call(method, value)) + b"\n"


def our_frame(method: str, value: object) -> bytes:
    """The same as a binary frame, which they send by default."""
    message = Codec().serialize(_call(method, value), binary=True)
    assert isinstance(message, AttachedMessage)
    return b"".join(map(bytes, parts_of_frame(message)))


def _call(method: str, value: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": [value]}


def image() -> list[Case]:
    """The peers' clients make a PNG file of their image in each call; ours does what it does by default."""
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
        _frames_from_c(our_frame("image", photo), is_colour),
        _fastapi_from_c(calls.post("/image", file.getvalue(), "image/png"), lambda result, n: is_colour(result)),
    )
    return [Case(title=IMAGE_TITLE, contenders=contenders, bases=(RPCSTREAM, FROM_C, FRAMES_FROM_C))]


def photo() -> list[Case]:
    """What a picture that lies in a file costs, beside its bytes sent as `bytes`."""
    contenders = tuple(
        Contender(name=name, server=Serving("photo_"), load=OwnClient(topic="", options=("--way", way)))
        for name, way in PHOTO_WAYS.items()
    )
    return [Case(title=PHOTO_TITLE, contenders=contenders, bases=(FILE_BYTES, COUNTED))]


def _ours_from_c(request: bytes, is_right: Callable[[Any], bool]) -> Contender:
    """What the server does without our client; to be compared with others that are loaded so."""
    load = FromC(protocol="line", request=request, reply=_is_reply(is_right), shape=Shape())
    return Contender(name=FROM_C, server=SERVE_RPCSTREAM, load=load, note=NO_CLIENT)


def _frames_from_c(frame: bytes, is_right: Callable[[Any], bool]) -> Contender:
    """The same by a binary frame; its reply is short, and so a line."""
    if any(mark in frame for mark in (NUMBER, NEXT)):
        raise ValueError("the payload has the mark of a number in it, which the load would replace")
    load = FromC(protocol="frame", request=frame, reply=_is_reply(is_right), shape=Shape())
    return Contender(name=FRAMES_FROM_C, server=SERVE_RPCSTREAM, load=load, note=AS_OURS)


def _is_reply(is_right: Callable[[Any], bool]) -> Check:
    return lambda reply, n: isinstance(reply, dict) and reply["id"] == 1 and is_right(reply["result"])


def _fastapi_from_c(request: bytes, reply: bytes | Check) -> Contender:
    load = FromC(protocol="http", request=request, reply=reply, shape=Shape())
    return Contender(name=FASTAPI_FROM_C, server=Serving("fastapi_"), load=load, note=NO_CLIENT)
