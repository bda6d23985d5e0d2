"""What `rpcstream-server` has besides targets: the options of a hub, and those that keep strangers out of any server.

Owns those options and what becomes of them. Where else a hub's options come from is the configuration's matter.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .options import seconds

if TYPE_CHECKING:
    from ..hub import Hub
    from ..server import Server

#: Options of a hub alone, by the names that they have in its configuration.
HUB_OPTIONS = ("config", "call_timeout", "keepalive_timeout", "ping_interval", "registration_timeout")

#: Options that name files of TLS, with what these are called in `TLS` and in the configuration.
_TLS = (("certificate", "certificate", "certificate"), ("key", "key", "key"), ("client_ca", "client_ca", "ca"))


def add_hub_options(add: Callable[..., object]) -> None:
    """Those for `--hub`."""
    wait: dict[str, Any] = {"metavar": "SECONDS", "type": seconds}
    add("--hub", action="store_true", help="serve a hub: its clients offer methods, and it routes calls between them")
    add("--config", metavar="FILE", help="with --hub: its options, as TOML or as JSON with comments")
    add("--call-timeout", **wait, help="with --hub: for how long a call may be with its provider (default 0: no limit)")
    add("--keepalive-timeout", **wait, help="with --hub: close a connection that is silent for so long (default 60)")
    add("--ping-interval", **wait, help="with --hub: ask clients for a sign of life so often (default 20; 0: never)")
    patience = "with --hub: close a connection that has neither registered nor called by then (default 0: never)"
    add("--registration-timeout", **wait, help=patience)


def add_guard_options(add: Callable[..., object]) -> None:
    """Those that keep strangers out."""
    add("--token-file", metavar="FILE", help="callers must show the token that stands in this file")
    add("--certificate", metavar="FILE", help="TLS: the server's certificate (PEM); nothing is served without TLS then")
    add("--key", metavar="FILE", help="TLS: its private key, where it is not in the same file (PEM)")
    add("--client-ca", metavar="FILE", help="TLS: serve only clients with a certificate of these authorities (PEM)")
    several: dict[str, Any] = {"action": "append", "default": None}
    add("--allow-host", metavar="NAME", **several, help="HTTP: a name of this server besides loopback's; several times")
    add("--allow-origin", metavar="ORIGIN", **several, help="HTTP: a web page's origin that may call; several times")
    add("--path", metavar="PATH", **several, help="HTTP, WebSocket: take calls here, not at /; several times")
    add(
        "--unix-mode", metavar="MODE", type=mode, help="permissions of the Unix socket, such as 660 (default: by umask)"
    )


def mode(text: str) -> int:
    """Permissions of a file in octal digits, for `type=`."""
    if re.fullmatch(r"(0o?)?[0-7]{3}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} are no permissions: three octal digits, such as 660")
    return int(text.removeprefix("0o"), 8)


def complaint(options: argparse.Namespace) -> str | None:
    """Why these options do not go together."""
    given = [name for name in HUB_OPTIONS if getattr(options, name) is not None]
    if given and not options.hub:
        return f"--{given[0].replace('_', '-')} goes with --hub"
    if given and options.target is not None:
        return f"--{given[0].replace('_', '-')} is for a hub without a TARGET: the one in TARGET has options of its own"
    if options.certificate is None and options.config is None and not (options.hub and options.target is None):
        for name in ("key", "client_ca"):
            if getattr(options, name) is not None:
                return f"--{name.replace('_', '-')} goes with --certificate"
    if options.unix_mode is not None and options.unix is None and not options.hub:
        return "--unix-mode goes with --unix"
    return None


def make_hub(options: argparse.Namespace) -> Hub:
    """A hub out of the command line, the environment and a configuration file.

    Raises:
        TargetError: something of that makes no sense.
    """
    from ..hub import Hub
    from .load import TargetError

    names = ("host", "port", "unix", "unix_mode", "token_file", "log_level", *HUB_OPTIONS[1:])
    arguments = {name: getattr(options, name) for name in names}
    arguments.update(hosts=options.allow_host, origins=options.allow_origin, path=options.path)
    arguments.update({f"tls_{inner}": getattr(options, name) for name, _, inner in _TLS})
    if options.debug:
        arguments.update(debug=True, log_level=options.log_level or "info")
    try:
        return Hub.from_config(
            options.config, **{name: value for name, value in arguments.items() if value is not None}
        )
    except OSError as error:
        raise TargetError(f"cannot read {options.config!r}: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise TargetError(str(error)) from error


def guard(server: Server, options: argparse.Namespace) -> None:
    """Add what the options say to the server of a target.

    Raises:
        TargetError: the server has that already, or a file is not what it should be.
    """
    from ..config import ConfigError, read_tls, read_token
    from .load import TargetError

    files = {name: getattr(options, option) for option, name, _ in _TLS if getattr(options, option) is not None}
    added: dict[str, Any] = {"hosts": options.allow_host or (), "origins": options.allow_origin or ()}
    try:
        if options.token_file is not None:
            added["token"] = read_token(options.token_file, "--token-file")
        if files:
            added["tls"] = read_tls("--certificate", **files)
        server.guard(**added)
        if options.path is not None:
            server.take_calls_at(options.path)
    except (ConfigError, ValueError) as error:
        raise TargetError(str(error)) from error


def is_hub(server: Server) -> bool:
    """Is it one that routes calls?"""
    from ..hub import Hub

    return isinstance(server, Hub)


def place(server: Server, options: argparse.Namespace, default_port: int) -> dict[str, Any]:
    """Where to listen, for `Server.run`: as the command line says, and else as a hub's own configuration does."""
    names = ("host", "port", "unix", "unix_mode")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    own: dict[str, Any] = dict(getattr(server, "where", {}))
    for name in ("host", "port") if "unix" in given else ("unix",) if given.keys() & {"host", "port"} else ():
        own.pop(name, None)
    return {"port": default_port, **own, **given}
