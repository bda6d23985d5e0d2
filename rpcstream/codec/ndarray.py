"""Arrays as `{"$type": "ndarray", "dtype", "shape", "data"}`, both ways; NumPy scalars as numbers.

Objects with `__array__` are sent as arrays, too. Shape and dtype of what comes in are checked against the bytes before
memory is used as an array. Decoded arrays are C-ordered (a `.npy` file sets the order of its own) and writable, over
memory of their own; or read-only, over memory that a peer on this machine shares, unless the hint wants a writable one.
"""

from __future__ import annotations

import cmath
import io
import math
import typing
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from ..errors import EncodeError
from ..wire.binary_frame import ATTACHED_MIN
from . import dtypes
from .attachments import Attachment
from .binary import readable_bytes, writable_bytes
from .codec import Encoding
from .options import Shape
from .rich_hint import TAG_KEY, base64_of, members, mismatch, shortened, tagged_schema, type_name
from .scalars import COMPLEX_SCHEMA, encode_complex, encode_float

Array = np.ndarray[Any, Any]

TAG = "ndarray"
#: How an array is written, for those who sent something else.
ARRAY_FORM = 'an array is an object {"$type": "ndarray", "dtype": "<f4", "shape": [2, 3], "data": "<base64>"}'
#: Kinds of dtypes whose items may be any bits.
_NUMBERS = "iufc"
#: numpy 1 had 32, numpy 2 has 64.
MAX_DIMENSIONS = 32


def encode_array(value: Any, encoding: Encoding) -> object:
    """The tagged object of an array, or of an object with `__array__`.

    Raises:
        EncodeError: its dtype does not go, or it is a masked array, whose mask would be lost.
    """
    if type(value) is not np.ndarray:
        value = to_array(value)
        if isinstance(value, np.ma.MaskedArray):
            raise EncodeError("a masked array has no form on the wire: fill it, or send data and mask")
    dtype = dtypes.to_wire(value.dtype)
    # Not np.ascontiguousarray alone: it makes one dimension of none. np.asarray takes off np.matrix.
    array = np.asarray(value, order="C")
    # Not the array itself: bfloat16 and dates export no buffer. A copy of a small one takes less time than a view.
    data = array.tobytes() if array.nbytes < ATTACHED_MIN else array.reshape(-1).view(np.uint8)
    return {TAG_KEY: TAG, "dtype": dtype, "shape": array.shape, "data": encoding.payload(data)}


