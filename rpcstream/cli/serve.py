# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream-server`: serves the server or the functions of a module, or a hub.

Imports no server before the options are parsed, so that `--help` and completion are quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .serve_options import make_parser, parse

if TYPE_CHECKING:
    from ..server.worker import WorkerLink


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete_server

        complete_server(parser)
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        options = parse(parser, argv)
    except SystemExit as stopped:  # --help, --version, wrong use: argparse has printed the text
        return stopped.code if isinstance(stopped.code, int) else 0
    from ..process import on_hangup

    with on_hangup():  # it may come before the server is there
        return _run(options, argv)


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    pipe = None
    if options.mcp:
        from ..mcp.agents import StdioPipe

        # First of all: what the target prints while it is imported must not get to standard output.
        pipe = StdioPipe()
    from .serving import Command

    return Command(options, argv, pipe=pipe).run()


def serve_as_worker(link: WorkerLink, argv: list[str]) -> int:
    """Run the command as one of several workers; returns the exit status.

    Args:
        link: to the supervisor, which accepts the connections.
        argv: the options and the target, as the supervisor was given them.
    """
    from .serving import Command

    return Command(parse(make_parser(), argv), argv, link).run()


if __name__ == "__main__":
    sys.exit(main())
