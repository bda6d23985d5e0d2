"""Tensors of torch: what is sent, exactly, and what a hint makes of arrays. The extra `test` does not install torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest

from rpcstream import EncodeError, Shape

from .values import codec, sent

torch = pytest.importorskip("torch")
#: What numpy has by itself.
NUMPY = [
    *("bool", "float16", "float32", "float64", "complex64", "complex128"),
    *(f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)),
]
DTYPES = [
    *NUMPY,
    "bfloat16",
    *(f"float8_{name}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")),
]


def received(value: Any) -> Any:
    return codec.rich_hint(torch.Tensor).decode(sent(value))


def bits(tensor: Any) -> tuple[Any, Any, bytes]:
    return tensor.dtype, tensor.shape, bytes(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (40_000,)])
def test_they_come_back_as_they_are(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    numbers = (torch.arange(np.prod(shape, dtype=int)) % 2).reshape(shape)
    value = numbers.to(torch.float32).to(dtype) if "float" in name else numbers.to(dtype)
    found = received(value)
    assert bits(found) == bits(value)
    assert found.device.type == "cpu"


@pytest.mark.parametrize(
    "value",
    [
        *(torch.arange(12).reshape(3, 4).T, torch.arange(12)[::3], torch.ones(1, 3).expand(4, 3)),
        *(torch.arange(4.0, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.tensor([1 + 2j]).conj()),
        *(torch.tensor([1 + 2j]).conj().imag, torch.ones(2, 3, dtype=torch.bfloat16).T),
        torch.ones((), dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_any_layout_goes(value: Any) -> None:
    found = received({"a": value}["a"])
    assert (type(found), found.requires_grad, found.is_contiguous()) == (torch.Tensor, False, True)
    assert torch.equal(found, value.detach())
    found += 1  # it has memory of its own


@pytest.mark.parametrize("name", NUMPY)
def test_without_a_hint_they_are_arrays(name: str) -> None:
    found: Any = codec.decode(sent([torch.ones(2, dtype=getattr(torch, name))]))[0]
    assert (type(found), found.dtype.name, found.tolist()) == (np.ndarray, name, [1, 1])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.ones(2, 2).to_sparse(), "layout torch.sparse_coo has no form on the wire: send to_dense"),
        (lambda: torch.ones(2, 2).to_sparse_csr(), "layout torch.sparse_csr"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            "quantized tensor has no form.* dequantize",
        ),
        (lambda: torch.ones(2, device="meta"), "'meta' has no form on the wire: it has no data"),
        (lambda: torch.ones(2, dtype=torch.complex32), "dtype complex32 has no form on the wire: convert it"),
    ],
    ids=["coo", "csr", "quantized", "meta", "complex32"],
)
@pytest.mark.filterwarnings("ignore")  # of torch's, about what is new or old in it
def test_what_is_not_sent(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        codec.dumps([make()])


def test_arrays_of_other_senders_are_tensors() -> None:
    hint = codec.rich_hint(torch.Tensor)
    for array in (np.ones((2, 3), "f4"), np.ones((2, 3), ">f4"), np.array(1.5), np.ones(0, "i8")):
        found = hint.decode(sent(array))
        assert (found.dtype, found.tolist()) == (hint.decode(array).dtype, array.tolist())
    for wrong, reason in (
        (sent(np.array(["2020-01-01"], "M8[s]")), r"got `datetime64\[s\] ndarray`"),
        ([1, 2], "Expected `torch.Tensor`, got `array`"),
        ({"$type": "image"}, "got `object tagged 'image'`"),
        (None, "got `null`"),
        (sent(np.ones(3)) | {"shape": [4]}, "24 bytes of data, shape and dtype need 32"),
        (sent(torch.ones(3, dtype=torch.bfloat16)) | {"shape": [4]}, "6 bytes of data, shape and dtype need 8"),
        (sent(np.ones(3)) | {"dtype": ["bfloat16"]}, "dtype must be a string"),
    ):
        with pytest.raises(ValueError, match=reason):
            hint.decode(wrong)


def test_shapes_are_checked() -> None:
    hint = codec.rich_hint(Annotated[torch.Tensor, Shape(None, 3)])
    for dtype in (torch.float32, torch.bfloat16):
        assert hint.decode(sent(torch.ones(2, 3, dtype=dtype))).shape == (2, 3)
        with pytest.raises(ValueError, match=r"of shape \(\*, 3\)"):
            hint.decode(sent(torch.ones(3, 2, dtype=dtype)))
        with pytest.raises(ValueError, match=r"of shape \(\*, 3\)"):
            hint.accept(torch.ones(3, 2, dtype=dtype))
    assert hint.schema() == codec.rich_hint(Annotated[np.ndarray, Shape(None, 3)]).schema()
    assert hint.accept(np.ones((1, 3))).shape == (1, 3)


def test_bfloat16_needs_no_ml_dtypes() -> None:
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import torch, orjson; from rpcstream.codec import Codec\n"
        "codec = Codec(); sent = orjson.loads(codec.dumps(torch.ones(2, dtype=torch.bfloat16)))\n"
        "print(sent['dtype'], codec.rich_hint(torch.Tensor).decode(sent).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stdout == "bfloat16 [1.0, 1.0]\n", done.stderr
