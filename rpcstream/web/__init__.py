"""Pages for people and monitors: static contents, handlers of GET, text put into HTML.

Owns which path answers what. Knows neither sockets nor the way of a remote call.
"""

from __future__ import annotations

from ..wire.http_messages import HttpError, Request, Response
from .entries import Pending
from .html import Html, escape, html
from .routes import Routes

__all__ = ["Html", "HttpError", "Pending", "Request", "Response", "Routes", "escape", "html"]
