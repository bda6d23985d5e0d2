"""The arguments of a call: parameters as callers see them, and the errors for params that do not fit.

Owns the types that binding is described with, and the texts that say which parameter is wrong and why. Does not know
how params are checked; that is `signature`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import msgspec

from ..codec.image_budget import ImageLimits, ImageTotal
from ..codec.markers import convert_options
from ..errors import InvalidParams

#: Positional and keyword arguments for a function.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Gives the arguments for params, line and tags; see `Signature.bind`.
Bind = Callable[..., Arguments]
Line = bytes | bytearray
#: Whether a message may have tagged objects in it; None: unknown. For a part of a message, what its images cost.
Tagged = bool | ImageTotal | None

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
#: How msgspec ends a text with the path of the value, and what it says of a value of another type.
_PATH = re.compile(r" - at `\$([^`]*)`")
_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")


@dataclass(frozen=True, slots=True)
class RemoteParameter:
    """One parameter as a caller sees it; `hint` is lowered (see `codec.hints`)."""

    name: str
    kind: Any
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        """True if a caller must give it."""
        return self.default is Parameter.empty and self.kind not in _REST

    @property
    def by_position(self) -> bool:
        """True if a caller may give it by position."""
        return self.kind in _BY_POSITION


class ArgumentsWithImages(Exception):  # nothing is wrong
    """Raised in place of arguments that hold images, which must be decoded elsewhere or whose memory must be counted.

    Args:
        bind: decodes all images, in another thread. Takes params, line and tags; gives the arguments, and the bytes of
            memory that the images in them hold.
        arguments: for the function; None if the images must still be decoded.
        size: bytes of memory that the images in the arguments hold.
    """

    def __init__(
        self,
        bind: Callable[..., tuple[Arguments, int]],
        limits: ImageLimits,
        arguments: Arguments | None = None,
        size: int = 0,
    ) -> None:
        super().__init__()
        self.bind = bind
        self.limits = limits
        self.arguments = arguments
        self.size = size


class ParamsErrors:
    """Makes the errors for params that a method does not take.

    Args:
        parameters: those of the method, in order.
    """

    def __init__(self, parameters: list[RemoteParameter]) -> None:
        self._parameters = parameters
        self._positional = [parameter for parameter in parameters if parameter.by_position]
        self._keyword = [parameter for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
        self._named = self._positional + self._keyword
        self._takes_rest = any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters)
        self._takes_others = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)

    def error(self, params: Any, error: msgspec.ValidationError | None) -> InvalidParams:
        """The error for params that were refused: missing or unknown ones, too many, or one with a wrong value.

        Args:
            params: an array or object.
            error: what msgspec said; it may be None where parameters are missing.
        """
        names = [parameter.name for parameter in self._named]
        if type(params) is dict:
            missing = [
                parameter.name for parameter in self._named if parameter.required and parameter.name not in params
            ]
            unknown = [] if self._takes_others else [name for name in params if name not in names]
        else:
            left = self._positional[len(params) :] + self._keyword
            missing = [parameter.name for parameter in left if parameter.required]
            unknown = []
        if missing:
            return InvalidParams(
                f"Invalid params: missing {_quoted(missing)}",
                {"parameter": missing[0], "path": f"$.{missing[0]}", "reason": "missing", "missing": missing},
            )
        if unknown:
            return InvalidParams(
                f"Invalid params: unknown {_quoted(unknown)}",
                {"parameter": unknown[0], "path": f"$.{unknown[0]}", "reason": "unknown", "parameters": names},
            )
        count = len(self._positional)
        if type(params) is list and len(params) > count and not self._takes_rest:
            return InvalidParams(
                f"Invalid params: at most {count} by position, got {len(params)}",
                {"path": f"$[{count}]", "reason": "too many", "parameters": names[:count]},
            )
        data = self.data(str(error), params)
        return InvalidParams(f"Invalid params: {data['path']}: {data['reason']}", data)

    def array_for_object(self, params: dict[str, Any] | list[Any]) -> msgspec.ValidationError:
        """The error where a tagged array was given for an object, which msgspec does not report by itself."""
        hints = {parameter.name: parameter.hint for parameter in self._parameters}
        pairs: Any = zip(self._parameters, params, strict=False) if type(params) is list else ()
        given = [(f"[{at}]", parameter.hint, value) for at, (parameter, value) in enumerate(pairs)]
        if type(params) is dict:
            given = [(f".{name}", hints[name], value) for name, value in params.items() if name in hints]
        for path, hint, value in given:
            try:
                msgspec.convert(value, hint, **convert_options(hint))
            except AttributeError:
                return msgspec.ValidationError(f"Expected `object`, got an array - at `${path}`")
            except msgspec.ValidationError:
                continue
        return msgspec.ValidationError("Expected `object`, got an array")

    def data(self, text: str, params: Any) -> dict[str, Any]:
        """The `data` of an error, from a text of msgspec: reason, path, and the parameter at its beginning."""
        path = "".join(reversed(_PATH.findall(text)))
        reason = _PATH.sub("", text)
        data: dict[str, Any] = {"path": f"${path}", "reason": reason}
        if type(params) is list and (found := re.match(r"\[(\d+)\]", path)):
            position = min(int(found[1]), len(self._parameters) - 1)
            data["parameter"] = self._parameters[position].name if self._parameters else None
        elif found := re.match(r"\.([^.\[]+)", path):
            data["parameter"] = found[1]
        if mismatch := _MISMATCH.search(reason):
            data.update(mismatch.groupdict())
        return data


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names))
