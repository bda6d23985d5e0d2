"""Images over binary frames: which format costs the least there, and what is checked before their data is there."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image

from rpcstream import Codec
from rpcstream.codec import payloads
from rpcstream.codec.image import decode_image
from rpcstream.codec.image_budget import INLINE_PIXELS, DecodeElsewhere, ImageBudget
from rpcstream.codec.image_files import image_weight
from rpcstream.wire.buffers import AttachedMessage, is_own

from ..kit import UsualServer, raw_peers, request
from .images import CODEC, MODES, file_of, rng
from .images import noise as any_noise

noise = functools.partial(any_noise, size=(120, 110))


def attached(value: Any, codec: Codec = CODEC) -> tuple[dict[str, Any], list[Any]]:
    """The message as the other end parses it, and the attachments in it, without their memory."""
    message = codec.serialize({"jsonrpc": "2.0", "method": "m", "params": [value]}, binary=True)
    assert isinstance(message, AttachedMessage)
    assert all(is_own(payload) for payload in message.payloads)  # nothing is copied before it is sent
    frame: Any = payloads.read_frame(message.json, tuple(map(len, message.payloads)), None, "server")
    assert frame.refusal is None
    parsed, line = frame.content
    return parsed["params"][0], [*zip(line.attachments, message.payloads, strict=True)]


def arrived(value: Any, codec: Codec = CODEC) -> tuple[dict[str, Any], Any]:
    """The tagged object as the other end has it, and the image that is decoded from it."""
    tagged, parts = attached(value, codec)
    for attachment, payload in parts:
        attachment.memory = np.frombuffer(payload, np.uint8).copy()
    return tagged, CODEC.decode(tagged)


@pytest.mark.parametrize("mode", [each for each in MODES[1:-2] if each not in ("P", "PA")])
def test_pixels_go_raw(mode: str) -> None:
    image = noise(mode)
    tagged, found = arrived(image)
    assert tagged["format"] == "raw"
    assert (found.mode, found.size, found.tobytes()) == (mode, image.size, image.tobytes())
    found.putpixel((0, 0), found.getpixel((1, 1)))  # it has memory of its own


@pytest.mark.parametrize("key", ["icc_profile", "exif", "transparency", "palette"])
def test_what_raw_pixels_would_lose_goes_as_png(key: str) -> None:
    image = noise("P" if key == "palette" else "RGB")
    if key == "palette":
        image.putpalette(rng.bytes(768))
    elif key == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6
        image.info["exif"] = exif.tobytes()
    else:
        image.info[key] = (1, 2, 3) if key == "transparency" else b"p" * 50
    tagged, found = arrived(image)
    assert tagged["format"] == "png"
    assert found.tobytes() == image.tobytes()
    assert found.getpalette() == image.getpalette()
    assert key == "palette" or found.info[key] == image.info[key]


def test_raw_pixels_do_not_make_a_message_too_large() -> None:
    image = Image.new("RGB", (100, 100))
    codec = Codec(max_image_file=100_000)
    for count, formats in ((1, ["raw"]), (2, ["raw", "raw"]), (4, ["raw", "raw", "png", "png"])):
        message = codec.serialize([image] * count, binary=True)
        assert [part["format"] for part in orjson.loads(bytes(message))] == formats
    assert b'"png"' in bytes(Codec(max_image_file=50_000).serialize([image], binary=True))


def test_large_ones_go_to_a_thread() -> None:
    budget = ImageBudget(CODEC.image_limits, here=INLINE_PIXELS)
    for _ in range(3):  # raw pixels are only copied
        assert decode_image(arrived(noise("RGB", size=(640, 480)))[0], budget).size == (640, 480)
    with pytest.raises(DecodeElsewhere):
        decode_image(arrived(noise("L", size=(640, 480)))[0], budget)
    with pytest.raises(DecodeElsewhere):
        decode_image(
            arrived(io.BytesIO(file_of(noise("RGB", size=(400, 300)), "png")))[0],
            ImageBudget(CODEC.image_limits, here=INLINE_PIXELS),
        )


def test_memory_is_reserved_for_them() -> None:
    assert image_weight([arrived(noise("RGB"))[0]], CODEC.image_limits) == 120 * 110 * 8
    tagged, _ = arrived(io.BytesIO(file_of(noise("RGB"), "png")))
    for value in (tagged, tagged["data"]):
        assert image_weight([value], CODEC.image_limits) == 120 * 110 * 4
    _, ((attachment, _),) = attached(bytes(9000))
    attachment.memory = np.zeros(9000, np.uint8)
    assert image_weight([attachment], CODEC.image_limits) == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"size": [120, 111]}, "39600 bytes of data, mode and size need 39960"),
        ({"size": [9000, 9000]}, "9000 x 9000 pixels, the limit is 64000000"),
        ({"mode": "X"}, "mode must be one of"),
        ({"size": [1, True]}, "size must be [width, height]"),
        ({"more": 1}, "unknown members: more"),
    ],
)
async def test_a_wrong_head_is_refused_in_words(change: dict[str, Any], text: str) -> None:
    image = {"$type": "image", "format": "raw", "mode": "RGB", "size": [120, 110], "data": {"$bin": 0}}
    async with raw_peers(UsualServer()) as connect:
        peer = await connect()
        peer.call("rpc.binary")
        await peer.receive()
        peer.send_frame(request("image", {**image, **change}, id=7), bytes(39_600))
        answer = await peer.reply()
        assert (answer["id"], answer["error"]["code"]) == (7, -32602)
        assert text in str(answer["error"])
        peer.send_frame(request("image", image, id=8), bytes(39_600))
        assert (await peer.receive())["id"] == 8