def to_array(value: Any) -> Array:
    """Make an array of an object with `__array__`, which may be on another device. Raises EncodeError if that fails."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "detach"):  # of torch
            value = value.detach().cpu().resolve_conj().resolve_neg()
        elif hasattr(value, "__dlpack__") and hasattr(value, "get"):  # of CuPy
            value = value.get()
        elif not hasattr(value, "__array__"):
            raise TypeError("it has no __array__")
        return np.asarray(value)
    except Exception as error:
        raise EncodeError(f"{type_name(type(value))} could not be made an array: {error}") from error


def decode_array(tagged: dict[str, Any], _: object = None) -> Array:
    """The array of a tagged object. ValueError if it is not what the wire page says."""
    dtype_text, shape, data = members(tagged, "dtype", "shape", "data")
    dtype = dtypes.from_wire(dtype_text)
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"shape must be an array of at most {MAX_DIMENSIONS} integers")
    if shape and (set(map(type, shape)) != {int} or min(shape) < 0 or max(shape) >= 2**62):
        raise ValueError("shape must be an array of integers that are not negative, each below 2**62")
    # The items of other dtypes are checked, here or by numpy: they must not change afterwards.
    is_lent = type(data) is Attachment and dtype.kind in _NUMBERS
    memory, size = data.lend() if is_lent else writable_bytes(data), math.prod(shape) * dtype.itemsize
    if len(memory) != size:
        raise ValueError(f"ndarray: {len(memory)} bytes of data, shape and dtype need {size}")
    return array_over(memory, dtype, shape)


def array_over(data: Any, dtype: np.dtype[Any], shape: list[int]) -> Array:
    """The array whose memory is `data`; the sizes must agree.

    Args:
        data: a bytearray, or an array of bytes.

    Raises ValueError for a bool array with bytes other than 0 and 1, with which numpy computes wrong results.
    """
    if not len(data):
        return np.empty(shape, dtype)
    if dtype.kind == "b" and (np.frombuffer(data, np.uint8) > 1).any():
        raise ValueError("the data of a bool array has bytes other than 0 and 1")
    # A view of an array has that as its base, whatever is done with it: so it is known who holds the memory.
    flat = data.view(dtype) if isinstance(data, np.ndarray) else np.frombuffer(data, dtype)
    return flat if len(shape) == 1 else flat.reshape(shape)


def array_from_npy(data: Any) -> Array:
    """The array of a `.npy` file, in the order that the file has. ValueError if it is none of a permitted dtype."""
    try:
        array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        dtypes.to_wire(array.dtype)
    except Exception as error:  # of many kinds, for a broken header
        reason = shortened(str(error), 200)
        raise ValueError(
            f"a string must be a base64-encoded .npy file, and this is not: {reason}; {ARRAY_FORM}"
        ) from None
    return array


def npy_file(array: Array) -> bytes:
    """The `.npy` file of an array. ValueError for a dtype of an extension, which such a file cannot name."""
    if dtypes.is_extension(array.dtype):
        raise ValueError(f"a .npy file cannot contain an array of {array.dtype.name}")
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def array_from_lists(lists: list[Any]) -> Array:
    """The array of numbers in nested lists: of bool, int64, uint64 or float64.

    How many there may be is limited where the message is parsed (`Limits.max_values`).

    Raises:
        ValueError: the lists hold something else, or those at one depth differ in length.
    """
    shape, items = [len(lists)], lists
    while (kinds := set(map(type, items))) == {list}:
        lengths = set(map(len, items))
        shape.append(lengths.pop())
        if lengths or len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"nested lists must have equal lengths at each depth, up to {MAX_DIMENSIONS} levels")
        items = list(chain.from_iterable(items))
    wanted = ("?",) if kinds == {bool} else ("f8",) if float in kinds or not kinds else ("i8", "u8")
    for dtype in wanted if kinds <= {bool, int, float} else ():
        with suppress(OverflowError):
            return np.array(items, dtype).reshape(shape)
    raise ValueError("nested lists must contain only numbers of up to 64 bits")


class ArrayHint:
    """A hint for an array, such as `np.ndarray`, `NDArray[np.float32]`, `np.ndarray[tuple[int, int], ...]`.

    Where element types are asked for, the array comes in native byte order.

    Raises:
        TypeError: the hint asks for what never goes over the wire.
    """

    tags = frozenset({TAG})

    def __init__(self, hint: Any, shape: Shape | None = None) -> None:
        arguments = typing.get_args(hint)
        self._kinds = dtypes.scalar_types(arguments[1]) if len(arguments) > 1 else (np.generic,)
        self._shape = shape or (_shape_in(arguments[0]) if arguments else None)
        self._is_any = np.generic in self._kinds
        self.name = TAG if self._is_any else f"{TAG} of {' or '.join(map(dtypes.name_of, self._kinds))}"
        if self._shape is not None:
            self.name += f" of shape {self._shape}"

    def decode(self, value: object, _: object = None) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:
            return self._fitting(decode_array(value))
        if isinstance(value, list):
            return self._fitting(self._cast(array_from_lists(value)))
        if isinstance(value, np.ndarray):
            return self._fitting(value)
        if isinstance(value, str | Attachment):
            return self._fitting(array_from_npy(readable_bytes(value)))
        raise mismatch(self.name, value, ARRAY_FORM)

    def accept(self, value: object) -> object:
        if not hasattr(type(value), "__array__"):
            raise mismatch(self.name, value)
        try:
            array = to_array(value)
            dtypes.to_wire(array.dtype)
        except EncodeError as error:
            raise ValueError(f"Expected `{self.name}`: {error}") from error
        return self._fitting(array)

    def schema(self) -> dict[str, Any]:
        texts = None if self._is_any else dtypes.texts_of(self._kinds)
        dims = self._shape.dims if self._shape is not None else None
        size = {"type": "integer", "minimum": 0}
        shape: dict[str, Any] = {"type": "array", "items": size}
        if dims is not None and Ellipsis not in dims:
            items = [size if dim is None else {"const": dim} for dim in dims]
            shape = {"type": "array", "prefixItems": items, "minItems": len(dims), "maxItems": len(dims)}
        is_exact = texts and dtypes.ABSTRACT.isdisjoint(self._kinds)
        dtype = {"enum": texts} if is_exact else {"type": "string"}
        data = base64_of("application/octet-stream")
        return {
            # For programs that make or show such arrays: the dtypes, little-endian, and the shape; None for any.
            "x-ndarray": {
                "dtype": texts,
                "shape": None if dims is None else ["..." if dim is Ellipsis else dim for dim in dims],
            },
            "anyOf": [
                tagged_schema(TAG, {"dtype": dtype, "shape": shape, "data": data}),
                base64_of("application/x-npy", "the bytes of a .npy file"),
            ],
        }

    @property
    def component(self) -> str:
        """`NdArray_f4_Nx3`: the dtypes, and the dimensions, N for any length."""
        parts = ["NdArray", *(() if self._is_any else map(dtypes.code_of, self._kinds))]
        if self._shape is not None:
            dims = ["N" if dim is None else "Etc" if dim is Ellipsis else str(dim) for dim in self._shape.dims]
            parts.append("x".join(dims) or "0d")
        return "_".join(parts)

    def _cast(self, array: Array) -> Array:
        """Numbers from lists in a wanted dtype that keeps them; floats may be rounded."""
        for kind in (array.dtype.type, *self._kinds, np.float64):
            if kind in dtypes.ABSTRACT or not issubclass(kind, np.number | np.bool_):
                continue
            with np.errstate(all="ignore"):
                cast = array.astype(kind)
            if dtypes.fits(cast.dtype, self._kinds) and (cast.dtype.kind in "fc" or np.array_equal(cast, array)):
                return cast
        return array

    def _fitting(self, array: Array) -> Array:
        """The array, in native byte order where a dtype is wanted, if dtype and shape are the wanted ones."""
        dtype, shape = array.dtype, array.shape
        if not dtypes.fits(dtype, self._kinds) or not (self._shape is None or self._shape.matches(shape)):
            raise ValueError(f"Expected `{self.name}`, got `{TAG} of {dtype.name} of shape {shape}`")
        if self._shape is not None and self._shape.writable and not array.flags.writeable:
            array = array.copy()
        return array if self._is_any or dtype.isnative else array.astype(dtype.newbyteorder("="))


def _shape_in(hint: Any) -> Shape | None:
    """The shape in the first argument of `np.ndarray[...]`: `tuple[int, int]` is any array of two dimensions."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is not tuple or Ellipsis in arguments:
        return None
    if set(arguments) - {int, Any}:
        raise TypeError(f"{hint} has no shape: add a Shape, as in Annotated[NDArray[np.float32], Shape(None, 3)]")
    return Shape(*[None] * len(arguments))


