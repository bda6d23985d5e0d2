"""The table of types: how the values of each are written, read and named in hints. A new type is one row and one file.

Classes and functions are named instead of imported, so a library such as numpy is loaded with its first value or hint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

from ..errors import EncodeError
from .options import MaxSide, Shape
from .rich_hint import RichHint, full_name, type_name

#: Classes that are seen are remembered up to this number, so that classes made in a loop do not fill the memory.
_MAX_CLASSES = 1000


@dataclass(eq=False, repr=False)
class RichType:
    """One type: `Codec.register` makes one for each class of the user's, `BUILT_IN` has ours.

    Attributes:
        tag: the `$type` of its tagged object; None: its values are plain JSON.
        module: of this package, that has the functions; "": they are given themselves. What is in `ext` is of a library
            that need not be there: the user may register the class.
        classes: the classes whose values are sent so, with their subclasses, or their full names.
        encode: from a value and its `Encoding` to something nearer to JSON. Raises EncodeError.
        decode: from the tagged object and the reading of its message to the value. Raises ValueError.
        hint: makes the `RichHint` of a hint that names one of the classes; none if empty.
        measure: what may stand beside such a hint in `Annotated`: `Shape` or `MaxSide`.
        has_payload: it has no floats but those in a payload. The member "data" of its tagged object is base64, which is
            not parsed with the rest.
        is_family: a hint may name any subclass of the classes as well.
        takes_values: `decode` gets only the members of the tagged object, tagged objects among them decoded before.
        is_costly: decoding it is charged to the reading of its message, and waits until a hint asks for it.
    """

    tag: str | None
    module: str
    classes: tuple[str | type, ...]
    encode: str | Callable[[Any, Any], object]
    decode: str | Callable[[Any, Any], Any] = ""
    hint: str | Callable[..., RichHint] = ""
    measure: type | None = None
    has_payload: bool = False
    is_family: bool = False
    takes_values: bool = False
    is_costly: bool = False

    def function(self, name: Literal["encode", "decode", "hint"]) -> Callable[..., Any]:
        """One of the functions, imported."""
        given: Any = getattr(self, name)
        return _imported(self.module, given) if self.module else given  # type: ignore[no-any-return]


@cache
def _imported(module: str, function: str) -> Any:
    return getattr(import_module(f".{module}", __package__), function)


def _table(tag: str, *classes: str) -> RichType:
    functions = ("encode_table", "decode_table", "TableHint")
    return RichType(tag, "ext.tables", classes, *functions, has_payload=True, is_costly=True)


def _plain(module: str, encode: str, *classes: str) -> RichType:
    return RichType(None, module, classes, encode)


_SPARSE = ("scipy.sparse._base._spbase", "scipy.sparse._base.sparray", "scipy.sparse._matrix.spmatrix")
_BYTES = ("builtins.bytes", "builtins.bytearray", "builtins.memoryview")
_PATHS = ("pathlib.Path", "pathlib._local.Path", "rpcstream.codec.options.ImageFile", "tempfile._TemporaryFileWrapper")
_IMAGE_FILE = RichType(None, "image", _PATHS, "encode_image_file", has_payload=True)
_LISTS = ("dict_items", "dict_keys", "dict_values", "frozenset", "list", "range", "set", "tuple")

BUILT_IN = (
    RichType("ndarray", "ndarray", ("numpy.ndarray",), "encode_array", "decode_array", "ArrayHint", Shape, True),
    RichType(
        *("image", "image", ("PIL.Image.Image",), "encode_image", "decode_image", "ImageHint", MaxSide, True),
        is_costly=True,
    ),
    RichType("bytes", "binary", _BYTES, "encode_bytes", "decode_bytes", "BytesHint", has_payload=True),
    RichType("complex", "scalars", ("builtins.complex",), "encode_complex", "decode_complex", "ComplexHint"),
    RichType("float", "scalars", ("builtins.float",), "encode_float", "decode_float"),
    RichType(None, "ndarray", ("numpy.generic",), "encode_scalar", hint="NumpyScalarHint", is_family=True),
    RichType(
        *("sparse", "ext.sparse", _SPARSE, "encode_sparse", "decode_sparse", "SparseHint"),
        is_family=True,
        takes_values=True,
    ),
    RichType(
        None, "ext.tensors", ("torch.Tensor",), "encode_tensor", hint="TensorHint", measure=Shape, has_payload=True
    ),
    _table("arrow", "pyarrow.lib.Table"),
    _table("polars", "polars.dataframe.frame.DataFrame"),
    _table("pandas", "pandas.DataFrame", "pandas.core.frame.DataFrame"),
    _plain("scalars", "encode_iterable", "collections.deque", *(f"builtins.{name}" for name in _LISTS)),
    _plain("scalars", "encode_mapping", "builtins.dict", "builtins.mappingproxy"),
    _plain("scalars", "encode_struct", "msgspec.Struct"),
    _plain("scalars", "encode_value", "enum.Enum"),
    _plain("scalars", "encode_text", "decimal.Decimal", "uuid.UUID"),
    _plain("scalars", "encode_date_or_time", "datetime.date", "datetime.datetime", "datetime.time"),
    _plain("scalars", "encode_timedelta", "datetime.timedelta"),
    _plain("scalars", "encode_int", "builtins.bool", "builtins.int"),
    _plain("scalars", "encode_str", "builtins.str"),
    _IMAGE_FILE,
)
#: Types that are found by an attribute of a class instead of by its name.
_BY_ATTRIBUTE = {
    "__pydantic_serializer__": RichType(
        None, "ext.pydantic_models", (), "encode_model", hint="ModelHint", is_family=True
    ),
    "__dataclass_fields__": _plain("scalars", "encode_fields"),
    "__attrs_attrs__": _plain("scalars", "encode_fields"),
}
_ARRAY_LIKE = RichType(None, "ndarray", (), "encode_array", has_payload=True)

_BY_CLASS: dict[str | type, RichType] = {cls: each for each in BUILT_IN for cls in each.classes}
_BY_TAG: dict[str | None, RichType] = {each.tag: each for each in BUILT_IN if each.tag}


class TypeTable:
    """The types that a codec knows, by class and by tag: the built-in ones, and those of the user's."""

    def __init__(self) -> None:
        self._by_class = dict(_BY_CLASS)
        self.by_tag = dict(_BY_TAG)
        #: Classes of values that were seen.
        self.encoders: dict[type, Callable[[Any, Any], object]] = {}
        #: Was a class registered that orjson or msgspec would write in another way?
        self.overrides = False

    def add(self, cls: type, added: RichType) -> None:
        """Add a type of the user's. ValueError if the class or the tag is taken."""
        found = self._named_by(cls)
        if cls in (object, type(None)) or (found is not None and not found.module.startswith("ext.")):
            raise ValueError(f"{type_name(cls)} is registered already, or built in")
        if added.tag in self.by_tag:
            raise ValueError(f"the tag {added.tag!r} is taken")
        self.overrides = self.overrides or self._nearest(cls) is not None
        self._by_class[cls] = self.by_tag[added.tag] = added
        self.encoders.clear()

    def encoder_of(self, cls: type) -> Callable[[Any, Any], object]:
        """The encoder for values of exactly this class, which is kept in `encoders`. EncodeError if there is none."""
        if len(self.encoders) >= _MAX_CLASSES:
            self.encoders.clear()
        self.encoders[cls] = encoder = self.of_value(cls).function("encode")
        return encoder

    def of_value(self, cls: type) -> RichType:
        """The type as which values of exactly this class are sent. EncodeError if there is none."""
        if found := self._nearest(cls):
            return found
        if hasattr(cls, "__array__"):
            return _ARRAY_LIKE
        if hasattr(cls, "read"):
            return _IMAGE_FILE
        raise EncodeError(f"a {type_name(cls)} has no form on the wire")

    def of_hint(self, cls: type) -> RichType | None:
        """The type that a hint of this class names; None if it is none that has a hint."""
        found = self._named_by(cls)
        return found if found is not None and found.hint else None

    def _named_by(self, cls: type) -> RichType | None:
        found = self._nearest(cls)
        if found is None or found.is_family or {cls, full_name(cls)} & {*found.classes}:
            return found
        return None

    def _nearest(self, cls: type) -> RichType | None:
        for base in cls.__mro__:
            if found := self._by_class.get(base) or self._by_class.get(full_name(base)):
                return found
            for attribute, found in _BY_ATTRIBUTE.items():
                if base.__dict__.get(attribute) is not None:
                    return found
        return None
