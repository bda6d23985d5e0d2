"""The limits that an operator of a server or a client may turn, each with its default and the reason for it.

Sizes are in bytes, times in seconds. Limits that nobody needs to turn are constants beside the code that enforces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8545

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server or client. Sizes are in bytes, times in seconds; `None` switches a time limit off.

    Raises:
        TypeError: a field is not a number.
        ValueError: a field is not positive, or `max_depth` is over 200.
    """

    #: One message, in either direction. A 4000 x 4000 RGB image raw, or a 3600 x 3600 float32 array, still fits as
    #: base64. `max_held_total` bounds the memory of all messages together.
    max_message_size: int = 64 * MIB

    #: The JSON of one message, without the payloads of arrays, images and bytes. Parsing the worst of it takes about
    #: 0.1 s on a small machine, in which no other call is served. Send longer arrays and texts as payloads.
    max_json_size: int = 8 * MIB

    #: The depth to which arrays and objects are nested. Deeper than documents that people write, and under the 254
    #: levels that the JSON encoder can write, so that received values can be sent again.
    max_depth: int = 128

    #: Calls in one batch. One batch is answered in one message, so it must not take the loop for long:
    #: 1,000 small calls are about two milliseconds.
    max_batch: int = 1000

    #: Running calls of one connection (async or offloaded). Over it the connection is not read: the caller waits, and
    #: the memory does not grow. Sized for a full batch.
    max_calls: int = 1024

    #: Calls of all connections that wait for a thread or a worker process. Over it calls are refused with -32002: they
    #: would wait for long, and each holds its arguments in memory.
    max_queue: int = 10_000

    #: Memory of the messages of all connections of a server: half of it for messages of running calls, and half for
    #: those that wait or are received in part, and for items of streams. Over it long messages are refused with -32002,
    #: since their callers would wait for long. Unread replies of all peers together may take as much again; over it
    #: the connection with the most is closed. Room for five messages of the largest kind, and for 1,000 of a megabyte.
    max_held_total: int = 2048 * MIB

    #: Replies waiting to be read by the peer before the connection is no longer read. Large enough to keep a fast link
    #: busy, small enough that 1,000 stalled peers stay within 1 GiB.
    write_buffer: int = 1 * MIB

    #: The credit of a stream: items on their way to its reader, or waiting for it. Enough to hide a round trip between
    #: small items; not many, since each may be as large as a message.
    stream_window: int = 16

    #: Pixels of one image, and of all images of one message together (a batch is one message), checked before their
    #: data is decoded. 64 megapixels as RGBA take 256 MiB; a bomb of 17 KB can claim more than twice that.
    max_image_pixels: int = 64_000_000

    #: Topics, and patterns of topics, that one connection may subscribe to. Enough for one of each device in a
    #: building; each costs the server about a KiB, and a program that subscribes in a loop by mistake gets an error.
    max_subscriptions: int = 1024

    #: Topics of one server with a retained event (`retain`). Enough for ten states of a thousand devices; matching all
    #: of them with a pattern takes about 5 ms, in which the event loop serves no other call.
    max_retained: int = 10_000

    #: Methods that one client may offer at a hub. A program with more would be told to offer an object under one name;
    #: with 2,000 clients that offer ten each, a hub's table has about 40,000 names.
    max_offered: int = 1000

    #: Open connections of one server, including those in their TLS handshake. An idle one costs a few KiB, so the
    #: memory of 20,000 stays near 100 MiB; the system's limit of open files is usually met first.
    max_connections: int = 20_000

    #: A connection on which nothing is sent or received and no call runs. A simulation may pause for minutes while its
    #: user thinks; a connection that a vanished machine left behind must not stay for ever.
    idle_timeout: float | None = 3600.0

    #: From the first byte of a message to its last. A full message at 10 Mbit/s takes 54 s.
    message_timeout: float | None = 60.0

    #: How long a peer may leave its replies unread while more of them wait than `write_buffer`.
    write_timeout: float | None = 60.0

    #: From the connection to the end of its TLS handshake, and of the authentication where a server asks for one; also
    #: for its `authenticate` function alone. Clients send their token at once, so this is for slow links; a stranger
    #: holds a connection for no longer.
    auth_timeout: float | None = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        if self.max_depth > 200:
            raise ValueError(f"max_depth must be at most 200, got {self.max_depth}: deeper replies cannot be written")

    @cached_property
    def max_values(self) -> int:
        """Values of one message, one for each 8 bytes of `max_json_size`, counted before it is parsed.

        A number counts one, a string two, an array or object four, by their cost: a million take up to 0.15 s, 64 MiB.
        """
        return max(self.max_json_size // 8, 1)

    @cached_property
    def max_held_size(self) -> int:
        """Memory of the messages of one connection whose calls are running: an eighth of `max_held_total`.

        Over it the next calls of the connection wait, as with `max_calls`; one call may exceed it. It is estimated,
        without messages of less than a KiB.
        """
        return max(self.max_held_total // 8, 1)

    @cached_property
    def max_waiting(self) -> int:
        """Memory of events that wait for slow connections: a quarter of `max_held_total`.

        A hub's calls have as much, and the items of generators that are collected into replies. Each connection may use
        as much of it as is free, so that slow ones leave room for others.
        """
        return max(self.max_held_total // 4, 1)

    @cached_property
    def max_image_memory(self) -> int:
        """Memory for the images of running calls and for those being decoded: 16 bytes for each of `max_image_pixels`.

        Calls over it wait. As much as the costliest message takes: 64 megapixels of WebP.
        """
        return 16 * self.max_image_pixels


DEFAULT_LIMITS = Limits()
