"""Starts servers to be attacked, each as a copy of this process, which has everything imported already.

They are asked for by lines of JSON: see `harness.ServerStarter`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable


def serve(made_by: str, loop: str, on_listening: Callable[[str], None]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    module, _, name = made_by.partition(":")
    server = getattr(importlib.import_module(module), name)()
    server.run(port=0, loop=loop, on_listening=on_listening)


def main() -> None:
    """Start a server for each line of the standard input, and end it with the next line; print process and address.

    The address is empty where the server did not start. Its last line says how it ended: see `waitstatus_to_exitcode`.
    """
    import rpcstream.hub  # noqa: F401 so that the copies need not

    for line in sys.stdin:
        asked = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _become_server(asked, writing)
        os.close(writing)
        with os.fdopen(reading) as said:
            print(json.dumps([pid, said.readline().strip()]), flush=True)
        sys.stdin.readline()
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)


def _become_server(asked: dict[str, str], writing: int) -> None:
    """Run the server in this process, which ends with it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, stream in enumerate((nothing, nothing, log)):
        os.dup2(stream, number)
    tempfile.tempdir = os.path.dirname(asked["log"])  # goes with the log

    def tell(address: str) -> None:
        os.write(writing, f"{address}\n".encode())
        os.close(writing)

    status = 1
    try:
        serve(asked["made_by"], asked["loop"], tell)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        logging.getLogger("abuse").exception("the server ended")
    finally:
        logging.shutdown()
        os._exit(status)


if __name__ == "__main__":
    main()
