"""The other caller: sends `rpc.ping` again and again on one connection, and notes how long each answer took.

A program of its own that imports nothing of the project, so that neither the attacker nor the server can slow it down.
Prints a line when it has begun, and one JSON object when its standard input ends.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import ssl
import sys
import time
from pathlib import Path

#: Seconds between an answer and the next question.
PAUSE = 0.004


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("pid", type=int)
    parser.add_argument("patience", type=float)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--token")
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=options.patience)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = context.wrap_socket(sock)
    lines = sock.makefile("rb")
    if options.token:
        ask(sock, lines, "rpc.authenticate", {"token": options.token})
    print(json.dumps(observe(sock, lines, options.pid)))


def observe(sock: socket.socket, lines, pid: int) -> dict:  # type: ignore[no-untyped-def, type-arg]
    """Ask until the standard input ends; a line on it says that the attack begins."""
    quiet: list[float] = []
    longest = held = 0.0
    count = 0
    is_attacked = is_over = False
    try:
        ask(sock, lines, "rpc.ping", None)
        print("ready", flush=True)
        while not is_over:
            busy, start = processor_time(pid), time.perf_counter()
            ask(sock, lines, "rpc.ping", None)
            wait, used = time.perf_counter() - start, processor_time(pid) - busy
            if select.select([sys.stdin], [], [], PAUSE)[0]:  # the attack has begun, perhaps while this was asked
                is_over = not sys.stdin.readline()
                is_attacked = True
            if is_attacked:
                longest, held, count = max(longest, wait), max(held, used), count + 1
            else:
                quiet.append(wait)
    except (OSError, ValueError) as error:
        return {"failure": f"the other caller was not answered: {type(error).__name__}: {error}"}
    return {"quiet": quiet, "longest": longest, "held": held, "count": count}


def ask(sock: socket.socket, lines, method: str, params: object) -> None:  # type: ignore[no-untyped-def]
    sock.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
    reply = lines.readline()
    if not reply:
        raise ConnectionError("the connection was closed")
    if "error" in json.loads(reply):
        raise ValueError(reply.decode(errors="replace")[:300])


def processor_time(pid: int) -> float:
    """Seconds that the main thread of a process has been on a processor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


if __name__ == "__main__":
    main()
