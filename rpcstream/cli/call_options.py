"""The options of `rpcstream`: the parser, the rules of which options go together, and the address that they give."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import __version__
from ..client.options import config_file
from ..limits import DEFAULT_HOST, DEFAULT_PORT, Limits
from .options import (
    CommandParser,
    UsageError,
    find_missing,
    is_given,
    is_option,
    parse_count,
    parse_port,
    parse_seconds,
    split_options,
    with_option_names,
)
from .reading import parse_file_option, parse_positional

DEFAULT_TIMEOUT = 60.0

#: What --stubs writes: the languages of `rpcstream.stubs`, which is imported where it is needed.
LANGUAGES = ("python", "typescript")

#: Bytes. Large, since a user at a shell decides what to send and to ask for; the server has its own limit.
MAX_MESSAGE_SIZE = 1024 * 1024 * 1024

#: Options of `Client` with the same name on the command line.
_SAME = ("timeout", "wait_for", "token", "token_file", "ca", "certificate", "key")
#: Other options in a configuration that one call needs. (`name`, for example, is for a program at a hub.)
_CONFIGURED = ("address", "connect_timeout", "retry", "tls", "binary", "limits", "nats")
#: Environment variables that are not for a client.
_NOT_OURS = ("RPCSTREAM_HUB_", "RPCSTREAM_LOOP")

#: The environment variable with the token: on the command line, other users of the machine could see it.
TOKEN_VARIABLE = "RPCSTREAM_TOKEN"

#: Calls of one measurement: the time of each is kept, 8 bytes.
MAX_REPEAT = 10_000_000

#: Threads, each with a connection of its own.
MAX_CONCURRENCY = 256

_IPV6 = frozenset("0123456789abcdefABCDEF:.")

_HELP = f"""\
usage: rpcstream [options] METHOD [ITEM ...]
       rpcstream [options] --list | --subscribe PATTERN | --publish TOPIC VALUE

Call a method of a JSON-RPC 2.0 server and print its result:
  rpcstream sum a=1 b=2
  rpcstream vectorize description='A cat' photo=cat.png -o vector.npy
server
  --uri ADDRESS                    HOST:PORT or a URL (default {DEFAULT_HOST}:{DEFAULT_PORT})
  -p, --port PORT                  the port, if --uri has none (default {DEFAULT_PORT})
  --token-file FILE, --token TEXT  the secret that the server asks for
  --ca FILE, --cert, --certificate FILE, --key FILE
                                   TLS: authorities, your certificate, its key
  --nats-creds FILE                NATS: your credentials
  --profile NAME, --config FILE    take options from a configuration file
  --wait-for SECONDS               wait for a server that has not started yet
parameters: NAME=VALUE, NAME=FILE if METHOD takes a file, NAME:=JSON
  -i, --image [NAME=]FILE          an image
  -f, --file [NAME=]FILE           the bytes of a file
  --positional VALUE ...           parameters by position
  --no-schema                      do not ask the server what METHOD takes
  --no-binary                      send arrays and images as base64
call
  --timeout SECONDS                wait for the reply (default {DEFAULT_TIMEOUT:g}; 0: no limit)
  --stream                         show the items of a stream as they arrive
  --notify                         send a notification, which has no reply
  --list, --describe               show all methods; describe METHOD
  --repeat N, --concurrency C      measure N calls, C at a time
  --stubs LANG, --check FILE       write types for python or typescript
output
  -o, --output FILE                save the result; DIR/: one file per member
  --select PATH                    only this member of the result: boxes.0.label
  --format FORM                    auto (default), text, json or raw
  --progress, --no-progress        show progress (default: on a terminal)
  -v, --verbose                    show messages and times
events
  --subscribe PATTERN              show events: --max-events N, --reconnect
  --publish TOPIC                  send an event to a hub: --retain keeps it

