"""Messages that are written in pieces."""

from __future__ import annotations

import numpy as np

from rpcstream import Codec
from rpcstream.wire.buffers import MessageParts, parts_of


def test_pieces_are_the_message() -> None:
    message = {"result": [np.arange(50_000), "between", bytes(100_000)]}
    whole = Codec().dumps(message)
    pieces = Codec().serialize(message)
    assert isinstance(pieces, MessageParts)
    assert bytes(pieces) == b"".join(parts_of(pieces)) == whole
    assert len(pieces) == len(whole)
    assert len(pieces.parts) == 5


def test_what_is_short_is_in_one_piece() -> None:
    written = Codec().serialize({"result": np.arange(10)})
    assert isinstance(written, bytes)
    assert parts_of(written) == [written]
