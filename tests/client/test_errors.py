"""What errors say: in Python what to write instead, and in a traceback the line of the caller and of the fault."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import (
    AsyncClient,
    Client,
    ConnectFailed,
    InternalError,
    InvalidParams,
    RpcError,
    Server,
)
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer
from .conftest import MakeClient

IMAGE = Image.new("RGB", (4, 3), "red")


@pytest.fixture(scope="module")
def advised() -> Iterator[str]:
    server = Server()

    @server
    def size(image: Image.Image) -> list[int]:
        return list(image.size)

    @server
    def sizes(images: list[Image.Image]) -> list[int]:
        return [each.width for each in images]

    @server
    def array(x: NDArray[np.float32]) -> int:
        return x.size

    @server
    def numbers(x: list[float]) -> float:
        return sum(x)

    @server
    def number(x: float) -> float:
        return x

    @server
    def items(image: Image.Image) -> Iterator[int]:
        yield image.width

    with serve_in_thread(server) as address:
        yield address


@pytest.mark.parametrize(
    ("method", "argument", "advice"),
    [
        ("size", np.zeros((2, 2, 3), np.uint8), "Image.fromarray(image)"),
        ("size", "cat.jpg", "ImageFile(image) for an image, pathlib.Path(image).read_bytes() for bytes"),
        ("sizes", [IMAGE, np.zeros((2, 2), np.uint8)], "Image.fromarray(images[1])"),
        ("sizes", IMAGE, "[images]"),
        ("array", np.zeros(3), "np.asarray(x, np.float32)"),
        ("array", [1, 2.5], "np.asarray(x, np.float32)"),
        ("numbers", np.zeros(3), "x.tolist()"),
        ("numbers", iter([1.0]), "list(x), since an iterator is sent item by item"),
        ("number", np.zeros(1), "x.item()"),
        ("number", "x", None),
    ],
)
def test_errors_of_arguments_speak_python(
    make_client: MakeClient, advised: str, method: str, argument: Any, advice: str | None
) -> None:
    client = make_client(advised)
    with pytest.raises(InvalidParams) as caught:
        client.call(method, argument)
    assert caught.value.advice == (None if advice is None else f"in Python: {advice}")
    assert advice is None or f"; in Python: {advice} (method" in str(caught.value)


def test_named_arguments_batches_and_streams_have_advice_too(advised: str) -> None:
    with Client(advised) as client:
        with pytest.raises(InvalidParams, match=r"in Python: np.asarray\(x, np.float32\)"):
            client.array(x=[1])
        with client.batch() as batch:
            call = batch.array(x=[1])
        with pytest.raises(InvalidParams, match=r"in Python: np.asarray\(x, np.float32\)"):
            call.result()
        with pytest.raises(InvalidParams, match=r"in Python: Image.fromarray\(image\)"):
            list(client.stream.items(np.zeros((2, 2))))


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def check_is_short(error: BaseException) -> None:
    """There are few functions behind the lines of the test, and no other exception."""
    frames = traceback.extract_tb(error.__traceback__)
    assert len([frame for frame in frames if frame.filename != __file__]) <= 3, shown(error)
    assert shown(error).count("Traceback") == 1
    assert error.__cause__ is None


REFUSED: list[Callable[[Any], Any]] = [
    lambda client: client.call("fail"),
    lambda client: client.notify.fail(),
    lambda client: client.submit.fail().result(),
    lambda client: next(client.stream.fail()),
    lambda client: client.discover(),
    lambda client: client.subscribe("a").__enter__(),
]


@pytest.mark.parametrize("call", REFUSED)
@pytest.mark.parametrize("keepalive", [None, 60.0], ids=["blocking", "loop"])
def test_a_refused_connection(free_address: str, call: Callable[[Any], Any], keepalive: float | None) -> None:
    with Client(free_address, keepalive=keepalive) as client, pytest.raises(ConnectFailed) as caught:
        call(client)
    check_is_short(caught.value)


async def test_a_refused_connection_and_an_error_with_the_async_client(free_address: str, served: str) -> None:
    async with AsyncClient(free_address) as nobody, AsyncClient(served) as client:
        for call in (nobody.fail(), nobody.notify.fail(), anext(nobody.stream.fail()), client.fail()):
            with pytest.raises((ConnectFailed, RpcError)) as caught:
                await call
            check_is_short(caught.value)


def test_with_debug_the_remote_traceback_is_a_note() -> None:
    text = "a long reason " * 200
    server = UsualServer(debug=True)

    @server
    def break_down(text: str) -> None:
        raise ValueError(text + "\x1b[31m")

    with serve_in_thread(server) as address, Client(address) as client:
        with pytest.raises(InternalError) as caught:
            client.break_down(text)
        (note,) = caught.value.__notes__
        assert note.startswith(f"Remote traceback, at {address}:\nTraceback (most recent call last):\n")
        assert "in break_down\n" in note
        assert note.endswith(f"ValueError: {text}\\u001b[31m"), "whole, and harmless to a terminal"
        assert "Traceback" not in str(caught.value)
