"""Web pages beside the calls: static files, functions that answer GET, and HTML templates that quote values."""

from __future__ import annotations

from ..wire.http_messages import HttpError, Request, Response
from .responses import Html, escape, html
from .routes import Routes

__all__ = ["Html", "HttpError", "Request", "Response", "Routes", "escape", "html"]
