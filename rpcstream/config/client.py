"""The client's options in configuration files and environment variables, as arguments of its constructor.

Owns which of the options of `client.options` can be written in a file, and how. Defaults are the constructor's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..limits import Limits
from .files import ConfigError
from .option_types import FILE, FLAG, SECONDS_OR_NONE, TEXT, choice, whole
from .schema import ConfigSource, Option, Resolved, Schema
from .shared_options import LIMITS, TOKEN, take_limits, take_token, values_of

PREFIX = "RPCSTREAM_"

CLIENT = Schema(
    (
        Option(name="address", type=TEXT, displaces=("host", "port")),
        Option(name="host", type=TEXT, displaces=("address",)),
        Option(name="port", type=whole(1, 65535), displaces=("address",)),
        Option(name="name", type=TEXT, aliases=("client_id",)),
        Option(name="timeout", type=SECONDS_OR_NONE, aliases=("call_timeout",)),
        Option(name="connect_timeout", type=SECONDS_OR_NONE),
        Option(name="keepalive", type=SECONDS_OR_NONE, aliases=("keepalive_timeout",)),
        Option(name="registration_timeout", type=SECONDS_OR_NONE),
        Option(name="reconnect", type=FLAG),
        Option(name="retries", type=whole(0)),
        Option(name="retry", type=choice("all", "idempotent")),
        Option(name="pool", type=whole(1)),
        Option(name="http_connections", type=whole(1)),
        *TOKEN,
        Option(name="ca", type=FILE),
        Option(name="certificate", type=FILE),
        Option(name="key", type=FILE),
        *LIMITS,
    ),
    what="a client",
)

_MAY_BE_NONE = ("timeout", "connect_timeout", "keepalive", "registration_timeout")


def client_options(
    source: ConfigSource = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read keyword arguments for `Client` and `AsyncClient` from arguments, the environment (`RPCSTREAM_…`) and a file.

    Args:
        source: a file (TOML, or JSON with comments), or a mapping with the same options; None for neither.
        arguments: these take precedence: the same options, and others that the client takes.
        environ: replaces `os.environ`.

    Raises:
        ConfigError: an option is unknown, or its value makes no sense; the text says where it was given.
        TypeError: `limits` are no Limits.
        OSError: the file cannot be read.
    """
    own: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for name, value in (arguments or {}).items():
        is_object = (name == "reconnect" and not isinstance(value, bool)) or (
            name == "address" and not isinstance(value, str)
        )
        (own if name in CLIENT and not is_object else passed)[name] = value
    base = passed.pop("limits", None)
    if not isinstance(base, Limits | None):
        raise TypeError(f"limits must be Limits, got {type(base).__name__}")
    found = CLIENT.resolve(source, own, prefix=PREFIX, environ=os.environ if environ is None else environ)
    token, limits = take_token(found), take_limits(found, base)
    address = _take_address(found)
    options = {**values_of(found, keep_none=_MAY_BE_NONE), **passed}
    for name, value in (("token", token), ("limits", limits), ("address", address)):
        if value is not None:
            options.setdefault(name, value)
    return options


def _take_address(found: dict[str, Resolved]) -> str | None:
    address, host, port = (found.pop(name, None) for name in ("address", "host", "port"))
    if address is not None and address.value is not None:
        return str(address.value)
    if host is None and port is None:
        return None
    name = "" if host is None or host.value is None else str(host.value)
    if host is not None and ("://" in name or "/" in name or "[" in name):
        raise ConfigError(f"{host.place} must be a name or an IP address; a whole address is the option 'address'")
    name = f"[{name}]" if ":" in name else name
    return f"{name}:{port.value}" if port is not None and port.value is not None else name or None
