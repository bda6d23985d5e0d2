"""pyzmq: one REP socket, a REQ socket for each connection; the method and the form of an array go as JSON.

An array follows as a second part that is not copied, as pyzmq's documentation sends numpy arrays. With `--raw` there is
no JSON at all: a message is the bytes of a float32 array, and it is sent back as it came. With `--unix` over ipc.
"""

from __future__ import annotations

from contextlib import nullcontext
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
    socket_path,
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
    with socket_path() if options.unix else nullcontext() as path:
        if path is None:
            ready(socket.bind_to_random_port(f"tcp://{HOST}"), "pyzmq")
        else:
            socket.bind(f"ipc://{path}")
            ready(path, "pyzmq")
        if options.raw:
            echo_frames(socket)
        else:
            answer(socket)


def echo_frames(socket: Socket) -> None:
    while True:
        socket.send(np.frombuffer(socket.recv(copy=False), np.float32), copy=False)


def answer(socket: Socket) -> None:
    functions: dict[str, Call] = {"sum": lambda a, b: a + b, "login": make_login, "ping": lambda: "pong"}
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
    socket.connect(f"tcp://{HOST}:{options.port}" if options.path is None else f"ipc://{options.path}")
    method = METHODS[options.topic]

    def call(*arguments: Any) -> Any:
        socket.send_json({"method": method, "params": arguments})
        return socket.recv_json()

    def echo(array: np.ndarray) -> np.ndarray:
        send_array(socket, {"method": "echo"}, array)
        return receive_array(socket, socket.recv_json())

    def echo_raw(array: np.ndarray) -> np.ndarray:
        socket.send(array, copy=False)
        return np.frombuffer(socket.recv(copy=False), np.float32)

    if options.topic == "array":
        return echo_raw if options.raw else echo
    return call


if __name__ == "__main__":
    raw = {"--raw": {"action": "store_true", "help": "arrays as bytes alone, without method and form"}}
    unix = {"--unix": {"action": "store_true", "help": "at a Unix socket"}}
    main(serve, load, many_in_flight=False, serve_options=raw | unix, load_options=raw)
