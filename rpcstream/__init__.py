"""Call Python functions over persistent connections with JSON-RPC 2.0, with arrays and images as plain values.

A server, `service.py`:

    import numpy as np
    from PIL import Image
    from rpcstream import Server

    server = Server()

    @server
    def brightness(photo: Image.Image, gain: float = 1.0) -> np.ndarray:
        "The mean of each channel."
        return np.asarray(photo).mean(axis=(0, 1)) * gain

    if __name__ == "__main__":
        server.run()

A call, from another program:

    from PIL import Image
    from rpcstream import Client

    with Client() as client:
        print(client.brightness(photo=Image.open("a.png"), gain=2.0))

or from a shell: `rpcstream brightness gain=2.0 -i photo=./a.png`.

Begin with `Server`, `Client` and `AsyncClient`; `Hub` connects programs with each other; handlers get a `Context`.
Errors are subclasses of `RpcError` (the other end answered with an error), `ConnectFailed`, `ConnectionLost` and
`CallTimeout`.

The names listed here and the content of `docs/` are public; the rest may change. Each name is imported at its first
use, so that a small client such as the command line does not import the server.

PYTEST_DONT_REWRITE: pytest would warn that it comes too late, in programs that have imported this before they run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .backoff import Backoff
    from .client.aio import AsyncClient
    from .client.subscriptions import Subscription
    from .client.sync import Client
    from .codec import Codec, ImageFile, ImageOptions, MaxSide, Shape
    from .errors import (
        BatchTooLarge,
        CallCancelled,
        CallTimeout,
        ConnectFailed,
        ConnectionLost,
        DeadlineExceeded,
        EncodeError,
        InternalError,
        InvalidParams,
        InvalidRequest,
        MessageTooLarge,
        MethodNotFound,
        NotAuthenticated,
        NotPermitted,
        ParseError,
        ProviderGone,
        RegistrationError,
        RpcError,
        ServerBusy,
    )
    from .hub import Hub, Rule, Rules
    from .limits import Limits
    from .methods.about import Example
    from .methods.dependencies import Depends
    from .methods.middleware import CallNext, MethodCall
    from .nats.options import NatsLogin
    from .peer.context import Context
    from .peer.credentials import Credentials
    from .peer.remote import BlockingPeer, Peer
    from .peer.stream import Stream
    from .server import Server
    from .supervisor.run import run
    from .tls import TLS
    from .web.html import Html, escape, html
    from .wire.http_messages import HttpError, Request, Response

#: The module of a public name; a name that is not here is an error class, in `errors`.
_MODULE_OF = {
    "AsyncClient": "client.aio",
    "Backoff": "backoff",
    "BlockingPeer": "peer.remote",
    "Client": "client.sync",
    "Codec": "codec",
    "Context": "peer.context",
    "Credentials": "peer.credentials",
    "Depends": "methods.dependencies",
    "Example": "methods.about",
    "Html": "web.html",
    "HttpError": "wire.http_messages",
    "Hub": "hub",
    "ImageFile": "codec",
    "ImageOptions": "codec",
    "Limits": "limits",
    "CallNext": "methods.middleware",
    "MaxSide": "codec",
    "MethodCall": "methods.middleware",
    "NatsLogin": "nats.options",
    "Peer": "peer.remote",
    "Request": "wire.http_messages",
    "Response": "wire.http_messages",
    "Rule": "hub",
    "Rules": "hub",
    "Server": "server",
    "Shape": "codec",
    "Stream": "peer.stream",
    "Subscription": "client.subscriptions",
    "TLS": "tls",
    "escape": "web.html",
    "html": "web.html",
    "run": "supervisor.run",
}

__all__ = [
    "TLS",
    "AsyncClient",
    "Backoff",
    "BatchTooLarge",
    "BlockingPeer",
    "CallCancelled",
    "CallNext",
    "CallTimeout",
    "Client",
    "Codec",
    "ConnectFailed",
    "ConnectionLost",
    "Context",
    "Credentials",
    "DeadlineExceeded",
    "Depends",
    "EncodeError",
    "Example",
    "Html",
    "HttpError",
    "Hub",
    "ImageFile",
    "ImageOptions",
    "InternalError",
    "InvalidParams",
    "InvalidRequest",
    "Limits",
    "MaxSide",
    "MessageTooLarge",
    "MethodCall",
    "MethodNotFound",
    "NatsLogin",
    "NotAuthenticated",
    "NotPermitted",
    "ParseError",
    "Peer",
    "ProviderGone",
    "RegistrationError",
    "Request",
    "Response",
    "RpcError",
    "Rule",
    "Rules",
    "Server",
    "ServerBusy",
    "Shape",
    "Stream",
    "Subscription",
    "__version__",
    "escape",
    "html",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
