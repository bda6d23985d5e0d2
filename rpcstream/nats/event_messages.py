"""Events as payloads of NATS: the same `$/event` message as on a connection, as text or as a binary frame.

Any program of NATS may have written what is read here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..codec import payloads
from ..codec.attachments import CutLine, FrameLine, whole
from ..errors import MessageTooLarge
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..wire import envelope
from ..wire.binary_frame import MARK, parts_of_frame, read_header
from ..wire.buffers import AttachedMessage, Encoded, padding
from ..wire.json_scan import is_deeper
from .protocol import NatsMessage
from .subjects import decoded

#: Bytes that are left for the headers of a last value.
HEADERS_MAX = 1024

#: What the reply subject of an event begins with that one of several processes of a server has published. The id of the
#: server follows.
OF_PROCESSES = "rpcstream.processes."


class ReadEvent(NamedTuple):
    """An event as it is given to those who read it: the params of its message, and the message."""

    params: dict[str, Any]
    line: bytes


class PassedEvent(NamedTuple):
    """An event as a server passes it on: its message for connections, and whether its value is null."""

    message: Encoded
    is_null: bool


def topic_of(message: NatsMessage, prefix: int, events_log: LimitedLog) -> str | None:
    """Return the topic of an event; None, and log it, if its subject does not name one.

    Args:
        message: the message.
        prefix: characters of the subject that come before the topic.
        events_log: gets the warning.
    """
    topic = decoded(message.subject[prefix:])
    if topic is None:
        text = "an event on NATS is skipped, since its subject is not a topic: %s"
        events_log.warning(None, text, message.subject)
    return topic


def payload_of(message: Encoded, limit: int) -> bytes:
    """The bytes that NATS carries for the message of an event.

    Raises:
        MessageTooLarge: they are more than it carries (`max_payload`).
    """
    is_frame = type(message) is AttachedMessage
    payload = b"".join(parts_of_frame(message)) if is_frame else bytes(message)  # type: ignore[arg-type]
    if len(payload) > limit - HEADERS_MAX:
        limit -= HEADERS_MAX
        reason = f"an event of {len(payload)} bytes is more than NATS carries ({limit}; max_payload of its server)"
        raise MessageTooLarge(data={"limit": limit, "size": len(payload), "reason": reason})
    return payload


def read_event(data: bytes, topic: str, limits: Limits) -> ReadEvent:
    """Read an event as a client gives it out.

    Args:
        data: the payload.
        topic: the one that its subject names.
        limits: `max_values` and `max_json_size`.

    Raises:
        ValueError: it is not an event of this topic, or over a limit.
    """
    message, line = _read_frame(data, limits) if data[:1] == bytes((MARK,)) else payloads.parse(data, limits)
    if type(message) is not dict or message.get("method") != envelope.EVENT:
        raise ValueError("it is no `$/event` message")
    params = message.get("params")
    if type(params) is not dict or "value" not in params or params.get("topic") != topic:
        raise ValueError("its params are not this topic, and a value")
    return ReadEvent(params, line)


def passed_on(data: bytes, topic: str, limits: Limits) -> PassedEvent:
    """Return an event for the connections of a server; its message is on one line.

    Args:
        data, topic: as for `read_event`.
        limits: the same, and `max_depth`.

    Raises:
        ValueError: it is not an event of this topic, or over a limit.
    """
    params, line = read_event(data, topic, limits)
    if is_deeper(line, limits.max_depth):
        raise ValueError(f"it is nested deeper than {limits.max_depth} levels (max_depth)")
    if type(line) is FrameLine:
        message: Encoded = whole(_on_one_line(bytes(line)), line)
    else:
        if isinstance(line, CutLine):  # its payloads were not looked at
            payloads.parse_whole(data, limits)
        message = _on_one_line(data)
    return PassedEvent(message, params["value"] is None)


def _on_one_line(text: bytes) -> bytes:
    """Return JSON without line ends: outside of strings they mean nothing, and inside none may stand."""
    if b"\n" in text or b"\r" in text:
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return text.strip()


def _read_frame(data: bytes, limits: Limits) -> tuple[Any, bytes]:
    head, _, rest = data.partition(b"\n")
    header = read_header(head + b"\n")
    if any(header.places) or len(rest) != header.body_size:
        raise ValueError("a binary frame that is not whole")
    frame = payloads.read_frame(rest[: header.json_size], header.sizes, limits, "server")
    if frame.refusal is not None:
        raise ValueError(str(frame.refusal))
    message, line = frame.content
    at = header.json_size
    for memory, size in zip(line.take_memory(), header.sizes, strict=True):
        memory[:] = rest[at : at + size]
        at += size + padding(size)
    return message, line
