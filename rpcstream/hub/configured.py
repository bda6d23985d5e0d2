"""A hub out of a configuration: what the options of a file become that only a hub knows, rules and users."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import ConfigSource, hub_options
from .rules import Rules
from .users import authenticate_users

if TYPE_CHECKING:
    from .server import Hub

    AnyHub = TypeVar("AnyHub", bound=Hub)


def configured(kind: type[AnyHub], source: ConfigSource, arguments: Mapping[str, Any]) -> AnyHub:
    """A hub of this class; see `Hub.from_config`."""
    config = hub_options(source, arguments)
    options = dict(config.options)
    if config.rules is not None:
        options["rules"] = Rules.from_config(config.rules, place=config.rules_place)
    if config.users is not None:
        options["authenticate"] = authenticate_users(config.users)
    hub = kind(**options)
    hub.where = config.where
    if config.log_level is not None:
        logging.getLogger("rpcstream").setLevel(config.log_level.upper())
    return hub
