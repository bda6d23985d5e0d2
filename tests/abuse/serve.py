"""Runs one server to be attacked: `python -m tests.abuse.serve MODULE:FUNCTION`; prints its address."""

from __future__ import annotations

import argparse
import importlib
import logging

from ..internals import uses_tls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("made_by", help="the function that gives the server: MODULE:FUNCTION")
    parser.add_argument("--loop", default="auto")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    module, _, name = options.made_by.partition(":")
    server = getattr(importlib.import_module(module), name)()
    scheme = "tls://" if uses_tls(server) else ""
    server.run(port=0, loop=options.loop, on_listening=lambda address: print(scheme + address, flush=True))


if __name__ == "__main__":
    main()
