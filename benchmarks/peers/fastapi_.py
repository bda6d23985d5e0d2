"""FastAPI on uvicorn with uvloop and httptools, one worker, no access log: REST and WebSocket.

As its documentation recommends for speed: coroutines for what does not block, and declared models for what comes and
what goes, which pydantic then reads and writes. Arrays are raw bytes and images PNG files in the body.
"""

from __future__ import annotations

from io import BytesIO
from socket import create_server, socket

from _common import HOST, Options, main, make_login, mean_colour, needs, ready

with needs("fastapi", "uvicorn[standard]", "numpy", "pillow"):
    import httptools  # noqa: F401
    import numpy as np
    import uvicorn
    import uvloop  # noqa: F401
    import websockets  # noqa: F401
    from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
    from PIL import Image
    from pydantic import BaseModel

app = FastAPI()


class SumRequest(BaseModel):
    a: int
    b: int


class LoginRequest(BaseModel):
    user: str
    password: str
    remember: bool


class LoginReply(BaseModel):
    user: str
    token: str
    remember: bool


@app.post("/sum")
async def sum(request: SumRequest) -> int:
    return request.a + request.b


@app.post("/sum_later")
async def sum_later(request: SumRequest) -> int:
    return request.a + request.b


@app.post("/login")
async def login(request: LoginRequest) -> LoginReply:
    return LoginReply(**make_login(request.user, request.password, request.remember))


@app.post("/ping")
async def ping() -> str:
    return "pong"


@app.post("/echo")
async def echo(request: Request) -> Response:
    array = np.frombuffer(await request.body(), np.float32)
    return Response(array.tobytes(), media_type="application/octet-stream")


@app.post("/image")
async def image(request: Request) -> list[float]:
    return mean_colour(Image.open(BytesIO(await request.body()), formats=["PNG"]))


@app.websocket("/ws")
async def sum_messages(connection: WebSocket) -> None:
    await connection.accept()
    try:
        while True:
            request = SumRequest.model_validate_json(await connection.receive_text())
            await connection.send_text(str(request.a + request.b))
    except WebSocketDisconnect:
        pass


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and not self.should_exit:
            ready(sockets[0].getsockname()[1], "fastapi", "uvicorn", "pydantic", "uvloop", "httptools", "websockets")


def serve(options: Options) -> None:
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning")
    Server(config).run([create_server((HOST, 0), backlog=config.backlog)])


if __name__ == "__main__":
    main(serve)
