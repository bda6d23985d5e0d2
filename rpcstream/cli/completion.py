"""Shell completion for both commands, by argcomplete.

Imported only when the shell asks (the variable `_ARGCOMPLETE`). Method and parameter names come from the server's
`rpc.discover`, with a short timeout. If that fails, no names are offered.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from ..openrpc.document import read_document
from ..openrpc.methods import RESERVED_PREFIX, Method
from ..text import visible
from .call_options import connection_options

#: Seconds to wait for the server: the user has pressed Tab and waits.
TIMEOUT = 1.0

#: Names from the server that may be suggested: without characters that a shell or this command would read as something
#: else than part of a name (blanks, quotes, `$(…)`, a leading dash, line ends).
HARMLESS = re.compile(r"[\w.:/@+][\w.:/@+-]{0,255}")
#: Characters of a method's summary that are shown beside its name.
_SUMMARY = 100

#: Options of both commands whose values are files.
_FILES = (
    *("--image", "--file", "--output", "--ca", "--certificate", "--key", "--config", "--token-file", "--nats-creds"),
    *("--check", "--unix", "--client-ca"),
)


def complete_call(parser: argparse.ArgumentParser) -> None:
    """Answer the shell for `rpcstream` and exit; does nothing when argcomplete is not installed."""
    _complete(parser, {"method": _methods, "items": _items})


def complete_server(parser: argparse.ArgumentParser) -> None:
    """Answer the shell for `rpcstream-server` and exit; does nothing when argcomplete is not installed."""
    _complete(parser, {"target": _python_files, "--functions": _python_files})


def _complete(parser: argparse.ArgumentParser, completers: dict[str, Any]) -> None:
    """Let argcomplete answer with these completers, with files, or with nothing where a value cannot be guessed."""
    try:
        import argcomplete
    except ImportError:
        return
    for action in parser._actions:
        name = action.option_strings[-1] if action.option_strings else action.dest
        if action.nargs != 0 and not action.choices:
            default = files_from if name in _FILES else _nothing
            action.completer = completers.get(name, default)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _discovered(parsed_args: argparse.Namespace) -> list[Method]:
    from ..client.sync import Client

    try:
        address, access = connection_options(parsed_args)
        access.update(timeout=TIMEOUT, connect_timeout=TIMEOUT)
        with Client(address, **access) as client:
            return read_document(client.request("rpc.discover", None)).methods
    except Exception:
        return []


def _methods(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> dict[str, str]:
    """Method names, each with its summary; those that begin with `rpc.` only if the prefix does."""
    return {
        method.name: visible(method.summary[:_SUMMARY])
        for method in _discovered(parsed_args)
        if HARMLESS.fullmatch(method.name) and method.name.startswith(RESERVED_PREFIX) <= prefix.startswith("rpc.")
    }


def _items(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """`name=` for each parameter that is not given yet; behind the `=` of an image or an array, file names."""
    key, equals, value = prefix.partition("=")
    if equals:
        return [f"{key}={file}" for file in files_from(value)] if key.endswith((":image", ":ndarray")) else []
    return _parameters(parsed_args)


def _parameters(parsed_args: argparse.Namespace) -> list[str]:
    given = {text.partition("=")[0].partition(":")[0] for text in parsed_args.items or ()}
    for method in _discovered(parsed_args):
        if method.name == parsed_args.method:
            names = [parameter.name for parameter in method.fixed]
            return [f"{name}=" for name in names if name not in given and HARMLESS.fullmatch(name)]
    return []


def _nothing(**_: Any) -> list[str]:
    return []


def files_from(prefix: str, **_: Any) -> list[str]:
    """Files and folders that begin with the prefix, which may follow a `NAME=`."""
    name, equals, path = prefix.partition("=")
    if not equals or "/" in name:
        name, path = "", prefix
    folder, start = os.path.split(path)
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        f"{name}{equals if name else ''}{os.path.join(folder, entry.name)}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith("."))
    ]


def _python_files(prefix: str, **_: Any) -> list[str]:
    return [path for path in files_from(prefix) if path.endswith(("/", ".py"))]
