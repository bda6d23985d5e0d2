"""The channel of the session with another hub: how fast it sends, and messages that are longer than those of NATS.

A NATS server disconnects a client that does not read fast enough (64 MiB by default wait for it). So a hub sends
another one no more than a window ahead of what that has taken, which it acknowledges; the rest waits here, and the
session, and with it the callers, wait for that.

Owns the window, and how long messages are cut and put together. Does not know how the two hubs have found each other.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..limits import Limits
from ..nats.channel import NatsChannel
from ..nats.link import NatsLink
from ..peer.session import Session
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from ..wire.messages import HEAD_SIZE, Oversize
from .remote_members import OtherHub

#: Bytes that a message between hubs has at most beside its values: the header of a binary frame.
_HEAD_MAX = 4096

#: Bytes that all other hubs together may send one hub ahead of what it has acknowledged: half of what a NATS server
#: lets wait for it.
WINDOW_TOTAL = 32 * 1024 * 1024

#: Bytes after which what was taken is acknowledged: a part of the least window, that of a group with as many hubs as
#: there may be. So less than this may stay unacknowledged, and never keeps anything back.
ACKNOWLEDGE_EVERY = 128 * 1024

#: Bytes of a piece of a long message, at most.
PIECE_MAX = 1024 * 1024

#: Bytes that a message takes beside its payload while it waits at a NATS server: its subject, that for answers.
_COST = 200

#: The tokens behind the subject of a session: of a piece, the last piece, and of an acknowledgement.
PART, LAST, TAKEN = ".part", ".last", ".taken"


class HubChannel(NatsChannel):
    """The channel of the session with another hub.

    Attributes:
        other: the hub; None before it is entered.
        window: bytes that may be under way to it.
        parts: pieces of a long message that has not come whole.
        size: their bytes.
    """

    other: OtherHub | None = None

    def __init__(self, link: NatsLink, session: Session, limits: Limits, **options: Any) -> None:
        super().__init__(link, session, limits=limits, reads_lines=True, **options)
        self.window = WINDOW_TOTAL
        self.parts: list[bytes] = []
        self.size = 0
        self._size_max = limits.max_message_size + _HEAD_MAX
        #: What waits to be sent, each with the token behind its subject; what is under way.
        self._unsent: deque[tuple[str, bytes | memoryview]] = deque()
        self._under_way = 0
        #: What was taken and not acknowledged.
        self._unacknowledged = 0
        self._is_link_full = self._is_closing = False

    @property
    def has_left(self) -> bool:
        """The other hub has said that it stops."""
        return self.session.peer_is_leaving

    @property
    def is_sending(self) -> bool:
        """Something waits to be sent."""
        return bool(self._unsent)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _publish(self, payload: bytes | memoryview, token: str = "") -> None:
        if self._unsent or not self._has_room(payload):
            self._unsent.append((token, payload))
            if len(self._unsent) == 1:
                self._block()
        else:
            self._send_now(token, payload)

    def _has_room(self, payload: bytes | memoryview) -> bool:
        under_way = self._under_way
        return under_way < ACKNOWLEDGE_EVERY or under_way + len(payload) + _COST <= self.window

    def _send_now(self, token: str, payload: bytes | memoryview) -> None:
        self._under_way += len(payload) + _COST
        self._link.publish(self.target + token, bytes(payload), self.own)

    def _send_large(self, message: Encoded, size: int) -> None:
        """Send a message as several of NATS, one behind the other."""
        is_frame = type(message) is AttachedMessage and self.session.sends_binary
        data = memoryview(b"".join(parts_of_frame(message) if is_frame else parts_of(message)))  # type: ignore[arg-type]
        step = min(self._link.max_payload, PIECE_MAX)
        for at in range(0, len(data), step):
            self._publish(data[at : at + step], LAST if at + step >= len(data) else PART)

    def take_acknowledged(self, data: bytes) -> None:
        """The other hub has taken so many bytes more."""
        if not (data.isdigit() and len(data) < 20):
            return
        self._under_way = max(0, self._under_way - int(data))
        while self._unsent and self._has_room(self._unsent[0][1]):
            self._send_now(*self._unsent.popleft())
        if not self._unsent:
            self._block()
            if self._is_closing:
                super().close()

    def set_link_full(self, is_full: bool) -> None:
        """The connection to NATS does not take what is sent, or takes it again."""
        self._is_link_full = is_full
        self._block()

    def _block(self) -> None:
        """Have the session wait as long as something waits here."""
        if not self.is_over:
            self.session.blocked(self._is_link_full or bool(self._unsent))

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        self._unacknowledged += len(data) + _COST
        super().receive(data)
        self._acknowledge()

    def take_part(self, data: bytes, *, is_last: bool) -> None:
        """Take a piece of a long message."""
        self._unacknowledged += len(data) + _COST
        self.size += len(data)
        if self.size <= self._size_max:
            self.parts.append(data)
        elif len(self.parts) > 1:
            del self.parts[1:]  # its id is in the first one
        if is_last:
            parts, size, self.parts, self.size = self.parts, self.size, [], 0
            if size <= self._size_max:
                super().receive(b"".join(parts))
            else:
                self.session.receive([Oversize(size, parts[0][:HEAD_SIZE], self._limits.max_message_size)])
        self._acknowledge()

    def _release(self) -> None:
        super()._release()
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Say how much was taken, if it is worth a message; not while the session takes nothing."""
        if self._unacknowledged >= ACKNOWLEDGE_EVERY and not (self._held or self._paused or self.is_over):
            count, self._unacknowledged = self._unacknowledged, 0
            self._link.publish(self.target + TAKEN, b"%d" % count)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Channel.close`, when all was sent."""
        self._is_closing = True
        if not self._unsent:
            super().close()

    def end(self, reason: str) -> None:
        self._unsent.clear()
        super().end(reason)
