"""The GPU worker, its caller and its watcher at a real hub; its computation with each library."""

from __future__ import annotations

import signal
import sys
import types
from contextlib import closing

import numpy as np
import PIL.Image
import pytest

from rpcstream import Client, InvalidParams, MethodNotFound

pytestmark = pytest.mark.slow

WORKER, CALLER, WATCH = (f"examples/gpu_{name}.py" for name in ("worker", "caller", "watch"))


@pytest.fixture
def hub(served):
    address, _ = served("--hub")
    return address


@pytest.fixture(scope="module")
def worker(load_example):
    return load_example("gpu_worker.py")


# -- as programs -------------------------------------------------------------------------------------------------------


class TestPrograms:
    def test_they_print_what_they_promise(self, hub, started, python, promised, worker):
        said, _ = started(WORKER, hub, "gpu-1")
        expected = promised("gpu_worker.py").replace("127.0.0.1:8545", hub).replace("numpy", worker.library.name)
        assert said == expected
        assert python("-W", "error", CALLER, hub) == promised("gpu_caller.py")
        line = python("-W", "error", WATCH, hub, "1").split()
        assert line[:1] + line[2:3] + line[4:] == ["gpu-1", "running", "done", *worker.library.name.split()]
        assert promised("gpu_watch.py").split()[::2] == ["gpu-1", "running", "done"]

    def test_several_workers_share_the_calls(self, hub, started, python):
        for name in ("gpu-1", "gpu-2"):
            started(WORKER, hub, name)
        assert python(CALLER, hub).startswith("multiply is offered by: gpu-1 gpu-2\n")
        watched = python(WATCH, hub, "2").splitlines()
        assert sorted(line.split()[0] for line in watched) == ["gpu-1", "gpu-2"]
        with Client(hub) as client:
            one = np.eye(2, dtype=np.float32)
            for name in ("gpu-1", "gpu-2"):
                assert np.array_equal(client.call(f"{name}.multiply", one, one), one)
            with pytest.raises(InvalidParams, match="left has 3 columns, right has 2 rows"):
                client.multiply(np.ones((2, 3), np.float32), one)

    def test_a_worker_that_is_stopped_has_left(self, hub, started):
        _, process = started(WORKER, hub, "gpu-1")
        with Client(hub) as client, closing(client.subscribe("workers.*.load").with_topics()) as loads:
            assert next(loads)[0] == "workers.gpu-1.load"
            process.send_signal(signal.SIGINT)
            while (event := next(loads))[1] is not None:
                pass
            assert event == ("workers.gpu-1.load", None)
            assert process.wait(20) == 0
            with pytest.raises(MethodNotFound):
                client.multiply(1, 1)


# -- what is computed --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["numpy", "CuPy", "PyTorch on cuda", "PyTorch on cpu", "CuPy without a GPU"])
def computing(request, load_example, monkeypatch):
    """The worker with each library; those with a GPU are played by numpy, under the names that they have for it."""
    for name in ("cupy", "torch"):
        monkeypatch.setitem(sys.modules, name, None)  # not installed
    if request.param.startswith("CuPy"):
        cuda = types.SimpleNamespace(is_available=lambda: "without" not in request.param)
        cupy = types.SimpleNamespace(cuda=cuda, asarray=np.array, asnumpy=np.asarray)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
    elif request.param.startswith("PyTorch"):
        cuda = types.SimpleNamespace(is_available=lambda: "cuda" in request.param)
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda, tensor=Tensor))
    example = load_example("gpu_worker.py")
    assert example.library.name == ("numpy" if "without" in request.param else request.param)
    return example


class Tensor:
    """As much of PyTorch's as the worker needs, and not what else a numpy array can."""

    def __init__(self, array, device):
        assert device in ("cuda", "cpu")
        assert array.flags.c_contiguous
        self._array, self._device = np.array(array), device

    def _like(self, array):
        return Tensor(np.ascontiguousarray(array, np.float32), self._device)

    def __matmul__(self, other):
        return self._like(self._array @ other._array)

    def __mul__(self, factor):
        return self._like(self._array * factor)

    __rmul__ = __mul__

    def __add__(self, other):
        return self._like(self._array + (other._array if isinstance(other, Tensor) else other))

    __radd__ = __add__

    def __sub__(self, other):
        return self._like(self._array - other._array)

    def __getitem__(self, place):
        return self._like(self._array[place])

    def clip(self, low, high):
        return self._like(self._array.clip(low, high))

    def cpu(self):
        return Tensor(self._array, "cpu")

    def numpy(self):
        assert self._device == "cpu"
        return self._array


class TestComputing:
    def test_multiply(self, computing):
        random = np.random.default_rng(1)
        left, right = random.random((5, 7), np.float32), random.random((7, 3), np.float32)
        product = computing.multiply(left, right)
        assert product.dtype == np.float32
        assert np.allclose(product, left @ right, atol=1e-5)
        with pytest.raises(InvalidParams, match="left has 7 columns, right has 5 rows"):
            computing.multiply(left, left)

    @pytest.mark.parametrize("radius", [0.3, 1.0, 2.5])
    def test_blur_is_a_gaussian(self, computing, radius):
        dot = np.zeros((25, 31), np.uint8)
        dot[12, 15] = 255
        blurred = np.asarray(computing.blur(PIL.Image.fromarray(dot), radius), float)
        down, right = np.mgrid[-12:13, -15:16]
        weights = np.exp(-(down**2 + right**2) / (2 * radius**2))
        assert np.abs(blurred - 255 * weights / weights.sum()).max() < 2

    def test_sharpen_makes_an_edge_steeper(self, computing):
        edge = np.repeat(np.uint8([[100] * 10 + [150] * 10]), 5, axis=0)
        sharp = np.asarray(computing.sharpen(PIL.Image.fromarray(edge), 2.0, 1.5), int)
        assert sharp[2, 9] < 100
        assert sharp[2, 10] > 150
        assert (sharp[2, 0], sharp[2, -1]) == (100, 150)

    @pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf"), 1e9])
    def test_a_radius_that_makes_no_sense(self, computing, radius):
        with pytest.raises(InvalidParams, match="the radius is"):
            computing.blur(PIL.Image.new("L", (2, 2)), radius)
