"""The tools of open-rpc.org read the document: its schema, `schema-utils-js`, `test-coverage` and `generator` (npm)."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Example, Info, MaxSide, RpcError, Server, Shape
from rpcstream.testing import serve_in_thread

from .foreign import needs_node

FOLDER = Path(__file__).parent / "open_rpc"
TYPESCRIPT = FOLDER / "node_modules" / "typescript" / "lib" / "tsc.js"

pytestmark = [pytest.mark.tools, *needs_node(FOLDER)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Tree:
    """A tree of numbers."""

    value: int
    left: Tree | None = None
    children: list[Tree] = dataclasses.field(default_factory=list)


class Even(msgspec.Struct):
    odd: Odd | None = None


class Odd(msgspec.Struct):
    even: Even | None = None
    picture: Image.Image | None = None


class Person(pydantic.BaseModel):
    name: str
    friend: Person | None = None


#: Methods that any tool can call.
SCALARS = ("add", "negate", "text.concat", "by_name", "maybe", "listed", "pair", "count")


def everything(concat: str = "text.concat") -> Server:
    """Those, and others with arrays, images, and classes that refer to themselves; `concat` is the name of one."""
    server = Server(info=Info(title="Nature", description="*Plain* values."))

    @server(examples=[Example({"a": 1, "b": 2}, 3), Example([1], 2)], errors=[RpcError(7, "Seven", {"most": 7})])
    def add(a: int, b: int = 1) -> int:
        """Add.

        Args:
            a: the first
            b: the second
        """
        return a + b

    @server(deprecated="use add", tags=["sums"])
    def negate(value: bool) -> bool:
        return not value

    @server(name=concat)
    def join(a: str, b: str = "x") -> str:
        return a + b

    @server
    def by_name(a: int, b: float = 1, *, c: int) -> float:
        return a + b + c

    @server
    def maybe(value: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None) -> int | None:
        return value

    @server
    def listed(values: list[float], names: dict[str, int]) -> dict[str, list[float]]:
        return dict.fromkeys(names, values)

    @server
    def pair(value: tuple[int, str], colour: Colour, kind: Literal["a", 1] = 1) -> tuple[str, Colour]:
        return value[1], colour

    @server
    async def count(to: Annotated[int, msgspec.Meta(ge=0, le=20)]) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @server
    def grow(tree: Tree, even: Even, person: Person) -> Tree: ...

    @server
    def look(photo: Annotated[Image.Image, MaxSide(64)], data: bytes, anything: Any) -> Odd: ...

    @server
    def points(
        xyz: Annotated[NDArray[np.float32], Shape(None, 3)],
        *more: int,
        masks: NDArray[np.bool_] | None = None,
        **names: str,
    ) -> NDArray[np.floating[Any]]: ...

    return server


def colliding() -> Server:
    """The same without a dot in a name, and with types named as types of TypeScript, or of the generated client."""
    server = everything("concat")
    for name in ("Client", "Promise", "Error", "Nature", "Options"):

        def taken(value: Any) -> Any:
            return value

        kind = dataclasses.make_dataclass(name, [("value", int)])
        taken.__annotations__ = {"value": kind, "return": kind}
        server.add(taken, name=f"take{name}")

    @server
    def words(text: str, number: float, either: bool | dict[str, Any], *, more: int = 1) -> list[str]: ...

    return server


COMPATIBLE = "?compat=1.2.6"


@pytest.fixture(scope="module")
def rich() -> Iterator[str]:
    with serve_in_thread(everything()) as address:
        yield address


def fetched(address: str, folder: Path, query: str = COMPATIBLE) -> Path:
    with urllib.request.urlopen(f"http://{address}/openrpc.json{query}", timeout=20) as response:
        path = folder / "openrpc.json"
        path.write_bytes(response.read())
    return path


def read(*words: str | Path) -> Any:
    command = ["node", "read.mjs", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=FOLDER)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("query", ["", COMPATIBLE])
def test_it_is_valid_by_the_schema_of_the_specification(rich: str, tmp_path: Path, query: str) -> None:
    path = fetched(rich, tmp_path, query)
    assert read("validate", path) == []
    document = json.loads(path.read_text())
    document["methods"][0]["errors"] = [{"code": "x"}]
    path.write_text(json.dumps(document))
    assert read("validate", path), "what is malformed is found"


def test_every_method_can_be_called_with_what_it_says(rich: str, tmp_path: Path) -> None:
    path = fetched(rich, tmp_path)
    assert read("parse", path)["references"] == 0
    calls = read("coverage", path)
    assert {call["method"] for call in calls} == {each["name"] for each in json.loads(path.read_text())["methods"]}
    assert [call for call in calls if call["failed"]] == []
    assert {call["code"] for call in calls} <= {None, -32602, -32600, -32603}
    plain = [call for call in calls if call["method"] in SCALARS]
    assert len(plain) > 30
    assert [call for call in plain if not call["valid"] or call["code"] is not None] == []


def test_a_generated_client_compiles_and_has_names_that_can_be_read(tmp_path: Path) -> None:
    with serve_in_thread(colliding()) as address:
        path = fetched(address, tmp_path)
        code = read("generate", path, tmp_path / "made")
    types = re.findall(r"(?m)^export (?:type|interface) (\w+)", code)
    assert len(types) == len(set(types)), "no name stands for two types"
    assert {"NdArrayF4Nx3", "NdArrayFloating", "Image", "ImageMax64", "Bytes", "Tree", "Person", "Even"} <= set(types)
    assert not {"String", "Number", "Boolean", "Object", "Array", "Function", "Promise", "Error", "Client"} & set(types)
    assert not [name for name in types if name.startswith("Rpc")], "every server has those methods"
    # What it imports is found from its folder.
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    project = tmp_path / "made" / "client" / "typescript"
    command = ["node", str(TYPESCRIPT), "--noEmit", "--preserveSymlinks", "-p", str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[:2000]
