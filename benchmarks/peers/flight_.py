"""Arrow Flight, for arrays: an exchange that stays open for each connection, one record batch there and back a call."""

from __future__ import annotations

from typing import Any

from _common import HOST, Call, Options, Result, load_with_threads, main, needs, ready

with needs("pyarrow", "numpy"):
    import numpy as np
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import flight

SCHEMA = pyarrow.schema([pyarrow.field("array", pyarrow.float32(), nullable=False)])


def to_batch(array: np.ndarray) -> Any:
    return pyarrow.record_batch([pyarrow.array(array)], schema=SCHEMA)


def to_array(batch: Any) -> np.ndarray:
    array: np.ndarray = batch.column(0).to_numpy()
    return array


class Server(flight.FlightServerBase):  # type: ignore[misc]
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        for chunk in reader:
            writer.write_batch(to_batch(to_array(chunk.data)))


def serve(options: Options) -> None:
    server = Server((HOST, 0))
    ready(server.port, "pyarrow")
    server.serve()


def load(options: Options) -> Result:
    return load_with_threads(options, [make_call(options) for _ in range(options.connections)])


def make_call(options: Options) -> Call:
    client = flight.connect((HOST, options.port))
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"echo"))
    writer.begin(SCHEMA)

    def echo(array: np.ndarray) -> np.ndarray:
        writer.write_batch(to_batch(array))
        return to_array(reader.read_chunk().data)

    return echo


if __name__ == "__main__":
    main(serve, load, topics=["array"], many_in_flight=False)
