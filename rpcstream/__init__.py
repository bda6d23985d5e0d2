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

The names listed here, in `rpcstream.errors`, `rpcstream.web`, `rpcstream.testing`, and the content of `docs/` are
public; the rest may change. Each name is imported at its first use, so that a small client such as the command line
does not import the server.

PYTEST_DONT_REWRITE: pytest would warn that it comes too late, in programs that have imported this before they run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .backoff import Backoff as Backoff
    from .client.aio import AsyncClient as AsyncClient
    from .client.options import Retry as Retry
    from .client.options import Trace as Trace
    from .client.sync import Client as Client
    from .codec import Codec as Codec
    from .codec import ImageFile as ImageFile
    from .codec import ImageOptions as ImageOptions
    from .codec import MaxSide as MaxSide
    from .codec import Shape as Shape
    from .errors import CallTimeout as CallTimeout
    from .errors import ConnectFailed as ConnectFailed
    from .errors import ConnectionLost as ConnectionLost
    from .errors import InvalidParams as InvalidParams
    from .errors import MethodNotFound as MethodNotFound
    from .errors import NotAuthenticated as NotAuthenticated
    from .errors import NotPermitted as NotPermitted
    from .errors import RpcError as RpcError
    from .errors import ServerBusy as ServerBusy
    from .hub import Hub as Hub
    from .hub import Rule as Rule
    from .hub import Rules as Rules
    from .limits import Limits as Limits
    from .methods.dependencies import Depends as Depends
    from .methods.method_docs import Example as Example
    from .methods.middleware import CallNext as CallNext
    from .methods.middleware import MethodCall as MethodCall
    from .nats.options import NatsLogin as NatsLogin
    from .peer.context import Context as Context
    from .peer.credentials import Credentials as Credentials
    from .peer.remote import Peer as Peer
    from .peer.shared_memory import shared_empty as shared_empty
    from .server import Server as Server
    from .server.options import Http as Http
    from .server.options import Info as Info
    from .server.options import Logs as Logs
    from .tls import TLS as TLS

#: The public names of each module.
_NAMES = {
    "backoff": "Backoff",
    "client.aio": "AsyncClient",
    "client.options": "Retry Trace",
    "client.sync": "Client",
    "codec": "Codec ImageFile ImageOptions MaxSide Shape",
    "errors": (
        "CallTimeout ConnectFailed ConnectionLost InvalidParams MethodNotFound "
        "NotAuthenticated NotPermitted RpcError ServerBusy"
    ),
    "hub": "Hub Rule Rules",
    "limits": "Limits",
    "methods.dependencies": "Depends",
    "methods.method_docs": "Example",
    "methods.middleware": "CallNext MethodCall",
    "nats.options": "NatsLogin",
    "peer.context": "Context",
    "peer.credentials": "Credentials",
    "peer.remote": "Peer",
    "peer.shared_memory": "shared_empty",
    "server": "Server",
    "server.options": "Http Info Logs",
    "tls": "TLS",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULE_OF]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
