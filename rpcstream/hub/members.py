"""A member of a hub: one connected client, the methods that it offers, and the messages that wait for it."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from ..errors import MessageTooLarge, ServerBusy, wrong_parameter
from ..events.event_queue import QueueMemory
from ..events.patterns import CLIENT_NAME
from ..peer.session import Session
from ..wire.buffers import AttachedMessage, Encoded, size_as_text, trimmed, trimmed_message

#: Characters of a method's name. Names that people write are shorter; each is kept once for every member.
METHOD_MAX = 256

#: Characters of a name by which a method is called: with the name of its client and a dot before it.
CALLED_MAX = 128 + 1 + METHOD_MAX

#: Bytes of memory that a method takes besides its names and its description: two routes, two places in the table of
#: routes, one among its member's methods, the offer. Measured: 740 with a name of 8 characters, of which 220 count
#: as its names.
METHOD_COST = 700

#: Bytes of memory that a schema which descriptions refer to takes besides its name and its text.
SCHEMA_COST = 250

_SCHEMAS = "#/components/schemas/"

#: The members of a method's description that are kept. (`x-idempotent` is kept beside it.)
_DESCRIBED = frozenset(
    (
        "summary",
        "description",
        "params",
        "result",
        "paramStructure",
        "deprecated",
        "errors",
        "examples",
        "tags",
        "externalDocs",
        "x-deprecated",
        "x-end",
        "x-item",
        "x-stream",
    )
)


@dataclass(frozen=True, slots=True)
class Offer:
    """One method of one member.

    Attributes:
        name: as the member calls it.
        shared: others may offer it, too; its calls are then distributed.
        description: the member `description` of its OpenRPC method object, as JSON, for `rpc.methods`; or nothing.
        text: the other members of that object but the name, as JSON.
        idempotent: it may be called twice.
        cost: bytes of memory that it takes, about.
    """

    name: str
    shared: bool
    description: bytes
    text: bytes
    idempotent: bool
    cost: int

    @property
    def described(self) -> bytes:
        """Its OpenRPC method object without the name, as JSON without the braces."""
        return b"%b,%b" % (self.description, self.text) if self.description else self.text


def check_name(name: str) -> None:
    """Raise InvalidParams unless a client may have this name."""
    if not CLIENT_NAME.fullmatch(name):
        raise wrong_parameter("name", "a client's name has 1 to 128 letters (A-Z, a-z), digits, '_' and '-'")
    if name == "rpc":
        raise wrong_parameter("name", "the name 'rpc' is reserved")


def may_be_offered(name: str) -> bool:
    """Tell whether a client could offer a method that is called by this name: `vectorize`, or `gpu-1.vectorize`."""
    return 0 < len(name) <= CALLED_MAX and _fault_of_name(name) is None


def _fault_of_name(name: str) -> str | None:
    """The reason why no method can have this name, or None."""
    if name.startswith(("rpc.", "$/")) or name == "rpc":
        return "names that begin with 'rpc.' or '$/' are reserved"
    if "*" in name or ">" in name or any(not level for level in name.split(".")) or not name.isprintable():
        return "a method's name has no '*', no '>', no control characters, and no empty part between dots"
    return None


def read_offers(methods: list[Any], components: dict[str, Any], owner: str) -> dict[str, Offer]:
    """Read the methods in a registration; return them by name.

    Args:
        methods: names, or OpenRPC method objects.
        components: the schemas that these refer to, by name.
        owner: the client's name, which tells its components from those of others.

    Raises:
        InvalidParams: one of them is no method, or has a name that is not allowed.
    """
    offers = [_read_offer(method, f"methods[{place}]", owner) for place, method in enumerate(methods)]
    for name, schema in components.items():
        if not isinstance(schema, dict):
            raise wrong_parameter("components", f"{name!r:.100} must be a schema")
    return {offer.name: offer for offer in offers}


def text_of(described: Any, where: str) -> bytes:
    """Write a description, or a part of it, as JSON; InvalidParams if that cannot be."""
    try:
        return trimmed(orjson.dumps(described))
    except TypeError as error:  # a tagged object, which was decoded
        raise wrong_parameter(where, f"a description is plain JSON: {error}") from None


def _read_offer(method: Any, where: str, owner: str) -> Offer:
    described = {"name": method} if isinstance(method, str) else method
    if not isinstance(described, dict):
        raise wrong_parameter(where, "a method is its name, or an object with its name")
    name = described.get("name")
    if not isinstance(name, str) or not name:
        raise wrong_parameter(where, "a method's name is a string that is not empty")
    if len(name) > METHOD_MAX:
        raise wrong_parameter(where, f"a method's name has at most {METHOD_MAX} characters")
    reason = _fault_of_name(name)
    if reason is not None:
        raise wrong_parameter(where, reason)
    shared = described.get("shared", False)
    if not isinstance(shared, bool):
        raise wrong_parameter(where, "'shared' must be true or false")
    rest = {member: value for member, value in described.items() if member in _DESCRIBED}
    rest.setdefault("params", [])
    description = rest.pop("description", None)
    head = b'"description":' + text_of(description, where) if description else b""
    text = text_of(_with_own_schemas(rest, owner), where)[1:-1]
    cost = METHOD_COST + 4 * (sys.getsizeof(name) + len(owner)) + len(head) + len(text)
    return Offer(name, shared, head, text, described.get("x-idempotent") is True, cost)


def _with_own_schemas(value: Any, owner: str) -> Any:
    """Copy a description, with references to the owner's components."""
    if isinstance(value, dict):
        return {
            name: _reference(part, owner) if name == "$ref" else _with_own_schemas(part, owner)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [_with_own_schemas(part, owner) for part in value]
    return value


def _reference(to: Any, owner: str) -> Any:
    if isinstance(to, str) and to.startswith(_SCHEMAS):
        return f"{_SCHEMAS}{owner}.{to.removeprefix(_SCHEMAS)}"
    return to


def own_schemas(components: dict[str, Any], owner: str) -> dict[str, bytes]:
    """Write a client's components as JSON, under names of their own; InvalidParams if one is no plain JSON."""
    return {
        f"{owner}.{name}": text_of(_with_own_schemas(schema, owner), "components")
        for name, schema in components.items()
    }


def schema_cost(name: str, text: bytes) -> int:
    """Return the bytes of memory that a schema takes, about."""
    return SCHEMA_COST + sys.getsizeof(name) + len(text)


#: Bytes of memory that a message takes besides its own while it waits.
WAITING_COST = 150

#: Bytes of waiting messages that are sent at once.
SHARE = 64 * 1024


class Member:
    """One connection that has sent at least one request or notification.

    Args:
        memory: counts the messages that wait for members, all together.

    Attributes:
        session: its connection.
        name: the name that it registered; None before.
        key: shown on another connection, it lets the same program take its name over.
        offers: the methods that it offers, by name.
        schemas: the schemas that the descriptions of its methods refer to, as JSON by name.
        offered_cost: bytes of memory that its methods and schemas take, about.
        since: when it connected; Unix time, s.
        calls_made: calls and notifications that it sent.
        calls_served: calls and notifications that were sent to it.
        waiting_size: bytes of memory that messages take which wait until it reads again.
        last_heard: loop time, s, of its last sign of life.
        is_pinged: it was sent a ping that it has not answered.
    """

    def __init__(self, session: Session, memory: QueueMemory) -> None:
        self.session = session
        self._memory = memory
        self._queue: deque[tuple[Encoded, Callable[[], bool] | None]] = deque()
        self.address = session.channel.address if session.channel is not None else ""
        self.name: str | None = None
        self.key = ""
        self.offers: dict[str, Offer] = {}
        self.schemas: dict[str, bytes] = {}
        self.offered_cost = 0
        self.since = time.time()
        self.calls_made = self.calls_served = 0
        self.waiting_size = 0
        self.last_heard = session.loop.time()
        self.is_pinged = False

    @property
    def is_there(self) -> bool:
        """It takes calls: its connection is open in both directions."""
        return self.session.is_open and not self.session.streams.has_ended

    @property
    def waiting(self) -> int:
        """Messages that wait until it reads again."""
        return len(self._queue)

    @property
    def is_flowing(self) -> bool:
        """A message sent to it now is written at once, behind all that were sent before."""
        return not self._queue and self.session.write_gate.is_open

    @property
    def load(self) -> int:
        """Calls that it has not answered."""
        return len(self.session.pending) - self.is_pinged  # an unanswered ping is no call

    @property
    def state(self) -> str:
        """One of "idle", "busy" (it works for others), "stalled" (it does not read) and "leaving"."""
        if not self.is_there:
            return "leaving"
        if self.session.write_gate.stalled:
            return "stalled"
        return "busy" if self.load else "idle"

    def send(self, message: Encoded, is_wanted: Callable[[], bool] | None = None) -> None:
        """Send a message behind all earlier ones; while the member does not read, it waits.

        Args:
            message: the whole message.
            is_wanted: asked when the message has waited; if it returns False, the message is dropped.

        Raises:
            ServerBusy: too much waits for the member (`max_queue`, `max_message_size`, `max_waiting`).
            MessageTooLarge: it is sent to the member as text, which is too long.
        """
        session = self.session
        if type(message) is AttachedMessage:
            check_as_text(message, session)
        if self.is_flowing:
            session.send(message)
            return
        limits, size = session.limits, len(message) + WAITING_COST
        # A single message may be larger. The other members find as much room as this one takes.
        is_full = self.waiting and self.waiting_size + size > min(limits.max_message_size, self._memory.free)
        if self.waiting >= limits.max_queue or is_full or not self._memory.take(size):
            data = {"reason": f"{self.name or self.address} does not read what it is sent", "waiting": self.waiting}
            raise ServerBusy("Server busy: the provider takes no more calls at present", data)
        if type(message) is AttachedMessage:
            message.secure()
        session.pending.is_in_order = False  # other calls of this session may overtake it
        self._queue.append((trimmed_message(message), is_wanted))
        self.waiting_size += size
        if self.waiting == 1:
            session.write_gate.when_open(self._send_waiting)

    def _send_waiting(self) -> None:
        """Send as much as the connection takes now; then other senders on this connection have their turn."""
        session = self.session
        write_gate, sent = session.write_gate, 0
        while self._queue and sent < SHARE and (write_gate.is_open or not sent):
            message, is_wanted = self._queue.popleft()
            size = len(message) + WAITING_COST
            self.waiting_size -= size
            self._memory.give_back(size)
            if is_wanted is None or is_wanted():
                sent += len(message)
                session.send(message)
        if self._queue:
            write_gate.when_open(self._send_waiting)

    def described(self) -> dict[str, Any]:
        """Describe it for `rpc.clients`."""
        return {
            "name": self.name,
            "address": self.address,
            "methods": sorted(self.offers),
            "since": round(self.since, 3),
            "calls_made": self.calls_made,
            "calls_served": self.calls_served,
            "in_flight": self.load,
            "state": self.state,
        }

    def __repr__(self) -> str:
        return f"<member {self.name or self.address}>"


def check_as_text(message: Encoded, session: Session) -> None:
    """Check the size of a message that goes as text, since its receiver does not read binary frames.

    Raises:
        MessageTooLarge: it is over `max_message_size`.
    """
    size, limit = size_as_text(message), session.limits.max_message_size
    if size > limit and not session.sends_binary:
        raise MessageTooLarge(
            f"Message too large: {size} bytes as text, for an end that does not read binary frames; the hub's limit is "
            f"{limit} bytes",
            {"size": size, "limit": limit, "side": "server"},
        )