-h, --help, --version; all options: docs/reference/command-line.md
"""


#: Options with a text as their value, and options without one.
_TEXTS = (
    *("uri", "token", "token-file", "ca", "key", "nats-creds", "profile", "config"),
    *("select", "subscribe", "publish", "check"),
)
_SWITCHES = ("no-schema", "no-binary", "notify", "stream", "list", "describe", "reconnect", "retain")


def make_parser() -> argparse.ArgumentParser:
    """The parser of `rpcstream`. Its positional arguments are for completion; see `parse`."""
    parser = CommandParser("rpcstream", _HELP)
    add = parser.add_argument
    add("method", metavar="METHOD", nargs="?")
    add("items", metavar="ITEM", nargs="*")
    for name in _TEXTS:
        add(f"--{name}")
    for name in _SWITCHES:
        add(f"--{name}", action="store_true")
    add("-p", "--port", type=parse_port)
    add("--cert", "--certificate", dest="certificate")
    add("--timeout", type=parse_seconds)
    add("--wait-for", type=parse_seconds)
    add("--progress", action=argparse.BooleanOptionalAction)
    add("-v", "--verbose", action="store_true")
    add("-o", "--output")
    add("--format", choices=("auto", "text", "json", "raw"), default="auto")
    add("--max-events", type=parse_count)
    add("--repeat", type=lambda text: parse_count(text, MAX_REPEAT))
    add("--concurrency", type=lambda text: parse_count(text, MAX_CONCURRENCY))
    add("--stubs", choices=LANGUAGES)
    add("--version", action="version", version=f"rpcstream {__version__}")
    # All into one list, so that the order among them is kept.
    into: dict[str, Any] = {"dest": "parts", "action": "append"}
    add("-i", "--image", **into, type=lambda text: parse_file_option("image", text))
    add("-f", "--file", **into, type=lambda text: parse_file_option("file", text))
    add("--positional", dest="parts", action="extend", type=parse_positional, nargs="+")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `method` and `items` are the arguments that are no options, wherever they stand.

    Raises:
        SystemExit: --help, --version or wrong use; argparse has printed the text.
    """
    given, rest = split_options(argv, parser._actions)
    options = parser.parse_args(given)
    options.method, options.items = (rest[0], rest[1:]) if rest and options.publish is None else (None, rest)
    conflict = _find_conflict(options)
    if conflict:
        parser.error(conflict)
    return options


#: Options that replace the plain call, at most one of them, and what goes with each, besides options for all.
_CALL = ("METHOD", "parameters", "--select", "-o")
_MODES = {
    "": _CALL,
    "stream": _CALL,
    "notify": ("METHOD", "parameters"),
    "list": ("-o",),
    "describe": ("METHOD", "-o"),
    "subscribe": ("--select", "-o"),
    "publish": ("parameters",),
    "repeat": ("METHOD", "parameters"),
    "stubs": ("METHOD", "-o"),
}
_HINTS = {
    "list": "; METHOD --describe shows one method",
    "subscribe": "; quote a PATTERN, since shells expand * and >",
}
#: Options that go with one of those only.
_NEEDS = {
    **{"max_events": "subscribe", "reconnect": "subscribe", "retain": "publish"},
    **{"concurrency": "repeat", "check": "stubs"},
}


def _find_conflict(options: argparse.Namespace) -> str | None:
    """The reason why these options do not go together, or None."""
    modes = [name for name in _MODES if name and is_given(options, name)]
    if len(modes) > 1:
        return f"--{modes[0]} does not go with --{modes[1]}"
    mode = modes[0] if modes else ""
    if missing := find_missing(options, _NEEDS):
        return missing
    given = {
        "METHOD": options.method is not None,
        "parameters": bool(options.items or options.parts),
        "--select": options.select is not None,
        "-o": options.output is not None,
    }
    for name, has_it in given.items():
        if has_it and name not in _MODES[mode]:
            return f"--{mode} takes no {name}{_HINTS.get(mode, '')}"
    return _find_wrong_argument(options, mode) or _find_wrong_output(options, mode)


