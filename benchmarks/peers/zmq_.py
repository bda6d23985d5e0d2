"""pyzmq: one REP socket, a REQ socket for each connection; the method and the form of an array go as JSON.

An array follows as a second part that is not copied, as pyzmq's documentation sends numpy arrays.
"""

from __future__ import annotations

from typing import Any

from _common import (
    HOST,
    METHODS,
    Call,
    Options,
    Result,
    load_with_threads,
    main,
    make_login,
    needs,
    ready,
)

with needs("pyzmq", "numpy"):
    import numpy as np
    import zmq

Socket = Any  # pyzmq's own hint depends on how its sockets are used


def send_array(socket: Socket, head: dict[str, Any], array: np.ndarray) -> None:
    socket.send_json(head | {"dtype": str(array.dtype), "shape": array.shape}, zmq.SNDMORE)
    socket.send(array, copy=False)


def receive_array(socket: Socket, head: dict[str, Any]) -> np.ndarray:
    frame = socket.recv(copy=False)
    return np.frombuffer(frame, head["dtype"]).reshape(head["shape"])


def serve(options: Options) -> None:
    socket: Socket = zmq.Context().socket(zmq.REP)
    port = socket.bind_to_random_port(f"tcp://{HOST}")
    functions: dict[str, Call] = {"sum": lambda a, b: a + b, "login": make_login, "ping": lambda: "pong"}
    ready(port, "pyzmq")
    while True:
        head = socket.recv_json()
        if head["method"] == "echo":
            send_array(socket, {}, receive_array(socket, head))
        else:
            socket.send_json(functions[head["method"]](*head["params"]))


def load(options: Options) -> Result:
    return load_with_threads(options, [make_call(options) for _ in range(options.connections)])


def make_call(options: Options) -> Call:
    socket: Socket = zmq.Context.instance().socket(zmq.REQ)
    socket.connect(f"tcp://{HOST}:{options.port}")
    method = METHODS[options.topic]

    def call(*arguments: Any) -> Any:
        socket.send_json({"method": method, "params": arguments})
        return socket.recv_json()

    def echo(array: np.ndarray) -> np.ndarray:
        send_array(socket, {"method": "echo"}, array)
        return receive_array(socket, socket.recv_json())

    return echo if options.topic == "array" else call


if __name__ == "__main__":
    main(serve, load, many_in_flight=False)
