"""The options of hubs and clients from arguments, the environment and a file; the first that has an option counts.

Used by `Hub.from_config`, `Client.from_config` and `AsyncClient.from_config`.
"""

from ..auth.authenticator import User
from .client import client_options
from .files import ConfigError, read_file
from .hub import HubConfig, hub_options, read_tls
from .schema import ConfigSource
from .shared_options import read_token

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
