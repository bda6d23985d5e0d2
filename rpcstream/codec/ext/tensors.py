"""Tensors of torch as arrays: their tagged object is `ndarray`, which every receiver reads; a hint makes tensors of it.

bfloat16 and the 8-bit floats, which numpy lacks, are sent without the package ml_dtypes, and read with it. A tensor on
another device is copied to the CPU; one that requires a gradient goes without it. Tensors that come in are on the CPU,
contiguous, over memory of their own. Imports torch where a value or a hint of torch's has done so already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import EncodeError
from .. import dtypes
from ..codec import Encoding, Reading
from ..ndarray import ArrayHint, encode_array
from ..options import Shape


def encode_tensor(value: Any, encoding: Encoding) -> object:
    """The tagged object of the tensor as an array.

    Raises:
        EncodeError: it is sparse, nested or quantized, has no data (device "meta"), or a dtype that does not go.
    """
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        kind = "meta" if value.is_meta else "quantized" if value.is_quantized else value.layout
        raise EncodeError(
            f"a {kind} tensor has no form on the wire: convert it with to_dense() or dequantize(), or send its parts"
        )
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = _name(value.dtype)
    if name in dtypes.EXTENSIONS:
        bits = tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16)
        tagged: Any = encode_array(bits.numpy(), encoding)
        return {**tagged, "dtype": name}
    try:
        array = tensor.numpy()
    except TypeError:
        raise EncodeError(f"a tensor of dtype {name} has no form on the wire: convert it, with .to(dtype)") from None
    return encode_array(array, encoding)


class TensorHint:
    """The hint `torch.Tensor`, with or without a shape. Any array that torch has a dtype for is a tensor."""

    def __init__(self, _: type, shape: Shape | None = None) -> None:
        self._array = ArrayHint(np.ndarray, shape)
        self._shape = shape
        self.name = self._array.name = "torch.Tensor" if shape is None else f"torch.Tensor of shape {shape}"
        self.component = self._array.component
        self.schema = self._array.schema

    def decode(self, value: object, reading: Reading | None = None) -> object:
        return self._fitting(value) if _is_tensor(value) else tensor_of(self._array.decode(value, reading))

    def accept(self, value: object) -> object:
        return self._fitting(value) if _is_tensor(value) else self._array.accept(value)

    def _fitting(self, tensor: Any) -> Any:
        if self._shape is not None and not self._shape.matches(tuple(tensor.shape)):
            got = f"{_name(tensor.dtype)} tensor of shape {tuple(tensor.shape)}"
            raise ValueError(f"Expected `{self.name}`, got `{got}`")
        return tensor


def tensor_of(array: Any) -> Any:
    """The tensor over the memory of an array, copied where it cannot be written to; in native byte order.

    Raises:
        ValueError: torch has no such dtype.
    """
    import torch

    if not array.flags.writeable:  # torch writes to it all the same
        array = array.copy()
    if dtypes.is_extension(array.dtype):
        dtype = getattr(torch, array.dtype.name, None)
        if dtype is None:
            raise ValueError(f"dtype {array.dtype.name!r} needs a newer version of torch than the one installed here")
        # Not the unsigned 16-bit integers, which torch had not before 2.3.
        return torch.from_numpy(array.view(np.uint8 if array.itemsize == 1 else np.int16)).view(dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise ValueError(f"Expected `torch.Tensor`, got `{array.dtype.name} ndarray`") from None


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
