"""Claim tickets: what stands in NATS in place of a message over its `max_payload`. Pure.

Owns their form. The message goes by a direct connection between the two ends of a session (`direct_way`).

A ticket is a control message (`$/ticket`) with these members, of which each use has some:

* `number`, `connection`, `size`: a message stands here. It comes by this direct connection (0: the next one), behind
  the line `#number`; what follows by NATS waits for it. `id` or `stream` say what fails if it is lost.
* `ask`, `method`, `size`, `ids`: a client asks for a place for a call, in its place on the subject of the method. The
  instance that gets this one answers with `place`, `connection` and the same `ask`; the client sends the call on that
  connection, behind the line `!place`.
  `leases` are more places, for further calls of this method within a short time; with `revoke` they are taken back,
  and the client says `!0` on the connection behind the last call that it has sent in one.
* `address`, `secret`, `tls`: where the connection is to be made that the ticket names, once.
* `failed`, `reason`: this connection could not be made. `unused`: a place that is not wanted any more.

A reply needs no ticket where the connection stands, and nothing that must come before it can be under way: it is
sent behind the line `=`.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..errors import MessageTooLarge
from ..limits import Limits
from ..wire import envelope
from ..wire.buffers import Encoded, first_part, json_of
from ..wire.messages import HEAD_SIZE
from .payloads import read_payload

#: How a ticket begins, exactly so.
TICKET = b'{"jsonrpc":"2.0","method":"$/ticket","params":'
TICKET_METHOD = "$/ticket"

#: What a message belongs to, for the case that it is lost: ("id", of the call) or ("stream", its token).
About = tuple[str, Any]


def ticket(**params: Any) -> bytes:
    """A ticket with these members, those that are None left out."""
    return TICKET + orjson.dumps({name: value for name, value in params.items() if value is not None}) + b"}"


def members_of(read: Any) -> dict[str, Any]:
    """The members of a ticket that was parsed; none of any other message, and of a malformed ticket.

    How a message begins does not say what it is: a later member of the same name counts.
    """
    if type(read) is not dict or read.get("method") != TICKET_METHOD:
        return {}
    params = read.get("params")
    return params if type(params) is dict else {}


def read_ticket(data: bytes, limits: Limits) -> dict[str, Any]:
    """The members of a ticket, as `members_of`; none of a message that does not begin as one."""
    return members_of(read_payload(data, limits)[0]) if data.startswith(TICKET) else {}


def no_way(size: int, limit: int, why: str) -> MessageTooLarge:
    """The error for a message that neither NATS carries nor a direct connection."""
    reason = (
        f"{size} bytes are more than NATS carries here (max_payload, {limit}), and there is no direct connection for "
        f"them: {why}; raise max_payload of the NATS server, or let clients connect to the instances (direct=, "
        "--nats-direct)"
    )
    return MessageTooLarge(data={"limit": limit, "size": size, "reason": reason})


def about(message: Encoded) -> About | None:
    """What a message belongs to."""
    head = first_part(message)[:HEAD_SIZE]
    if envelope.is_reply_head(head):
        return "id", envelope.id_in_head(head)
    try:
        read = orjson.loads(json_of(message))
    except orjson.JSONDecodeError:
        return None
    params = read.get("params") if type(read) is dict else None
    if type(params) is not dict or not str(read.get("method")).startswith(envelope.CONTROL):
        return None
    if type(params.get("stream")) is str:
        return "stream", params["stream"]
    return ("id", params["id"]) if "id" in params else None
