"""The other hubs of a group: what the clients of this hub offer is told to them, and theirs is entered here.

Owns what hubs tell each other of their clients, over one session for each other hub, and how much of it is believed:
names, keys and methods are checked as those of clients are, and bounded. A hub tells of its own clients only, so that
nothing goes round. Knows neither how hubs find each other (`nats`) nor how calls are passed on.

The messages, all of them notifications:

* `rpc.group.named`: `name`, `key` (its digest), `address`, `since`: a client has this name.
* `rpc.group.described`, `rpc.group.offered`: `name`, and `schemas` or `methods`, as in `rpc.register`.
* `rpc.group.withdrawn`: `name`, `methods`. `rpc.group.left`: `name`.
* `rpc.group.taken`: `name`, `key`: the sender has this client now, which has shown the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from ..codec import payloads
from ..errors import RpcError
from ..events.event_queue import QueueMemory
from ..events.topics import Topics
from ..limits import Limits
from ..observe.limited_log import LimitedLog
from ..peer.state import ConversationState
from ..text import get_logger
from .directory import Directory, digest_of
from .events_of_hubs import EventsOfHubs
from .members import Member
from .offers import Offer, check_name, offer_text, read_offers, schema_cost
from .passthrough import text_of
from .registrations import SYSTEM_TOPICS, Registrations
from .remote_members import OtherHub, RemoteMember

log = get_logger("rpcstream.hub")

#: Bytes of methods and schemas that one message has, or a single one that is longer.
CHUNK = 128 * 1024

#: The methods that hubs tell each other by begin with this.
PREFIX = "rpc.group."

#: Characters of an address that another hub tells of; longer ones are cut.
_ADDRESS_MAX = 200


class _Told(NamedTuple):
    """What another hub tells of one client."""

    name: str
    params: dict[str, Any]


class OtherHubs:
    """The other hubs of the group of one hub; a `MembersWatcher`.

    Args:
        directory: of this hub; gets the clients of the others.
        registrations: of this hub.
        topics: of this hub, whose events go to the others.
        limits: `max_offered_total` is the memory that the offers of the clients of all other hubs may take, beside that
            for those of this hub; `max_connections` the clients that one other hub may have.

    Attributes:
        by_id: those that this hub has a session with.
        events: between the hubs.
        refused: what others have told that was not taken.
    """

    def __init__(self, directory: Directory, registrations: Registrations, topics: Topics, *, limits: Limits) -> None:
        self.by_id: dict[str, OtherHub] = {}
        self.events = EventsOfHubs(topics, limits=limits)
        self.refused = 0
        self._directory = directory
        self._registrations = registrations
        self._topics = topics
        self._limits = limits
        self._memory = QueueMemory(limits.max_waiting_total)
        self._log = LimitedLog(log)
        self._last_number = 0
        self._introducing: set[asyncio.Task[None]] = set()
        directory.watcher = self
        registrations.on_replaced = self._replaced
        self._methods: dict[str, Callable[[OtherHub, _Told], object]] = {
            f"{PREFIX}named": self._on_named,
            f"{PREFIX}described": self._on_described,
            f"{PREFIX}offered": self._on_offered,
            f"{PREFIX}withdrawn": self._on_withdrawn,
            f"{PREFIX}left": self._on_left,
            f"{PREFIX}taken": self._on_taken,
        }

    # -- hubs come and go ---------------------------------------------------------------------------------------------

    def add(self, session: ConversationState, hub: str) -> OtherHub:
        """Another hub is there: tell it all, and take what it tells."""
        self._last_number += 1
        other = OtherHub(session, hub, self._last_number, self._memory)
        self._directory.members[session] = other
        self.by_id[hub] = other
        session.set_end_callback(lambda: self._ends(other))
        session.add_lost_callback(lambda: self._lost(other))
        session.set_event_callback(lambda params, line: self.events.take(other, params, line))
        task = session.loop.create_task(self._introduce(other))
        self._introducing.add(task)
        task.add_done_callback(self._introducing.discard)
        log.info("the hub %s is there", hub)
        return other

    async def _introduce(self, other: OtherHub) -> None:
        """Tell another hub all that there is here; what changes meanwhile is told as it changes."""
        self.events.add(other)
        for member in list(self._directory.by_name.values()):
            await other.wait_for_room()
            if member.name is not None and member.name not in other.told:
                self._tell_all(other, member, member.name)
        await self.events.send_late(other)

    def _tell_all(self, other: OtherHub, member: Member, name: str) -> None:
        other.told.add(name)
        messages = [_named(name, member), *_described(name, member.schemas), *_offered(name, member.offers)]
        for message in messages:
            other.tell(message, self._log)

    def _ends(self, other: OtherHub) -> None:
        """Another hub reads no more calls: its clients are none of ours any more."""
        if other.session.peer_is_leaving:
            log.info("the hub %s leaves", other.hub)
            self._forget(other)

    def _lost(self, other: OtherHub) -> None:
        del self._directory.members[other.session]
        if self.by_id.get(other.hub or "") is other:
            del self.by_id[other.hub or ""]
        self._forget(other)
        self.events.lost(other)
        other.resume()

    def _forget(self, other: OtherHub) -> None:
        """Take out all clients of another hub, and say so here, since it cannot any more."""
        clients, other.clients = other.clients, {}
        self._directory.leave_together(clients.values())
        for name, member in clients.items():
            self._topics.announce_here(f"{SYSTEM_TOPICS}left", {"name": name, "address": member.address})

    async def close(self) -> None:
        """The hub stops: tell nothing more."""
        for task in self._introducing:
            task.cancel()
        if self._introducing:
            await asyncio.wait(self._introducing)

    # -- of clients of this hub (MembersWatcher) ----------------------------------------------------------------------

    def named(self, member: Member) -> None:
        if self.by_id and member.name is not None:
            self._tell(member.name, [_named(member.name, member)], is_new=True)

    def offered(self, member: Member, offers: Mapping[str, Offer]) -> None:
        if self.by_id and member.name is not None:
            self._tell(member.name, _offered(member.name, offers))

    def described(self, member: Member, schemas: Mapping[str, bytes]) -> None:
        if self.by_id and member.name is not None:
            self._tell(member.name, _described(member.name, schemas))

    def withdrawn(self, member: Member, names: Collection[str]) -> None:
        if self.by_id and member.name is not None:
            self._tell(member.name, [_message("withdrawn", member.name, methods=list(names))])

    def left(self, name: str) -> None:
        self._tell(name, [_message("left", name)])
        for other in self.by_id.values():
            other.told.discard(name)

    def _tell(self, name: str, messages: Iterable[bytes], *, is_new: bool = False) -> None:
        """Tell those hubs of a client that know it; the others are told all of it soon."""
        messages = list(messages)
        for other in list(self.by_id.values()):
            if is_new:
                other.told.add(name)
            if name in other.told:
                for message in messages:
                    other.tell(message, self._log)

    # -- of clients of other hubs -------------------------------------------------------------------------------------

    def takes(self, method: str) -> bool:
        """Whether a notification of another hub is for this."""
        return method in self._methods

    def take(self, session: ConversationState, method: str, params: Any) -> None:
        """Take what another hub tells; what makes no sense, or is too much, is logged and counted."""
        other = self._directory.members.get(session)
        if not isinstance(other, OtherHub) or session.peer_is_leaving:
            return
        try:
            params = payloads.with_strings(params)
            if type(params) is not dict or type(params.get("name")) is not str:
                raise ValueError("it has no name")
            self._methods[method](other, _Told(params["name"], params))
        except (RpcError, ValueError, TypeError) as error:
            self.refused += 1
            self._log.warning(other.hub, "not taken from the hub %s: %s: %s", other.hub, method, error)

    def _on_named(self, other: OtherHub, told: _Told) -> None:
        name, key = told.name, told.params.get("key")
        address, since = told.params.get("address"), told.params.get("since")
        check_name(name)
        if type(key) is not str or len(key) != len(digest_of("")) or type(address) is not str:
            raise ValueError("it has no key or address")
        if not isinstance(since, int | float):
            raise ValueError("it does not say since when")
        if name in other.clients:
            self._directory.leave(other.clients.pop(name))
        if len(other.clients) >= self._limits.max_connections:
            raise ValueError(f"it has more than {self._limits.max_connections} clients (max_connections)")
        own = self._directory.by_name.get(name)
        if own is not None and digest_of(own.key) == key:
            # The same program, which has come back by another hub: where it was last, it is.
            if own.since > since:
                other.tell(_message("taken", name, key=key), self._log)
                return
            self._registrations.drop(own, f"{name!r} has taken its place at the hub {other.hub}")
        member = RemoteMember(
            other, self._memory, name=name, digest=key, address=address[:_ADDRESS_MAX], since=float(since)
        )
        other.clients[name] = member
        self._directory.enter_elsewhere(member)

    def _on_taken(self, other: OtherHub, told: _Told) -> None:
        own = self._directory.by_name.get(told.name)
        if own is not None and digest_of(own.key) == told.params.get("key"):
            self._registrations.drop(own, f"{told.name!r} has taken its place at the hub {other.hub}")

    def _on_offered(self, other: OtherHub, told: _Told) -> None:
        member = other.clients.get(told.name)
        methods = told.params.get("methods")
        if type(methods) is not list:
            raise ValueError("it has no methods")
        if member is None:  # its name was not taken
            return
        offers = read_offers(methods, {}, owner=None, limits=self._limits)
        new = offers.keys() - member.offers.keys()
        self._check_room(member, sum(offer.cost for offer in offers.values()), len(new))
        taken = self._directory.without_own(told.name, offers)
        if len(taken) < len(offers):
            self._log.warning(other.hub, "methods of %r have names of methods of this hub itself", told.name)
        self._directory.offer(member, taken)

    def _on_described(self, other: OtherHub, told: _Told) -> None:
        member = other.clients.get(told.name)
        schemas = told.params.get("schemas")
        if type(schemas) is not dict:
            raise ValueError("it has no schemas")
        if member is None:
            return
        texts: dict[str, bytes] = {}
        for name, schema in schemas.items():
            if not name.startswith(f"{told.name}.") or type(schema) is not dict:
                raise ValueError(f"{name!r:.100} is no schema of {told.name!r}")
            texts[name] = orjson.dumps(schema)
        self._check_room(member, sum(schema_cost(name, text) for name, text in texts.items()), 0)
        self._directory.add_schemas(member, texts)

    def _check_room(self, member: Member, cost: int, methods: int) -> None:
        limits = self._limits
        if len(member.offers) + methods > limits.max_offered:
            raise ValueError(f"{member.name!r} offers more than {limits.max_offered} methods (max_offered)")
        if self._directory.cost_elsewhere + cost > limits.max_offered_total:
            most = limits.max_offered_total
            raise ValueError(f"the offers of other hubs may take {most} bytes of memory (max_offered_total)")

    def _on_withdrawn(self, other: OtherHub, told: _Told) -> None:
        member, methods = other.clients.get(told.name), told.params.get("methods")
        if type(methods) is not list or any(type(each) is not str for each in methods):
            raise ValueError("it has no methods")
        if member is not None:
            self._directory.withdraw(member, methods)

    def _on_left(self, other: OtherHub, told: _Told) -> None:
        member = other.clients.pop(told.name, None)
        if member is not None:
            self._directory.leave(member)

    def _replaced(self, replaced: Member) -> None:
        """A client of another hub has come to this one, with its key."""
        for other in self.by_id.values():
            if replaced.name is not None and other.clients.get(replaced.name) is replaced:
                del other.clients[replaced.name]
                other.tell(_message("taken", replaced.name, key=replaced.key), self._log)
                self._directory.leave(replaced)
                return


def _message(method: str, name: str, **params: Any) -> bytes:
    params = {"name": name, **params}
    return orjson.dumps({"jsonrpc": "2.0", "method": PREFIX + method, "params": params})


def _named(name: str, member: Member) -> bytes:
    return _message("named", name, key=digest_of(member.key), address=member.address, since=member.since)


def _offered(name: str, offers: Mapping[str, Offer]) -> list[bytes]:
    return _parts("offered", name, b'"methods":[%b]', map(offer_text, offers.values()))


def _described(name: str, schemas: Mapping[str, bytes]) -> list[bytes]:
    texts = (b"%b:%b" % (text_of(each), text) for each, text in schemas.items())
    return _parts("described", name, b'"schemas":{%b}', texts)


def _parts(method: str, name: str, form: bytes, texts: Iterable[bytes]) -> list[bytes]:
    """Write messages with these texts, each with some of them."""
    head = b'{"jsonrpc":"2.0","method":"%b","params":{"name":%b,' % ((PREFIX + method).encode(), text_of(name))
    messages: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for text in texts:
        if part and size + len(text) > CHUNK:
            messages.append(head + form % b",".join(part) + b"}}")
            part, size = [], 0
        part.append(text)
        size += len(text) + 1
    if part:
        messages.append(head + form % b",".join(part) + b"}}")
    return messages
