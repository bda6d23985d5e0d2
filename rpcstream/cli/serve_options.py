"""The flags of `rpcstream-server`: the parser, and the rules of which flags go together.

Imports no server, so that `--help` and completion are quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Literal

from .. import __version__
from ..limits import DEFAULT_HOST, DEFAULT_PORT
from .options import HelpFormatter, parse_count, parse_port, split_options

#: Defaults with -f: those of the first JSON-RPC stream servers, so that their clients find the server.
FUNCTIONS_PORT = 2102
FUNCTIONS_MODULE = "controlFunctions"
FUNCTIONS_PATTERN = "control_*"

#: Processes at most: a thousand interpreters take 40 GB without any program in them.
MAX_WORKERS = 1000

#: Flags that are options of the configuration with the same name.
FLAGS = (
    *("host", "port", "unix", "workers", "debug", "log_level", "access_log", "metrics", "docs", "nats", "token_file"),
)
#: Flags that name files of TLS, and their names in the table `tls` of the configuration.
TLS_FLAGS = (("certificate", "certificate"), ("key", "key"), ("client_ca", "ca"))

_DESCRIPTION = """\
Serve the methods of a Server, with -f the functions of a plain module, or with
--hub a hub. TARGET is one of
  module:server      a Server in a module, seen from the current directory
  module:function    a function without parameters that returns a Server
  file.py[:server]   the only Server in a file, or the one called `server`"""

_EPILOG = """\
--set and --config take every option: docs/reference/command-line.md
exit status: 0 stopped (Ctrl-C, SIGTERM, the method `stop`), 1 cannot listen or
join, 2 wrong use or target, 128 + the number of a signal that ended it at once"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of `rpcstream-server`."""
    parser = argparse.ArgumentParser(
        prog="rpcstream-server",
        usage="%(prog)s [options] TARGET\n       %(prog)s [options] -f [MODULE]\n       %(prog)s [options] --hub",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help=argparse.SUPPRESS)
    _add_what_options(parser.add_argument_group("what and where").add_argument)
    _add_access_options(parser.add_argument_group("access").add_argument)
    _add_running_options(parser.add_argument_group("running").add_argument)
    return parser


def _add_what_options(add: Callable[..., object]) -> None:
    of_module: dict[str, Any] = {"metavar": "MODULE", "nargs": "?", "const": FUNCTIONS_MODULE}
    add("-f", "--functions", **of_module, help=f"serve a module's functions ({FUNCTIONS_MODULE})")
    add("--pattern", help=f"with -f: the names to serve (default '{FUNCTIONS_PATTERN}')")
    add("--hub", action="store_true", help="serve a hub, which routes calls between its clients")
    add("--mcp", action="store_true", help="serve an agent (MCP) on standard input and output")
    add("-s", "--host", help=f"listen at this address (default {DEFAULT_HOST})")
    ports = f"and port (default {DEFAULT_PORT}, with -f {FUNCTIONS_PORT}; 0: a free one)"
    add("-p", "--port", type=parse_port, help=ports)
    add("--unix", metavar="PATH", help="listen at a Unix socket instead")
    add("--nats", metavar="URL", help="join a service on NATS: nats://HOST/SERVICE")
    add("--config", metavar="FILE", help="take options from this file (TOML or JSON)")
    several: dict[str, Any] = {"action": "append", "metavar": "NAME=VALUE"}
    add("--set", **several, help="set one option as in that file; repeatable")


def _add_access_options(add: Callable[..., object]) -> None:
    add("--token-file", metavar="FILE", help="callers must send the token in this file")
    own = "TLS: the server's certificate (PEM)"
    add("--cert", "--certificate", dest="certificate", metavar="FILE", help=own)
    add("--key", metavar="FILE", help="TLS: its private key, if it is not in the same file")
    add("--client-ca", metavar="FILE", help="TLS: ask for clients' certificates by these (PEM)")


def _add_running_options(add: Callable[..., object]) -> None:
    flag: dict[str, Any] = {"action": "store_true", "default": None}
    workers = "processes that share connections, or auto: all cores"
    add("--workers", metavar="N", type=parse_workers, help=workers)
    add("--reload", **flag, help="start again when a .py file here has changed")
    add("-d", "--debug", **flag, help="log every message; tell callers of exceptions")
    levels = ("debug", "info", "warning", "error", "critical")
    add("--log-level", metavar="LEVEL", choices=levels, help="debug... critical (default warning, with -d info)")
    add("--access-log", metavar="FORMAT", choices=("text", "json"), help="log each call, as text or json")
    add("--metrics", **flag, help="show metrics for Prometheus at /metrics")
    add("--docs", action=argparse.BooleanOptionalAction, help="the explorer at /docs (default: on loopback)")
    add("--version", action="version", version=f"rpcstream {__version__}", help="show the version")
    add("-h", "--help", action="help", help="show this")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `target` is the argument that is no option, or None.

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
    return options


def parse_workers(text: str) -> int | Literal["auto"]:
    """Parse a number of processes, or "auto"; for `type=`."""
    return "auto" if text == "auto" else parse_count(text, MAX_WORKERS)


def _find_conflict(options: argparse.Namespace) -> str | None:
    """The reason why these flags do not go together, or None."""
    if options.hub and options.functions is not None:
        return "-f does not go with --hub: let a client of the hub offer the functions"
    if not options.hub and (options.target is None) == (options.functions is None):
        return "say what to serve: a TARGET such as module:server or file.py, -f MODULE, or --hub"
    return _find_conflict_of_hub(options) or _find_conflict_of_access(options)


def _find_conflict_of_hub(options: argparse.Namespace) -> str | None:
    for name in ("workers", "reload") if options.hub else ():
        if getattr(options, name):
            return f"--{name} does not go with --hub: a hub is one process"
    if options.hub and options.nats is not None:
        return "--nats does not go with --hub: give clients the addresses of several hubs instead"
    return None


def _find_conflict_of_access(options: argparse.Namespace) -> str | None:
    if options.pattern is not None and options.functions is None:
        return "--pattern goes with -f"
    if options.unix is not None and (options.host is not None or options.port is not None):
        return "--unix takes the place of --host and --port"
    if options.certificate is None:
        for name in ("key", "client_ca"):
            if getattr(options, name) is not None:
                return f"--{name.replace('_', '-')} goes with --certificate"
    listens = ("hub", "nats", "host", "port", "unix", "workers", "reload", "certificate", "token_file")
    for name in listens if options.mcp else ():
        if getattr(options, name):
            return f"--{name.replace('_', '-')} does not go with --mcp, which listens nowhere"
    return None
