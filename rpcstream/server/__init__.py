"""A server: functions in, connections served, an orderly end."""

from __future__ import annotations

from .server import Server

__all__ = ["Server"]
