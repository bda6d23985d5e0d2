"""Offers: the methods in a registration (`rpc.register`), read, checked, and described for `rpc.discover`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import orjson

from ..errors import wrong_parameter
from ..events.patterns import CLIENT_NAME
from ..wire.buffers import trimmed

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
