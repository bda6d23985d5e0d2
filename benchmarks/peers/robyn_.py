"""Robyn: HTTP in Rust, one process with one worker. Only the page, as a `const` route: it is answered without Python.

At SIGTERM robyn 0.88.0 stops accepting, but its process goes on; so here a thread waits for that signal. It wants
uvloop 0.22, older than what the others run on; with a newer one it was seen to work.
"""

from __future__ import annotations

import os
import signal
import threading

from _common import HOST, PAGE, PAGE_PATH, PAGE_TYPE, Options, free_port, main, needs, ready_when_open

with needs("robyn"):
    from robyn import Headers, Response, Robyn
    from robyn.argument_parser import Config


def page() -> Response:
    return Response(200, Headers({"content-type": PAGE_TYPE}), PAGE)


def end_at_sigterm() -> None:
    """End the process at SIGTERM; to be called before other threads start, since they inherit the blocked signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def wait() -> None:
        signal.sigwait([signal.SIGTERM])
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def serve(options: Options) -> None:
    end_at_sigterm()
    config = Config()
    config.log_level, config.disable_openapi = "WARN", True
    app = Robyn(__file__, config)
    app.get(PAGE_PATH, const=True)(page)
    port = free_port()
    ready_when_open(port, "robyn", "uvloop")
    app.start(HOST, port)


if __name__ == "__main__":
    main(serve)
