"""Applications that test_asgi_servers.py runs: alone, without a lifespan, and with applications of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import numpy as np

from rpcstream import Server


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[None]:
    print("started", flush=True)
    yield
    print("stopped", flush=True)


server = Server(lifespan=lifespan)


@server
def add(a: int, b: int) -> int:
    return a + b


@server
def double(values: np.ndarray) -> np.ndarray:
    return values * 2


@server
async def wait(seconds: float) -> float:
    print("waits", flush=True)
    await asyncio.sleep(seconds)
    return seconds


@server
async def count(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


#: Started and stopped with the lifespan.
alone = server.asgi()


async def mounted(scope: Any, receive: Any, send: Any) -> None:
    """An application that does not pass the lifespan on."""
    if scope["type"] == "lifespan":
        raise ValueError("the lifespan is not supported")
    await alone(scope, receive, send)


def beside(application: Any) -> Any:
    """Another application, and the server at `/rpc`."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount("/rpc", alone), Mount("/", application)], lifespan=alone.lifespan)


def beside_django() -> Any:
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    pages = (path("page", lambda request: HttpResponse("of django")),)
    settings.configure(ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF=pages)
    return beside(get_asgi_application())


def within_litestar() -> Any:
    from litestar import Litestar, asgi, get

    @asgi("/rpc", is_mount=True, copy_scope=True)
    async def rpc(scope: Any, receive: Any, send: Any) -> None:
        await alone(scope, receive, send)

    @get("/page", sync_to_thread=False)
    def page() -> str:
        return "of litestar"

    return Litestar([rpc, page], lifespan=[alone.lifespan])


def beside_quart() -> Any:
    from quart import Quart

    application = Quart(__name__)
    application.get("/page")(lambda: "of quart")
    return beside(application)


_OTHERS = {"django": beside_django, "litestar": within_litestar, "quart": beside_quart}


@cache
def __getattr__(name: str) -> Any:
    """`asgi_program:django` and others; imported where they are asked for."""
    if name not in _OTHERS:
        raise AttributeError(name)
    return _OTHERS[name]()
