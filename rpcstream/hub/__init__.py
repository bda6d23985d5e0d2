"""The hub: a server whose clients offer methods to each other."""

from .rules import Rule, Rules
from .server import Hub

__all__ = ["Hub", "Rule", "Rules"]
