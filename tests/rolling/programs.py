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

import rpcstream
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


def notes_in(path: str) -> Note:
    """What appends numbers to a file, of which each worker has a descriptor of its own."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda number: os.write(log, b"%d\n" % number)


def activated() -> Server:
    """The server of a worker."""
    return make_server(notes_in(os.environ["NOTES"]))


def say(address: str) -> None:
    print(address, flush=True)


def main() -> None:
    kind, where, path = sys.argv[1:]
    note = notes_in(path)
    if kind == "provider":
        provide(where, note)
    elif kind == "server":
        make_server(note).run(port=int(where), on_listening=say)
    else:
        os.environ["NOTES"] = path
        rpcstream.run(f"{__file__}:activated", workers=int(where), sockets=take_sockets(), on_listening=say)


if __name__ == "__main__":
    main()
