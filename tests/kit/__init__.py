"""What tests share. `from ..kit import RawPeer, UsualServer, request, until`; the rest is in the modules.

* `messages`: `request`, `notification`, `batch`, `reply`, binary frames.
* `peers`: `RawPeer`, one end of a connection over any transport that does nothing by itself; `raw_peers(server)`.
* `matrix`: the transports, `Network`, and what may not be left behind at the end of a test.
* `server`: `UsualServer`, with the methods that most tests call.
* `clients`: both clients behind the same blocking methods, for what is true of both.
* `scripted`, `scripted_http`: servers that follow a script, in threads, for blocking clients.
* `http`, `websocket`: requests and frames as bytes.
* `waiting`: `until`, `until_in_thread`. `logs`: `logged`, `LogLines`. `certificates`: an authority and its files.
* `loops`: an event loop that is turned by hand. `random_runs`, `example_count`: for hypothesis.
* `asgi`, `asgi_servers`: the side of an ASGI server, in memory; uvicorn.
* `nats_server`, `nats_accounts`, `nats_adapter`, `plain_nats`, `nats_raw_client`: NATS servers, and clients that know
  nothing of rpcstream.
"""

from .certificates import authority, client_side, server_tls
from .logs import LogLines, logged
from .matrix import TRANSPORTS, Endpoint, Network, StoppableServer, leftovers, live_sessions, peer_keeping_server
from .messages import Frame, batch, frame, notification, parsed, reply, request
from .peers import RawPeer, open_peer, raw_peers
from .server import UsualServer
from .waiting import PATIENCE, until, until_in_thread

__all__ = [
    "PATIENCE",
    "TRANSPORTS",
    "Endpoint",
    "Frame",
    "LogLines",
    "Network",
    "RawPeer",
    "StoppableServer",
    "UsualServer",
    "authority",
    "batch",
    "client_side",
    "frame",
    "leftovers",
    "live_sessions",
    "logged",
    "notification",
    "open_peer",
    "parsed",
    "peer_keeping_server",
    "raw_peers",
    "reply",
    "request",
    "server_tls",
    "until",
    "until_in_thread",
]
