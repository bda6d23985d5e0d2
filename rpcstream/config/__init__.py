"""Options of hubs and clients out of arguments, the environment and a file, in this order of strength.

`Hub.from_config`, `Client.from_config` and `AsyncClient.from_config` are the faces of it.
"""

from ..auth.users import User
from .client import client_options
from .errors import ConfigError
from .files import read_file
from .hub import HubConfig, hub_options, read_tls
from .options import ConfigSource
from .tables import read_token

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
