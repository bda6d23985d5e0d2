"""The streams of one connection, by what names them, and whether the connection takes anything at the moment.

Owns the two tables: streams that go out (items are sent as credit allows), and streams that come in as arguments.
Streams that come in as replies are calls that wait, and stand among those.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import CallCancelled
from .streams import Inflow, Outflow


def reply_key(call_id: Any) -> str:
    """The key of the items that answer a call. A text, whatever the peer takes for ids: it cannot choose our hashes."""
    return f"id {call_id!r}"


def argument_key(token: str) -> str:
    """The key of a stream that is an argument."""
    return f"stream {token}"


class Flows:
    """What flows over one connection.

    Args:
        crowd: bytes; while more than these wait for the end of the turn, producers do.

    Attributes:
        out: streams of items that this end makes.
        coming: streams that were passed to a handler here, by their token.
        stalled: the peer does not read what is sent.
        unsent: bytes that were sent in this turn of the loop and not yet handed to the transport.
    """

    __slots__ = ("_crowd", "_flowing", "_last_token", "coming", "out", "stalled", "unsent")

    def __init__(self, crowd: int) -> None:
        self._crowd = crowd
        self.unsent = 0
        self.out: dict[str, Outflow] = {}
        self.coming: dict[str, Inflow] = {}
        self.stalled = False
        self._flowing: asyncio.Future[None] | None = None
        self._last_token = 0

    def __bool__(self) -> bool:
        return bool(self.out or self.coming)

    def new_token(self) -> str:
        """A name for a stream that goes out as an argument."""
        self._last_token += 1
        return f"s{self._last_token}"

    def set_stalled(self, stalled: bool) -> None:
        self.stalled = stalled
        if not stalled and self._flowing is not None:
            self._flowing.set_result(None)
            self._flowing = None

    @property
    def is_free(self) -> bool:
        """More may be sent now."""
        return not self.stalled and self.unsent <= self._crowd

    async def flowing(self) -> None:
        """Wait until the peer reads again, or is gone, and what was sent in this turn is on its way."""
        while not self.is_free:
            if not self.stalled:
                await asyncio.sleep(0)
                continue
            if self._flowing is None:
                self._flowing = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._flowing)

    def end(self) -> None:
        """The peer says nothing more: nothing more comes in, no more credit either."""
        for inflow in list(self.coming.values()):
            inflow.end(CallCancelled("Cancelled: the caller ended the conversation before its stream"))
        for outflow in list(self.out.values()):
            outflow.close()
