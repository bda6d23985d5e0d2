"""What the workers of `gpu_worker.py` at a hub have to do, as they tell it.

    python examples/gpu_watch.py [HUB [EVENTS]]

prints a line for each event, the last ones of all workers at once, then as they come:

    gpu-1    0 running    11 done    numpy

EVENTS is how many, and without it there is no end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys

from rpcstream import Client


def main(hub: str = os.environ.get("RPCSTREAM_HUB", "127.0.0.1:8545"), events: str = "") -> None:
    with Client(hub, reconnect=True) as client, client.subscribe("workers.*.load").with_topics() as loads:
        for topic, load in itertools.islice(loads, int(events) if events else None):
            name = topic.split(".")[1]
            if load is None:
                print(f"{name}    has left", flush=True)
            else:
                print(f"{name}    {load['running']} running    {load['done']} done    {load['library']}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
