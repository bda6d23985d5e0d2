"""A type of your own on both ends: a pandas DataFrame goes as columns of arrays and comes back as a DataFrame.

    python examples/custom_type.py         # serves
    python examples/custom_type.py call    # in a second terminal

The second command prints

       city  degrees  rain
    0  Bern     10.5  12.0
    1  Oslo     -3.0   4.0

The codec that knows the type must be given to both ends. In JSON a table is
{"$type": "table", "names": [...], "columns": [{"$type": "ndarray", ...}, ...]}. Numbers, truth values and dates go as
arrays, everything else as lists; the index is left behind.
"""

from __future__ import annotations

import sys
from typing import Any

from rpcstream import Client, Codec, Server

try:
    import pandas as pd
except ImportError:
    raise SystemExit("this example needs pandas: pip install pandas") from None


def parts_of(table: pd.DataFrame) -> dict[str, Any]:
    columns = [table.iloc[:, position].to_numpy() for position in range(table.shape[1])]
    return {
        "names": list(table.columns),
        "columns": [column if column.dtype.kind in "biufmM" else column.tolist() for column in columns],
    }


def table_of(parts: dict[str, Any]) -> pd.DataFrame:
    table = pd.DataFrame(dict(enumerate(parts["columns"])))
    table.columns = parts["names"]  # not as keys above: two columns may have the same name
    return table


codec = Codec()
codec.register(pd.DataFrame, "table", encode=parts_of, decode=table_of)

server = Server(codec=codec)


@server
def means(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """The means of all columns of numbers, for each value of the column `by`."""
    return table.groupby(by).mean(numeric_only=True).reset_index()


def call(address: str = "127.0.0.1:8545") -> None:
    days = pd.DataFrame({"city": ["Oslo", "Bern"] * 2, "degrees": [-2.5, 9.0, -3.5, 12.0], "rain": [3, 20, 5, 4]})
    with Client(address, codec=codec) as client:
        print(client.means(table=days, by="city"))


if __name__ == "__main__":
    call(*sys.argv[2:]) if sys.argv[1:2] == ["call"] else server.run()
