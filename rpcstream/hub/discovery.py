"""What can be called through a hub, and who is there, as JSON: `rpc.discover`, `rpc.methods`, `rpc.clients`.

Each is given in many short parts, one behind the other, while the tables may change. Beyond what a server says of its
methods: one with `x-clients` is carried out by one of these clients; with `x-shared`, they share its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from ..wire.pieces import exact
from .directory import Directory, Route
from .members import Member

#: Names of clients in one part.
_NAMES = 500


def document(own: Mapping[str, Any], directory: Directory) -> Iterator[bytes]:
    """The hub's own OpenRPC document with the methods of its clients among its methods, sorted by name."""
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
    for described in (schemas, *(client.schemas for client in list(directory.by_name.values()))):
        for name, text in list(described.items()):
            yield b"%b%b:%b" % (between, _dumps(name), text)
            between = b","
    yield b"}}}"


def _described(name: str, route: Route) -> Iterator[bytes]:
    """A method as its first client describes it; it may be called again only where all of them say so."""
    offers = [client.offers[route.method] for client in route.clients]
    yield b'{"name":%b,' % _dumps(name)
    yield offers[0].text
    yield b',"x-clients":['
    yield from _names(route.clients)
    yield b"]"
    if route.is_shared:
        yield b',"x-shared":true'
    if all(offer.idempotent for offer in offers):
        yield b',"x-idempotent":true'
    yield b"}"


def methods(directory: Directory) -> Iterator[bytes]:
    """The methods that clients offer, by name, and who offers each."""
    between = b"["
    for name in directory.listed():
        route = directory.routes.get(name)
        if route is None:
            continue
        offer = route.clients[0].offers[route.method]
        yield b'%b{"name":%b,"clients":[' % (between, _dumps(name))
        yield from _names(route.clients)
        yield b'],"shared":%b%b}' % (
            b"true" if route.is_shared else b"false",
            b"," + offer.text[: offer.summary_end] if offer.summary_end else b"",
        )
        between = b","
    yield b"]" if between == b"," else b"[]"


def _names(clients: list[Member]) -> Iterator[bytes]:
    names = [client.name for client in clients]
    for first in range(0, len(names), _NAMES):
        yield (b"," if first else b"") + _dumps(names[first : first + _NAMES])[1:-1]


def clients(directory: Directory) -> Iterator[bytes]:
    """The connections that have said something, in the order in which they came."""
    between = b"["
    for client in list(directory.clients.values()):
        yield between + _dumps(client.described())
        between = b","
    yield b"]" if between == b"," else b"[]"


def _dumps(value: Any) -> bytes:
    return exact(orjson.dumps(value))
