"""Writes the lists of a hub as JSON: `rpc.discover`, `rpc.methods` and `rpc.clients`.

Each is written in many short parts, between which the directory may change. Beside what a server writes of its
methods, `x-clients` names the clients that carry a method out, and `x-shared` marks one whose calls they share.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any

import orjson

from ..errors import RpcError
from ..methods.discovery import OpenRpcDocument
from ..openrpc.compat import OlderDocument
from ..wire import envelope
from ..wire.buffers import trimmed
from .directory import Directory, Route
from .members import Member

#: A schema with its name, as JSON.
_Named = tuple[str, bytes]

#: Names of members in one part.
_NAMES = 500


def document(own: OpenRpcDocument, directory: Directory, compat: str | None = None) -> Iterator[bytes]:
    """Write the hub's own OpenRPC document, with its members' methods among its own, sorted by name.

    Args:
        own: of the hub's own methods.
        directory: of its members.
        compat: "1.2.6" for the variant that older tools read.
    """
    described = own.described()
    head = own.head(compat)
    older = OlderDocument(head["info"]["title"]) if compat is not None else None
    method = older.method if older is not None else dict
    yield _dumps(head)[:-1] + b',"methods":['
    between = b""
    own_methods = [(str(each["name"]), each) for each in reversed(described["methods"])]
    if older is not None:
        own_methods = [each for each in own_methods if older.has(each[0])]
    for name in sorted(directory.listed()):
        while own_methods and own_methods[-1][0] < name:
            yield between + _dumps(method(own_methods.pop()[1]))
            between = b","
        route = directory.routes.get(name)
        if route is not None:
            yield between
            yield from _described(name, route, older)
            between = b","
    while own_methods:
        yield between + _dumps(method(own_methods.pop()[1]))
        between = b","
    yield b'],"components":{"schemas":{'
    between = b""
    for schemas in _schemas(described, directory, older):
        for name, text in schemas:
            yield b"%b%b:%b" % (between, _dumps(name), text)
            between = b","
    yield b'},"errors":%b}%b' % (_dumps(described["components"]["errors"]), own.tail())


def _schemas(
    described: Mapping[str, Any], directory: Directory, older: OlderDocument | None
) -> Iterator[Iterable[_Named]]:
    """The components of the hub, then those of each member, as JSON."""
    own = described["components"]["schemas"]
    if older is None:
        yield ((name, _dumps(schema)) for name, schema in own.items())
        for member in list(directory.by_name.values()):
            yield list(member.schemas.items())
        return
    yield ((name, _dumps(schema)) for name, schema in older.schemas(own))
    for member in list(directory.by_name.values()):
        schemas = {name: orjson.loads(text) for name, text in member.schemas.items()}
        yield ((name, _dumps(schema)) for name, schema in older.schemas(schemas))


def _described(name: str, route: Route, older: OlderDocument | None) -> Iterator[bytes]:
    """Write a method as its first member describes it; idempotent only if all members say so."""
    offers = [member.offers[route.method] for member in route.members]
    yield b'{"name":%b,' % _dumps(name)
    text = offers[0].described
    if older is not None:
        made = older.method({**orjson.loads(b"{%b}" % text), "name": name})
        text = _dumps({member: value for member, value in made.items() if member != "name"})[1:-1]
    yield text
    yield b',"x-clients":['
    yield from _names(route.members)
    yield b"]"
    if route.is_shared:
        yield b',"x-shared":true'
    if all(offer.idempotent for offer in offers):
        yield b',"x-idempotent":true'
    yield b"}"


def methods(directory: Directory) -> Iterator[bytes]:
    """Write the methods that members offer, by name, with the members that offer each."""
    between = b"["
    for name in sorted(directory.listed()):
        route = directory.routes.get(name)
        if route is None:
            continue
        offer = route.members[0].offers[route.method]
        yield b'%b{"name":%b,"clients":[' % (between, _dumps(name))
        yield from _names(route.members)
        yield b'],"shared":%b%b}' % (
            b"true" if route.is_shared else b"false",
            b"," + offer.description if offer.description else b"",
        )
        between = b","
    yield b"]" if between == b"," else b"[]"


def _names(members: list[Member]) -> Iterator[bytes]:
    names = [member.name for member in members]
    for first in range(0, len(names), _NAMES):
        yield (b"," if first else b"") + _dumps(names[first : first + _NAMES])[1:-1]


def members(directory: Directory) -> Iterator[bytes]:
    """Write the members, in the order in which they came."""
    between = b"["
    for member in list(directory.members.values()):
        yield between + _dumps(member.described())
        between = b","
    yield b"]" if between == b"," else b"[]"


def _dumps(value: Any) -> bytes:
    return trimmed(orjson.dumps(value))


#: Seconds that the loop spends on writing a list before others have their turn.
SLICE = 0.005

#: After a list was written, the next one waits this many times the time that it took. However often a list changes
#: or is asked for, it takes at most a fifth of the loop's time.
PAUSES = 4


class Listing:
    """One long list, kept until it changes.

    Args:
        parts: yields the list as JSON, piece by piece. What it reads may change meanwhile; all that does not change
            must be in it.
        version: returns a number that is higher after each change of the list. None: the list changes all the time.
        max_size: bytes that the list may have.
    """

    def __init__(
        self, parts: Callable[[], Iterator[bytes]], version: Callable[[], int] | None, *, max_size: int
    ) -> None:
        self._parts = parts
        self._version = itertools.count().__next__ if version is None else version
        self._max_size = max_size
        #: The last list that was written, or the error for a list that is too long; and the version when it was begun.
        self._written: bytes | RpcError = b""
        self._written_version = -1
        self._task: asyncio.Task[None] | None = None
        #: Loop time (s) before which no list is written.
        self._not_before = 0.0

    async def text(self) -> bytes:
        """Return the list as JSON, with all changes until now.

        Raises:
            MessageTooLarge: the list is over `max_size`.
        """
        wanted = self._version()
        while self._written_version < wanted:
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._write())
            await asyncio.shield(self._task)
        if isinstance(self._written, RpcError):
            raise self._written
        return self._written

    async def fragment(self) -> Any:
        """Return the list as the result of a handler; raises as `text`."""
        return orjson.Fragment(await self.text())

    def close(self) -> None:
        """Stop writing: the hub stops."""
        if self._task is not None:
            self._task.cancel()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        if (pause := self._not_before - loop.time()) > 0:
            await asyncio.sleep(pause)
        version, done, size, seconds = self._version(), [], 0, 0.0
        began = perf_counter()
        for part in self._parts():
            done.append(part)
            size += len(part)
            if size > self._max_size:
                break
            if (spent := perf_counter() - began) > SLICE:
                seconds += spent
                await asyncio.sleep(0)
                began = perf_counter()
        self._not_before = loop.time() + PAUSES * (seconds + perf_counter() - began)
        self._written_version = version
        too_long = size > self._max_size
        self._written = envelope.oversize(size, self._max_size, side="server") if too_long else b"".join(done)
