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

from ..codec.error_text import CHOICES_MAX, Fault, choices_at
from ..codec.image_budget import ImageLimits, ImageTotal
from ..codec.markers import convert_options
from ..codec.rich_hint import shortened
from ..errors import InvalidParams
from ..nearest import did_you_mean, nearest_for_peer

#: Positional and keyword arguments for a function.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Gives the arguments for params, line and tags; see `Signature.bind`.
Bind = Callable[..., Arguments]
Line = bytes | bytearray
#: Whether a message may have tagged objects in it; None: unknown. For a part of a message, what its images cost.
Tagged = bool | ImageTotal | None

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
#: Names that an error lists, and characters of each.
NAMES_MAX, NAME_MAX = 10, 64


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
            return self._missing(missing, unknown, names)
        if unknown:
            return self._unknown(unknown, names)
        count = len(self._positional)
        if type(params) is list and len(params) > count and not self._takes_rest:
            positional = names[:count]
            taken = f"; these are {_quoted(positional)}" if positional else ""
            return InvalidParams(
                f"Invalid params: too many, at most {count} by position, got {len(params)}{taken}",
                {"path": f"$[{count}]", "reason": "too many", "parameters": positional},
            )
        return self.of_value(str(error))

    def _missing(self, missing: list[str], unknown: list[str], names: list[str]) -> InvalidParams:
        """The error for missing parameters. One that is unknown may be a missing one with a slip."""
        data: dict[str, Any] = {
            "parameter": missing[0],
            "path": f"$.{missing[0]}",
            "reason": "missing",
            "missing": missing,
        }
        text = f"Invalid params: missing {_quoted(missing)}"
        if unknown:
            near = nearest_for_peer(unknown[0], names)
            data["unknown"] = [shortened(name, NAME_MAX) for name in unknown[:NAMES_MAX]]
            if near:
                data["nearest"] = near
            text += f"; unknown {_quoted(unknown[:1])}{did_you_mean(near)}"
        return InvalidParams(text, data)

    def _unknown(self, unknown: list[str], names: list[str]) -> InvalidParams:
        name = shortened(unknown[0], NAME_MAX)
        data: dict[str, Any] = {"parameter": name, "path": f"$.{name}", "reason": "unknown", "parameters": names}
        near = nearest_for_peer(unknown[0], names)
        if near:
            data["nearest"] = near
            advice = did_you_mean(near)
        else:
            advice = f"; the parameters are {_quoted(names)}" if names else "; the method has no parameters"
        return InvalidParams(f"Invalid params: unknown {_quoted(unknown)}{advice}", data)

    def of_value(self, text: str) -> InvalidParams:
        """The error for a wrong value, from a text of msgspec or of the codec: parameter, place in it, reason.

        `Fault.of` reads the text.
        """
        fault = Fault.of(text)
        first = re.match(r"\[(\d+)\]|\.([^.\[]+)", fault.path)
        parameter, inside = self._parameter_at(first), fault.path[first.end() :] if first else ""
        name = first[2] if first is not None else None
        if name is None and parameter is not None:
            name = parameter.name
        choices = choices_at(parameter.hint, inside) if parameter is not None else []
        reason = fault.reason(choices)
        data: dict[str, Any] = {"path": f"${fault.path}", "reason": reason}
        if first is not None:
            data["parameter"] = name
        data.update(fault.types)
        if choices:
            data["choices"] = choices[:CHOICES_MAX]
        place = f"{name}{inside}: " if name is not None else ""
        return InvalidParams(f"Invalid params: {place}{reason}", data)

    def _parameter_at(self, first: re.Match[str] | None) -> RemoteParameter | None:
        """The parameter that the first step of a path leads to."""
        if first is None:
            return None
        if first[1] is not None:
            place = int(first[1])
            if place < len(self._positional):
                return self._positional[place]
            return next((each for each in self._parameters if each.kind is Parameter.VAR_POSITIONAL), None)
        found = (each for each in self._parameters if each.name == first[2] or each.kind is Parameter.VAR_KEYWORD)
        return next(found, None)

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


def _quoted(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(repr(shortened(name, NAME_MAX)) for name in names[:NAMES_MAX]) + more
