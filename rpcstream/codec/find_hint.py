"""From a type hint to its `RichHint`: which hints name a rich type.

Looks at names only, so that a hint of numpy's is recognised without importing numpy, which the hint has done anyway.
Does not know how the types are decoded.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NamedTuple

from .image_budget import ImageLimits
from .options import MaxSide, Shape
from .rich_hint import TAG_KEY, RichHint, mismatch, type_name

#: Scalar types of numpy that have no form of their own on the wire.
_NOT_ON_WIRE = ("str_", "bytes_", "void", "object_", "flexible", "character")

#: Classes of packages that need not be installed: (module of the class, its name) -> (module here, its hint).
_OPTIONAL = {
    ("pandas", "DataFrame"): ("tables", "TableHint"),  # since version 3
    ("pandas", "Series"): ("tables", "TableHint"),
    ("pandas.core.frame", "DataFrame"): ("tables", "TableHint"),
    ("pandas.core.series", "Series"): ("tables", "TableHint"),
    ("polars.dataframe.frame", "DataFrame"): ("tables", "TableHint"),
    ("polars.series.series", "Series"): ("tables", "TableHint"),
    ("pyarrow.lib", "RecordBatch"): ("tables", "TableHint"),
    ("pyarrow.lib", "Table"): ("tables", "TableHint"),
    ("torch", "Tensor"): ("tensors", "TensorHint"),
}
#: The same for all classes of these modules.
_OPTIONAL_PACKAGES = {"scipy.sparse": ("sparse", "SparseHint")}


class RegisteredType(NamedTuple):
    """A type that the user registered with the codec."""

    cls: type
    tag: str
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[dict[str, Any]], Any]


def find_rich_hint(
    hint: Any,
    registered: dict[type, RegisteredType],
    *,
    image_limits: ImageLimits,
    decode: Callable[[object], object],
) -> RichHint | None:
    """Find the rich type that a hint names; None for any other hint.

    Args:
        decode: decodes tagged objects, as `Codec.decode`.

    Raises:
        TypeError: the type never goes over the wire, or the hint is a known mistake, such as a module.
    """
    if isinstance(hint, types.ModuleType) and hint.__name__ == "PIL.Image":
        raise TypeError("PIL.Image is a module; the hint for an image is PIL.Image.Image")
    hint = _without_aliases(hint)
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _measured(hint, image_limits)
    cls = origin or hint
    if not isinstance(cls, type):
        return None
    if cls in registered:
        return RegisteredHint(registered[cls], decode)
    if cls in (bytes, bytearray, memoryview):
        from .binary import BytesHint

        return BytesHint(cls)
    if cls is complex:
        from .scalars import ComplexHint

        return ComplexHint()
    if _is_image(cls):
        from .image import ImageHint

        return ImageHint(image_limits)
    if _is_array(cls):
        from .ndarray import ArrayHint

        return ArrayHint(hint)
    if (optional := _optional(cls)) is not None:
        return optional(cls)
    if "__pydantic_validator__" in vars(cls):
        from .ext.pydantic_models import ModelHint

        return ModelHint(cls)
    if cls.__name__ not in _NOT_ON_WIRE and any(_is_generic(base) for base in cls.__mro__):
        from .numpy_scalars import NumpyScalarHint

        return NumpyScalarHint(hint)
    return None


def _without_aliases(hint: Any) -> Any:
    """Resolve aliases made with `type`, with their arguments; numpy's NDArray is one since 2.5."""
    while type(alias := typing.get_origin(hint) or hint).__name__ == "TypeAliasType":
        arguments = typing.get_args(hint)
        try:
            hint = alias.__value__[arguments] if arguments else alias.__value__
        except NameError as error:
            raise TypeError(f"the alias {alias} cannot be resolved: {error}") from None
    return hint


def _optional(cls: type) -> Callable[..., RichHint] | None:
    """What makes the hint for a class of a package that need not be installed; None for any other class."""
    found = _OPTIONAL.get((cls.__module__, cls.__name__)) or _OPTIONAL_PACKAGES.get(cls.__module__.rpartition(".")[0])
    if found is None:
        return None
    make: Callable[..., RichHint] = getattr(import_module(f".ext.{found[0]}", __package__), found[1])
    return make


def _is_tensor(cls: Any) -> bool:
    return isinstance(cls, type) and (cls.__module__, cls.__name__) == ("torch", "Tensor")


def _is_array(cls: Any) -> bool:
    return isinstance(cls, type) and (cls.__module__, cls.__name__) == ("numpy", "ndarray")


def _is_image(cls: Any) -> bool:
    return isinstance(cls, type) and (cls.__module__, cls.__name__) == ("PIL.Image", "Image")


def _is_generic(cls: type) -> bool:
    return cls.__module__ == "numpy" and cls.__name__ == "generic"


def _measured(hint: Any, limits: ImageLimits) -> RichHint | None:
    """The array or image that `Annotated[..., Shape(...)]`, `Annotated[..., MaxSide(...)]` name; None without these."""
    inner, *metadata = typing.get_args(hint)
    inner = _without_aliases(inner)
    if any(each is Shape for each in metadata):
        raise TypeError("Shape in a hint needs its dimensions: Shape(None, 3)")
    if any(each is MaxSide for each in metadata):
        raise TypeError("MaxSide in a hint needs its pixels: MaxSide(1024)")
    sides = [each for each in metadata if isinstance(each, MaxSide)]
    if sides:
        if not _is_image(inner):
            raise TypeError(f"{sides[0]!r} is for images: Annotated[PIL.Image.Image, {sides[0]!r}]")
        if len(sides) > 1:
            raise TypeError("an image has one MaxSide")
        from .image import ImageHint

        return ImageHint(limits, sides[0])
    shapes = [each for each in metadata if isinstance(each, Shape)]
    if not shapes:
        return None
    if _is_tensor(inner) and len(shapes) == 1:
        from .ext.tensors import TensorHint

        return TensorHint(inner, shapes[0])
    if not _is_array(typing.get_origin(inner) or inner):
        raise TypeError(f"{shapes[0]!r} is for arrays: Annotated[NDArray[...], {shapes[0]!r}]")
    if len(shapes) > 1:
        raise TypeError("an array has one Shape")
    from .ndarray import ArrayHint

    return ArrayHint(inner, shapes[0])


class RegisteredHint:
    """A hint for a class that was registered with the codec."""

    def __init__(self, registered: RegisteredType, decode: Callable[[object], object]) -> None:
        self._registered = registered
        self._decode = decode
        self.name = type_name(registered.cls)
        self.component = registered.cls.__name__

    def decode(self, value: object) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == self._registered.tag:
            value = self._decode(value)
        if isinstance(value, self._registered.cls):
            return value
        raise mismatch(self.name, value)

    def accept(self, value: object) -> object:
        if isinstance(value, self._registered.cls):
            return value
        raise mismatch(self.name, value)

    def schema(self) -> dict[str, Any]:
        tag = {TAG_KEY: {"const": self._registered.tag}}
        return {"type": "object", "properties": tag, "required": [TAG_KEY]}
