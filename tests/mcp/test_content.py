"""What an agent sees of results and errors."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import orjson
import PIL.Image
import pytest

from rpcstream import ImageOptions, RpcError
from rpcstream.codec import Codec
from rpcstream.mcp import content


class Pair:
    """A type that is registered with a codec."""

    parts = (2, 1)


def shown(value: Any, codec: Codec | None = None) -> list[Any]:
    """The content for a result that is written as on the wire."""
    codec = codec or Codec()
    return content.rich_content(codec.dumps(value), codec)


def file_in(block: Any) -> Any:
    return io.BytesIO(base64.b64decode(block["resource"]["blob"]))


def test_an_image_is_an_image() -> None:
    picture = PIL.Image.new("RGB", (3, 2), "red")
    [block] = shown(picture)
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    opened = PIL.Image.open(io.BytesIO(base64.b64decode(block["data"])))
    assert opened.tobytes() == picture.tobytes()


@pytest.mark.parametrize("name", ["raw", "qoi", "jpeg", "webp"])
def test_an_image_in_a_format_that_agents_do_not_read_becomes_png(name: Any) -> None:
    picture = PIL.Image.new("RGB", (3, 2), (10, 20, 30))
    [block] = shown(picture, Codec(images=ImageOptions(format=name)))
    assert block["mimeType"] == ("image/png" if name in ("raw", "qoi") else f"image/{name}")
    assert PIL.Image.open(io.BytesIO(base64.b64decode(block["data"]))).size == (3, 2)


def test_an_array_is_described_and_attached() -> None:
    array = np.array([[1.5, np.nan], [np.inf, -2]], np.float32)
    text, resource = shown(array)
    assert text["text"].startswith("array 1: float32, shape (2, 2), least -2.0, greatest 1.5, mean -0.25, 2 not finite")
    assert resource["resource"]["mimeType"] == "application/x-npy"
    assert resource["resource"]["uri"] == "rpcstream://result/1.npy"
    np.testing.assert_array_equal(np.load(file_in(resource)), array)


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.array(7), np.array(["2020-01-01"], "M8[D]"), np.array([1j]), np.ones(3, bool)]
)
def test_arrays_of_every_kind_are_attached(array: Any) -> None:
    np.testing.assert_array_equal(np.load(file_in(shown(array)[1])), array)


def test_an_array_that_is_too_large_is_only_described() -> None:
    array = np.zeros(content.MAX_RESOURCE + 1, np.uint8)
    [block] = shown(array)
    assert block["text"].endswith("(not attached: it is larger than 4194304 bytes)")


def test_parts_of_a_result_are_named_in_its_text() -> None:
    value = {"name": "x", "pictures": [PIL.Image.new("L", (1, 1))], "v": np.arange(2), "raw": b"abc"}
    text, image, array, npy, size, raw = shown(value)
    assert text["text"] == '{"name": "x", "pictures": ["[image 1]"], "v": "[array 2]", "raw": "[bytes 3]"}'
    assert (image["type"], npy["type"], raw["type"]) == ("image", "resource", "resource")
    assert array["text"].startswith("array 2: int64, shape (2,)")
    assert (size["text"], file_in(raw).read()) == ("bytes 3: 3 bytes", b"abc")


def test_a_type_of_the_user_is_shown_with_its_parts_taken_out() -> None:
    codec = Codec()
    codec.register(Pair, "pair", encode=lambda pair: {"parts": np.array(pair.parts)}, decode=lambda parts: Pair())
    text, _, resource = shown(Pair(), codec)
    assert text["text"] == '{"$type": "pair", "parts": "[array 1]"}'
    np.testing.assert_array_equal(np.load(file_in(resource)), [2, 1])


def test_a_string_is_its_own_text_and_other_values_are_json() -> None:
    assert content.plain_content(b'"a\\nb"') == [{"type": "text", "text": "a\nb"}]
    assert content.plain_content(b"12345678901234567890123") == [{"type": "text", "text": "12345678901234567890123"}]


@pytest.mark.parametrize("call_id", [1, '"result":', 'a"result":b', "\\"])
def test_the_result_is_found_whatever_the_id_is(call_id: Any) -> None:
    reply = Codec().dumps({"jsonrpc": "2.0", "id": call_id, "result": {"result": 1}})
    assert content.result_in(reply) == b'{"result":1}'


def test_nan_is_null_for_an_agent() -> None:
    text = '{"$type":"float","value":"nan"}'
    reply = Codec().dumps({"jsonrpc": "2.0", "id": 1, "result": [float("nan"), {"a": float("-inf")}, text]})
    found = content.result_in(reply)
    assert found is not None
    assert orjson.loads(found) == [None, {"a": None}, text]


def test_an_error_says_what_an_agent_can_mend() -> None:
    [block] = content.error_content(
        RpcError(1, "No such city", {"reason": "it is not in the list", "nearest": ["Ulm"]})
    )
    assert block["text"] == 'No such city: it is not in the list\n{"nearest": ["Ulm"]}'
    [block] = content.error_content(RpcError(1, "\ud800", {"x": "y" * 100_000}))
    assert len(block["text"]) < 5000
    block["text"].encode()
