"""The hub: a server whose clients offer methods to each other."""

from .routes import Balance
from .rules import Rule, Rules
from .server import Hub

__all__ = ["Balance", "Hub", "Rule", "Rules"]
