"""rpcstream itself: typed handlers and default options; its clients as drivers.

`load --client`: `sync` is a `Client` for each connection, `async` an `AsyncClient` for each, `submit` keeps
`--in-flight` futures of each `Client` waiting, `pool` is one `Client(pool=connections)` that all threads share; each
thread then uses a connection of its own. With `--text` arrays go as base64. `serve --unix` listens at a Unix socket,
`serve --metrics` counts calls.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

from _common import (
    HOST,
    METHODS,
    PAGE,
    PAGE_PATH,
    TOPICS,
    Options,
    Result,
    Tally,
    Worker,
    load_with_tasks,
    load_with_threads,
    main,
    make_login,
    make_workers,
    mean_colour,
    needs,
    ready,
    socket_path,
)

with needs("rpcstream", "uvloop"):
    import numpy as np
    import uvloop
    from numpy.typing import NDArray
    from PIL import Image

    from rpcstream import AsyncClient, Client, Server


def make_server(**options: Any) -> Server:
    server = Server(**options)
    server.add(make_login, name="login")
    server.static(PAGE_PATH, PAGE)

    @server
    def sum(a: int, b: int) -> int:
        return a + b

    @server
    async def sum_later(a: int, b: int) -> int:
        return a + b

    @server
    def ping() -> str:
        return "pong"

    @server
    def echo(array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array

    @server
    def image(photo: Image.Image) -> list[float]:
        return mean_colour(photo)

    return server


PACKAGES = ("rpcstream", "uvloop", "orjson", "msgspec", "numpy")


def serve(options: Options) -> None:
    server = make_server(metrics=True) if options.metrics else make_server()
    if options.unix:
        with socket_path() as path:
            server.run(unix=path, on_listening=lambda address: ready(path, *PACKAGES))
    else:
        server.run(host=HOST, port=0, on_listening=lambda address: ready(int(address.rpartition(":")[2]), *PACKAGES))


def load(options: Options) -> Result:
    address = f"{HOST}:{options.port}" if options.path is None else f"unix://{options.path}"
    method = options.method or METHODS[options.topic]
    # What is not given is not known to every version that this is run with.
    settings = {"binary": False} if options.text else {}
    if options.client == "async":
        return uvloop.run(load_async(options, address, method, settings))
    if options.client == "pool":
        shared = Client(address, pool=options.connections, **settings)
        return load_with_threads(options, [getattr(shared, method)] * options.connections)
    clients = [Client(address, **settings) for _ in range(options.connections)]
    if options.client == "submit":
        return load_with_futures(options, [getattr(client.submit, method) for client in clients])
    return load_with_threads(options, [getattr(client, method) for client in clients])


async def load_async(options: Options, address: str, method: str, settings: Any) -> Result:
    clients = [AsyncClient(address, **settings) for _ in range(options.connections)]
    return await load_with_tasks(options, [getattr(client, method) for client in clients])


def load_with_futures(options: Options, calls: list[Any]) -> Result:
    """Run the closed loop with futures: one thread waits for the oldest of all and replaces it."""
    workers = make_workers(options, calls)
    tally = Tally(options)

    def submit(worker: Worker) -> tuple[Worker, int, float, Any]:
        number = next(worker.numbers)
        arguments = worker.topic.ask(number)
        return worker, number, perf_counter(), worker.call(*arguments)

    waiting = deque(map(submit, workers))
    while waiting:
        worker, number, began, future = waiting.popleft()
        reply = future.result()
        done = perf_counter()
        worker.check(number, reply)
        if tally.add(began, done):
            waiting.append(submit(worker))
    return tally.result()


if __name__ == "__main__":
    main(
        serve,
        load,
        topics=list(TOPICS),
        serve_options={
            "--unix": {"action": "store_true", "help": "at a Unix socket"},
            "--metrics": {"action": "store_true", "help": "with metrics=True"},
        },
        load_options={
            "--client": {"choices": ["sync", "async", "submit", "pool"], "default": "sync", "help": "which client"},
            "--text": {"action": "store_true", "help": "binary=False"},
            "--method": {"help": "what is called, where it has another name than the topic's"},
        },
    )
