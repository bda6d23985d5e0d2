"""The `params` of a call: read from the command line, and fitted to what the method takes where that matters."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from ..errors import CallTimeout, InvalidParams, RpcError
from .items import Item, UsageError, build_params, parse_item
from .values import ValueReader, infer_value, is_unclear, names_file, shortened

if TYPE_CHECKING:
    from ..client.sync import Client
    from .inputs import MethodTypes

Params = list[Any] | dict[str, Any] | None

#: Seconds that the server may take to say what its methods take; without an answer the call is made as it is.
DISCOVERY_TIME = 10.0


class GivenParams:
    """The parameters on the command line.

    Attributes:
        params: of the request, where nothing is known of what the method takes.
        unclear: the items whose value depends on that, by name or position: a number, `true`, `false` or `null`
            without a type, which may be meant as text; a text that may be the path of a file; and an array from JSON
            without a dtype.
        names_files: one of them is the path of a file that exists, or `-`.
    """

    def __init__(self, params: Any, items: list[Item], reader: ValueReader | None = None) -> None:
        self.params: Params = params
        self._reader = reader or ValueReader()
        places = [number if item.key is None else item.key for number, item in enumerate(items)]
        self.unclear: dict[str | int, Item] = {
            where: item for where, item in zip(places, items, strict=True) if is_unclear(item, params[where])
        }
        self.names_files = any(map(names_file, self.unclear.values()))

    def fitted(self, types: MethodTypes) -> Params:
        """The params with the unclear ones as the method takes them.

        Raises:
            UsageError: a file cannot be read.
        """
        from .inputs import fitted

        params: Any = None if self.params is None else self.params.copy()
        for where, item in self.unclear.items():
            params[where] = fitted(item, params[where], types, where, self._reader)
        return cast(Params, params)

    def advice(self, error: InvalidParams) -> str | None:
        """How to give the type of an item that the server refused; None if its type is clear."""
        parameter = error.data.get("parameter") if isinstance(error.data, dict) else None
        for where, item in self.unclear.items():
            is_text = item.kind == "auto" and isinstance(infer_value(item.text), str)
            if is_text or (isinstance(where, str) and parameter not in (None, where)):
                continue
            name = where if isinstance(where, str) else ""
            what, kind = ("another dtype", "ndarray:float32") if item.kind == "ndarray" else ("text", "str")
            return f"for {what} give {name}:{kind}={shortened(item.text)}"
        return None


def read_params(options: argparse.Namespace, reader: ValueReader | None = None) -> GivenParams:
    """Read the `params` of the call, with the files that they name.

    Raises:
        UsageError: an item is wrong, or a file cannot be read.
    """
    reader = reader or ValueReader()
    given: list[Item] = options.parts or []
    if "-" in options.items:
        if len(options.items) > 1 or given:
            raise UsageError("'-' takes all parameters from standard input, so no other parameter goes with it")
        return GivenParams(reader.read_params(), [])
    items = [*map(parse_item, options.items), *given]
    return GivenParams(build_params(items, reader.convert), items, reader)


def fitted_call(client: Client, options: argparse.Namespace, given: GivenParams, call: Callable[[Params], Any]) -> Any:
    """Make a call; if the server refuses the params, ask what the method takes, and call again if that changes them.

    The server is asked before the call where an item is the path of a file, which is sent to a parameter that takes
    one; for a notification, which has no error; and for a measurement, which would count it many times.
    """
    may_ask = bool(given.unclear) and not options.no_schema
    is_repeated = options.notify or options.repeat
    params: Any = given.params
    types: MethodTypes | None = None
    if may_ask and (given.names_files or is_repeated):
        may_ask, types = False, _discover(client, options)
        params = params if types is None else given.fitted(types)
        if is_repeated:
            _refuse_streams(params, given)
    try:
        return call(params)
    except InvalidParams as error:
        types = _discover(client, options) if may_ask else types
        again: Any = given.fitted(types) if may_ask and types is not None else None
        if again is None or all(again[where] is params[where] for where in given.unclear):
            error.advice = given.advice(error) if types is None else None
            raise
    return call(again)


def _refuse_streams(params: Any, given: GivenParams) -> None:
    for where, item in given.unclear.items():
        if isinstance(params[where], Iterator):
            raise UsageError(f"{item.source}: a stream goes with one call, not with --notify or --repeat")


def _discover(client: Client, options: argparse.Namespace) -> MethodTypes | None:
    """Ask the server what the method takes; None where it does not say."""
    from ..openrpc.document import read_document
    from ..openrpc.types import DocumentError
    from .inputs import MethodTypes

    try:
        document = client.request("rpc.discover", None, timeout=min(options.timeout or DISCOVERY_TIME, DISCOVERY_TIME))
        api = read_document(document, only=options.method)
    except (RpcError, CallTimeout, DocumentError):
        return None
    return MethodTypes(api, api.methods[0]) if api.methods else None
