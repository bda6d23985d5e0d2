"""The options of `rpcstream`: the parser, and the address and the parameters that they give.

Owns the rules of which options go together. Knows argparse; connects to nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..client.options import config_file
from ..limits import DEFAULT_HOST, DEFAULT_PORT, Limits
from .items import UsageError, parse_file_option, parse_positional
from .options import (
    HelpFormatter,
    is_option,
    parse_count,
    parse_port,
    parse_seconds,
    split_options,
    with_option_names,
)

DEFAULT_TIMEOUT = 60.0

#: What --stubs writes: those of `rpcstream.stubs`, which is imported where it is needed.
LANGUAGES = ("python", "typescript")

#: Bytes. Large, since a user at a shell decides what to send and to ask for; the server has its own limit.
MAX_MESSAGE_SIZE = 1024 * 1024 * 1024

#: Options of `Client` with the same name on the command line.
_SAME = ("timeout", "wait_for", "token", "token_file", "ca", "certificate", "key")
#: Those that one call needs, of all that a configuration may have. (A name, for one, is that of a program at a hub.)
_USED = (
    "address",
    "connect_timeout",
    "retry",
    "tls",
    "binary",
    "limits",
    "nats",
    *(name for name in _SAME if name != "token_file"),
)
#: Environment variables that are not for a client.
_NOT_OURS = ("RPCSTREAM_HUB_", "RPCSTREAM_LOOP")

#: The environment variable with the token: on the command line, other users of the machine could see it.
TOKEN_VARIABLE = "RPCSTREAM_TOKEN"

#: Calls of one measurement: the time of each is kept, 8 bytes.
MAX_REPEAT = 10_000_000

#: Threads, each with a connection of its own.
MAX_CONCURRENCY = 256

_IPV6 = frozenset("0123456789abcdefABCDEF:.")

_Group = argparse._ArgumentGroup

_USAGE = """\
%(prog)s [options] METHOD [ITEM ...]
       %(prog)s [options] --list | --subscribe PATTERN | --publish TOPIC VALUE"""

_DESCRIPTION = "Call a method of a JSON-RPC 2.0 server and print its result."

_EPILOG = """\
examples:
  rpcstream sum a=1 b=2
  rpcstream vectorize description='A cat' -i photo=./cat.png -o vector.npy
  rpcstream --list --uri 10.0.0.5:8545
