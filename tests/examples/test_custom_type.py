"""A user's own type on both ends: the table of the example, and what becomes of the example without pandas."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from rpcstream import Client, InvalidParams
from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(load_example):
    pytest.importorskip("pandas")
    return load_example("custom_type.py")


@pytest.fixture(scope="module")
def address(example):
    with serve_in_thread(example.server) as address:
        yield address


def test_prints_what_it_promises(address, python, promised):
    assert python("examples/custom_type.py", "call", address) == promised("custom_type.py")


def test_a_table_comes_back_as_it_was(example):
    pd = example.pd
    table = pd.DataFrame(
        {
            "int": np.array([1, 2], np.int16),
            "float": [0.5, float("inf")],
            "text": ["a", "ß"],
            "day": pd.to_datetime(["2024-02-29", "1969-12-31"]),
            "yes": [True, False],
        }
    )
    table.insert(5, "yes", [3, 4], allow_duplicates=True)
    for one in (table, table[:0], pd.DataFrame()):
        message = example.codec.dumps({"result": one})
        result = example.codec.decode(json.loads(message))["result"]
        assert list(result.columns) == list(one.columns)
        assert len(result) == len(one)
        for position in range(one.shape[1]):
            assert result.iloc[:, position].to_numpy().tolist() == one.iloc[:, position].to_numpy().tolist()
    assert list(example.table_of(example.parts_of(table)).dtypes) == list(table.dtypes)


@pytest.mark.parametrize("table", [5, [], {"$type": "table"}, {"$type": "table", "names": ["a"], "columns": 1}])
def test_what_is_no_table_is_refused(address, table):
    with Client(address) as client:
        with pytest.raises(InvalidParams) as caught:
            client.means(table=table, by="city")
        assert caught.value.data["parameter"] == "table"


def test_says_that_it_needs_pandas(examples):
    program = "import runpy, sys; sys.modules['pandas'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", program, str(examples / "custom_type.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (1, "this example needs pandas: pip install pandas\n")
