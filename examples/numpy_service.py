"""A numpy service: dtype and shape stand in the hints, and what does not fit is refused before the function runs.

    python examples/numpy_service.py         # serves
    python examples/numpy_service.py call    # in a second terminal

The second command prints

    a line through the points: slope 2.00, intercept 1.00
    strongest: 50.0 Hz
    {'mean': 2.0, 'deviation': 0.816496580927726, 'smallest': 1.0, 'largest': 3.0}
    -32602 Invalid params: matrix: expected an array of float64 of shape (*, *), got an array of float64 of shape (50,)
    -32602 matrix has 3 rows, right has 2 values
"""

from __future__ import annotations

import sys
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from rpcstream import Client, InvalidParams, Server, Shape

Vector = Annotated[NDArray[np.float64], Shape(None)]
Matrix = Annotated[NDArray[np.float64], Shape(None, None)]

server = Server()


@server
def solve(matrix: Matrix, right: Vector) -> Vector:
    """The x that brings `matrix @ x` nearest to `right`, by least squares."""
    if len(matrix) != len(right):
        raise InvalidParams(f"matrix has {len(matrix)} rows, right has {len(right)} values")
    return np.linalg.lstsq(matrix, right)[0]


@server
def spectrum(signal: Vector, rate: float) -> tuple[Vector, Vector]:
    """The frequencies in a signal of `rate` samples a second, in hertz, and the amplitude of each."""
    return np.fft.rfftfreq(len(signal), 1 / rate), np.abs(np.fft.rfft(signal)) * 2 / len(signal)


@server
def statistics(values: np.ndarray) -> dict[str, float]:
    """Of an array of any shape and dtype."""
    return {"mean": values.mean(), "deviation": values.std(), "smallest": values.min(), "largest": values.max()}


def call(address: str = "127.0.0.1:8545") -> None:
    with Client(address) as client:
        x = np.linspace(0, 1, 50)
        slope, intercept = client.solve(np.column_stack([x, np.ones(50)]), 2 * x + 1)
        print(f"a line through the points: slope {slope:.2f}, intercept {intercept:.2f}")
        frequencies, amplitudes = client.spectrum(np.sin(2 * np.pi * 50 * np.arange(1000) / 1000), 1000.0)
        print(f"strongest: {frequencies[amplitudes.argmax()]} Hz")
        print(client.statistics(np.array([[1.0, 2.0, 3.0]])))
        for matrix, right in [(x, x), (np.eye(3), np.ones(2))]:
            try:
                client.solve(matrix, right)
            except InvalidParams as error:
                print(error.code, error.message)


if __name__ == "__main__":
    call(*sys.argv[2:]) if sys.argv[1:2] == ["call"] else server.run()
