"""Options of hubs and clients from sources that a test gives, and nothing else."""

from __future__ import annotations

from typing import Any

from rpcstream.config import ConfigError, client_options, hub_options

SECRET = "correct-horse-battery-staple"


def hub(source: Any = None, environ: dict[str, str] | None = None, **arguments: Any) -> Any:
    return hub_options(source, arguments, environ=environ or {})


def client(source: Any = None, environ: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
    return client_options(source, arguments, environ=environ or {})


def complaint_of(source: Any, environ: dict[str, str] | None = None) -> str:
    """What is said of it; as of a configuration where nothing is."""
    try:
        hub(source, environ)
    except ConfigError as error:
        return str(error)
    return "configuration: taken"
