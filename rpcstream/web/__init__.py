"""Web pages beside the calls: static files, functions that answer GET, and HTML templates that quote values.

Owns which path answers what. Knows neither sockets nor remote calls.
"""

from __future__ import annotations

from ..wire.http_messages import HttpError, Request, Response
from .entries import Pending
from .html import Html, escape, html
from .routes import Routes

__all__ = ["Html", "HttpError", "Pending", "Request", "Response", "Routes", "escape", "html"]
