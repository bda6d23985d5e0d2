"""Every limit of a server or a client in one frozen object, each default with its reason beside it.

Knows only numbers: who enforces a limit is said beside it. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8545

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one end accepts. Every field is a keyword; `None` switches a time limit off.

    Raises:
        ValueError: a field is not positive, or `max_depth` is over what a reply can be written with.
    """

    #: One message, either way. A 4000 x 4000 RGB image raw, or a 3600 x 3600 float32 array, still fits as base64;
    #: 64 connections that each fill it stay within 4 GiB.
    max_message_size: int = 64 * MIB

    #: Arrays and objects inside each other. Deeper than documents that people write, and under the 254 levels
    #: that the JSON encoder can write, so that what came in can go out again.
    max_depth: int = 128

    #: Calls in one batch. One batch is answered in one message, so it must not take the loop for long:
    #: 1,000 small calls are about two milliseconds.
    max_batch: int = 1000

    #: Calls of one connection that are being worked on (async or offloaded). Over it the connection is not read, so
    #: the caller waits instead of the memory growing. Sized for a full batch.
    max_calls: int = 1024

    #: Items of one stream that may be on their way to its reader, or wait for it. Enough to hide a round trip between
    #: small items; each may be as large as a message, so not many.
    stream_window: int = 16

    #: Topics, and patterns of topics, that one connection may subscribe to. Enough for one of each device in a
    #: building; each costs the server about a KiB (a pattern of 32 levels eight), and a program that subscribes in a
    #: loop by mistake is told.
    max_subscriptions: int = 1024

    #: Topics of one server that have a last value which is kept for later subscribers (`retain`). Enough for ten states
    #: of a thousand devices; to look through so many for a pattern takes some 5 ms, and everybody waits for it.
    max_retained: int = 10_000

    #: All these last values together, as messages. As much as one message may have, so that the largest can be kept,
    #: and so little that nobody need think of it as memory.
    max_retained_size: int = 64 * MIB

    #: Methods that one client may offer at a hub. A program with more would be told to offer an object under one name;
    #: with 2,000 clients that offer ten each, a hub's table has some 40,000 names.
    max_offered: int = 1000

    #: The descriptions of these methods, as JSON. A hundred methods with schemas take some 50 KB.
    max_offered_size: int = 1 * MIB

    #: The same for all clients of a hub together. Ten methods with schemas take some 5 KB: room for 20,000 clients,
    #: and no more memory than a few messages for those that mean harm.
    max_offered_total: int = 128 * MIB

    #: Calls of all connections that wait for a thread or a worker process. Over it callers are told that the server is
    #: busy (-32002): they would wait for long, and each holds its arguments in memory.
    max_queue: int = 10_000

    #: Open connections of one server. An idle one costs a few KiB, so the memory of 20,000 stays near 100 MiB;
    #: the system's limit of open files is usually met first.
    max_connections: int = 20_000

    #: A connection on which nothing is sent, received or worked on. A simulation may pause for minutes while somebody
    #: thinks; a connection that a vanished machine left behind must not stay for ever.
    idle_timeout: float | None = 3600.0

    #: From the first byte of a message to its last. A full message at 10 Mbit/s takes 54 s.
    message_timeout: float | None = 60.0

    #: How long a peer may leave its replies unread while more of them wait than `write_buffer`.
    write_timeout: float | None = 60.0

    #: Replies waiting to be read by the peer before the connection is no longer read. Large enough to keep a fast link
    #: busy, small enough that 1,000 stalled peers stay within 1 GiB.
    write_buffer: int = 1 * MIB

    #: From the connection to the identity, where a server asks for one; also how long its own function may take for
    #: that. Programs send their token at once, so this is for slow links; strangers hold a connection for no longer.
    auth_timeout: float | None = 10.0

    #: One message of a peer that is not known yet. A token is a few KiB at most (a JWT with many claims); 20,000
    #: strangers stay within 1.3 GiB.
    auth_message_size: int = 64 * KIB

    #: Pixels of an image, looked at before its data is decoded. 64 megapixels as RGBA take 256 MiB; a bomb of
    #: 17 KB can claim more than twice that.
    max_image_pixels: int = 64_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        if self.max_depth > 200:
            raise ValueError(f"max_depth must be at most 200, got {self.max_depth}: deeper replies cannot be written")


DEFAULT_LIMITS = Limits()
