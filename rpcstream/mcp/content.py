"""The results and errors of methods as the content of MCP: text, images, embedded resources, structured content."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
import orjson
import pybase64

from ..codec import Codec
from ..codec.ndarray import npy_file
from ..codec.rich_hint import TAG_KEY
from ..codec.scalars import TAGGED_FLOAT
from ..errors import RpcError
from ..web.responses import png

#: Image formats that agents read; others are sent as PNG.
_IMAGES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}

#: Bytes of an array or of bytes that are attached as a resource; of larger ones there is the description alone, since
#: an agent's host may put all of it before the model.
MAX_RESOURCE = 4 * 1024 * 1024

#: Numbers of an array that are shown as text.
SHOWN_NUMBERS = 64

#: Characters of an error's data that are shown.
_MAX_DATA = 4000

_RESULT = b'"result":'
#: A NaN or an infinity on the wire. (In a string its quotes have backslashes.)
_TAGGED_FLOAT = re.compile(re.escape(TAGGED_FLOAT) + rb'"value":"(?:nan|inf|-inf)"\}')

Block = dict[str, Any]


def result_in(reply: bytes) -> bytes | None:
    """The bytes of the result in a reply that was written here; None if it is an error.

    They stand behind the member's name: inside of a string, such as the id, its quotes would have backslashes. NaN and
    the infinities are null, since an agent knows no tagged objects.
    """
    begin = reply.find(_RESULT)
    if begin < 0 or not reply.endswith(b"}"):
        return None
    raw = reply[begin + len(_RESULT) : -1]
    return _TAGGED_FLOAT.sub(b"null", raw) if TAGGED_FLOAT in raw else raw


def plain_content(raw: bytes) -> list[Block]:
    """The content for a result without rich values, as JSON: its text, of a string the string itself."""
    text = orjson.loads(raw) if raw[:1] == b'"' else raw.decode()
    return [{"type": "text", "text": text}]


def rich_content(raw: bytes, codec: Codec) -> list[Block]:
    """The content for a result, as JSON, that has rich values in it.

    An image becomes an image, an array its description and a `.npy` file, bytes a file. Where they are parts of
    something else, that comes first, as JSON in which a text such as "[image 1]" stands for each of them.
    """
    writer = _ContentWriter(codec)
    value = msgspec.json.decode(raw)
    shown = writer.shown(value)
    if type(value) is dict and type(shown) is str:  # it is a rich value itself
        return writer.blocks
    text = shown if type(shown) is str else json.dumps(shown, ensure_ascii=False)
    return [{"type": "text", "text": text}, *writer.blocks]


class _ContentWriter:
    """Takes the rich values out of one result.

    Attributes:
        blocks: the content for those that were found.
    """

    def __init__(self, codec: Codec) -> None:
        self.blocks: list[Block] = []
        self._codec = codec
        self._count = 0

    def shown(self, value: Any) -> Any:
        """A value with a text in the place of each rich value."""
        if type(value) is list:
            return [self.shown(item) for item in value]
        if type(value) is not dict:
            return value
        write = _WRITERS.get(value.get(TAG_KEY)) if type(value.get(TAG_KEY)) is str else None
        if write is None:
            return {name: self.shown(item) for name, item in value.items()}
        self._count += 1
        return write(self, value)

    def image(self, tagged: dict[str, Any]) -> str:
        kind, data = _IMAGES.get(tagged.get("format", "")), tagged["data"]
        if kind is None:
            response = png(self._codec.decode(tagged))
            kind, data = "image/png", pybase64.b64encode(bytes(response.body)).decode()
        self.blocks.append({"type": "image", "data": data, "mimeType": kind})
        return f"[image {self._count}]"

    def array(self, tagged: dict[str, Any]) -> str:
        array: Any = self._codec.decode(tagged)
        file = partial(npy_file, array)
        return self._attach("array", described_array(array), array.nbytes, file, "npy", "application/x-npy")

    def binary(self, tagged: dict[str, Any]) -> str:
        data: Any = self._codec.decode(tagged)
        file = partial(bytes, data)
        return self._attach("bytes", f"{len(data)} bytes", len(data), file, "bin", "application/octet-stream")

    def _attach(self, what: str, text: str, size: int, file: Callable[[], bytes], ending: str, kind: str) -> str:
        """Describe a value, and attach its file unless that is too large, or there is none; gives its name."""
        name = f"{what} {self._count}"
        is_large = size > MAX_RESOURCE
        if is_large:
            text += f" (not attached: it is larger than {MAX_RESOURCE} bytes)"
        self.blocks.append({"type": "text", "text": f"{name}: {text}"})
        if not is_large:
            with suppress(ValueError):  # such a file cannot contain it
                blob = pybase64.b64encode(file()).decode()
                resource = {"uri": f"rpcstream://result/{self._count}.{ending}", "mimeType": kind, "blob": blob}
                self.blocks.append({"type": "resource", "resource": resource})
        return f"[{name}]"


_WRITERS: dict[Any, Any] = {
    "image": _ContentWriter.image,
    "ndarray": _ContentWriter.array,
    "bytes": _ContentWriter.binary,
}


def described_array(array: np.ndarray[Any, Any]) -> str:
    """What an array is, in words: dtype, shape, range of values; and the values, if they are few."""
    text = f"{array.dtype.name}, shape {array.shape}"
    if array.dtype.kind in "biuf" and array.size:
        numbers = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        if numbers.size:
            mean = float(numbers.mean(dtype=np.float64))
            text += f", least {numbers.min()}, greatest {numbers.max()}, mean {mean:.6g}"
        if numbers.size < array.size:
            text += f", {array.size - numbers.size} not finite"
    if 0 < array.size <= SHOWN_NUMBERS and array.dtype.kind in "biufU":
        text += f": {json.dumps(array.tolist())}"
    return text


def error_content(error: RpcError) -> list[Block]:
    """The content for a call that has failed: what the caller may read of the error, and mend."""
    data = error.data
    text = str(error.message)
    if type(data) is dict and type(reason := data.get("reason")) is str:
        text = text if reason in text else f"{text}: {reason}"
        data = {name: value for name, value in data.items() if name != "reason"}
    if data:
        try:
            text = f"{text}\n{json.dumps(data, ensure_ascii=False, default=repr)[:_MAX_DATA]}"
        except (TypeError, ValueError):
            pass
    return [{"type": "text", "text": text.encode(errors="replace").decode()}]
