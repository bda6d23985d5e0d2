"""The parameters of a method as callers see them, and the errors for params that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from ..codec.codec import Reading
from ..codec.error_text import fault_of
from ..codec.hints import CompiledHint
from ..codec.rich_hint import shortened
from ..errors import InvalidParams

#: Positional and keyword arguments for a function.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Gives the arguments for params, a line and the reading of its batch; see `Signature.bind`.
Bind = Callable[..., Arguments]
Line = bytes | bytearray
#: The reading of a whole message, for a part of it such as a call in a batch; None for a call by itself.
Tagged = Reading | None

#: Characters of a name that an error repeats.
NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class RemoteParameter:
    """One parameter as a caller sees it."""

    name: str
    kind: Any
    hint: CompiledHint
    default: Any

    @property
    def required(self) -> bool:
        """True if a caller must give it."""
        return self.default is Parameter.empty and self.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

    @property
    def by_position(self) -> bool:
        """True if a caller may give it by position."""
        return self.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

    def error(self, text: str, place: int | str) -> InvalidParams:
        """The error for a value that does not fit.

        Args:
            text: of msgspec or the codec.
            place: of the value in the params.
        """
        path, reason = fault_of(text, self.hint.choices)
        at = f"[{place}]" if isinstance(place, int) else f".{shortened(place, NAME_MAX)}"
        name = at[1:] if self.kind is Parameter.VAR_KEYWORD else self.name
        data = {"path": f"${at}{path}", "reason": reason, "parameter": name}
        return InvalidParams(f"Invalid params: {name}{path}: {reason}", data)


@dataclass(eq=False)
class ArgumentsWithImages(Exception):  # nothing is wrong
    """Raised in place of arguments that hold images, which must be decoded elsewhere or whose memory must be counted.

    Attributes:
        bind: decodes all images in another thread, within a given number of bytes; see `Signature.bind_elsewhere`.
        size: bytes of memory that the images in the arguments hold, or those not decoded yet need; 0: not known yet.
        arguments: for the function; None if the images must still be decoded.
    """

    bind: Callable[[int], tuple[Arguments | None, int]]
    size: int
    arguments: Arguments | None = None
