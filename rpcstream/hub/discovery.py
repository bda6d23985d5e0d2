"""What can be called through a hub, as one OpenRPC document: its own methods, and those of its clients.

Pure. Beyond what a server says: a method with `x-clients` is carried out by one of these clients; with `x-shared`, they
share its calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .clients import Client
from .directory import Directory


def merged(document: dict[str, Any], directory: Directory) -> dict[str, Any]:
    """The hub's own document with the methods of its clients, sorted by name."""
    offered = [
        _described(name, route.clients, shared=route.shared)
        for name, route in directory.routes.items()
        if not route.is_own
    ]
    schemas = dict(document["components"]["schemas"])
    for client in directory.by_name.values():
        schemas.update(client.schemas)
    methods = sorted([*document["methods"], *offered], key=lambda method: str(method["name"]))
    return {**document, "methods": methods, "components": {"schemas": schemas}}


def _described(name: str, clients: Iterable[Client], *, shared: bool) -> dict[str, Any]:
    """A method as its first client describes it; it may be called again only where all of them say so."""
    offers = [client.offers[name] for client in clients]
    described = {"name": name, "params": [], **offers[0].description}
    described["x-clients"] = [client.name for client in clients]
    if shared:
        described["x-shared"] = True
    if not all(offer.description.get("x-idempotent") is True for offer in offers):
        described.pop("x-idempotent", None)
    return described
