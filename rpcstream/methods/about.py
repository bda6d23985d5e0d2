"""What is said of a method besides its signature: tags, errors, examples, and that it is deprecated.

Owns how these options are checked at registration, where an example is held against the types of its method; and the
form that they have in OpenRPC. Knows no other method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from ..codec import Codec, payloads
from ..codec.image_budget import image_budget
from ..codec.schema import shortened_text
from ..errors import EncodeError, RegistrationError, RpcError
from .signature import Signature

#: Of one method: tags, errors and examples; characters of a tag and of another text; bytes of an example as JSON.
_MOST, _TAG_MAX, _TEXT_MAX, _EXAMPLE_MAX = 100, 100, 1000, 64 * 1024

#: In place of the result of an example that has none.
_NO_RESULT: Any = object()


class Example:
    """An example of a call, for `@server(examples=[...])`. It is checked against the types of the method.

    Args:
        params: the arguments, as a list or by name. Arrays and images are given as they are.
        result: what the method returns for them; of a generator the list of its items. Left out: the example is one
            of a notification, or of a result that is not always the same.
        name: of the example; None: "example 1", and so on.
        description: for people.
    """

    __slots__ = ("description", "name", "params", "result")

    def __init__(
        self,
        params: list[Any] | tuple[Any, ...] | Mapping[str, Any] = (),
        result: Any = _NO_RESULT,
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        self.params = params
        self.result = result
        self.name = name
        self.description = description

    @property
    def has_result(self) -> bool:
        """Whether a result was given; None is one."""
        return self.result is not _NO_RESULT


@dataclass(frozen=True, slots=True)
class About:
    """What a document says of a method besides its signature.

    Attributes:
        tags: None: none were given.
        errors: error objects of OpenRPC, of which the caller may get any.
        examples: example pairings of OpenRPC.
        deprecated: True, or the reason; False: it is not.
    """

    tags: tuple[str, ...] | None = None
    errors: tuple[dict[str, Any], ...] = ()
    examples: tuple[dict[str, Any], ...] = ()
    deprecated: bool | str = False


def about(
    function: Callable[..., Any], signature: Signature, codec: Codec, options: Mapping[str, Any], *, is_generator: bool
) -> About:
    """Check what was said of a method at its registration.

    Args:
        function: of the method; one with `warnings.deprecated` is deprecated.
        signature: of the method, before `decode_images`.
        codec: writes the values of errors and examples.
        options: of the method: `tags`, `errors`, `examples`, `deprecated`.
        is_generator: the method is a generator.

    Raises:
        RegistrationError: one of them is malformed, or an example does not fit the method.
    """
    method, deprecated = signature.method, options["deprecated"]
    if not isinstance(deprecated, bool | str):
        raise RegistrationError(f"{method}: deprecated must be True, False or the reason, got {deprecated!r}")
    if deprecated is False:
        reason = getattr(function, "__deprecated__", None)  # PEP 702
        deprecated = reason if isinstance(reason, str) else False
    if isinstance(deprecated, str):
        deprecated = shortened_text(deprecated, _TEXT_MAX) or True
    return About(
        tags=_tags(method, options["tags"]),
        errors=tuple(_error(method, each, codec) for each in _listed(method, "errors", options["errors"])),
        examples=tuple(
            _example(signature, each, number, codec, is_generator=is_generator)
            for number, each in enumerate(_listed(method, "examples", options["examples"]), 1)
        ),
        deprecated=deprecated,
    )


def _listed(method: str, option: str, given: Iterable[Any]) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise RegistrationError(f"{method}: {option} must be a list, got {given!r}")
    listed = list(given)
    if len(listed) > _MOST:
        raise RegistrationError(f"{method}: {option}: at most {_MOST}, got {len(listed)}")
    return listed


def _tags(method: str, given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    tags = _listed(method, "tags", given)
    for tag in tags:
        if not isinstance(tag, str) or not 0 < len(tag) <= _TAG_MAX:
            raise RegistrationError(f"{method}: a tag is a string of 1 to {_TAG_MAX} characters, got {tag!r}")
    return tuple(dict.fromkeys(tags))


def _error(method: str, given: Any, codec: Codec) -> dict[str, Any]:
    """The error object of OpenRPC for an RpcError, or for a class of them that needs no arguments."""
    error = given
    if isinstance(given, type) and issubclass(given, RpcError):
        try:
            error = given()  # type: ignore[call-arg]
        except TypeError:
            name = given.__name__
            raise RegistrationError(f"{method}: errors: {name} needs arguments: give one, as it is raised") from None
    if not isinstance(error, RpcError):
        raise RegistrationError(
            f"{method}: errors are RpcErrors as they are raised, such as RpcError(404, 'Not found'), got {given!r}"
        )
    described = {**error.to_wire(), "message": shortened_text(str(error.message), _TEXT_MAX)}
    if type(error.code) is not int:
        raise RegistrationError(f"{method}: errors: the code of an error is an integer, got {error.code!r}")
    made: dict[str, Any] = _as_json(method, f"the error {error.code}", described, codec)
    return made


def _example(signature: Signature, given: Any, number: int, codec: Codec, *, is_generator: bool) -> dict[str, Any]:
    method = signature.method
    if not isinstance(given, Example):
        raise RegistrationError(f"{method}: examples are Example(params, result), got {given!r}")
    name = given.name or f"example {number}"
    what = f"the example {name!r}"
    by_name = isinstance(given.params, Mapping)
    params = dict(given.params) if isinstance(given.params, Mapping) else list(given.params)
    pairing: dict[str, Any] = {"name": name}
    if given.description is not None:
        pairing["description"] = given.description
    sent = _as_json(method, what, params, codec)
    _check_params(signature, codec.dumps({"params": params}), what, codec)
    if by_name:
        pairs = list(sent.items())
    else:
        names = [each.name for each in signature.parameters if each.by_position]
        rest = [each.name for each in signature.parameters if each.kind is Parameter.VAR_POSITIONAL]
        pairs = list(zip(names + rest * (len(sent) - len(names)), sent, strict=False))
    pairing["params"] = [{"name": each, "value": value} for each, value in pairs]
    if given.has_result:
        result = _checked_result(signature, given.result, what, is_generator=is_generator)
        pairing["result"] = {"name": "result", "value": _as_json(method, what, result, codec)}
    return pairing


def _check_params(signature: Signature, line: bytes, what: str, codec: Codec) -> None:
    try:
        with image_budget(codec.image_limits):
            signature.bind(payloads.parse_exactly(line)["params"], line)
    except RpcError as error:
        raise RegistrationError(f"{signature.method}: {what} does not fit: {error}") from None


def _checked_result(signature: Signature, result: Any, what: str, *, is_generator: bool) -> Any:
    """The result as it is sent."""
    try:
        if not is_generator:
            return result if signature.check_result is None else signature.check_result(result)
        items = list(result)
        return items if signature.check_item is None else [signature.check_item(item) for item in items]
    except (ValueError, TypeError) as error:
        raise RegistrationError(f"{signature.method}: {what}: {error}") from None


def _as_json(method: str, what: str, value: Any, codec: Codec) -> Any:
    """A value as it goes over the wire, as plain data."""
    try:
        text = codec.dumps(value)
        plain = payloads.parse_exactly(text)
    except (EncodeError, ValueError, RecursionError) as error:
        raise RegistrationError(f"{method}: {what} cannot be sent: {error}") from None
    if len(text) > _EXAMPLE_MAX:
        raise RegistrationError(f"{method}: {what} has {len(text)} bytes as JSON, and may have {_EXAMPLE_MAX}")
    return plain
