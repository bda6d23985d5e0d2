"""The types of what handlers say by their hints: documents as servers and hubs make them."""

from __future__ import annotations

import datetime
import enum
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Client, Hub, Server, Shape
from rpcstream.testing import serve_in_thread

from .writing import LANGUAGES, written


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


class Given(TypedDict):
    a: int
    b: NotRequired[str]


class Pair(NamedTuple):
    a: int
    b: str


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


#: The handler, and what its parameters and its result are in Python and in TypeScript.
HANDLERS: list[tuple[Any, tuple[str, str], tuple[str, str]]] = []


def case(python: tuple[str, str], typescript: tuple[str, str]) -> Any:
    return lambda handler: HANDLERS.append((handler, python, typescript))


@case(("a: int,", "None"), ("{ a: number | bigint; flag?: boolean }", "null"))
def keyword_only(a: int, *, flag: bool = True) -> None: ...


@case(
    ("a: int, *more: float,", "dict[str, list[int]]"),
    ("{ a: number | bigint; [name: string]: unknown }", "{ [key: string]: number[] }"),
)
def rest(a: int, *more: float, **named: str) -> dict[str, list[int]]: ...


@case(("tree: TreeInput, ", "Tree | None"), ("{ tree: TreeInput }", "Tree | null"))
def recursive(tree: Tree) -> Tree | None: ...


@case(("pet: CatInput | DogInput, ", "Cat | Dog"), ("{ pet: CatInput | DogInput }", "Cat | Dog"))
def tagged(pet: Cat | Dog) -> Cat | Dog: ...


@case(('color: Color, kind: Literal[1, "x"] | None, ', "Color"), ('{ color: Color; kind: 1 | "x" | null }', "Color"))
def chosen(color: Color, kind: Literal[1, "x", None]) -> Color: ...


@case(("given: GivenInput, pair: PairInput, ", "Given"), ("{ given: GivenInput; pair: PairInput }", "Given"))
def members(given: Given, pair: Pair) -> Given: ...


@case(
    (
        "rows: NDArray[np.float32], any: NDArray[Any], two: NDArray[np.float32 | np.uint8] | None = ...,",
        "NDArray[np.bool_]",
    ),
    ("{ rows: NdArray | Float32Array; any: NdArray; two?: NdArray | Float32Array | null }", "NdArray<Uint8Array>"),
)
def arrays(
    rows: Annotated[NDArray[np.float32], Shape(None, 3)],
    any: np.ndarray,
    two: NDArray[np.float32 | np.uint8] | None = None,
) -> NDArray[np.bool_]: ...


@case(
    ("photo: Image.Image | ImageFile, data: bytes | bytearray | memoryview, number: complex,", "Image.Image"),
    ("{ photo: ImageInput; data: Uint8Array | ArrayBuffer; number: Complex | number }", "ImageResult"),
)
def rich(photo: Image.Image, data: bytes, number: complex) -> Image.Image: ...


@case(("day: datetime.date | str, ", "str"), ("{ day: string }", "string"))
def dates(day: datetime.date) -> datetime.date: ...


@case(("to: int, ", "list[Tree]"), ("{ to: number | bigint }", "Tree[]"))
def generator(to: int) -> Iterator[Tree]:
    yield Tree(to)


@case(
    ("items: Iterable[float] | AsyncIterable[float], ", "float"),
    ("{ items: readonly number[] | AsyncIterable<number> }", "number"),
)
async def upload(items: AsyncIterator[float]) -> float: ...


@case(
    ("pair: tuple[int, str] | list[int | str], ", "list[int | str]"),
    ("{ pair: readonly [number | bigint, string] }", "[number, string]"),
)
def fixed(pair: tuple[int, str]) -> tuple[int, str]: ...


@case(("a: Any, b: Any = ..., ", "Any"), ("{ a: unknown; b?: unknown }", "unknown"))
def untyped(a, b=None): ...


def make_server() -> Server:
    server = Server()
    for handler, _, _ in HANDLERS:
        server(handler)
    return server


@pytest.fixture(scope="module")
def of_server() -> dict[str, str]:
    with serve_in_thread(make_server()) as address:
        return {language: " ".join(written(None, language, uri=address).split()) for language in LANGUAGES}


@pytest.mark.parametrize(("handler", "python", "typescript"), HANDLERS, ids=lambda each: getattr(each, "__name__", ""))
def test_types(handler: Any, python: tuple[str, str], typescript: tuple[str, str], of_server: dict[str, str]) -> None:
    name = handler.__name__
    text = of_server["python"].replace("( ", "(").replace("self, ", "")
    assert f" def {name}({python[0]}" in text
    begin = text.index(f"async def {name}({python[0]}")
    assert text[begin:].partition(") -> ")[2].startswith(f"{python[1]}: ")
    begin = of_server["typescript"].index(f'"{name}": {{')
    entry = of_server["typescript"][begin:].replace("; }", " }")
    assert entry.startswith(f'"{name}": {{ params: {typescript[0]}; args: ')
    assert f" result: {typescript[1]}; item: " in entry[: entry.index("item: ") + 6]


def test_items_of_streams(of_server: dict[str, str]) -> None:
    assert "def generator(self, to: int, **options: Unpack[CallOptions]) -> Items[Tree]: ..." in of_server["python"]
    assert " -> AsyncItems[Tree]: ..." in of_server["python"]
    assert "result: Tree[]; item: Tree;" in of_server["typescript"]
    assert "Items[str]" not in of_server["python"]


def test_a_hub_has_the_types_of_its_providers() -> None:
    with serve_in_thread(Hub()) as address, Client(address, name="gpu") as provider:
        for handler, _, _ in HANDLERS:
            provider(handler)
        provider.offer()
        text = written(None, "python", uri=address)
    assert (
        "    def recursive(self, tree: gpu_TreeInput, **options: Unpack[CallOptions]) -> gpu_Tree | None: ...\n" in text
    )
