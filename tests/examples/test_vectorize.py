"""The main example: a descriptor of a real photo, by every way to call it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from PIL import ImageEnhance

from rpcstream import Client
from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def vectorize(load_example):
    return load_example("vectorize.py").vectorize


@pytest.fixture(scope="module")
def cat(examples):
    return PIL.Image.open(examples / "pictures" / "cat.jpg").convert("RGB")


@pytest.fixture(scope="module")
def coffee(examples):
    return PIL.Image.open(examples / "pictures" / "coffee.jpg").convert("RGB")


class TestDescriptor:
    @pytest.mark.parametrize(
        "change",
        [
            lambda photo: photo.reduce(2),
            lambda photo: photo.resize((500, 400)),
            lambda photo: ImageEnhance.Brightness(photo).enhance(1.1),
            lambda photo: ImageEnhance.Brightness(photo).enhance(0.9),
        ],
        ids=["half", "stretched", "brighter", "darker"],
    )
    def test_the_same_photo_changed_a_little_is_near(self, vectorize, cat, coffee, change):
        for photo in (cat, coffee):
            assert vectorize("", photo) @ vectorize("", change(photo)) > 0.95

    def test_different_photos_are_clearly_apart(self, vectorize, cat, coffee):
        assert vectorize("", cat) @ vectorize("", coffee) < 0.6

    def test_similar_descriptions_are_nearer_than_unrelated_ones(self, vectorize, cat):
        looking, same, other = (
            vectorize(text, cat) for text in ("a cat looks aside", "the cat looks away", "espresso in a red cup")
        )
        assert looking @ same > looking @ other + 0.1

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
    def test_takes_pictures_of_any_mode_and_size(self, vectorize, mode):
        vector = vectorize("a tabby cat", PIL.Image.new(mode, (3, 1)))
        assert (vector.dtype, vector.shape) == (np.float32, (320,))
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_client_example_prints_what_it_promises(load_example, python, promised):
    with serve_in_thread(load_example("vectorize.py").server) as address:
        assert python("-W", "error", "examples/call_vectorize.py", address) == promised("call_vectorize.py")


def test_called_from_the_command_line(served, python, on_a_terminal, promised, vectorize, cat, tmp_path):
    address, _ = served("examples/vectorize.py")
    call = ["-m", "rpcstream", "vectorize", "description=a tabby cat", "-i", "photo=examples/pictures/cat.jpg"]
    python(*call, "--uri", address, "-o", tmp_path / "vector.npy")
    vector = np.load(tmp_path / "vector.npy")
    # The same, number for number: it does not depend on the process, and the photo has lost nothing on its way.
    assert np.array_equal(vector, vectorize("a tabby cat", cat))
    # The first line only: in other versions of Pillow the last digits of a decoded JPEG may be others.
    assert on_a_terminal(*call, "--uri", address).splitlines()[0] == promised("vectorize.py").splitlines()[0]
    with Client(address) as client:
        assert np.array_equal(client.vectorize(photo=cat, description="a tabby cat"), vector)


@pytest.mark.parametrize("example", ["vectorize.py", "custom_type.py", "long_computation.py", "video_filter.py"])
def test_run_as_a_program_it_serves_at_the_default_port(example, examples, python):
    """Run with the port replaced, which is all that the test cannot take: 8545 may be in use here."""
    if example == "custom_type.py":
        pytest.importorskip("pandas")
    program = (
        "import runpy, sys; from rpcstream import Server\n"
        "run = Server.run\n"
        "def on_a_free_port(server, **where):\n"
        "    assert not where\n"
        "    run(server, port=0, on_listening=lambda address: (print(address), server.stop()))\n"
        "Server.run = on_a_free_port\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    assert python("-c", program, examples / example).startswith("127.0.0.1:")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script needs bash")
class TestQuickstart:
    def run(self, examples: Path, where: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(examples / "quickstart.sh"), *arguments],
            cwd=where,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=50,
        )

    def test_prints_the_array_and_leaves_nothing_behind(self, examples, tmp_path):
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        done = self.run(examples, tmp_path, sys.executable, TMPDIR=str(temporary))
        assert (done.returncode, done.stderr) == (0, "")
        assert "float32 (320,)\n[" in done.stdout
        (listening,) = (line for line in done.stdout.splitlines() if line.startswith("Listening at "))
        host, _, port = listening.split()[-1].rpartition(":")
        with socket.socket() as other:
            assert other.connect_ex((host, int(port))) != 0
        assert list(temporary.iterdir()) == []

    def test_says_when_the_server_does_not_start(self, examples, tmp_path):
        (tmp_path / "python").write_text("#!/bin/sh\necho no module named rpcstream >&2\nexit 1\n")
        (tmp_path / "python").chmod(0o755)
        done = self.run(examples, tmp_path, "./python")
        assert done.returncode == 1
        assert done.stderr == "no module named rpcstream\nquickstart: the server did not start\n"
