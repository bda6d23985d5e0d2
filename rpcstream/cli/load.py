"""Load the server for `rpcstream-server`: `module:server` or `file.py:server`, a module of functions, or a hub.

Owns imports by name and path, the three methods that a module of functions gets besides its own, and what the options
about access add to a server. Opens no socket.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import RegistrationError
from ..process import without_own_frames
from ..server import Server
from ..text import visible
from .serve_options import HUB_OPTIONS, TLS_OPTIONS

if TYPE_CHECKING:
    from ..hub import Hub
    from ..tls import TLS


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


def functions_server(module: ModuleType, *, pattern: str, debug: bool = False) -> Server:
    """A server of a module's plain functions, with `ping`, `print` and `stop` unless the module has its own.

    Raises:
        TargetError: no function matches the pattern, or one of them cannot be a remote method.
    """
    server = Server(title=module.__name__, debug=debug)
    try:
        server.add_module(module, pattern=pattern)
    except RegistrationError as error:
        raise TargetError(str(error)) from None

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


def make_hub(options: argparse.Namespace) -> Hub:
    """Make a hub from the command line, the environment and a configuration file.

    Raises:
        TargetError: an option is wrong, or a file cannot be read.
    """
    from ..hub import Hub

    names = ("host", "port", "unix", "unix_mode", "token_file", "log_level", *HUB_OPTIONS[1:])
    arguments = {name: getattr(options, name) for name in names}
    arguments.update(hosts=options.allow_host, origins=options.allow_origin, path=options.path)
    arguments.update({f"tls_{key}": getattr(options, name) for name, _, key in TLS_OPTIONS})
    if options.no_binary:
        arguments["binary"] = False
    if options.debug:
        arguments.update(debug=True, log_level=options.log_level or "info")
    try:
        return Hub.from_config(
            options.config, **{name: value for name, value in arguments.items() if value is not None}
        )
    except OSError as error:
        raise TargetError(f"cannot read {options.config!r}: {error.strerror or error}") from None
    except (ValueError, TypeError) as error:
        raise TargetError(str(error)) from None


def is_hub(server: Server) -> bool:
    """Tell whether a server is a hub."""
    from ..hub import Hub

    return isinstance(server, Hub)


def prepare(server: Server, options: argparse.Namespace) -> None:
    """Add what the options say to the server of a target: token, TLS, hosts, origins, paths, debug.

    Raises:
        TargetError: the server has one of them already, a file is wrong, or the server is no hub where one is wanted.
    """
    from ..config import ConfigError, read_token

    if options.hub and not is_hub(server):
        raise TargetError(f"{options.target} is a Server, not a Hub: leave --hub out")
    files = {name: getattr(options, option) for option, name, _ in TLS_OPTIONS if getattr(options, option) is not None}
    added: dict[str, Any] = {"hosts": options.allow_host or (), "origins": options.allow_origin or ()}
    try:
        if options.token_file is not None:
            added["token"] = read_token(options.token_file, "--token-file")
        if files:
            added["tls"] = _read_tls(files)
        server.guard(**added)
        if options.path is not None:
            server.take_calls_at(options.path)
    except (ConfigError, ValueError) as error:
        raise TargetError(str(error)) from None
    server.debug = server.debug or options.debug
    server.binary = server.binary and not options.no_binary


def _read_tls(files: dict[str, str]) -> TLS:
    from ..config import ConfigError, read_tls
    from .options import with_option_names

    try:
        return read_tls("--certificate", **files)
    except ConfigError as error:
        raise TargetError(with_option_names(str(error))) from None


def listen_arguments(server: Server, options: argparse.Namespace, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for `Server.run`: host and port, or a Unix socket.

    The command line comes first, then the configuration of a hub, then these arguments.
    """
    names = ("host", "port", "unix", "unix_mode")
    if arguments.get("unix") is not None:
        arguments.pop("host", None)
        arguments.pop("port", None)
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    configured: dict[str, Any] = dict(getattr(server, "where", {}))
    for name in ("host", "port") if "unix" in given else ("unix",) if given.keys() & {"host", "port"} else ():
        for less in (arguments, configured):
            less.pop(name, None)
    return {**arguments, **configured, **given}


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
    """A sentence about a module that a target imports and that is not there."""
    trace = without_own_frames(error.__traceback__)
    if trace is None or error.name is None:
        return str(error)
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<frozen importlib")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {error.name!r} is not installed for {sys.executable}"


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
