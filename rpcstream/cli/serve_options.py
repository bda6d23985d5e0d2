"""The options of `rpcstream-server`: the parser, and the rules of which options go together.

Imports no server, so that `--help` and completion are quick.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from .. import __version__
from ..limits import DEFAULT_HOST, DEFAULT_PORT
from .options import NATS_LOGIN_OPTIONS, HelpFormatter, parse_count, parse_port, parse_seconds, split_options

#: Defaults with -f: those of the first JSON-RPC stream servers, so that their clients find the server.
FUNCTIONS_PORT = 2102
FUNCTIONS_MODULE = "controlFunctions"
FUNCTIONS_PATTERN = "control_*"

#: Processes at most: a thousand interpreters take 40 GB without any program in them.
MAX_WORKERS = 1000

#: Options that a supervisor of several processes carries out.
WORKER_OPTIONS = ("workers", "max_requests", "memory_limit", "affinity", "start_timeout", "reload")

#: Options of a hub alone, by the names that they have in its configuration.
HUB_OPTIONS = ("config", "call_timeout", "keepalive_timeout", "ping_interval", "registration_timeout")

#: Options that name files of TLS: the option, the field of `TLS`, the key in the configuration.
TLS_OPTIONS = (("certificate", "certificate", "certificate"), ("key", "key", "key"), ("client_ca", "ca", "ca"))

#: Options that go with --nats; docs/reference/command-line.md has them, `--help` has no room for them.
NATS_OPTIONS = (
    "service",
    "nats_only",
    *NATS_LOGIN_OPTIONS,
    "nats_ca",
    "nats_certificate",
    "nats_key",
    "nats_direct",
    "nats_trust_identity",
)

_DESCRIPTION = """\
Serve the methods of a Server, with -f the functions of a plain module, or with
--hub a hub. TARGET is one of
  module:server      a Server in a module, seen from the current directory
  module:function    a function without parameters that returns a Server
  file.py[:server]   the only Server in a file, or the one called `server`
