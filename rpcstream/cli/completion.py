"""Shell completion for both commands, by argcomplete.

Imported only when the shell asks (the variable `_ARGCOMPLETE`). Method and parameter names come from the server's
`rpc.discover`, with a short timeout. If that fails, no names are offered.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from ..openrpc.document import read_document
from ..openrpc.types import RESERVED_PREFIX, Method
from ..text import visible
from .call_options import connection_options

#: Seconds to wait for the server: the user has pressed Tab and waits.
TIMEOUT = 1.0

#: Names from the server that may be suggested: without characters that a shell or this command would read as something
#: else than part of a name (blanks, quotes, `$(…)`, a leading dash, line ends).
HARMLESS = re.compile(r"[\w.:/@+][\w.:/@+-]{0,255}")
#: Characters of a method's summary that are shown beside its name.
_SUMMARY = 100


def complete_call(parser: argparse.ArgumentParser) -> None:
    """Answer the shell for `rpcstream` and exit; does nothing when argcomplete is not installed."""
    _complete(parser, {"method": _methods, "items": _items, "parts": _files})


def complete_server(parser: argparse.ArgumentParser) -> None:
    """Answer the shell for `rpcstream-server` and exit; does nothing when argcomplete is not installed."""
    _complete(parser, {"target": _python_files, "functions": _python_files})


def _complete(parser: argparse.ArgumentParser, completers: dict[str, Callable[..., Any]]) -> None:
    try:
        import argcomplete
    except ImportError:
        return
    for action in parser._actions:
        if action.dest in completers:
            action.completer = completers[action.dest]  # type: ignore[attr-defined]
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
    """`name=` for each parameter that is not given yet; files behind the `=`."""
    if "=" in prefix:
        return _files(prefix)
    given = {text.partition("=")[0].partition(":")[0] for text in parsed_args.items or ()}
    method = next((each for each in _discovered(parsed_args) if each.name == parsed_args.method), None)
    names = [each.name for each in method.fixed] if method is not None else []
    return [f"{name}=" for name in names if name not in given and HARMLESS.fullmatch(name)]


def _files(prefix: str, **_: Any) -> list[str]:
    """Files and folders that begin with the prefix, which may follow a `NAME=`."""
    from argcomplete.completers import FilesCompleter

    name, equals, path = prefix.rpartition("=")
    return [f"{name}{equals}{found}" for found in FilesCompleter()(path)]


def _python_files(prefix: str, **_: Any) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter(("py",))(prefix))