def _find_wrong_argument(options: argparse.Namespace, mode: str) -> str | None:
    # A server may have named a parameter so that a script passes it as an option.
    if (item := next(filter(is_option, options.items), None)) is not None:
        other = (
            "Write text as :str=TEXT" if mode == "publish" else "Pass all parameters as JSON: '-' reads standard input"
        )
        return f"{item[:60]!r}: an item never begins with '-'. {other}"
    if mode == "publish" and not options.items and not options.parts:
        return "--publish TOPIC needs a VALUE: text or a number, :=JSON, or items such as a=1"
    if "METHOD" not in _MODES[mode] or mode == "stubs":
        return None
    if not options.method:
        return "METHOD is missing (--list shows the methods of the server)"
    if options.method == "-" or "=" in options.method:
        return f"METHOD comes before the items, and {options.method!r} is an item"
    return None


def _find_wrong_output(options: argparse.Namespace, mode: str) -> str | None:
    if options.output is not None and options.format == "text":
        return "-o saves the data of a result, so it does not go with --format text"
    if options.output is not None and options.check is not None:
        return "--check writes nothing, so it does not go with -o"
    if mode == "repeat" and (options.verbose or options.format not in ("auto", "text", "json")):
        return "--repeat shows times, as text or with --format json, and does not go with -v or other formats"
    return None


def connection_options(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The address, and the options of `Client`: from the command line, else the environment, else a configuration file.

    Raises:
        UsageError: they make no sense, or a file cannot be read.
    """
    given: dict[str, Any] = {name: getattr(options, name) for name in _SAME if getattr(options, name) is not None}
    given["limits"] = Limits(max_message_size=MAX_MESSAGE_SIZE)
    if options.no_binary:
        given["binary"] = False
    if options.token == "":
        given.update(token=None, token_file=None)
    if options.uri is not None:
        given["address"] = join_address(options.uri, options.port)
    elif options.port is not None:
        given["port"] = options.port
    if _is_all_given(options):
        found = {"token": os.environ.get(TOKEN_VARIABLE) or None, **given}
        found.setdefault("address", join_address(None, found.pop("port", None)))
        found.pop("token_file", None)
    else:
        found = _configured(options, given)
    found["wait_for"] = found.get("wait_for") or None
    timeout = found.pop("timeout", DEFAULT_TIMEOUT) or None
    found.update(timeout=timeout, connect_timeout=min(found.pop("connect_timeout", None) or 10.0, timeout or 10.0))
    return found.pop("address", f"{DEFAULT_HOST}:{DEFAULT_PORT}"), found


#: Options about files, which the configuration reads.
_READ_FILES = ("profile", "config", "token_file", "ca", "certificate", "key", "nats_creds")


def _is_all_given(options: argparse.Namespace) -> bool:
    """Whether the command line and the token's variable say all, so that no configuration needs to be imported."""
    if any(getattr(options, name) is not None for name in _READ_FILES):
        return False
    for name, text in os.environ.items():
        if name.startswith("RPCSTREAM_") and text and name != TOKEN_VARIABLE and not name.startswith(_NOT_OURS):
            return False
    path = config_file(os.environ)
    return path is None or not os.path.exists(path)


def _configured(options: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    from ..client.config import client_options

    try:
        if options.nats_creds is not None:
            given["nats"] = {"creds": options.nats_creds}
        found = client_options(options.config, given, profile=options.profile)
    except ValueError as error:
        raise UsageError(with_option_names(str(error))) from error
    except OSError as error:
        raise UsageError(f"cannot read {error.filename!r}: {error.strerror or error}") from error
    return {name: value for name, value in found.items() if name in (*_SAME, *_CONFIGURED)}


def join_address(uri: str | None, number: int | None) -> str:
    """One address from --uri and --port.

    Raises:
        UsageError: both have a port, and not the same; or a Unix socket, or a service on NATS, is given one.
    """
    if uri is None:
        return f"{DEFAULT_HOST}:{DEFAULT_PORT if number is None else number}"
    if uri.count(":") > 1 and _IPV6.issuperset(uri):
        uri = f"[{uri}]"
    if number is None:
        return uri
    from ..client.address import parse_address

    try:
        known = parse_address(uri)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if known.is_unix or known.is_nats or known.others:
        raise UsageError(f"--port does not go with {uri}")
    if f":{known.port}" in uri and known.port != number:
        raise UsageError(f"--uri says port {known.port}, --port says {number}")
    return str(replace(known, port=number))