A Hub is a Server too. Without TARGET, --hub makes one, out of these options,
then of variables such as RPCSTREAM_HUB_TOKEN, then of the file of --config."""

_EPILOG = """\
exit status: 0 stopped (Ctrl-C, SIGTERM, the method `stop`), 1 cannot listen or
join, 2 wrong use or target, 128 + the number of a signal: of the second one, or
of one after which a handler kept the event loop too long"""


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
    add = parser.add_argument_group("options").add_argument
    add("target", metavar="TARGET", nargs="?", help=argparse.SUPPRESS)
    of_module: dict[str, Any] = {"metavar": "MODULE", "nargs": "?", "const": FUNCTIONS_MODULE}
    add("-f", "--functions", **of_module, help=f"serve a module's functions ({FUNCTIONS_MODULE})")
    add("--pattern", help=f"with -f: the names to serve (default '{FUNCTIONS_PATTERN}')")
    add("-s", "--host", help=f"listen at this address (default {DEFAULT_HOST})")
    ports = f"and port (default {DEFAULT_PORT}, with -f {FUNCTIONS_PORT}; 0: a free one)"
    add("-p", "--port", type=parse_port, help=ports)
    add("--unix", metavar="PATH", help="listen at a Unix socket instead")
    workers = "processes that share connections, or auto: all cores"
    add("--workers", metavar="N", type=_parse_workers, help=workers)
    add("--max-requests", metavar="N", type=parse_count, help="replace a worker that has answered so many")
    add("--memory-limit", metavar="SIZE", type=_parse_size, help="replace a worker that takes more, such as 2G")
    add("--affinity", action="store_true", help="keep each worker on one processor")
    add("--start-timeout", metavar="S", type=parse_seconds, help="kill a worker not ready by then (default 60)")
    add("--reload", action="store_true", help="start again when a .py file here has changed")
    add("-d", "--debug", action="store_true", help="log every message; tell callers of exceptions")
    add("--no-binary", action="store_true", help="send arrays and images as base64, never as bytes")
    add("--tracing", action="store_true", help="make spans of calls with OpenTelemetry")
    levels = ("debug", "info", "warning", "error", "critical")
    add("--log-level", metavar="LEVEL", choices=levels, help="debug... critical (default warning, with -d info)")
    add("--log-config", metavar="FILE", help="set logging up by this file: .json, .toml, or .ini")
    add("--access-log", metavar="FORMAT", choices=("text", "json"), help="a line for each call: text or json")
    add("--log-slow-calls", metavar="SECONDS", type=parse_seconds, help="name calls that take longer")
    add("--mcp", action="store_true", help="serve an agent (MCP) on standard input and output")
    add("--metrics", action="store_true", help="show metrics for Prometheus at /metrics")
    add("--docs", action=argparse.BooleanOptionalAction, help="the explorer at /docs (default: on loopback)")
    add("--version", action="version", version=f"rpcstream {__version__}", help="show the version")
    add("-h", "--help", action="help", help="show this")
    _add_nats_options(add)
    _add_hub_options(parser.add_argument_group("hub").add_argument)
    _add_access_options(parser.add_argument_group("access").add_argument)
    return parser


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
    if options.hub and options.functions is not None:
        parser.error("-f does not go with --hub: let a client of the hub offer the functions")
    if not options.hub and (options.target is None) == (options.functions is None):
        parser.error("say what to serve: a TARGET such as module:server or file.py, -f MODULE, or --hub")
    if options.pattern is not None and options.functions is None:
        parser.error("--pattern goes with -f")
    if options.unix is not None and (options.host is not None or options.port is not None):
        parser.error("--unix takes the place of --host and --port")
    if options.hub and (name := next((name for name in WORKER_OPTIONS if getattr(options, name)), None)):
        parser.error(f"--{name.replace('_', '-')} does not go with --hub: a hub is one process")
    if options.hub and options.nats is not None:
        parser.error("--nats does not go with --hub: give clients the addresses of several hubs instead")
    conflict = _find_conflict(options)
    if conflict is not None:
        parser.error(conflict)
    return options


def _add_hub_options(add: Callable[..., object]) -> None:
    wait: dict[str, Any] = {"metavar": "S", "type": parse_seconds}
    add("--hub", action="store_true", help="serve a hub, which routes calls between its clients")
    add("--config", metavar="FILE", help="its options, as TOML or as JSON with comments")
    add("--call-timeout", **wait, help="seconds with its provider (default 0: no limit)")
    add("--keepalive-timeout", **wait, help="close silent connections (default 60)")
    add("--ping-interval", **wait, help="ask silent clients (default 20; 0: never)")
    add("--registration-timeout", **wait, help="close idle new connections (default 0: never)")


def _add_nats_options(add: Callable[..., object]) -> None:
    add("--nats", metavar="URL", help="join --service NAME on NATS")
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS}
    add("--service", metavar="NAME", **hidden)
    add("--nats-only", action="store_true", **hidden)
    for name in ("creds", "nkey", "password-file", "ca", "certificate", "key"):
        add(f"--nats-{name}", metavar="FILE", **hidden)
    add("--nats-user", metavar="NAME", **hidden)
    add("--nats-inbox-prefix", metavar="SUBJECT", **hidden)
    add("--nats-direct", metavar="ADDRESS", **hidden)
    add("--nats-trust-identity", action="store_true", **hidden)


def _add_access_options(add: Callable[..., object]) -> None:
    add("--token-file", metavar="FILE", help="callers must send the token in this file")
    own = "TLS: the server's certificate (PEM)"
    add("--cert", "--certificate", dest="certificate", metavar="FILE", help=own)
    add("--key", metavar="FILE", help="TLS: its private key, if it is not in the same file")
    add("--client-ca", metavar="FILE", help="TLS: ask for clients' certificates by these (PEM)")
    several: dict[str, Any] = {"action": "append", "default": None}
    add("--allow-host", metavar="NAME", **several, help="HTTP: a further name of this server; repeatable")
    add("--allow-origin", metavar="ORIGIN", **several, help="HTTP: whose web pages may call; repeatable")
    add("--path", metavar="PATH", **several, help="HTTP: take calls here, not at /; repeatable")
    add("--unix-mode", metavar="MODE", type=_parse_file_mode, help="permissions of the Unix socket, such as 660")


def _parse_workers(text: str) -> int | Literal["auto"]:
    """Parse a number of processes, or "auto"; for `type=`."""
    return "auto" if text == "auto" else parse_count(text, MAX_WORKERS)


def _parse_size(text: str) -> int:
    """Parse a number of bytes, with K, M, G or T for powers of 1,024; for `type=`."""
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)B?", text, re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number of bytes, or one with K, M, G or T behind it")
    power = " KMGT".index(found[2].upper() or " ")
    return int(int(found[1]) * 1024**power)


def _parse_file_mode(text: str) -> int:
    """Parse permissions of a file in octal digits; for `type=`."""
    if re.fullmatch(r"(0o?)?[0-7]{3}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no file mode: three octal digits, such as 660")
    return int(text.removeprefix("0o"), 8)


def _find_conflict(options: argparse.Namespace) -> str | None:
    """The reason why these options do not go together, or None."""
    if options.mcp:
        listens = ("hub", "nats", "host", "port", "unix", *WORKER_OPTIONS, "certificate", "path", "token_file")
        for name in listens:
            if getattr(options, name) not in (None, False):
                shown = "cert" if name == "certificate" else name.replace("_", "-")
                return f"--{shown} does not go with --mcp, which listens nowhere"
    given = [name for name in HUB_OPTIONS if getattr(options, name) is not None]
    if given and not options.hub:
        return f"--{given[0].replace('_', '-')} goes with --hub"
    if given and options.target is not None:
        return f"--{given[0].replace('_', '-')} is for a hub without a TARGET: the one in TARGET has options of its own"
    if options.certificate is None and options.config is None and not (options.hub and options.target is None):
        for name in ("key", "client_ca"):
            if getattr(options, name) is not None:
                return f"--{name.replace('_', '-')} goes with --certificate"
    if options.unix_mode is not None and options.unix is None and not options.hub:
        return "--unix-mode goes with --unix"
    return _find_nats_conflict(options)


def _find_nats_conflict(options: argparse.Namespace) -> str | None:
    if options.nats is None:
        for name in NATS_OPTIONS:
            if getattr(options, name) not in (None, False):
                return f"--{name.replace('_', '-')} goes with --nats"
    if options.nats_only:
        for name in ("host", "port", "unix"):
            if getattr(options, name) is not None:
                return f"--{name} does not go with --nats-only, which listens at no port"
    if options.nats_key is not None and options.nats_certificate is None:
        return "--nats-key goes with --nats-certificate"
    return None
