"""Values as they are sent and as they arrive, in base64 and beside the JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from rpcstream.codec import Codec
from rpcstream.codec.payloads import FrameLine
from rpcstream.wire.binary_frame import parts_of_frame
from rpcstream.wire.buffers import AttachedMessage
from rpcstream.wire.framing import LineFramer
from rpcstream.wire.messages import BinaryFrame

from ..wire.frame_model import TakesAll

codec = Codec()


def sent(value: Any) -> Any:
    """The JSON that is sent, without frames."""
    return orjson.loads(codec.dumps(value))


def received(value: Any) -> Any:
    """What arrives without a hint; the same where payloads stand beside the JSON."""
    found: Any = codec.decode([sent(value)])
    message = codec.serialize({"value": value}, binary=True)
    if isinstance(message, AttachedMessage):
        beside = codec.decode(read_frame(message)[0]["value"])
        assert type(beside) is type(found[0])
        assert codec.dumps(beside) == codec.dumps(found[0])
    return found[0]


def read_frame(message: Any) -> tuple[Any, FrameLine]:
    """A message in a frame as the other end parses it, and its line."""
    (frame,) = LineFramer(max_size=10**9, intake=TakesAll()).feed(b"".join(map(bytes, parts_of_frame(message))))
    assert isinstance(frame, BinaryFrame)
    assert frame.refusal is None, frame.refusal.data
    parsed, line = frame.content
    return parsed, line


def rich(hint: Any) -> Any:
    found = codec.rich_hint(hint)
    assert found is not None
    return found


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Dtype with byte order, shape, and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
