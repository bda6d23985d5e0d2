"""Write a result, or each item of a stream, to a file or a folder (-o). The ending of the file decides its form."""

from __future__ import annotations

import os
import re
import stat
from importlib.util import find_spec
from typing import Any

from ..codec import TAG_KEY, Codec
from .files import PACKAGES, file_of
from .items import UsageError
from .output import format_json

#: Files that one result may make: a server decides how many members it has.
_MAX_MEMBERS = 10_000
#: Characters of the name of a member in the name of its file.
_MAX_NAME = 100


def is_folder(path: str) -> bool:
    """Tell whether `-o` names a folder, which gets a file for each member of the result."""
    return path.endswith(("/", os.sep))


def check_writable(path: str) -> None:
    """Check before the call that its result can be saved.

    Raises:
        UsageError: the folder does not exist, the path is a folder itself or one with files, writing is not allowed, or
            a package that writes this kind of file is not installed.
    """
    if path == "-":
        return
    whole = os.path.abspath(path)
    folder = os.path.dirname(whole)
    package = PACKAGES.get(_ending(path))
    if not path:
        reason = "the name is empty"
    elif os.path.isdir(path) and not is_folder(path):
        reason = f"it is a folder (-o {path}/ writes a file for each member of the result)"
    elif is_folder(path) and os.path.isdir(path) and os.listdir(path):
        reason = "the folder is not empty, and the server chooses the names of the files"
    elif not os.path.isdir(folder):
        reason = f"there is no folder {folder!r}"
    elif not os.access(whole if os.path.exists(whole) else folder, os.W_OK):
        reason = "permission denied"
    elif package is not None and find_spec(package) is None:
        reason = f"{package} is not installed"
    else:
        return
    raise UsageError(f"cannot write {path!r}: {reason}")


def item_path(path: str, number: int) -> str:
    """The file for an item of a stream: `out-0001.png` for `out.png`; standard output, devices and folders take all."""
    if path == "-" or is_folder(path) or not _is_regular(path):
        return path
    root, ending = os.path.splitext(path)
    return f"{root}-{number:04d}{ending}"


def save(path: str, value: Any, codec: Codec, *, raw: bool = False) -> None:
    """Write the result to a file, or its members to files in a folder.

    Raises:
        ValueError: this kind of file cannot contain the result, and nothing was written.
        OSError: a file cannot be written.
    """
    if not is_folder(path):
        _write(path, content_for(path, value, codec, raw=raw))
        return
    files = _files_of(value, codec)
    os.makedirs(path, exist_ok=True)
    for name, data in files.items():
        _write(os.path.join(path, name), data)


def content_for(path: str, value: Any, codec: Codec, *, raw: bool = False) -> bytes:
    """The content of the file with a result; `-` is standard output.

    Raises:
        ValueError: a file with this ending cannot contain the result.
    """
    ending = "" if path == "-" else _ending(path)
    data, form = file_of(value, codec, ending if ending in PACKAGES else "")
    is_json = form != ".bin" and (ending == ".json" or (form == ".txt" and not raw))
    return format_json(value, codec) if is_json else data


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _files_of(value: Any, codec: Codec) -> dict[str, bytes]:
    """The names and the content of a file for each member of an object or an array; one file for another result."""
    if isinstance(value, list):
        members = {f"{number:04d}": member for number, member in enumerate(value, 1)}
    elif isinstance(value, dict) and TAG_KEY not in value:
        members = value
    else:
        members = {"result": value}
    if len(members) > _MAX_MEMBERS:
        raise ValueError(f"the result has more than {_MAX_MEMBERS:,} members")
    files: dict[str, bytes] = {}
    taken: set[str] = set()
    for key, member in members.items():
        data, ending = file_of(member, codec)
        # The server chose the name: it must stay in the folder, and hide nothing.
        name = re.sub(r"[^\w.+-]|^\.", "_", str(key) or "_")[:_MAX_NAME] + ending
        if name.lower() in taken:
            raise ValueError(f"two members would have the file {name!r}")
        taken.add(name.lower())
        files[name] = data
    return files


def _ending(path: str) -> str:
    """The ending of a regular file in small letters; the name of a device or a pipe has none."""
    return os.path.splitext(path)[1].lower() if _is_regular(path) else ""


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
