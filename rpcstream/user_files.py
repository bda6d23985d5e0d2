"""Files that belong to the user: where the configuration and caches stand, and private files read and written.

Owns the folders by system, the permissions of private files, and their atomic replacement. Knows no content. Imports
little, since the command line uses it before each call.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping

#: The name of the folder of this package in the user's folders.
_FOLDER = "rpcstream"


def config_file(environ: Mapping[str, str]) -> str | None:
    """The path of the user's configuration file, which need not exist; None where there is no home folder.

    `RPCSTREAM_CONFIG` where that is set, else `rpcstream/config.toml` in `XDG_CONFIG_HOME`, `~/.config`, or on Windows
    `APPDATA`.
    """
    named = environ.get("RPCSTREAM_CONFIG")
    if named:
        return named
    folder = _folder(environ, "XDG_CONFIG_HOME", "APPDATA", ".config")
    return None if folder is None else os.path.join(folder, "config.toml")


def cache_folder(environ: Mapping[str, str]) -> str | None:
    """The folder for caches, which need not exist: in `XDG_CACHE_HOME`, `~/.cache`, or on Windows `LOCALAPPDATA`."""
    return _folder(environ, "XDG_CACHE_HOME", "LOCALAPPDATA", ".cache")


def state_folder(environ: Mapping[str, str]) -> str | None:
    """The folder for histories, which need not exist: in `XDG_STATE_HOME`, `~/.local/state`, or `LOCALAPPDATA`."""
    return _folder(environ, "XDG_STATE_HOME", "LOCALAPPDATA", os.path.join(".local", "state"))


def _folder(environ: Mapping[str, str], variable: str, windows: str, hidden: str) -> str | None:
    for name in (variable, windows) if sys.platform == "win32" else (variable,):
        base = environ.get(name, "")
        if os.path.isabs(base):  # another is to be ignored, says the XDG Base Directory Specification
            return os.path.join(base, _FOLDER)
    home = environ.get("HOME", "")
    return os.path.join(home, hidden, _FOLDER) if os.path.isabs(home) else None


def is_readable_by_others(path: str) -> bool:
    """Whether users besides the owner may read a file, by its permissions; False where there are none (Windows)."""
    try:
        return os.name == "posix" and bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def read_private(path: str, most: int) -> bytes | None:
    """The content of a file that this user alone may write; None for any other, and for one that cannot be read.

    Args:
        path: of the file.
        most: bytes; a longer file is not read.
    """
    try:
        with open(path, "rb", opener=_open_regular) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                return None
            if os.name == "posix":
                may_others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                if found.st_uid != os.getuid() or may_others_write:
                    return None
            data = file.read(most + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= most else None


def _open_regular(path: str, flags: int) -> int:
    """Open without waiting for the other end of a named pipe, and without following a link."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))


def write_private(path: str, data: bytes) -> None:
    """Replace a file at once by another that this user alone may read; its folder is made, and private, too.

    Raises:
        OSError: it cannot be written; the file is as before then.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    new = f"{path}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(new, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


def append_private(path: str, data: bytes) -> None:
    """Add to a file that this user alone may read; it and its folder are made where they are missing.

    Raises:
        OSError: it cannot be written, or it is a link, no regular file, or one of another user.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | os.O_APPEND
        | getattr(os, "O_BINARY", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_NOFOLLOW", 0)
    )
    with open(os.open(path, flags, 0o600), "ab") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or (os.name == "posix" and found.st_uid != os.getuid()):
            raise PermissionError(f"{path} is no regular file of this user")
        if os.name == "posix" and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            os.fchmod(file.fileno(), 0o600)
        file.write(data)
