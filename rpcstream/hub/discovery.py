"""Writes the lists of a hub as JSON: `rpc.discover`, `rpc.methods` and `rpc.clients`.

Each is written in many short parts, between which the directory may change. Beside what a server writes of its
methods, `x-clients` names the clients that carry a method out, and `x-shared` marks one whose calls they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from ..wire.buffers import trimmed
from .directory import Directory, Route
from .members import Member

#: Names of members in one part.
_NAMES = 500


def document(own: Mapping[str, Any], directory: Directory) -> Iterator[bytes]:
    """Write the hub's own OpenRPC document, with its members' methods among its own, sorted by name."""
    head = {name: value for name, value in own.items() if name not in ("methods", "components")}
    yield _dumps(head)[:-1] + b',"methods":['
    between = b""
    own_methods = [(str(method["name"]), method) for method in reversed(own["methods"])]
    for name in directory.listed():
        while own_methods and own_methods[-1][0] < name:
            yield between + _dumps(own_methods.pop()[1])
            between = b","
        route = directory.routes.get(name)
        if route is not None:
            yield between
            yield from _described(name, route)
            between = b","
    while own_methods:
        yield between + _dumps(own_methods.pop()[1])
        between = b","
    yield b'],"components":{"schemas":{'
    between = b""
    schemas = {name: _dumps(schema) for name, schema in own["components"]["schemas"].items()}
    for described in (schemas, *(member.schemas for member in list(directory.by_name.values()))):
        for name, text in list(described.items()):
            yield b"%b%b:%b" % (between, _dumps(name), text)
            between = b","
    yield b"}}}"


def _described(name: str, route: Route) -> Iterator[bytes]:
    """Write a method as its first member describes it; idempotent only if all members say so."""
    offers = [member.offers[route.method] for member in route.members]
    yield b'{"name":%b,' % _dumps(name)
    yield offers[0].text
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
    for name in directory.listed():
        route = directory.routes.get(name)
        if route is None:
            continue
        offer = route.members[0].offers[route.method]
        yield b'%b{"name":%b,"clients":[' % (between, _dumps(name))
        yield from _names(route.members)
        yield b'],"shared":%b%b}' % (
            b"true" if route.is_shared else b"false",
            b"," + offer.text[: offer.summary_end] if offer.summary_end else b"",
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
