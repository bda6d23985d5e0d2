"""Parsing of options for both commands: help texts, ports, seconds, and options anywhere on the command line."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Sequence

# The texts of argparse are not translated: looking for translations imports `locale`, which takes 2 ms of each call.
argparse._ = str  # type: ignore[attr-defined]

#: Unlike argparse's own pattern it takes exponents, too: -1e3, -.5e-3.
_NEGATIVE_NUMBER = re.compile(r"-(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)

#: Of calls, or events.
_MOST = 1_000_000_000


#: How a text of the library names an option: `ca=`, or `argument ca` where one was given. Compiled when it is needed.
_OPTION_NAME = (
    r"\bargument (?P<given>[a-z_]+)"
    r"|\b(?P<own>address|tls|ca|client_ca|certificate|key|token|token_file|timeout|connect_timeout)=(?=[\s,;:.?)]|$)"
    r"|\b(?P<nats>creds|nkey|user|password|inbox_prefix|service|only|direct|trust_identity)=(?=[\s,;:.?)']|$)"
)
#: Options that have another name on the command line.
_OTHER_NAMES = {
    "address": "--uri",
    "nats_creds": "--nats-creds",
    "tls": "--ca",
    "nats_tls": "nats_ca",
    "nats_password": "RPCSTREAM_NATS_PASSWORD",
}


class UsageError(Exception):
    """The command line is wrong, or cannot be carried out. The text is one sentence for the user."""


def with_option_names(text: str, *, of_nats: bool = False) -> str:
    """A text of the library with its options as users write them: `--ca`, or `nats.user`, which a profile contains.

    Args:
        of_nats: it is about the connection of `rpcstream-server` to NATS: `nats_ca` in its configuration.
    """

    def rename(found: re.Match[str]) -> str:
        name = found["given"] or found["own"] or f"nats_{found['nats']}"
        if of_nats and name != "nats_password":
            shown = f"nats_{name.removeprefix('nats_')}"
        elif found["nats"]:
            shown = _OTHER_NAMES.get(name) or f"nats.{found['nats']}"
        else:
            shown = _OTHER_NAMES.get(name) or flag(name)
        # A value follows: `creds='…'`.
        return shown + " " if text[found.end() : found.end() + 1] == "'" else shown

    return re.sub(_OPTION_NAME, rename, text.replace(" of NatsLogin)", ")"))


class CommandParser(argparse.ArgumentParser):
    """A parser whose help is a text that is written by hand.

    Args:
        prog: the name of the command.
        help_text: its first paragraph is the usage.
    """

    def __init__(self, prog: str, help_text: str) -> None:
        usage = help_text.partition("\n\n")[0].removeprefix("usage: ")
        # The formatter asks for the width of the terminal unless it has one, which imports shutil: a fifth of a call.
        formatter = functools.partial(argparse.HelpFormatter, width=80)
        super().__init__(prog, usage, allow_abbrev=False, add_help=False, formatter_class=formatter)
        self._help_text = help_text
        self.add_argument("-h", "--help", action="help")

    def format_help(self) -> str:
        """The text for `--help`."""
        return self._help_text


def parse_port(text: str) -> int:
    """Parse a TCP port, 0 to 65535; for `type=`."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 0 to 65535")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a number of seconds, not negative; for `type=`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def parse_count(text: str, most: int = _MOST) -> int:
    """Parse a number from 1 to the most that there may be; for `type=`."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {most:,}")
    return int(text)


def is_given(options: argparse.Namespace, name: str) -> bool:
    """Tell whether an option is on the command line; its default is None or False."""
    return getattr(options, name) is not None and getattr(options, name) is not False


def find_missing(options: argparse.Namespace, needs: dict[str, str]) -> str | None:
    """The complaint about an option that is given without the one that it needs, or None.

    Args:
        needs: the needed option, by the name of the other.
    """
    for name, needed in needs.items():
        if is_given(options, name) and not is_given(options, needed):
            return f"{flag(name)} goes with {flag(needed)}"
    return None


def flag(name: str) -> str:
    """An option as it is typed: `--max-events`."""
    return "--" + name.replace("_", "-")


def is_option(token: str) -> bool:
    """Tell whether an argument is an option: a dash alone and a negative number are values."""
    return len(token) > 1 and token[0] == "-" and _NEGATIVE_NUMBER.fullmatch(token) is None


def split_options(argv: Sequence[str], actions: Sequence[argparse.Action]) -> tuple[list[str], list[str]]:
    """Split a command line into its options, each with its value, and the other arguments, in their order.

    argparse accepts positional arguments in one run only, and takes a value such as `-1e3` for an option. So it gets
    the options alone, each value joined to its option with `=`. Behind `--` there are no options.
    """
    by_name = {name: action for action in actions for name in action.option_strings}
    options: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(argv):
        token = argv[at]
        at += 1
        if token == "--":
            rest += argv[at:]
            break
        if not is_option(token):
            rest.append(token)
            continue
        action = by_name.get(token)
        if action is None or action.nargs == 0:
            options.append(token)  # it takes no value, has its value already, or is unknown (argparse reports that)
            continue
        first = at
        most = 1 if action.nargs in (None, "?") else len(argv)
        while at < len(argv) and at - first < most and not is_option(argv[at]):
            at += 1
        options += [f"{token}={value}" for value in argv[first:at]] or [token]
    return options, rest


def option_fault(error: ValueError | OSError, *, of_nats: bool = False) -> str:
    """What is wrong with options, or with a file that they name, in the words of the command line.

    Args:
        of_nats: see `with_option_names`.
    """
    if not isinstance(error, OSError):
        return with_option_names(str(error), of_nats=of_nats)
    reason = str(error.strerror or error)
    return with_option_names(reason, of_nats=of_nats) + (f": {error.filename!r}" if error.filename else "")
