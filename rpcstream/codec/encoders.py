"""The table of encoders: which one takes a value, by the nearest class of its MRO, or by the methods that it has.

The table names classes instead of importing them, so a library such as numpy is loaded with its first value, which has
loaded it anyway. Knows nothing of what an encoder does.
"""

from __future__ import annotations

from importlib import import_module

from ..errors import EncodeError
from .encoding import Encoder
from .rich_hint import type_name

_ARRAY_LIKE = ("ndarray", "encode_array_like")
_ITERABLE = ("containers", "encode_iterable")
_MAPPING = ("containers", "encode_mapping")
_OPEN_FILE = ("image", "encode_image_file")
_TEXT = ("scalars", "encode_text")
_TIME = ("scalars", "encode_date_or_time")

#: (module, class) -> (module of this package, encoder)
_HOMES = {
    ("_io", "_BufferedIOBase"): _OPEN_FILE,
    ("_io", "_RawIOBase"): _OPEN_FILE,
    ("builtins", "bool"): ("scalars", "encode_int"),
    ("builtins", "bytearray"): ("binary", "encode_bytes"),
    ("builtins", "bytes"): ("binary", "encode_bytes"),
    ("builtins", "complex"): ("scalars", "encode_complex"),
    ("builtins", "dict"): _MAPPING,
    ("builtins", "dict_items"): _ITERABLE,
    ("builtins", "dict_keys"): _ITERABLE,
    ("builtins", "dict_values"): _ITERABLE,
    ("builtins", "float"): ("scalars", "encode_float"),
    ("builtins", "frozenset"): _ITERABLE,
    ("builtins", "int"): ("scalars", "encode_int"),
    ("builtins", "list"): _ITERABLE,
    ("builtins", "mappingproxy"): _MAPPING,
    ("builtins", "memoryview"): ("binary", "encode_memoryview"),
    ("builtins", "range"): _ITERABLE,
    ("builtins", "set"): _ITERABLE,
    ("builtins", "str"): ("scalars", "encode_str"),
    ("builtins", "tuple"): _ITERABLE,
    ("collections", "deque"): _ITERABLE,
    ("datetime", "date"): _TIME,
    ("datetime", "datetime"): _TIME,
    ("datetime", "time"): _TIME,
    ("datetime", "timedelta"): ("scalars", "encode_timedelta"),
    ("decimal", "Decimal"): _TEXT,
    ("enum", "Enum"): ("scalars", "encode_value"),
    ("msgspec", "Raw"): ("scalars", "encode_raw"),
    ("msgspec", "Struct"): ("containers", "encode_struct"),
    ("numpy", "generic"): ("numpy_scalars", "encode_scalar"),
    ("numpy", "ndarray"): ("ndarray", "encode_array"),
    ("pathlib", "Path"): _OPEN_FILE,
    ("pathlib._local", "Path"): _OPEN_FILE,  # Python 3.13
    ("PIL.Image", "Image"): ("image", "encode_image"),
    ("rpcstream.codec.image_formats", "ImageData"): ("image", "encode_image_data"),
    ("rpcstream.codec.options", "ImageFile"): _OPEN_FILE,
    ("tempfile", "SpooledTemporaryFile"): _OPEN_FILE,
    ("tempfile", "_TemporaryFileWrapper"): _OPEN_FILE,
    ("uuid", "UUID"): _TEXT,
}
#: The same for classes of packages that need not be installed. A type that the user registers comes first.
_TABLE = ("ext.tables", "encode_table")
_OPTIONAL_HOMES = {
    ("pandas", "DataFrame"): _TABLE,  # since version 3
    ("pandas", "Index"): _TABLE,
    ("pandas", "Series"): _TABLE,
    ("pandas.core.frame", "DataFrame"): _TABLE,
    ("pandas.core.indexes.base", "Index"): _TABLE,
    ("pandas.core.series", "Series"): _TABLE,
    ("polars.dataframe.frame", "DataFrame"): _TABLE,
    ("polars.series.series", "Series"): _TABLE,
    ("pyarrow.lib", "RecordBatch"): _TABLE,
    ("pyarrow.lib", "Table"): _TABLE,
    ("scipy.sparse._base", "_spbase"): ("ext.sparse", "encode_sparse"),
    ("torch", "Tensor"): ("ext.tensors", "encode_tensor"),
}
#: Packages whose classes have `__array__`, too, but would lose their labels by it.
_LABELLED = ("pandas", "polars", "xarray")


def is_built_in(cls: type) -> bool:
    """True if the table has this very class, or it is a scalar type of numpy."""
    if cls.__module__ == "numpy" and ("numpy", "generic") in map(_key, cls.__mro__):
        return True
    return cls is object or cls is type(None) or _key(cls) in _HOMES


def find_encoder(cls: type, registered: dict[type, Encoder]) -> Encoder:
    """The encoder for values of exactly this class.

    Raises:
        EncodeError: there is none.
    """
    for base in cls.__mro__:
        if (encoder := registered.get(base)) is not None:
            return encoder
        if (home := _HOMES.get(_key(base)) or _OPTIONAL_HOMES.get(_key(base))) is not None:
            return _load(home)
        if base.__dict__.get("__pydantic_serializer__") is not None:
            return _load(("ext.pydantic_models", "encode_model"))
        if base.__dict__.get("__dataclass_fields__") is not None:
            return _load(("containers", "encode_dataclass"))
        if base.__dict__.get("__attrs_attrs__") is not None:
            return _load(("containers", "encode_attrs"))
    if hasattr(cls, "__array__") or hasattr(cls, "__dlpack__"):
        if str(cls.__module__).partition(".")[0] not in _LABELLED:
            return _load(_ARRAY_LIKE)
        advice = "send its array, which has no labels, or register the type with the codec"
        raise EncodeError(f"a {type_name(cls)} has no form on the wire: {advice}")
    raise EncodeError(f"a {type_name(cls)} has no form on the wire")


def _key(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _load(home: tuple[str, str]) -> Encoder:
    module, name = home
    encoder: Encoder = getattr(import_module(f".{module}", __package__), name)
    return encoder
