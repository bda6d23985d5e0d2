"""Makes what `rpcstream-server` serves: the server of a target, of a module of functions, or a hub."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..config.schema import Schema
from ..errors import RegistrationError
from ..hub.config import HUB
from ..limits import DEFAULT_HOST
from ..server import Server
from ..server.guard import is_loopback
from ..server.options import Info, configured
from ..server.target import TargetError, load_module, load_server
from ..text import visible
from .serve_config import ServeConfig, config_errors, given_options, guard, join_nats, read_access
from .serve_options import FUNCTIONS_PATTERN

#: Where a server listens, which is one of these.
_PLACES = Schema({}, what="a server", prefix="", exclusive=((("unix", "unix_mode"), ("host", "port"), ("sockets",)),))

if TYPE_CHECKING:
    import socket

    from ..hub import Hub


def functions_server(module: ModuleType, *, pattern: str) -> Server:
    """A server of a module's plain functions, with `ping`, `print` and `stop` unless the module has its own.

    Raises:
        TargetError: no function matches the pattern, or one of them cannot be a remote method.
    """
    server = Server(info=Info(title=module.__name__))
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
            server.add(function, name=name, mcp=False)  # no tools for agents
    return server


def make_hub(options: argparse.Namespace) -> Hub:
    """Make a hub from the command line, the environment and a configuration file.

    Raises:
        TargetError: an option is wrong, or a file cannot be read.
    """
    from ..hub import Hub

    with config_errors(options):
        return Hub.from_config(options.config, **given_options(options, HUB))


def is_hub(server: Server) -> bool:
    """Tell whether a server is a hub."""
    from ..hub import Hub

    return isinstance(server, Hub)


def load_target(options: argparse.Namespace, config: ServeConfig) -> Server:
    """Load the server of the target, with the options of the configuration.

    Raises:
        TargetError: there is none, it is no hub where one is wanted, or an option does not fit it.
    """
    with config_errors(options):
        access, _ = read_access(config, options)
    with configured({**config.server, **access}):
        with config_errors(options):
            Server()  # so that a mistake in the configuration is not taken for one in the target
        if options.functions is None:
            server = load_server(options.target)
        else:
            pattern = FUNCTIONS_PATTERN if options.pattern is None else options.pattern
            server = functions_server(load_module(options.functions), pattern=pattern)
    prepare(server, options, config)
    return server


def prepare(server: Server, options: argparse.Namespace, config: ServeConfig) -> None:
    """Give a server the parts of the configuration that are no options: who may connect, and services on NATS.

    Raises:
        TargetError: as `load_target`.
    """
    if options.hub and not is_hub(server):
        raise TargetError(f"{options.target} is a Server, not a Hub: remove --hub")
    with config_errors(options):
        guard(server, options, config)
    if config.nats:
        join_nats(server, config.nats)


def passed_sockets(options: argparse.Namespace) -> list[socket.socket]:
    """The sockets that systemd has passed to this process; they take the place of host, port and unix.

    Raises:
        TargetError: they cannot be used, or one of these options is given as well.
    """
    from ..systemd import take_sockets

    try:
        sockets = take_sockets()
    except OSError as error:
        raise TargetError(f"socket activation: {error.strerror or error}") from None
    for name in ("host", "port", "unix") if sockets else ():
        if getattr(options, name) is not None:
            raise TargetError(f"systemd has passed listening sockets: remove --{name}")
    return sockets


def listen_arguments(server: Server, *sources: dict[str, Any], default_port: int) -> dict[str, Any]:
    """The arguments for `Server.run`: host and port, a Unix socket, or sockets.

    Args:
        server: a hub in the target may have places of its own, which come after the first source.
        sources: the first that gives an argument counts. The last one is of `Server.run` in the target.
        default_port: where there is no place at all.
    """
    first, *others = sources
    told = [first, getattr(server, "where", {}), *others, {"port": default_port}]
    return _PLACES.merged(*({name: value for name, value in each.items() if value is not None} for each in told))


def is_local(where: dict[str, Any]) -> bool:
    """Tell whether only this machine can reach a server that listens there, by TCP."""
    if where.get("unix") is not None or where.get("sockets"):
        return False
    return is_loopback(where.get("host", DEFAULT_HOST))
