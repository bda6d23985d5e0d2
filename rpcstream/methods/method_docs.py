"""What the options of a method say of it besides its signature: tags, errors, examples, and that it is deprecated.

They are checked at registration, examples against the types of the method, and kept in the form of OpenRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from inspect import Parameter
from typing import Any

from ..codec import Codec, payloads
from ..errors import EncodeError, RegistrationError, RpcError
from .signature import Signature


@dataclass(frozen=True, slots=True)
class Example:
    """An example of a call, for `@server(examples=[...])`. Registration checks it against the method's hints.

    Args:
        params: the arguments, as a list or by name.
        result: the result for these arguments; for a generator, the list of its items. Leave it out for a notification,
            or if the result varies.
        name: the name of the example. None: "example 1", and so on.
        description: a text for readers.
    """

    params: list[Any] | tuple[Any, ...] | Mapping[str, Any] = ()
    result: Any = ...
    _: KW_ONLY
    name: str | None = None
    description: str | None = None


def method_docs(
    function: Callable[..., Any], signature: Signature, codec: Codec, options: Mapping[str, Any], is_generator: bool
) -> dict[str, Any]:
    """Return what the options of a method say of it, as members of a Method Object of OpenRPC.

    Args:
        function: of the method; one with `warnings.deprecated` (PEP 702) is deprecated.
        signature: of the method, before `decode_images`.
        codec: writes the values of errors and examples.
        options: of the method: `tags`, `errors`, `examples`, `deprecated`.
        is_generator: the method is a generator.

    Raises:
        RegistrationError: one of them is malformed, or an example does not fit the method.
    """
    docs: dict[str, Any] = {}
    what, tags = "tags", options["tags"]
    try:
        if isinstance(tags, str) or not all(isinstance(tag, str) and tag for tag in tags or ()):
            raise TypeError(f"expected a list of strings, got {tags!r}")
        if tags is not None:
            docs["tags"] = [{"name": tag} for tag in dict.fromkeys(tags)]
        if deprecated := options["deprecated"] or getattr(function, "__deprecated__", False):
            docs["deprecated"] = True
            if isinstance(deprecated, str):
                docs["x-deprecated"] = deprecated
        what = "errors"
        docs["errors"] = [_error(each, codec) for each in options["errors"]]
        what = "examples"
        for number, example in enumerate(options["examples"], 1):
            what = f"example {number}"
            docs.setdefault("examples", []).append(_example(example, what, signature, codec, is_generator))
    except (TypeError, ValueError, RpcError, EncodeError) as error:
        raise RegistrationError(f"{signature.method}: {what}: {error}") from error
    return docs


def _error(given: Any, codec: Codec) -> Any:
    """Return the error object of OpenRPC for an RpcError, or for a class of them that needs no arguments."""
    error = given() if isinstance(given, type) else given
    if not isinstance(error, RpcError):
        raise TypeError(f"expected RpcErrors as they are raised, such as RpcError(404, 'Not found'), got {given!r}")
    return _as_json(error.to_wire(), codec)


def _example(example: Any, name: str, signature: Signature, codec: Codec, is_generator: bool) -> dict[str, Any]:
    """Return the example pairing of OpenRPC. Raises an error if it does not fit the method."""
    if not isinstance(example, Example):
        raise TypeError(f"expected Example(params, result), got {example!r}")
    params = dict(example.params) if isinstance(example.params, Mapping) else list(example.params)
    sent = _as_json(params, codec)
    signature.bind(sent, codec.dumps({"params": params}))
    if isinstance(sent, list):
        kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
        names = [each.name for each in signature.parameters if each.kind in kinds]
        pairs = list(zip(names + names[-1:] * len(sent), sent, strict=False))
    else:
        pairs = list(sent.items())
    named = [{"name": each, "value": value} for each, value in pairs]
    pairing: dict[str, Any] = {"name": example.name or name, "params": named}
    if example.description is not None:
        pairing["description"] = example.description
    if example.result is not ...:
        # The hint of a generator is checked as that of the list of its items.
        result = list(example.result) if is_generator else example.result
        if signature.check_result is not None:
            result = signature.check_result(result)
        pairing["result"] = {"name": "result", "value": _as_json(result, codec)}
    return pairing


def _as_json(value: Any, codec: Codec) -> Any:
    """Return a value as it goes over the wire, as plain data."""
    return payloads.parse_exactly(codec.dumps(value))
