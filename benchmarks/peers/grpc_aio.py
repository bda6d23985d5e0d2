"""gRPC's asyncio server, which its guide to performance recommends over the one with threads.

On asyncio's own loop, as its documentation runs it; driven by the sync client.
"""

from __future__ import annotations

import asyncio
from typing import Any

from _common import HOST, TOPICS, Options, main, make_login, mean_colour, needs, ready
from grpc_sync import WITHOUT_LIMITS, image_from_png, load, messages, services

with needs("grpcio", "grpcio-tools", "numpy"):
    import numpy as np
    from grpc import aio  # type: ignore[import-untyped]


class Bench(services.BenchServicer):  # type: ignore[misc]
    async def Sum(self, request: Any, context: Any) -> Any:
        return messages.SumReply(result=request.a + request.b)

    async def Login(self, request: Any, context: Any) -> Any:
        return messages.LoginReply(**make_login(request.user, request.password, request.remember))

    async def Ping(self, request: Any, context: Any) -> Any:
        return messages.Text(text="pong")

    async def Echo(self, request: Any, context: Any) -> Any:
        array = np.frombuffer(request.data, np.float32)
        return messages.Bytes(data=array.tobytes())

    async def Image(self, request: Any, context: Any) -> Any:
        return messages.Colour(channels=mean_colour(image_from_png(request.data)))


async def listen() -> None:
    server = aio.server(options=WITHOUT_LIMITS)
    services.add_BenchServicer_to_server(Bench(), server)
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    ready(port, "grpcio", "protobuf")
    await server.wait_for_termination()


def serve(options: Options) -> None:
    asyncio.run(listen())


if __name__ == "__main__":
    main(serve, load, topics=list(TOPICS))
