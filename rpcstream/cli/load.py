"""What to serve, from its name: `module:server`, `file.py:server`, or a module of plain functions.

Owns imports by name and path, and the three methods that a module of functions gets besides its own. Knows no socket
and no command line.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..errors import RegistrationError
from ..server import Server
from ..text import visible


class TargetError(Exception):
    """The target cannot be served. The text is one sentence; the cause is what failed in the target."""


def load_server(target: str) -> Server:
    """The server that a target names.

    `module`, `package.module` or a path that ends in `.py`; behind a colon the name of the server in it, or of a
    function without parameters that returns one. Without a name: the one called `server`, else the only one there is.

    Raises:
        TargetError: there is no such module or server, or importing it failed.
    """
    name, colon, attribute = target.rpartition(":")
    if not colon or not attribute.replace(".", "_").isidentifier():
        name, attribute = target, ""
    module = load_module(name)
    return _named_server(module, attribute) if attribute else _only_server(module)


def load_module(name: str) -> ModuleType:
    """Import a module by its name, seen from the current directory, or by its path.

    A file is imported under its own name with its folder on the path, so that worker processes can import it too.

    Raises:
        TargetError: there is no such module, or importing it failed.
    """
    is_path = name.endswith(".py") or os.sep in name or (os.altsep is not None and os.altsep in name)
    if not is_path:
        _put_on_path(os.getcwd())
        return _imported(name)
    path = os.path.abspath(name)
    if not os.path.isfile(path):
        raise TargetError(f"there is no file {name!r}")
    folder, file = os.path.split(path)
    stem, ending = os.path.splitext(file)
    if ending != ".py" or "." in stem:
        raise TargetError(f"{name!r} cannot be imported: it must be called NAME.py, without further dots")
    if stem in sys.modules or stem in sys.stdlib_module_names:
        if getattr(sys.modules.get(stem), "__file__", None) == path:
            return sys.modules[stem]
        raise TargetError(f"{name!r} cannot be imported: another module has the name {stem!r} already; rename the file")
    _put_on_path(folder)
    module = _imported(stem)
    if os.path.realpath(module.__file__ or "") != os.path.realpath(path):
        raise TargetError(f"{name!r} cannot be imported: {module.__file__} has the name {stem!r} too; rename the file")
    return module


def functions_server(module: ModuleType, *, pattern: str, debug: bool = False) -> Server:
    """A server of a module's plain functions, with `ping`, `print` and `stop` unless the module has its own.

    Raises:
        TargetError: no function matches the pattern, or one of them cannot be a remote method.
    """
    server = Server(title=module.__name__, debug=debug)
    try:
        server.add_module(module, pattern=pattern)
    except RegistrationError as error:
        raise TargetError(str(error)) from error

    def ping() -> str:
        """Answers "pong"."""
        return "pong"

    def print_message(msg: Any = "") -> None:
        """Prints a message at the server."""
        print(visible(str(msg), keep="\n\t"), flush=True)

    def stop() -> None:
        """Stops the server, after this call is answered."""
        server.stop()

    extras: dict[str, Callable[..., Any]] = {"ping": ping, "print": print_message, "stop": stop}
    for name, function in extras.items():
        if name not in server.methods:
            server.add(function, name=name)
    return server


def _put_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(f"there is no module {name!r} (looked from {os.getcwd()})") from error
        raise TargetError(f"cannot import {name!r}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a script that exits when it is imported
        raise TargetError(f"cannot import {name!r}: {_in_one_line(error)}") from error


def _named_server(module: ModuleType, attribute: str) -> Server:
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise TargetError(f"{module.__name__!r} has no {attribute!r}") from error
    if isinstance(value, Server):
        return value
    if callable(value):
        try:
            value = value()
        except Exception as error:
            raise TargetError(f"{module.__name__}:{attribute} failed: {_in_one_line(error)}") from error
        if isinstance(value, Server):
            return value
        raise TargetError(f"{module.__name__}:{attribute} returned {type(value).__name__}, not a Server")
    raise TargetError(f"{module.__name__}:{attribute} is {type(value).__name__}, not a Server")


def _only_server(module: ModuleType) -> Server:
    if isinstance(server := getattr(module, "server", None), Server):
        return server
    servers = {id(value): name for name, value in vars(module).items() if isinstance(value, Server)}
    if not servers:
        raise TargetError(f"{module.__name__!r} has no Server; for plain functions use -f {module.__name__}")
    if len(servers) > 1:
        names = ", ".join(sorted(servers.values()))
        raise TargetError(f"{module.__name__!r} has several servers: say {module.__name__}:NAME with one of {names}")
    (name,) = servers.values()
    return getattr(module, name)  # type: ignore[no-any-return]


def _in_one_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())