#: The plain numbers that may stand for a scalar, by the kind of its dtype.
_SCALARS: dict[str, tuple[type, ...]] = {
    **{"b": (bool,), "i": (int,), "u": (int,), "f": (int, float), "V": (int, float), "c": (int, float, complex)},
    "?": (bool, int, float, complex),
}


def encode_scalar(value: np.generic, encoding: Encoding) -> object:
    """A JSON value, or a tagged object. EncodeError for a longdouble, and for void and the like."""
    if value.dtype.kind in "mM":
        return encode_array(np.asarray(value), encoding)
    plain = value.item()
    if isinstance(plain, bool | int):
        return plain
    if isinstance(plain, float):
        return encode_float(plain)
    if isinstance(plain, complex):
        return encode_complex(plain, encoding)
    raise EncodeError(f"{type_name(type(value))} has no form on the wire")


class NumpyScalarHint:
    """A hint for one of numpy's scalar types, or an abstract one such as `np.floating`, which takes any of its kind.

    Raises:
        TypeError: the hint asks for what never goes over the wire.
    """

    def __init__(self, hint: Any) -> None:
        self._kind = dtypes.scalar_type(hint)
        self._dtype: Any = None if self._kind in dtypes.ABSTRACT else np.dtype(self._kind)
        #: The kind of the dtype; "?" for an abstract type.
        self._code = "?" if self._dtype is None else self._dtype.kind
        self.name = dtypes.name_of(self._kind)
        self.component = None if self._code in "biu" else f"np_{self.name}"

    def decode(self, value: object, _: object = None) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:  # a date, where arrays are wanted as well
            value = decode_array(value)
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value.astype(value.dtype.newbyteorder("="))[()]
        scalar: Any = value if isinstance(value, np.generic) else self._of_number(value)
        if not isinstance(scalar, np.generic) or not dtypes.fits(scalar.dtype, (self._kind,)):
            raise mismatch(self.name, value)
        return scalar

    accept = decode

    def _of_number(self, value: Any) -> Any:
        """A plain number as the wanted scalar, or as numpy's own for an abstract type; None if it does not fit."""
        if type(value) not in _SCALARS.get(self._code, ()):
            return None
        with np.errstate(all="ignore"), suppress(OverflowError):
            array = np.asarray(value)
            scalar: Any = (array if self._dtype is None else array.astype(self._dtype))[()]
            # Floats are rounded, but do not become infinite.
            if scalar == value if self._code in "iu" else cmath.isfinite(scalar) == cmath.isfinite(value):
                return scalar
        return None

    def schema(self) -> dict[str, Any]:
        if self._code in "iu":
            limits = np.iinfo(self._dtype)
            return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
        if self._code == "b":
            return {"type": "boolean"}
        plain = [] if self._code in "mM" else [{"type": "number"}]
        others = [COMPLEX_SCHEMA] if self._code in "?c" else []
        return {"anyOf": [*plain, *others, *ArrayHint(np.ndarray).schema()["anyOf"][:1]]}
