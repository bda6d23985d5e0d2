"""What a client was asked for: every option of both faces, checked once and then fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..codec import Codec
from ..limits import Limits
from .address import Address, parse_address
from .retry import Backoff

#: Called with "send" or "receive" and the bytes of each message, without the delimiter.
Trace = Callable[[str, bytes], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a client. Times are in seconds; None is "no limit".

    Raises:
        ValueError: an option that makes no sense, named in the message.
    """

    address: Address
    timeout: float | None
    connect_timeout: float | None
    pool: int
    retries: int
    codec: Codec
    limits: Limits
    delimiter: bytes
    trace: Trace | None
    on_send: Callable[[int, int], None] | None = None
    retry: str = "all"
    reconnect: Backoff | None = None
    on_state: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be positive or None, got {seconds!r}")
        if self.pool < 1:
            raise ValueError(f"pool must be at least 1 connection, got {self.pool!r}")
        if self.retry not in ("all", "idempotent"):
            raise ValueError(f"retry must be 'all' or 'idempotent', got {self.retry!r}")
        if self.retries < 0:
            raise ValueError(f"retries must not be negative, got {self.retries!r}")
        if not self.delimiter:
            raise ValueError("the delimiter must have at least one byte")


def make_settings(address: str | Address, codec: Codec | None, limits: Limits, **options: Any) -> Settings:
    """The settings for the arguments of a client's constructor."""
    if codec is None:
        codec = Codec(max_image_pixels=limits.max_image_pixels)
    return Settings(address=parse_address(address), codec=codec, limits=limits, **options)
