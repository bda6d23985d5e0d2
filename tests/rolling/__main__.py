"""Restarts under load, with real programs: `python -m tests.rolling [--rounds N] [--calls N] [--scheme NAME]`.

Ends with status 1 if a call was lost, or carried out twice.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from .harness import providers_restarted, server_restarted


async def show(rounds: int, calls: int, scheme: str) -> bool:
    providers = await providers_restarted(rounds=rounds, calls=calls)
    server = await server_restarted(rounds=rounds, calls=calls, scheme=scheme)
    for name, outcome in (("three shared providers", providers), ("a server", server)):
        print(f"{name}: {outcome}: {'right' if outcome.is_right else 'WRONG'}")
    return providers.is_right and server.is_right


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=10, help="how often everything is restarted (10)")
parser.add_argument("--calls", type=int, default=2000, help="calls between two restarts (2000)")
parser.add_argument("--scheme", default="tcp", help="how the server is called: tcp, ws or http (tcp)")
logging.basicConfig(level=logging.ERROR)
sys.exit(not asyncio.run(show(**vars(parser.parse_args()))))
