"""Tensors of torch: what is sent, exactly, and what a hint makes of arrays. The extra `test` does not install torch."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import numpy as np
import pytest

from rpcstream import Shape
from rpcstream.errors import EncodeError

from .values import codec, returned, sent, taken

torch = pytest.importorskip("torch")
#: What numpy has by itself.
NUMPY = ["bool", "float16", "float32", "float64", "complex64", "int8", "uint16", "int64", "uint64"]
DTYPES = [*NUMPY, "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]


def received(value: Any) -> Any:
    return taken(torch.Tensor, sent(value))


def bits(tensor: Any) -> tuple[Any, Any, bytes]:
    return tensor.dtype, tensor.shape, bytes(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", DTYPES)
def test_they_come_back_as_they_are(name: str) -> None:
    for shape in ((2, 3), (), (0, 4), (40_000,)):
        numbers = (torch.arange(np.prod(shape, dtype=int)) % 2).reshape(shape)
        value = (numbers.to(torch.float32) if "float" in name else numbers).to(getattr(torch, name))
        found = received(value)
        assert bits(found) == bits(value)
        assert found.device.type == "cpu"
        if name in NUMPY:
            assert codec.decode(sent([value]))[0].dtype.name == name  # type: ignore[index]


def test_any_layout_goes() -> None:
    for value in (
        *(torch.arange(12).reshape(3, 4).T, torch.arange(12)[::3], torch.ones(1, 3).expand(4, 3)),
        *(torch.arange(4.0, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.tensor([1 + 2j]).conj()),
        *(torch.tensor([1 + 2j]).conj().imag, torch.ones(2, 3, dtype=torch.bfloat16).T),
        torch.ones((), dtype=torch.bfloat16),
    ):
        found = received(value)
        assert (type(found), found.requires_grad, found.is_contiguous()) == (torch.Tensor, False, True)
        assert torch.equal(found, value.detach())
        found += 1  # it has memory of its own


@pytest.mark.filterwarnings("ignore")  # of torch's, about what is new or old in it
def test_what_is_not_sent() -> None:
    for value, reason in (
        (torch.ones(2, 2).to_sparse(), "torch.sparse_coo tensor has no form on the wire: convert it with to_dense"),
        (torch.ones(2, 2).to_sparse_csr(), "torch.sparse_csr tensor"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized tensor has no form.* dequantize"),
        (torch.ones(2, device="meta"), "meta tensor has no form on the wire"),
        (torch.ones(2, dtype=torch.complex32), "dtype complex32 has no form on the wire: convert it"),
    ):
        with pytest.raises(EncodeError, match=reason):
            codec.dumps([value])


def test_arrays_of_other_senders_are_tensors() -> None:
    for array in (np.ones((2, 3), "f4"), np.ones((2, 3), ">f4"), np.array(1.5), np.ones(0, "i8")):
        assert taken(torch.Tensor, sent(array)).tolist() == taken(torch.Tensor, array).tolist() == array.tolist()
    assert taken(torch.Tensor, [[1, 2]]).tolist() == [[1, 2]]
    for wrong, reason in (
        (sent(np.array(["2020-01-01"], "M8[s]")), "datetime64"),
        (["a"], "nested lists must contain only numbers"),
        (sent(np.ones(3)) | {"shape": [4]}, "24 bytes of data, shape and dtype need 32"),
        (sent(torch.ones(3, dtype=torch.bfloat16)) | {"shape": [4]}, "6 bytes of data, shape and dtype need 8"),
        (sent(np.ones(3)) | {"dtype": ["bfloat16"]}, "dtype must be a string"),
    ):
        with pytest.raises(ValueError, match=reason):
            taken(torch.Tensor, wrong)


def test_shapes_are_checked() -> None:
    hint: Any = Annotated[torch.Tensor, Shape(None, 3)]  # type: ignore[name-defined]
    for dtype in (torch.float32, torch.bfloat16):
        assert taken(hint, sent(torch.ones(2, 3, dtype=dtype))).shape == (2, 3)
        for attempt, value in ((taken, sent(torch.ones(3, 2, dtype=dtype))), (returned, torch.ones(3, 2, dtype=dtype))):
            with pytest.raises(ValueError, match=r"of shape \(\*, 3\)"):
                attempt(hint, value)
    assert returned(hint, np.ones((1, 3))).shape == (1, 3)


def test_bfloat16_is_sent_without_ml_dtypes_and_read_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = sent(torch.ones(2, dtype=torch.bfloat16))
    assert (wire["dtype"], taken(torch.Tensor, wire).tolist()) == ("bfloat16", [1.0, 1.0])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert sent(torch.ones(2, dtype=torch.bfloat16)) == wire
    with pytest.raises(ValueError, match=r"pip install 'rpcstream\[torch\]'"):
        taken(torch.Tensor, wire)
