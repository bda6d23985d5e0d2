"""Arrays as `{"$type": "ndarray", "dtype", "shape", "data"}`, both ways, and as what a hint asks for.

Owns the tagged object, and what counts as an array on the way out: numpy's, and objects with `__array__` or
`__dlpack__`. Which dtypes go is `dtypes`'s, how untrusted sizes are checked, and `.npy` files, `array_bytes`'s.

Arrays that come in are C-ordered (those of a `.npy` file as the file says), writable, over memory of their own.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..errors import EncodeError
from ..wire.binary_frame import ATTACHED_MIN
from . import base64, dtypes
from .array_bytes import array_from_npy, array_over, byte_size
from .encoding import INLINE, Encoding
from .options import Shape
from .payloads import Attachment
from .rich_hint import TAG_KEY, base64_of, members, mismatch, tagged_schema, type_name

Array = np.ndarray[Any, Any]

TAG = "ndarray"


def encode_array(value: Array, encoding: Encoding) -> object:
    """The tagged object. EncodeError for a dtype that does not go, and for a masked array: its mask would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        raise EncodeError("a masked array has no form on the wire: fill it, or send data and mask")
    dtype = dtypes.to_wire(value.dtype)
    # Not np.ascontiguousarray alone: it makes one dimension of none. np.asarray takes off np.matrix.
    array = np.asarray(value, order="C")
    return {TAG_KEY: TAG, "dtype": dtype, "shape": array.shape, "data": encoding.payload(_memory(array, encoding))}


def encode_array_like(value: Any, encoding: Encoding) -> object:
    """The same for an object with `__array__` or `__dlpack__`."""
    return encode_array(to_array(value), encoding)


def _memory(array: Array, encoding: Encoding) -> Any:
    """The bytes of a C-ordered array; those of a large one, and of one that is attached, are not copied."""
    if array.nbytes < (ATTACHED_MIN if encoding.binary else INLINE + 1):
        return array.tobytes()
    # Not the array itself: bfloat16 and dates export no buffer.
    return array.reshape(-1).view(np.uint8)


