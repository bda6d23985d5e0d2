"""What a function gets for params that come over the wire, and how it is described: with a server in memory."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import orjson

from rpcstream import Server
from rpcstream.errors import error_from_wire

from ..kit import TRANSPORTS, RawPeer

TOKEN = "a-secret-of-tests"


@functools.cache
def kept_server(name: str, token: str | None = None) -> Server:
    """A server for one method of this name after the other: to make one takes longer than all that is done with it."""
    return Server(token=token)


def taking(hint: Any, *default: Any) -> Any:
    """A function of one parameter `value` with this hint, and this default, which it returns."""

    def it(value):  # type: ignore[no-untyped-def]
        return value

    it.__annotations__ = {"value": hint}
    it.__defaults__ = default
    return it


def bind(function: Callable[..., Any], params: Any, **options: Any) -> Any:
    """What the function returns for these params, or for a line of bytes.

    Raises:
        RpcError: what the caller is answered.
    """
    returned: list[Any] = []

    @functools.wraps(function)
    def it(*args: Any, **kwargs: Any) -> None:
        returned.append(function(*args, **kwargs))

    server = Server(**options) if options else kept_server("it")
    server.add(it, name="it", check_result=False, replace=True)
    line = params if isinstance(params, bytes) else orjson.dumps({"params": params})

    async def run() -> Any:
        async with TRANSPORTS["memory"].serving(server, None) as endpoint:
            raw = await endpoint.raw()
            reply = await raw.ask(b'{"jsonrpc":"2.0","id":1,"method":"it",' + line[1:])
            raw.close()
            return reply

    reply = asyncio.run(run())
    if "error" in reply:
        raise error_from_wire(reply["error"])
    return returned[0]


async def document_of(server: Server, token: str | None = None, **params: Any) -> dict[str, Any]:
    """What `rpc.discover` says of a server, as it comes over the wire, with the methods by their name."""
    async with TRANSPORTS["memory"].serving(server, None) as endpoint:
        raw = await endpoint.join(RawPeer)
        if token is not None:
            assert await raw.result("rpc.authenticate", token)
        document = await raw.result("rpc.discover", params=params)
        raw.close()
    return {**document, "methods": {each["name"]: each for each in document["methods"]}}


def described(function: Any, *, name: str = "it", **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How a method is described, and the schemas that the description refers to."""
    server = kept_server(name, TOKEN)
    server.add(function, name=name, replace=True, **options)
    document = asyncio.run(document_of(server, TOKEN))
    return document["methods"][name], document["components"]["schemas"]