all options and forms of values: docs/reference/command-line.md"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of `rpcstream`. Its positional arguments are for completion; see `parse`."""
    parser = argparse.ArgumentParser(
        prog="rpcstream",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("method", metavar="METHOD", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("items", metavar="ITEM", nargs="*", help=argparse.SUPPRESS)
    _add_connection_options(parser.add_argument_group("connection"))
    _add_parameter_options(parser.add_argument_group("parameters"))
    _add_call_options(parser.add_argument_group("call and output"))
    others = parser.add_argument_group("in place of a call")
    _add_event_options(others)
    _add_measuring_options(others)
    _add_other_options(others)
    return parser


def _add_connection_options(group: _Group) -> None:
    add = group.add_argument
    forms = f"HOST:PORT or a URL (default {DEFAULT_HOST}:{DEFAULT_PORT})"
    add("--uri", metavar="ADDRESS", help=forms)
    add("-p", "--port", type=parse_port, help=f"port, where --uri has none (default {DEFAULT_PORT})")
    add("--token", help=f"for a server that asks (better: {TOKEN_VARIABLE})")
    add("--token-file", metavar="FILE", help="the same, in a file")
    add("--ca", metavar="FILE", help="TLS: trust these authorities, not the system's (PEM)")
    own = "TLS: your own certificate (PEM)"
    add("--cert", "--certificate", dest="certificate", metavar="FILE", help=own)
    add("--key", metavar="FILE", help="TLS: its private key, if it is not in the same file")
    add("--nats-creds", metavar="FILE", help="NATS: your credentials")
    add("--profile", metavar="NAME", help="take address, token... from the configuration")
    add("--config", metavar="FILE", help="the configuration, if not in ~/.config/rpcstream/")


def _add_parameter_options(group: _Group) -> None:
    """Add -i, -f and --positional, all into one list, so that the order among them is kept."""
    add = group.add_argument
    into: dict[str, Any] = {"dest": "parts", "action": "append", "metavar": "[NAME=]FILE"}
    images = "an image; without NAME by position"
    add("-i", "--image", **into, type=lambda text: parse_file_option("image", text), help=images)
    add("-f", "--file", **into, type=lambda text: parse_file_option("file", text), help="the bytes of a file")
    into.update(action="extend", metavar="VALUE", nargs="+")
    add("--positional", **into, type=parse_positional, help="values by position, in order with -i and -f")


def _add_call_options(group: _Group) -> None:
    add = group.add_argument
    waiting = f"to wait for the answer (default {DEFAULT_TIMEOUT:g}; 0: no limit)"
    add("--no-schema", action="store_true", help="do not ask what METHOD takes")
    add("--timeout", metavar="SECONDS", type=parse_seconds, help=waiting)
    add("--wait-for", metavar="SECONDS", type=parse_seconds, help="for a server or provider not there yet")
    add("--notify", action="store_true", help="send a notification: no answer comes")
    add("--stream", action="store_true", help="show each item of METHOD's stream as it comes")
    add("--no-binary", action="store_true", help="send arrays and images as base64, never as bytes")
    bar = "show what METHOD reports (if on a terminal)"
    add("--progress", action=argparse.BooleanOptionalAction, help=bar)
    add("--list", action="store_true", help="show the methods of the server")
    add("--describe", action="store_true", help="show METHOD's parameters and documentation")
    add("-v", "--verbose", action="store_true", help="show messages and times on standard error")
    add("-o", "--output", metavar="FILE", help="save the result; DIR/: a file for each member")
    add("--select", metavar="PATH", help="only this member of the result, such as boxes.0.label")
    forms = "auto (default), text, json or raw"
    add("--format", metavar="FORM", choices=("auto", "text", "json", "raw"), default="auto", help=forms)


def _add_event_options(group: _Group) -> None:
    add = group.add_argument
    add("--subscribe", metavar="PATTERN", help="show the events of a topic or pattern (* and >)")
    add("--max-events", metavar="N", type=parse_count, help="with --subscribe: end after so many")
    add("--reconnect", action="store_true", help="with --subscribe: when the connection is lost, too")
    add("--publish", metavar="TOPIC", help="send VALUE, or an object of ITEMs, to a hub's topic")
    add("--retain", action="store_true", help="with --publish: keep it for later subscribers")


def _add_measuring_options(group: _Group) -> None:
    add = group.add_argument
    many = "make the call N times, and show how long that takes"
    add("--repeat", metavar="N", type=lambda text: parse_count(text, MAX_REPEAT), help=many)
    at_once = "with --repeat: so many at a time (default 1)"
    add("--concurrency", metavar="C", type=lambda text: parse_count(text, MAX_CONCURRENCY), help=at_once)


def _add_other_options(group: _Group) -> None:
    group.add_argument("--stubs", metavar="LANG", choices=LANGUAGES, help="write types: python or typescript")
    group.add_argument("--check", metavar="FILE", help="with --stubs: compare with FILE, and write nothing")
    group.add_argument("--version", action="version", version=f"rpcstream {__version__}", help="show the version")
    group.add_argument("-h", "--help", action="help", help="show this")


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


#: Options that say what is done in place of one call; one of them at most.
_MODES = ("stream", "notify", "list", "describe", "subscribe", "publish", "repeat", "stubs")
#: Options that go with one of those only.
_OF_MODES = {
    **{"max_events": "subscribe", "reconnect": "subscribe", "retain": "publish"},
    **{"concurrency": "repeat", "check": "stubs"},
}


def _find_conflict(options: argparse.Namespace) -> str | None:
    """The reason why these options do not go together, or None."""
    modes = [name for name in _MODES if getattr(options, name) not in (None, False)]
    if len(modes) > 1:
        return f"--{modes[0]} does not go with --{modes[1]}"
    mode = modes[0] if modes else ""
    for name, needed in _OF_MODES.items():
        if getattr(options, name) not in (None, False) and mode != needed:
            return f"--{name.replace('_', '-')} goes with --{needed}"
    return _find_dash(options, mode) or _find_wrong_argument(options, mode) or _find_wrong_output(options, mode)


def _find_dash(options: argparse.Namespace, mode: str) -> str | None:
    """Refuse items behind `--` that would be options without it: a server may have named a parameter so."""
    item = next(filter(is_option, options.items), None)
    if item is None:
        return None
    instead = (
        "Write text as :str=TEXT" if mode == "publish" else "Pass all parameters as JSON: '-' reads standard input"
    )
    return f"{item[:60]!r}: an item never begins with '-'. {instead}"


def _find_wrong_argument(options: argparse.Namespace, mode: str) -> str | None:
    if mode == "list":
        if options.method or options.parts:
            return "--list takes no METHOD and no parameters; METHOD --describe shows one method"
    elif mode == "subscribe":
        if options.method or options.parts:
            return "--subscribe takes no METHOD and no parameters; quote a PATTERN, since shells expand * and >"
    elif mode == "stubs":
        if options.items or options.parts:
            return "--stubs takes no parameters: the file of a document at most, in place of a server"
    elif mode == "publish":
        if not options.items and not options.parts:
            return "--publish TOPIC needs a VALUE: text or a number, :=JSON, or items such as a=1"
    elif not options.method:
        return "METHOD is missing (--list shows the methods of the server)"
    elif options.method == "-" or "=" in options.method:
        return f"METHOD comes before the items, and {options.method!r} is an item"
    elif mode == "describe" and (options.items or options.parts):
        return "--describe takes no parameters"
    return None


def _find_wrong_output(options: argparse.Namespace, mode: str) -> str | None:
    if options.select is not None and mode not in ("", "stream", "subscribe"):
        return f"--select is for results, so it does not go with --{mode}"
    if options.output is not None:
        if options.format == "text":
            return "-o saves the data of a result, so it does not go with --format text"
        if options.check is not None:
            return "--check writes nothing, so it does not go with -o"
        if mode == "notify":
            return "--notify has no answer, so it does not go with -o"
        if mode == "repeat":
            return "-o is for the result of one call, so it does not go with --repeat"
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
        found = {**given, "address": join_address(options.uri, options.port)}
        for name in ("port", "token_file"):
            found.pop(name, None)
        if "token" not in found and os.environ.get(TOKEN_VARIABLE):
            found["token"] = os.environ[TOKEN_VARIABLE]
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
    return {name: value for name, value in found.items() if name in _USED}


def join_address(uri: str | None, number: int | None) -> str:
    """One address from --uri and --port.

    Raises:
        UsageError: both say a port, and not the same; or a Unix socket, or a service on NATS, is given one.
    """
    if uri is None:
        return f"{DEFAULT_HOST}:{DEFAULT_PORT if number is None else number}"
    scheme, separator, rest = uri.partition("://")
    if separator and (scheme.lower().endswith("unix") or scheme.lower() in ("nats", "nats+tls")):
        if number is not None:
            raise UsageError(f"--port does not go with {uri}")
        return uri
    netloc, target = rest if separator else uri, ""
    if scheme.lower() in ("", "tcp", "tls") or not separator:
        netloc = netloc.rstrip("/")
    else:
        end = min(at for at in (netloc.find("/"), netloc.find("?"), len(netloc)) if at >= 0)
        netloc, target = netloc[:end], netloc[end:]
    prefix = f"{scheme}://" if separator and scheme.lower() != "tcp" else ""
    host, colon, text = netloc.rpartition(":")
    if netloc.endswith("]") or not colon:
        host, text = netloc, ""
    elif ":" in host and _IPV6.issuperset(netloc):  # an IPv6 address alone: its last part is no port
        host, text = f"[{netloc}]", ""
    if text and number is not None and text != str(number):
        raise UsageError(f"--uri says port {text}, --port says {number}")
    text = text or ("" if number is None else str(number))
    if not prefix:
        return f"{host or DEFAULT_HOST}:{text or DEFAULT_PORT}"
    return f"{prefix}{host}{':' if text else ''}{text}{target}"
