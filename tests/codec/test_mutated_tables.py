"""Tables, frames and sparse arrays changed at random on the wire are decoded or refused; nothing crashes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from ..kit.example_count import IS_THOROUGH
from . import test_pandas, test_tables
from .values import codec, mutated, sent

#: Values of each kind, and how to use one: what can be looked at without an end of the process is valid.
KINDS: dict[str, tuple[list[Any], Callable[[Any], object]]] = {
    "arrow": ([pa.table([column], ["a"]) for column in test_tables.COLUMNS], lambda table: table.to_pylist()),
    "polars": (test_tables.SERIES, lambda column: column.to_arrow().to_pylist()),
    "pandas": (
        [pd.DataFrame({"a": column, 1: column}) for column in test_pandas.COLUMNS] + test_pandas.INDEXES,
        lambda value: value.values.tolist(),
    ),
    "sparse": (
        [sparse.csr_array([[0, 1, 0], [0, 0, 2]]), sparse.coo_array([[0, 1], [3, 0]])],
        lambda array: array.toarray() if max(array.shape) < 1000 else None,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_mutations_are_decoded_or_refused(kind: str) -> None:
    values, use = KINDS[kind]
    some = random.Random(1)
    seen: Counter[str] = Counter()
    for good in map(sent, values):
        for _ in range((10_000 if IS_THOROUGH else 400) // len(values)):
            try:
                value = codec.decode(mutated(good, some))
            except ValueError as error:
                seen["refused" if str(error) else "without a reason"] += 1
                continue
            seen["decoded"] += 1
            try:
                use(value)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # dates that Python has not, say; polars has errors that are no Exception
                pass
    assert seen.keys() == {"refused", "decoded"}
