"""Applications that test_asgi_servers.py runs under ASGI servers: alone, without a lifespan, and in front of Django."""

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


@cache
def in_front_of_django() -> Any:
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    pages = (path("page", lambda request: HttpResponse("of Django")),)
    settings.configure(ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF=pages)
    return server.asgi(get_asgi_application(), path="/rpc")


def __getattr__(name: str) -> Any:
    """`asgi_program:django`; imported where it is asked for."""
    if name != "django":
        raise AttributeError(name)
    return in_front_of_django()
