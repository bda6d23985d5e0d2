"""The options of hubs and clients from arguments, the environment and a file; the first that has an option counts.

Used by `Hub.from_config`, `Client.from_config` and `AsyncClient.from_config`, and by the command line. What belongs to
hubs is imported at its first use: a client does without it, and without asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import client_options
from .files import ConfigError, read_file
from .schema import ConfigSource
from .shared_options import read_token

if TYPE_CHECKING:
    from ..auth.authenticator import User
    from .hub import HubConfig, hub_options, read_tls

__all__ = [
    "ConfigError",
    "ConfigSource",
    "HubConfig",
    "User",
    "client_options",
    "hub_options",
    "read_file",
    "read_tls",
    "read_token",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import hub

    return getattr(hub, name)
