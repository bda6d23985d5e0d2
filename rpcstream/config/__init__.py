"""Configuration files: how they are read, and how options in them are checked."""

from .files import ConfigError, read_file

__all__ = ["ConfigError", "read_file"]
