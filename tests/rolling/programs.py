"""The programs that are restarted: a provider at a hub, and a server. Each writes the numbers of calls.

    python -m tests.rolling.programs provider ADDRESS LOG
    python -m tests.rolling.programs server PORT LOG
    python -m tests.rolling.programs activated "" LOG    # at the sockets that it is passed, as systemd does

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

#: Called with the number of each call that begins.
Note = Callable[[int], object]


def make_work(note: Note) -> Callable[[int], object]:
    """A method that notes its number, takes a moment, and gives the number back."""

    async def work(number: int) -> int:
        note(number)
        await asyncio.sleep(random.uniform(0, 0.004))
        return number

    return work


def make_server(note: Note) -> Server:
    server = Server()
    server.add(make_work(note), name="work")
    return server


def provide(address: str, note: Note) -> None:
    client = Client(address, reconnect=True)
    client(name="work", shared=True)(make_work(note))
    client.offer()
    print("ready", flush=True)
    client.run()


def main() -> None:
    kind, where, path = sys.argv[1:]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(number: int) -> None:
        os.write(log, b"%d\n" % number)

    if kind == "provider":
        provide(where, note)
    else:
        place = {"sockets": take_sockets()} if kind == "activated" else {"port": int(where)}
        make_server(note).run(**place, on_listening=lambda address: print(address, flush=True))


if __name__ == "__main__":
    main()
