"""Make the server for `rpcstream-server` out of a module of functions, or a hub, and give servers what options say.

Owns the three methods that a module of functions gets besides its own, and what the options about access add to a
server. Targets such as `module:server` are loaded by `server.target`. Opens no socket.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import RegistrationError
from ..limits import DEFAULT_HOST
from ..server import Server
from ..server.options import Info
from ..server.serving import is_loopback
from ..server.target import TargetError
from ..text import visible
from .serve_options import HUB_OPTIONS, TLS_OPTIONS

if TYPE_CHECKING:
    import socket

    from ..hub import Hub
    from ..tls import TLS

#: Where to listen: options of the command and arguments of `Server.run`.
WHERE = ("host", "port", "unix", "unix_mode")


def functions_server(module: ModuleType, *, pattern: str, debug: bool = False) -> Server:
    """A server of a module's plain functions, with `ping`, `print` and `stop` unless the module has its own.

    Raises:
        TargetError: no function matches the pattern, or one of them cannot be a remote method.
    """
    server = Server(info=Info(title=module.__name__), debug=debug)
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

    names = ("host", "port", "unix", "token_file", "log_level", *HUB_OPTIONS[1:])
    arguments = {name: getattr(options, name) for name in names}
    arguments.update(hosts=options.allow_host, origins=options.allow_origin, path=options.path)
    arguments.update(observed_options(options))
    files = {key: getattr(options, name) for name, _, key in TLS_OPTIONS if getattr(options, name) is not None}
    arguments["tls"] = files or None
    arguments["unix_mode"] = None if options.unix_mode is None else f"{options.unix_mode:03o}"
    if options.no_binary:
        arguments["binary"] = False
    if options.tracing:
        arguments["tracing"] = True
    if options.docs is not None:
        arguments["docs"] = options.docs
    if options.debug:
        arguments.update(debug=True, log_level=options.log_level or "info")
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return Hub.from_config(options.config, **given)
    except OSError as error:
        raise TargetError(f"cannot read {options.config!r}: {error.strerror or error}") from None
    except (ValueError, TypeError, ImportError) as error:
        raise TargetError(str(error)) from None


def is_hub(server: Server) -> bool:
    """Tell whether a server is a hub."""
    from ..hub import Hub

    return isinstance(server, Hub)


def prepare(server: Server, options: argparse.Namespace) -> None:
    """Add what the options say to the server of a target: token, TLS, hosts, origins, paths, tracing, debug.

    Raises:
        TargetError: the server has one of them already, a file is wrong, or the server is no hub where one is wanted.
    """
    from ..config.files import ConfigError, read_token

    if options.hub and not is_hub(server):
        raise TargetError(f"{options.target} is a Server, not a Hub: leave --hub out")
    files = {name: getattr(options, option) for option, name, _ in TLS_OPTIONS if getattr(options, option) is not None}
    added: dict[str, Any] = {"hosts": options.allow_host or (), "origins": options.allow_origin or ()}
    try:
        if options.token_file is not None:
            added["token"] = functools.partial(read_token, options.token_file, "--token-file")
        if files:
            added["tls"] = _read_tls(files)
        server.guard(**added)
        server.observe(**observed_options(options))
        if options.path is not None:
            server.take_calls_at(options.path)
        if options.tracing:
            server.trace_calls()
        if options.docs is not None:
            server.show_docs(options.docs)
    except (ConfigError, ValueError, ImportError) as error:
        raise TargetError(str(error)) from None
    if options.nats is not None:
        _join_nats(server, options)
    server.debug = server.debug or options.debug
    server.binary = server.binary and not options.no_binary


def _join_nats(server: Server, options: argparse.Namespace) -> None:
    """Have the server join a service on NATS.

    Raises:
        TargetError: an option makes no sense, or a file cannot be read.
    """
    from ..config import ConfigError
    from ..nats.options import login_from
    from .options import nats_login, option_fault

    given = {name: getattr(options, f"nats_{name}") for name in ("ca", "certificate", "key")}
    files = {name: file for name, file in given.items() if file is not None}
    more: dict[str, Any] = {"only": True} if options.nats_only else {}
    if options.nats_direct is not None:
        more["direct"] = False if options.nats_direct == "off" else options.nats_direct
    if options.nats_trust_identity:
        more["trust_identity"] = True
    try:
        login = login_from(nats_login(options), os.environ)
        if files:
            if not options.nats.lower().startswith("nats+tls://"):
                raise ValueError(f"{next(iter(files))}= is for TLS, and --nats {options.nats} is without: nats+tls://")
            from ..tls import TLS

            more["tls"] = TLS(**files)
        server.join_nats(options.nats, service=options.service, login=login, **more)
    except (ConfigError, ValueError, OSError, ImportError) as error:
        text = str(error) if isinstance(error, ImportError) else option_fault(error, of_nats=True)
        raise TargetError(text) from None


def observed_options(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments for `Server.observe`; those that were not given are left out."""
    given = {
        "metrics": options.metrics or None,
        "access_log": options.access_log,
        "log_slow_calls": options.log_slow_calls or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _read_tls(files: dict[str, str]) -> TLS:
    from ..config.files import ConfigError, read_tls
    from .options import with_option_names

    try:
        return read_tls(**files)
    except ConfigError as error:
        text = str(error).replace("ca=", "client_ca=")
        raise TargetError(f"--certificate: {with_option_names(text)}") from None


def passed_sockets(options: argparse.Namespace) -> list[socket.socket]:
    """The sockets that systemd has passed to this process; they take the place of --host, --port and --unix.

    Raises:
        TargetError: they cannot be used, or one of these options is given as well.
    """
    from ..systemd import take_sockets

    try:
        sockets = take_sockets()
    except OSError as error:
        raise TargetError(f"socket activation: {error.strerror or error}") from None
    for name in WHERE if sockets else ():
        if getattr(options, name) is not None:
            raise TargetError(f"systemd has passed sockets to listen at: leave --{name.replace('_', '-')} out")
    return sockets


def listen_arguments(
    server: Server, options: argparse.Namespace, arguments: dict[str, Any], sockets: list[socket.socket]
) -> dict[str, Any]:
    """The arguments for `Server.run`: host and port, a Unix socket, or sockets.

    Sockets that systemd has passed come first, then the command line, the configuration of a hub, and these arguments.
    """
    if sockets:
        return {**{name: arguments[name] for name in arguments if name not in WHERE}, "sockets": sockets}
    if arguments.get("unix") is not None:
        arguments.pop("host", None)
        arguments.pop("port", None)
    given = {name: getattr(options, name) for name in WHERE if getattr(options, name) is not None}
    configured: dict[str, Any] = dict(getattr(server, "where", {}))
    if given or configured:
        arguments.pop("sockets", None)
    for name in ("host", "port") if "unix" in given else ("unix",) if given.keys() & {"host", "port"} else ():
        for less in (arguments, configured):
            less.pop(name, None)
    return {**arguments, **configured, **given}


def is_local(where: dict[str, Any]) -> bool:
    """Tell whether only this machine can reach a server that listens there, by TCP."""
    if where.get("unix") is not None or where.get("sockets"):
        return False
    return is_loopback(where.get("host", DEFAULT_HOST))
