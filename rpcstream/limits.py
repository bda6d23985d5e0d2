"""All limits of a server or a client, each with its default and the reason for it.

Knows only numbers; the module that a limit protects enforces it. Sizes are in bytes, times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8545

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one end. All fields are keywords; `None` switches a time limit off.

    Raises:
        ValueError: a field is not positive, or `max_depth` is deeper than a reply can be encoded.
    """

    #: One message, in either direction. A 4000 x 4000 RGB image raw, or a 3600 x 3600 float32 array, still fits as
    #: base64. The memory of all messages is bounded by `max_held_size` for a connection, `max_held_total` for a server.
    max_message_size: int = 64 * MIB

    #: The JSON of one message, without the payloads of arrays, images and bytes. Parsing the worst of it takes about
    #: 0.1 s on a small machine, in which no other call is served. Arrays and texts that are longer go as payloads.
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

    #: The credit of a stream: items on their way to its reader, or waiting for it. Enough to hide a round trip between
    #: small items; not many, since each may be as large as a message.
    stream_window: int = 16

    #: Topics, and patterns of topics, that one connection may subscribe to. Enough for one of each device in a
    #: building; each costs the server about a KiB (a pattern of 32 levels 20), and a program that subscribes in a
    #: loop by mistake gets an error.
    max_subscriptions: int = 1024

    #: Topics of one server with a retained event (`retain`). Enough for ten states of a thousand devices; to search so
    #: many for a pattern takes some 5 ms, in which the event loop serves no other call.
    max_retained: int = 10_000

    #: All retained events together, as messages. As much as one message may have, so that the largest can be retained,
    #: and little beside the other memory of a server.
    max_retained_size: int = 64 * MIB

    #: Methods that one client may offer at a hub. A program with more would be told to offer an object under one name;
    #: with 2,000 clients that offer ten each, a hub's table has some 40,000 names.
    max_offered: int = 1000

    #: The descriptions of these methods, as JSON. A hundred methods with schemas take some 50 KB.
    max_offered_size: int = 1 * MIB

    #: Memory of what all clients of a hub offer, tables and names included: 0.9 KiB for a method besides its
    #: description. Ten methods with schemas take some 14 KB: room for 9,000 clients, or for 140,000 methods without any
    #: description. Besides these bytes the hub keeps the last answers to `rpc.methods` and `rpc.discover`, each of
    #: `max_message_size` at most.
    max_offered_total: int = 128 * MIB

    #: Calls of all connections that wait for a thread or a worker process. Over it calls are refused with -32002: they
    #: would wait for long, and each holds its arguments in memory.
    max_queue: int = 10_000

    #: Open connections of one server, those in their TLS handshake included. An idle one costs a few KiB, so the
    #: memory of 20,000 stays near 100 MiB; the system's limit of open files is usually met first.
    max_connections: int = 20_000

    #: Callers that one instance of a service on NATS keeps. They take no place of a connection, because a NATS client
    #: becomes a new caller with each inbox that it calls from. Over the limit, idle callers are forgotten first, which
    #: costs them nothing, so it need only cover those with something under way. Each takes about 12 KiB in 36 objects.
    #: With 2,500 callers, one run of the garbage collector blocks the event loop for 0.1 s.
    max_nats_callers: int = 2_500

    #: A connection on which nothing is sent or received and no call runs. A simulation may pause for minutes while its
    #: user thinks; a connection that a vanished machine left behind must not stay for ever.
    idle_timeout: float | None = 3600.0

    #: From the first byte of a message to its last. A full message at 10 Mbit/s takes 54 s.
    message_timeout: float | None = 60.0

    #: How long a peer may leave its replies unread while more of them wait than `write_buffer`.
    write_timeout: float | None = 60.0

    #: Replies waiting to be read by the peer before the connection is no longer read. Large enough to keep a fast link
    #: busy, small enough that 1,000 stalled peers stay within 1 GiB.
    write_buffer: int = 1 * MIB

    #: From the connection, its TLS handshake included, to the end of the authentication, where a server asks for one;
    #: also for its `authenticate` function alone. Clients send their token at once, so this is for slow links; a
    #: stranger holds a connection for no longer.
    auth_timeout: float | None = 10.0

    #: One message of a peer that has not authenticated. A token is a few KiB at most (a JWT with many claims); 20,000
    #: strangers stay within 1.3 GiB.
    auth_message_size: int = 64 * KIB

    #: Pixels of an image, checked before its data is decoded. 64 megapixels as RGBA take 256 MiB; a bomb of
    #: 17 KB can claim more than twice that.
    max_image_pixels: int = 64_000_000

    #: The pickled result of a call in a worker process. As much as an image of `max_image_pixels` takes before it is
    #: compressed for the wire; the server holds one such result for each worker.
    max_worker_result: int = 256 * MIB

    #: Pixels of all images of one message, each counted as 4,096 at least, a batch being one message. As many as one
    #: image may have (`max_image_pixels`, if that is more): 256 MiB in Pillow's memory, however many the images are. 12
    #: WebPs of 64 megapixels fit into 40 KB.
    max_message_pixels: int = 64_000_000

    #: Memory for images at a server: those of running calls, and those being decoded, which take up to 16 bytes a
    #: pixel. Calls over it wait for their images. One message fits: 64 megapixels of WebP.
    max_image_memory: int = 1024 * MIB

    #: One event, as a message. It may wait for every subscriber at once: 30 different ones fit into the memory for that
    #: (`max_waiting_total`). A raw 2000 x 2000 RGB image fits.
    max_event_size: int = 16 * MIB

    #: Topics, and levels of patterns, that all connections have subscribed to together. Each takes some 0.7 KiB: 140
    #: MiB; enough for 2,000 connections with 100 topics.
    max_subscriptions_total: int = 200_000

    #: Lookups in the patterns of one connection for a published topic, in the worst case: the more patterns overlap,
    #: the more there are. Each costs some 0.5 us. `a.*` for a thousand different `a` are 3, and with `*.b` and `>` 6;
    #: four patterns of 32 levels that match the same are as many as this.
    max_pattern_steps: int = 128

    #: The same of all connections together: to publish an event takes the event loop 2 ms at most.
    max_pattern_steps_total: int = 4096

    #: Memory of all events that wait for connections which do not read fast enough; and at a hub as much again for
    #: calls and notifications that wait for its clients. A message that waits for several counts once. Each connection
    #: may use as much of it as is free, so that slow ones leave room for others. 30 subscribers may be sent nothing but
    #: different large events; 1,000 may each be 1,000 small ones behind.
    max_waiting_total: int = 512 * MIB

    #: From the connection to the end of its TLS handshake. Two round trips and a millisecond of work at each end, so
    #: this is for slow links; a connection without a handshake cannot be distinguished from an attack.
    handshake_timeout: float | None = 10.0

    #: Values of one message, counted in its bytes before it is parsed: a number counts one, a string two, an array or
    #: an object four, by their cost. Parsed, checked and searched for rich values, a million take at most some 0.15 s
    #: on a small machine, in which no other call is served, and 64 MiB. (Rows of a million numbers are better sent
    #: as arrays in any case, in a tenth of the time.)
    max_values: int = 1_000_000

    #: Values of one message that are checked one by one, in Python, which holds the event loop: arrays, images, bytes,
    #: types of yours, models of pydantic, classes and unions with such, and what a predicate is asked about. 10,000
    #: arrays take 0.1 s. What msgspec checks in C does not count, nor do lists that are checked at once: of numpy's
    #: numbers, of complex numbers, and for unions with a rich type where no value is an object.
    max_checked_values: int = 10_000

    #: Memory of the parsed messages of one connection whose calls are running; estimated, without messages of less than
    #: a KiB. Over it the next calls of the connection wait, as with `max_calls`, so one call may exceed it: a message
    #: of `max_message_size` takes at most 192 MiB in ASCII (the line, its strings, its values).
    max_held_size: int = 256 * MIB

    #: The same for all connections of a server: half of it for messages of running calls, and half for those that wait
    #: or are received in part, and for items of streams (as bytes). Over it long messages are refused with -32002,
    #: since their callers would wait for long. Room for five messages at once of the largest kind, and for a thousand
    #: of a megabyte.
    max_held_total: int = 2048 * MIB

    #: Unread bytes of all peers of a server together, counted from `write_buffer` on for each. Over it the connection
    #: with most is closed. Room for 30 peers that do not read the largest result, and for 2,000 that stall a little.
    max_unread_total: int = 2048 * MIB

    #: Items of generators that are collected into one answer, since their callers asked for no stream: as JSON, those
    #: of all connections together (of one connection: two messages of full size). Eight such answers at a time; further
    #: calls are refused with -32002, and may ask for a stream.
    max_collected: int = 512 * MIB

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        if self.max_depth > 200:
            raise ValueError(f"max_depth must be at most 200, got {self.max_depth}: deeper replies cannot be written")


DEFAULT_LIMITS = Limits()
