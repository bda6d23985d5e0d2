"""ucall: JSON-RPC over HTTP, served in C with io_uring (`--engine uring`) or without (`posix`).

As ucall 0.5.4 was seen to behave on Linux 6.18:

* posix: right answers, also at 256 connections, but it closes the connection after each one, whatever the request
  says. It takes a bare JSON object as well as HTTP and answers that without a line end, so it is HTTP that can be
  loaded; the Content-Length of its answers has blanks behind the number. A header that comes in two pieces, or two
  requests in one, is an error or never answered; answers to batches begin with what is left of earlier errors.
* uring: the connection stays, but over HTTP nothing comes after the second or third answer on it, with 32 connections
  also pieces of other answers ("Partial HTTP request") and closed connections; with a new connection for each call it
  falls silent after some dozens of calls. As bare JSON over TCP most answers are wrong from the second one on: parse
  errors for right requests, pieces of earlier answers, other callers' answers. It never ends by itself.
* Both: hints that are strings, as `from __future__ import annotations` makes them, end the process with a segmentation
  fault at the first call, so this script does without. There is no wheel for Python 3.13.
"""

from importlib import import_module
from typing import Any

from _common import HOST, Options, free_port, main, make_login, needs, ready, skip

with needs("ucall"):
    import ucall  # type: ignore[import-untyped]  # noqa: F401


def sum(a: int, b: int) -> int:
    return a + b


def login(user: str, password: str, remember: bool) -> dict[str, Any]:
    return make_login(user, password, remember)


def ping() -> str:
    return "pong"


def serve(options: Options) -> None:
    with needs("ucall"):
        engine: Any = import_module(f"ucall.{options.engine}")
    port = free_port()
    try:
        server = engine.Server(hostname=HOST, port=port, quiet=True)
    except RuntimeError as error:  # where the system lets no program use io_uring
        skip(f"no server with {options.engine}: {error}")
    for handler in (sum, login, ping):
        server(handler)
    ready(port, "ucall")
    server.run()


if __name__ == "__main__":
    main(serve, serve_options={"--engine": {"choices": ["posix", "uring"], "default": "posix"}})
