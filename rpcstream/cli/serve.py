# PYTHON_ARGCOMPLETE_OK
"""The command `rpcstream-server`: serves the server or the functions of a module, or a hub.

Parses the options. Imports no server before that, so that `--help` and completion are quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import __version__
from ..limits import DEFAULT_HOST, DEFAULT_PORT
from .options import CommandParser, find_missing, flag, is_given, parse_port, split_options

if TYPE_CHECKING:
    from ..server.worker import WorkerLink

#: Defaults with -f: the first JSON-RPC stream servers used them, so that their clients find the server.
FUNCTIONS_PORT = 2102
FUNCTIONS_MODULE = "controlFunctions"
FUNCTIONS_PATTERN = "control_*"

_HELP = f"""\
usage: rpcstream-server [options] TARGET | -f [MODULE] | --hub

Serve the methods of TARGET: module:server, module:function (which returns a
Server), file.py, or file.py:server.

what and where
  -f, --functions [MODULE]   serve the functions of a module ({FUNCTIONS_MODULE})
  --pattern PATTERN          with -f: their names (default '{FUNCTIONS_PATTERN}')
  --hub                      serve a hub, which routes calls between clients
  --mcp                      serve an agent (MCP) on standard input and output
  -s, --host HOST            listen on this address (default {DEFAULT_HOST})
  -p, --port PORT            and port (default {DEFAULT_PORT}, with -f {FUNCTIONS_PORT}; 0: any)
  --unix PATH                listen on a Unix socket instead
  --nats URL                 join a service on NATS: nats://HOST/SERVICE
  --config FILE              read options from this file (TOML or JSON)
  --set NAME=VALUE           set one option of such a file; repeatable
access
  --token-file FILE          callers must send the token in this file
  --cert, --certificate FILE TLS: the server's certificate (PEM)
  --key FILE                 TLS: its private key, if it is in another file
  --client-ca FILE           TLS: require certificates of these authorities
running
  --workers N                processes that share the port; auto: one per core
  --reload                   restart when a .py file of the program changes
  -d, --debug                log every message; send tracebacks to callers
  --log-level LEVEL          debug... critical (default warning, with -d info)
  --access-log FORMAT        log each call, as text or json
  --metrics                  show metrics for Prometheus at /metrics
  --docs, --no-docs          the explorer at /docs (default: on loopback)

-h, --help, --version; all options: docs/reference/command-line.md
exit status: 0 stopped (Ctrl-C, SIGTERM, the method `stop`), 1 cannot listen or
join, 2 wrong option or target, 128 + the number of a second signal
"""


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


def make_parser() -> argparse.ArgumentParser:
    """The parser of `rpcstream-server`."""
    parser = CommandParser("rpcstream-server", _HELP)
    add = parser.add_argument
    add("target", metavar="TARGET", nargs="?")
    add("-f", "--functions", nargs="?", const=FUNCTIONS_MODULE)
    for name in ("--pattern", "--unix", "--nats", "--config", "--token-file", "--key", "--client-ca", "--workers"):
        add(name)
    for name in ("--hub", "--mcp"):
        add(name, action="store_true")
    for name in ("--reload", "--metrics"):
        add(name, action="store_true", default=None)
    add("-s", "--host")
    add("-p", "--port", type=parse_port)
    add("--set", action="append")
    add("--cert", "--certificate", dest="certificate")
    add("-d", "--debug", action="store_true", default=None)
    add("--log-level", choices=("debug", "info", "warning", "error", "critical"))
    add("--access-log", choices=("text", "json"))
    add("--docs", action=argparse.BooleanOptionalAction)
    add("--version", action="version", version=f"rpcstream {__version__}")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `target` is the argument that is no option, or None; `default_port` goes with it.

    Raises:
        SystemExit: --help, --version or wrong use; argparse has printed the text.
    """
    given, targets = split_options(argv, parser._actions)
    options = parser.parse_args(given)
    if len(targets) > 1:
        parser.error(f"one TARGET is expected, not {len(targets)}: {' '.join(targets)}")
    options.target = targets[0] if targets else None
    conflict = _find_conflict(options)
    if conflict is not None:
        parser.error(conflict)
    options.pattern = options.pattern or FUNCTIONS_PATTERN
    options.default_port = DEFAULT_PORT if options.functions is None else FUNCTIONS_PORT
    return options


#: Flags that do not go with another one, and why.
_CONFLICTS = (
    ("hub", ("functions",), "let a client of the hub offer the functions"),
    ("hub", ("workers", "reload"), "a hub is one process"),
    ("hub", ("nats",), "give clients the addresses of several hubs instead"),
    ("unix", ("host", "port"), "it takes the place of an address"),
    (
        "mcp",
        ("hub", "nats", "host", "port", "unix", "workers", "reload", "certificate", "token_file"),
        "an agent is served on standard input and output",
    ),
)
#: Flags that need another one.
_NEEDS = {"pattern": "functions", "key": "certificate", "client_ca": "certificate"}


def _find_conflict(options: argparse.Namespace) -> str | None:
    """The reason why these flags do not go together, or None."""
    for name, others, reason in _CONFLICTS:
        other = next((each for each in others if is_given(options, each)), None)
        if is_given(options, name) and other is not None:
            return f"{flag(other)} does not go with {flag(name)}: {reason}"
    if not options.hub and (options.target is None) == (options.functions is None):
        return "say what to serve: a TARGET such as module:server or file.py, -f MODULE, or --hub"
    return find_missing(options, _NEEDS)


if __name__ == "__main__":
    sys.exit(main())
