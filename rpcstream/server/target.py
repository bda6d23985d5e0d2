"""Loads a server from a module or file, by a target such as `module:server` or `file.py`."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from itertools import takewhile
from types import ModuleType
from typing import Any

from ..errors import RegistrationError
from ..process import PACKAGE
from .program import without_own_frames
from .server import Server


class TargetError(Exception):
    """The target cannot be served. The text is one sentence; an exception in the target is its `__cause__`."""


def load_server(target: str) -> Server:
    """Load the server that a target names.

    A target is `module`, `package.module` or a path that ends in `.py`; behind a colon the name of the server in it, or
    of a function without parameters that returns one. Without a name: the one called `server`, else the only one.

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


def _put_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _imported(name: str) -> ModuleType:
    try:
        return _executed(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(f"there is no module {name!r} (looked from {os.getcwd()})") from None
        raise TargetError(f"cannot import {name!r}: {_missing_module(error)}") from error
    except (KeyboardInterrupt, TargetError):
        raise
    except SyntaxError as error:
        place = f"{error.filename}, line {error.lineno}"
        raise TargetError(f"cannot import {name!r}: {type(error).__name__} in {place}: {error.msg}") from error
    except RegistrationError as error:
        raise TargetError(f"cannot import {name!r}: {_with_place(error)}") from error
    except BaseException as error:  # SystemExit too: a script that exits when it is imported
        raise TargetError(f"cannot import {name!r}: {_in_one_line(error)}") from error


def _executed(name: str) -> ModuleType:
    """Import a module as `importlib.import_module` does, but without the lock of an import.

    A module that runs its server stays in its import as long as it serves, and other threads import it, too, for
    example to pickle its functions.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return sys.modules.get(name, module)


def _missing_module(error: ModuleNotFoundError) -> str:
    """A sentence about a missing module that a target imports."""
    trace = without_own_frames(error.__traceback__)
    if trace is None or error.name is None:
        return str(error)
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<frozen importlib")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {error.name!r} is not installed for {sys.executable}"


def _with_place(error: RegistrationError) -> str:
    """The error in one line, behind the file and the line that registers the function."""
    trace = traceback.extract_tb(without_own_frames(error.__traceback__))
    frames = list(takewhile(lambda frame: not frame.filename.startswith(PACKAGE), trace))
    text = " ".join(str(error).split())
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {text}" if frames else text


def _named_server(module: ModuleType, attribute: str) -> Server:
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise TargetError(f"{module.__name__!r} has no {attribute!r}") from None
    if isinstance(value, Server):
        return value
    if callable(value):
        try:
            value = value()
        except RegistrationError as error:
            raise TargetError(f"{module.__name__}:{attribute} failed: {_with_place(error)}") from error
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
