"""The tools of open-rpc.org read the document: its schema, `schema-utils-js`, `test-coverage` and `generator` (npm)."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import re
import shutil
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

from rpcstream import Example, MaxSide, RpcError, Server, Shape
from rpcstream.testing import serve_in_thread

READ = Path(__file__).parent / "open_rpc" / "read.mjs"
TYPESCRIPT = READ.parent / "node_modules" / "typescript" / "lib" / "tsc.js"
INSTALL = "npm install --prefix tests/interop/open_rpc"

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js (node)"),
    pytest.mark.skipif(not (READ.parent / "node_modules").is_dir(), reason=f"the tools are not there ({INSTALL})"),
]


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


def scalars(concat: str = "text.concat") -> Server:
    """A server of methods that any tool can call, without recursive types.

    Args:
        concat: the name of one of them.
    """
    server = Server(title="Scalars", description="*Plain* values.")

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
    def half(value: float) -> float:
        return value / 2

    @server
    def by_name(a: int, b: int = 1, *, c: int) -> int:
        return a + b + c

    @server
    def maybe(value: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None) -> int | None:
        return value

    @server
    def listed(values: list[float], names: dict[str, int]) -> dict[str, list[float]]:
        return dict.fromkeys(names, values)

    @server
    def pair(value: tuple[int, str]) -> tuple[str, int]:
        return value[1], value[0]

    @server
    def colour(value: Colour, kind: Literal["a", 1] = 1) -> Colour:
        return value

    @server
    async def count(to: Annotated[int, msgspec.Meta(ge=0, le=20)]) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    return server


def everything(concat: str = "text.concat") -> Server:
    """The same, with arrays, images, classes that refer to themselves, and further arguments."""
    server = scalars(concat)

    @server
    def grow(tree: Tree, even: Even, person: Person) -> Tree: ...

    @server
    def friend(person: Person) -> Odd: ...

    @server
    def look(photo: Annotated[Image.Image, MaxSide(64)], data: bytes) -> Image.Image: ...

    @server
    def points(
        xyz: Annotated[NDArray[np.float32], Shape(None, 3)],
        *more: int,
        masks: NDArray[np.bool_] | None = None,
        **names: str,
    ) -> NDArray[np.floating[Any]]: ...

    @server
    def when(at: datetime.datetime, anything: Any) -> None: ...

    @server
    async def mean(frames: AsyncIterator[NDArray[np.uint8]]) -> float:
        return 0.0

    return server


def colliding() -> Server:
    """The same without a dot in a name, and with types named as types of TypeScript, or of the generated client."""
    server = everything("concat")
    server.title = "Nature"
    made = [
        dataclasses.make_dataclass(name, [("value", int)])
        for name in ("Client", "Promise", "Error", "Nature", "Options")
    ]

    def take(kind: type) -> None:
        def taken(value):  # type: ignore[no-untyped-def]
            return value

        taken.__annotations__ = {"value": kind, "return": kind}
        server.add(taken, name=f"take{kind.__name__}")

    for each in made:
        take(each)

    @server
    def words(text: str, number: float, either: bool | dict[str, Any], *, more: int = 1) -> list[str]: ...

    return server


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    with serve_in_thread(scalars()) as plain, serve_in_thread(everything()) as rich:
        yield plain, rich


def fetched(address: str, folder: Path, query: str = "") -> Path:
    with urllib.request.urlopen(f"http://{address}/openrpc.json{query}", timeout=20) as response:
        path = folder / "openrpc.json"
        path.write_bytes(response.read())
    return path


def read(*words: str | Path) -> Any:
    done = subprocess.run(
        ["node", str(READ), *map(str, words)], capture_output=True, text=True, timeout=50, cwd=READ.parent
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("query", ["", "?compat=1.2.6"])
def test_it_is_valid_by_the_schema_of_the_specification(addresses: tuple[str, str], tmp_path: Path, query: str) -> None:
    assert read("validate", fetched(addresses[1], tmp_path, query)) == []


def test_what_is_malformed_is_found_by_that_schema(addresses: tuple[str, str], tmp_path: Path) -> None:
    path = fetched(addresses[1], tmp_path)
    document = json.loads(path.read_text())
    document["methods"][0]["errors"] = [{"code": "x"}]
    path.write_text(json.dumps(document))
    assert read("validate", path)


def test_without_recursive_types_it_is_parsed_as_it_is(addresses: tuple[str, str], tmp_path: Path) -> None:
    found = read("parse", fetched(addresses[0], tmp_path))
    assert found["methods"] >= 10


def test_the_variant_is_parsed_with_recursive_types_too(addresses: tuple[str, str], tmp_path: Path) -> None:
    found = read("parse", fetched(addresses[1], tmp_path, "?compat=1.2.6"))
    assert found["methods"] >= 16
    assert found["references"] == 0


def test_every_method_can_be_called_with_what_the_document_says(addresses: tuple[str, str], tmp_path: Path) -> None:
    path = fetched(addresses[0], tmp_path, "?compat=1.2.6")
    calls = read("coverage", path)
    names = {method["name"] for method in json.loads(path.read_text())["methods"]}
    assert {call["method"] for call in calls} == names
    own = [call for call in calls if not call["method"].startswith("rpc.")]
    assert len(own) > 50
    assert [call for call in own if not call["valid"] or call["code"] is not None] == []


def test_every_method_is_called_where_arguments_are_rich(addresses: tuple[str, str], tmp_path: Path) -> None:
    path = fetched(addresses[1], tmp_path, "?compat=1.2.6")
    calls = read("coverage", path)
    assert {call["method"] for call in calls} == {each["name"] for each in json.loads(path.read_text())["methods"]}
    assert [call for call in calls if call["failed"]] == []
    assert {call["code"] for call in calls} <= {None, -32602, -32600, -32603}


def test_names_of_types_in_a_generated_client_can_be_read(addresses: tuple[str, str], tmp_path: Path) -> None:
    path = fetched(addresses[1], tmp_path, "?compat=1.2.6")
    code = read("generate", path, tmp_path / "made")
    types = re.findall(r"(?m)^export (?:type|interface) (\w+)", code)
    assert len(types) == len(set(types)), "no name stands for two types"
    assert {"NdArrayF4Nx3", "NdArrayFloating", "Image", "ImageMax64", "Bytes", "Tree", "Person", "Even"} <= set(types)
    assert not [name for name in types if name.startswith("Rpc")], "every server has those methods"
    assert "export type Add = (a: Integer, b?: AddB) => Promise<Integer>;" in code
    assert "export type Grow = (tree: Tree, even: Even, person: Person) => Promise<Tree>;" in code
    assert re.search(
        r"export type Points = \(xyz: NdArrayF4Nx3, .*masks\?: PointsMasks.*Promise<NdArrayFloating>;", code
    )
    # All names are those of the document, so that the generator has made none up, but for one of a type of all types.
    known = set(re.findall(r'"(?:title|name)":"([^"]+)"', path.read_text()))
    pascal = {"".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name)) for name in known}
    of_tool = {"Options", "Made"}
    assert len([name for name in types if name not in pascal | of_tool]) <= 1


@pytest.mark.skipif(not TYPESCRIPT.is_file(), reason=f"TypeScript is not there ({INSTALL})")
def test_a_generated_client_compiles(tmp_path: Path) -> None:
    with serve_in_thread(colliding()) as address:
        code = read("generate", fetched(address, tmp_path, "?compat=1.2.6"), tmp_path / "made")
    types = re.findall(r"(?m)^export (?:type|interface) (\w+)", code)
    assert not {"String", "Number", "Boolean", "Object", "Array", "Function", "Promise", "Error", "Client"} & set(types)
    assert "either: BoolOrDict" in code
    # What it imports is found from its folder.
    (tmp_path / "node_modules").symlink_to(READ.parent / "node_modules")
    project = tmp_path / "made" / "client" / "typescript"
    command = ["node", str(TYPESCRIPT), "--noEmit", "--preserveSymlinks", "-p", str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[:2000]