def to_array(value: Any) -> Array:
    """Make an array of an object with `__array__` or `__dlpack__`. Raises EncodeError if numpy cannot."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if type(value).__module__.partition(".")[0] == "torch":
            value = value.detach().cpu().resolve_conj().resolve_neg()
        if hasattr(type(value), "__array__"):
            try:
                return np.asarray(value)
            except TypeError:  # CuPy: "implicit conversion to a NumPy array is not allowed"
                if not hasattr(type(value), "__dlpack__"):
                    raise
        return _from_dlpack(value)
    except Exception as error:
        raise EncodeError(f"{type_name(type(value))} could not be made an array: {error}") from error


def _from_dlpack(value: Any) -> Array:
    try:
        return np.from_dlpack(value, device="cpu")
    except TypeError:  # numpy before 2.1, or an object that knows no `dl_device`
        return np.from_dlpack(value)


def decode_array(tagged: dict[str, Any], _: object = None) -> Array:
    """The array of a tagged object. ValueError if it is not what the wire page says."""
    dtype_text, shape, data = members(tagged, "dtype", "shape", "data")
    dtype = dtypes.from_wire(dtype_text)
    size = byte_size(shape, dtype)
    # Before decoding, so that no memory is taken for what is refused anyway.
    _check_size(size, data)
    return array_over(base64.decode_writable(data), dtype, shape)


def _check_size(size: int, data: object) -> None:
    if base64.decoded_size(data) != size:
        raise ValueError(f"ndarray: {base64.decoded_size(data)} bytes of data, shape and dtype need {size}")


class ArrayHint:
    """A hint for an array, such as `np.ndarray`, `NDArray[np.float32]`, `np.ndarray[tuple[int, int], ...]`.

    Where element types are asked for, the array comes in native byte order.

    Raises:
        TypeError: the hint asks for what never goes over the wire.
    """

    def __init__(self, hint: Any, shape: Shape | None = None) -> None:
        arguments = typing.get_args(hint)
        self._shapes = [each for each in (_shape_in(arguments[0]) if arguments else None, shape) if each is not None]
        self._wanted = dtypes.wanted_in(arguments[1]) if len(arguments) > 1 else None
        self.name = TAG if self._wanted is None else f"{' | '.join(each.name for each in self._wanted)} {TAG}"
        if self._shapes:
            self.name += f" of shape {self._shapes[-1]}"

    def decode(self, value: object) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:
            return self._fitting(decode_array(value))
        if isinstance(value, str | Attachment):
            return self._fitting(array_from_npy(base64.decode_writable(value)))
        if isinstance(value, np.ndarray):
            return self._fitting(value)
        raise mismatch(self.name, value)

    def check_announced(self, value: object) -> None:
        """Check an array of whose payload only the size is known. ValueError as of `decode`; other values pass."""
        if not isinstance(value, dict) or value.get(TAG_KEY) != TAG:
            return
        dtype_text, shape, data = members(value, "dtype", "shape", "data")
        dtype = dtypes.from_wire(dtype_text)
        _check_size(byte_size(shape, dtype), data)
        self._check_form(dtype, tuple(shape))

    def accept(self, value: object) -> object:
        if isinstance(value, list | tuple):
            return self._fitting(self._from_numbers(value))
        if not hasattr(type(value), "__array__") and not hasattr(type(value), "__dlpack__"):
            raise mismatch(self.name, value)
        try:
            array = to_array(value)
            dtypes.to_wire(array.dtype)
        except EncodeError as error:
            raise ValueError(f"Expected `{self.name}`: {error}") from error
        return self._fitting(array)

    def schema(self) -> dict[str, Any]:
        exact = [each.dtype for each in self._wanted or () if each.dtype is not None]
        orders = [form for dtype in exact for form in (dtype, dtype.newbyteorder())]
        sendable = [dtype for dtype in orders if dtype.isnative or not dtypes.is_extension(dtype)]
        texts = list(dict.fromkeys(map(dtypes.to_wire, sendable)))
        texts += [dtype.name for dtype in exact if dtype.name in dtypes.NAMES]
        size = {"type": "integer", "minimum": 0}
        shape: dict[str, Any] = {"type": "array", "items": size}
        if self._shapes and Ellipsis not in (dims := self._shapes[-1].dims):
            shape = {
                "type": "array",
                "prefixItems": [size if dim is None else {"const": dim} for dim in dims],
                "minItems": len(dims),
                "maxItems": len(dims),
            }
        dtype = {"enum": texts} if self._wanted and len(exact) == len(self._wanted) else {"type": "string"}
        data = base64_of("application/octet-stream")
        tagged = tagged_schema(TAG, {"dtype": dtype, "shape": shape, "data": data})
        return {
            "x-ndarray": self._described(),
            "anyOf": [tagged, base64_of("application/x-npy", "the bytes of a .npy file")],
        }

    def _described(self) -> dict[str, Any]:
        """For programs that make or show such arrays: the dtypes, little-endian, and the shape; None for any."""
        wanted, shape = self._wanted, self._shapes[-1].dims if self._shapes else None
        return {
            "dtype": None if wanted is None else dtypes.texts_of(wanted),
            "shape": None if shape is None else ["..." if dim is Ellipsis else dim for dim in shape],
        }

    @property
    def component(self) -> str:
        """`NdArray_f4_Nx3`: the dtypes, and the dimensions, N for any length."""
        parts = ["NdArray"]
        for each in self._wanted or ():
            has_code = each.dtype is not None and not dtypes.is_extension(each.dtype)
            parts.append(dtypes.to_wire(each.dtype)[1:] if has_code and each.dtype is not None else each.name)
        if self._shapes:
            dims = ["N" if dim is None else "Etc" if dim is Ellipsis else str(dim) for dim in self._shapes[-1].dims]
            parts.append("x".join(dims) or "0d")
        return "_".join(parts)

    def _fitting(self, array: Array) -> Array:
        """The array, in native byte order, if dtype and shape are the wanted ones."""
        self._check_form(array.dtype, array.shape)
        if self._wanted is not None and not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return array

    def _check_form(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if self._wanted is not None:
            for each in self._wanted:
                if each.dtype is dtype or each.matches(dtype):
                    break
            else:
                raise self._refusal(dtype, shape)
        for wanted in self._shapes:
            if not wanted.matches(shape):
                raise self._refusal(dtype, shape)

    def _refusal(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ValueError:
        return ValueError(f"Expected `{self.name}`, got `{dtype.name} ndarray of shape {shape}`")

    def _from_numbers(self, values: Sequence[Any]) -> Array:
        """Lists of numbers in the wanted element type, where that keeps them (floats are rounded to it)."""
        try:
            array = np.asarray(values)
        except Exception as error:
            raise ValueError(f"Expected `{self.name}`: {error}") from error
        if array.dtype.kind not in "biufc":
            raise mismatch(self.name, list(values))
        if self._wanted is None or any(each.matches(array.dtype) for each in self._wanted):
            return array
        for each in self._wanted:
            dtype = each.dtype or (np.dtype(float) if each.matches(np.dtype(float)) else None)
            if dtype is not None and (converted := _converted(array, dtype)) is not None:
                return converted
        raise self._refusal(array.dtype, array.shape)


def _converted(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """The numbers of a list in another dtype; None where that would change more than the last digits."""
    if array.size == 0:
        return array.astype(dtype)
    to = "f" if dtypes.is_extension(dtype) else dtype.kind
    if to not in {"b": "b", "i": "iufc", "u": "iufc", "f": "fc", "c": "c"}[array.dtype.kind]:
        return None
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        if to in "iu":
            kept = np.array_equal(array, converted) and bool(((array < 0) == (converted < 0)).all())
        else:
            kept = np.array_equal(np.isfinite(array), np.isfinite(converted.astype(np.complex128)))
    return converted if kept else None


def _shape_in(hint: Any) -> Shape | None:
    """The shape in the first argument of `np.ndarray[...]`: `tuple[int, int]` is any array of two dimensions."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is not tuple or Ellipsis in arguments:
        return None
    dims = []
    for argument in arguments:
        sizes = typing.get_args(argument) if typing.get_origin(argument) is Literal else (None,)
        dims.append(sizes[0] if len(sizes) == 1 else None)
    return Shape(*dims)
