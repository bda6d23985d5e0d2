"""The programs that are restarted: a provider at a hub, and a server. Each writes the numbers of calls.

    python -m tests.rolling.programs provider ADDRESS LOG
    python -m tests.rolling.programs server PORT LOG
    python -m tests.rolling.programs activated WORKERS LOG    # at the sockets that it is passed, as systemd does

All print a line when they take calls, and end in an orderly way with SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable

from rpcstream import Client, Server
from rpcstream.systemd import take_sockets


def make_work(path: str) -> Callable[[int], object]:
    """A method that appends its number to a file, takes a moment, and gives the number back."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def work(number: int) -> int:
        os.write(log, b"%d\n" % number)
        await asyncio.sleep(random.uniform(0, 0.004))
        return number

    return work


def make_server(path: str) -> Server:
    server = Server()
    server.add(make_work(path), name="work")
    return server


#: The server of a worker, which has a descriptor of its own for the file.
activated = make_server(sys.argv[3]) if sys.argv[1:2] == ["activated"] else None


def say(address: str) -> None:
    print(address, flush=True)


def main() -> None:
    kind, where, path = sys.argv[1:]
    if kind == "provider":
        client = Client(where, reconnect=True)
        client(name="work", shared=True)(make_work(path))
        client.offer()
        say("ready")
        client.run()
    elif kind == "server":
        make_server(path).run(port=int(where), on_listening=say)
    else:
        assert activated is not None
        activated.run(workers=int(where), sockets=take_sockets(), on_listening=say)


if __name__ == "__main__":
    main()
