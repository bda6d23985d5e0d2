"""Restarts under load, with real programs: `python -m tests.rolling [--rounds N] [--clients N] [--each N]`.

Ends with status 1 if a call was lost, or carried out twice.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import sys

from .harness import providers_restarted, server_restarted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="how often everything is restarted (10)")
    parser.add_argument("--clients", type=int, default=8, help="connections that call (8)")
    parser.add_argument("--each", type=int, default=8, help="calls at a time on each of them (8)")
    parser.add_argument("--scheme", default="tcp", help="how the server is called: tcp, ws or http (tcp)")
    parser.add_argument("--calls", type=int, default=2000, help="calls between two restarts (2000)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    load = {"calls": options.calls, "clients": options.clients, "each": options.each}
    is_right = True
    server = functools.partial(server_restarted, scheme=options.scheme)
    for name, show in (("three shared providers", providers_restarted), ("a server", server)):
        outcome = asyncio.run(show(rounds=options.rounds, **load))
        is_right &= outcome.is_right
        print(f"{name}: {outcome}: {'right' if outcome.is_right else 'WRONG'}", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
