"""gRPC with threads, as its documentation starts a server; and what gRPC's asyncio server shares with it.

The stubs are made from bench.proto at start. The driver is the sync client: unary calls, which gRPC's guide to
performance recommends for Python, arrays as the raw bytes of one `bytes` field, images as PNG files, compressed as
rpcstream does by default.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

from _common import (
    HOST,
    TOPICS,
    Call,
    Options,
    Result,
    load_with_threads,
    main,
    make_login,
    mean_colour,
    needs,
    ready,
)

with needs("grpcio", "grpcio-tools", "numpy", "pillow"):
    import grpc  # type: ignore[import-untyped]
    import grpc_tools  # type: ignore[import-untyped]  # noqa: F401
    import numpy as np
    from PIL import Image

WITHOUT_LIMITS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
OF_ITS_OWN = [("grpc.use_local_subchannel_pool", 1)]  # else channels to one address share a connection

messages, services = grpc.protos_and_services("bench.proto")  # finds the file beside this script


def image_from_png(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data), formats=["PNG"])


class Bench(services.BenchServicer):  # type: ignore[misc, name-defined]
    def Sum(self, request: Any, context: Any) -> Any:
        return messages.SumReply(result=request.a + request.b)

    def Login(self, request: Any, context: Any) -> Any:
        return messages.LoginReply(**make_login(request.user, request.password, request.remember))

    def Ping(self, request: Any, context: Any) -> Any:
        return messages.Text(text="pong")

    def Echo(self, request: Any, context: Any) -> Any:
        array = np.frombuffer(request.data, np.float32)
        return messages.Bytes(data=array.tobytes())

    def Image(self, request: Any, context: Any) -> Any:
        return messages.Colour(channels=mean_colour(image_from_png(request.data)))


def serve(options: Options) -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=10), options=WITHOUT_LIMITS)
    services.add_BenchServicer_to_server(Bench(), server)
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    ready(port, "grpcio", "protobuf")
    server.wait_for_termination()


def load(options: Options) -> Result:
    target = f"{HOST}:{options.port}"
    channels = [grpc.insecure_channel(target, options=WITHOUT_LIMITS + OF_ITS_OWN) for _ in range(options.connections)]
    return load_with_threads(options, [make_call(services.BenchStub(channel), options.topic) for channel in channels])


def make_call(stub: Any, topic: str) -> Call:
    def sum(a: int, b: int) -> int:
        result: int = stub.Sum(messages.SumRequest(a=a, b=b)).result
        return result

    def login(user: str, password: str, remember: bool) -> dict[str, Any]:
        reply = stub.Login(messages.LoginRequest(user=user, password=password, remember=remember))
        return {"user": reply.user, "token": reply.token, "remember": reply.remember}

    def array(array: np.ndarray) -> np.ndarray:
        return np.frombuffer(stub.Echo(messages.Bytes(data=array.tobytes())).data, np.float32)

    def image(photo: Image.Image) -> list[float]:
        file = BytesIO()
        photo.save(file, "PNG", compress_level=3)
        return list(stub.Image(messages.Bytes(data=file.getvalue())).channels)

    calls: dict[str, Call] = {"sum": sum, "login": login, "array": array, "image": image}
    return calls[topic]


if __name__ == "__main__":
    main(serve, load, topics=list(TOPICS))
