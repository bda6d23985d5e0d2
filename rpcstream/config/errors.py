"""What a configuration that cannot be used is answered with."""

from __future__ import annotations


class ConfigError(ValueError):
    """An option, or a whole file, that makes no sense. The text is one sentence that begins with where it stands."""
