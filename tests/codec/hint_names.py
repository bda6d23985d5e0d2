"""The names in the tables of docs/reference/hints.md and of hint_table.md: imports, classes, and values."""

# ruff: noqa: F401 the tables use these names

import enum
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import annotated_types as at
import attrs
import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, StringConstraints
from scipy import sparse
from typing_extensions import Doc

from rpcstream import MaxSide, Shape

Colour = enum.Enum("Colour", {"RED": "red"})
Level = enum.IntEnum("Level", {"LOW": 1})
UserId = NewType("UserId", int)
IntOrStr = TypeVar("IntOrStr", int, str)


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Tree:
    value: int
    children: "list[Tree]"


class Movie(TypedDict, total=False):
    title: str


class Pair(NamedTuple):
    left: int
    right: str


class Box(msgspec.Struct):
    corner: Point
    size: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclass
class Range:
    low: Annotated[float, at.Ge(0)]
    high: Annotated[float, at.Ge(0), "above low"] = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


class Gauge:
    """Of another library."""


@attrs.define
class Part:
    name: str
    weight: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))


class Model(BaseModel):
    x: int
    names: list[str] = []


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    x: int
    day: date | None = None


class Vector(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    values: np.ndarray


nan = float("nan")
red = Image.new("RGB", (2, 2), "red")
frame, table = pd.DataFrame({"a": [1, 2]}), pa.table({"a": [1, 2]})
f4, f8, u1 = np.ones((2, 3), "f4"), np.ones((2, 3), "f8"), np.ones((2, 3), "u1")
