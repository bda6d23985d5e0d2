"""Where the user's configuration file is."""

from __future__ import annotations

import os
from collections.abc import Mapping


def config_file(environ: Mapping[str, str]) -> str | None:
    """The path of the user's configuration file, which need not exist; None where there is no home folder.

    `RPCSTREAM_CONFIG` where that is set, else `rpcstream/config.toml` in `XDG_CONFIG_HOME`, `~/.config`, or on Windows
    `APPDATA`.
    """
    if named := environ.get("RPCSTREAM_CONFIG"):
        return named
    home = os.path.join(environ.get("HOME", ""), ".config")
    folders = (environ.get("XDG_CONFIG_HOME", ""), environ.get("APPDATA", "") if os.name == "nt" else home)
    # One that is not absolute is to be ignored, says the XDG Base Directory Specification.
    return next((os.path.join(each, "rpcstream", "config.toml") for each in folders if os.path.isabs(each)), None)
