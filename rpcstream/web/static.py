"""Static content: bytes, a file, the files of a folder, with their caching headers.

A file is read once, in a thread, and again when it was changed, which is checked once a second at most.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import mimetypes
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

from ..methods.call import Invoker
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.http_messages import NOSNIFF, Request, Response, problem
from .responses import BYTES, error_response, responding

log = get_logger("rpcstream.web")

#: Seconds between two checks whether a file was changed.
CHECK_EVERY = 1.0

#: Bytes of one file: files are kept in memory.
MAX_FILE = 64 * 1024 * 1024

#: Bytes and number of the files that are kept of a folder.
MAX_KEPT = 128 * 1024 * 1024
MAX_FILES = 1024

Headers = list[tuple[str, str]]

#: Reads a file.
Read = Callable[[], "File"]

_TYPES = mimetypes.MimeTypes(filenames=())
for _suffix, _type in {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".md": "text/markdown",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".ico": "image/x-icon",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".ttf": "font/ttf",
    ".otf": "font/otf",
    ".npy": BYTES,
}.items():
    _TYPES.add_type(_type, _suffix)
_PACKED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_TEXTS = frozenset({"image/svg+xml", "application/manifest+json"})


def type_of(name: str) -> str:
    """The content type of a file with this name."""
    found, packing = _TYPES.guess_type(f"/{name.replace(':', '_')}", strict=True)
    if packing is not None:
        return _PACKED.get(packing, BYTES)
    if found is None:
        return BYTES
    return f"{found}; charset=utf-8" if found.startswith("text/") or found in _TEXTS else found


#: Comments that have lines of their own, and indentation.
_COMMENTS = re.compile(rb"^ *(/\*\*(?!/)((?!\*/).)*\*/|//[^\n]*)\n|^ +", re.DOTALL | re.MULTILINE)
#: Comments behind code with plain strings, in which no template or regular expression can begin.
_REMARKS = re.compile(rb"""^((?:[^"'`/\n]|"[^"\\\n]*")*?) *//[^\n]*$""", re.MULTILINE)


def without_comments(program: bytes) -> bytes:
    """JavaScript without most comments and indentation, which saves a fifth of its size when compressed.

    Args:
        program: in which no string and no template has more than one line.
    """
    return _REMARKS.sub(rb"\1", _COMMENTS.sub(b"", program))


class Content:
    """Bytes with their responses: the content itself, and 304 for a client that has it already.

    Args:
        type: content type.
        headers: further headers; without a `Cache-Control` among them it is "no-cache" (kept, but asked for each time).
        packed: send it compressed to clients that read gzip (RFC 9110, 8.4.1 and 12.5.3), with a tag of its own.
    """

    def __init__(self, body: bytes, type: str, headers: Headers, *, packed: bool = False) -> None:
        self._packed: Content | None = None
        if packed:
            headers = [*headers, ("Vary", "Accept-Encoding")]
            gzipped = gzip.compress(body, mtime=0)
            self._packed = Content(gzipped, type, [*headers, ("Content-Encoding", "gzip")])
        tag = hashlib.blake2b(body, digest_size=16)
        tag.update(type.encode())
        self._tag = f'"{tag.hexdigest()}"'
        own = [NOSNIFF, ("ETag", self._tag)]
        if all(name.lower() != "cache-control" for name, _ in headers):
            own.append(("Cache-Control", "no-cache"))
        self._response = Response(200, body, type, [*own, *headers])
        self._not_modified = Response(304, headers=[*own, *headers])

    def answer(self, request: Request, parameters: object = None) -> Response:
        """The response to GET or HEAD."""
        headers = request.headers
        if self._packed is not None and _reads_gzip(headers.get("accept-encoding", "")):
            return self._packed.answer(request)
        tags = headers.get("if-none-match")
        if tags is not None:
            has_it = tags.strip() == "*" or any(_is_tag(each, self._tag) for each in tags.split(","))
            return self._not_modified if has_it else self._response
        return self._response


def _reads_gzip(said: str) -> bool:
    """Whether a header Accept-Encoding names gzip, without `q=0`."""
    for each in said.split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        if name == "gzip":
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


def _is_tag(said: str, tag: str) -> bool:
    """Whether a tag of If-None-Match is this one; weak tags count like strong ones (RFC 9110, 13.1.2)."""
    return said.strip().removeprefix("W/") == tag


class File:
    """The content of a file, read by the constructor.

    Args:
        locate: gives the real path of the file, each time it is read or checked; OSError if it is gone.
        type, headers: as for `Content`.

    Raises:
        OSError: the file cannot be read, is too large, or is not a regular file; the text says which.
    """

    def __init__(self, locate: Callable[[], str], type: str, headers: Headers) -> None:
        self._locate = locate
        self._checked = monotonic()
        body, status = _read(locate())
        self._stamp = _stamp_of(status)
        self.size = len(body)
        self.content = Content(body, type, headers)
        #: Reads the file again.
        self.reload = functools.partial(File, locate, type, headers)

    def is_unchanged(self) -> bool:
        """Whether the file was not changed, as checked once a second at most. OSError if it is gone."""
        now = monotonic()
        if now - self._checked < CHECK_EVERY:
            return True
        self._checked = now
        return _stamp_of(os.stat(self._locate())) == self._stamp


def _read(path: str) -> tuple[bytes, os.stat_result]:
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"):  # opening a pipe would block
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"not a file: {path}")
        if status.st_size > MAX_FILE:
            raise OSError(f"too large to be served, {status.st_size} bytes, the limit is {MAX_FILE}: {path}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE), status
    finally:
        os.close(descriptor)


def _stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    """What tells whether a file was changed."""
    return status.st_mtime_ns, status.st_size, status.st_ino


class Files:
    """The files at one path, or below it, read in threads and kept in memory; as `Route.answer`.

    Args:
        path: of the route, for the log.
        reader_of: gives the function that reads the file at the path of a request; None if it is never served.
        invoker: gives the invoker, which has the threads.
    """

    def __init__(self, path: str, reader_of: Callable[[str], Read | None], invoker: Callable[[], Invoker]) -> None:
        self._path = path
        self._reader_of = reader_of
        self._invoker = invoker
        self._log = LimitedLog(log)
        self._kept: OrderedDict[str, File] = OrderedDict()
        self._reading: dict[str, asyncio.Future[File | Response]] = {}

    def answer(self, request: Request, parameters: object = None) -> Response | Coroutine[Any, Any, Response]:
        """The response to GET or HEAD, now or awaited."""
        found = self._find(request.path)
        if isinstance(found, File):
            return found.content.answer(request)
        if found is None:
            return _not_found()
        return responding(functools.partial(self._read, request, found), self._failed)

    def keep(self, path: str, file: File | None) -> None:
        """Keep the file that was read; None if that failed. Files that were not asked for the longest are dropped."""
        self._kept.pop(path, None)
        if file is None:
            return
        self._kept[path] = file
        total = sum(each.size for each in self._kept.values())
        while len(self._kept) > MAX_FILES or (total > MAX_KEPT and len(self._kept) > 1):
            total -= self._kept.popitem(last=False)[1].size

    def _find(self, path: str) -> File | Read | None:
        """The file at a path; the function that reads it, if it must be read first; None if it is never served."""
        file = self._kept.get(path)
        if file is None:
            return self._reader_of(path)
        try:
            if not file.is_unchanged():
                return file.reload
        except (OSError, ValueError):
            del self._kept[path]
            return self._reader_of(path)
        self._kept.move_to_end(path)
        return file

    async def _read(self, request: Request, read: Read) -> Response:
        reading = self._reading.get(request.path)
        if reading is None:
            # One read serves all requests that come meanwhile, and goes on when some of these are given up.
            reading = self._reading[request.path] = asyncio.ensure_future(self._read_and_keep(request, read))
            reading.add_done_callback(lambda _: self._reading.pop(request.path))
        found = await asyncio.shield(reading)
        return found.content.answer(request) if isinstance(found, File) else found

    async def _read_and_keep(self, request: Request, read: Read) -> File | Response:
        """Read a file and keep it; the response in its place where that fails."""
        file: File | None = None
        try:
            file = await asyncio.wrap_future(self._invoker().submit(read))
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
                self._log.warning(None, "a file of %r cannot be served: %s", self._path, error)
        except Exception as error:
            return self._failed(error)
        self.keep(request.path, file)
        return _not_found() if file is None else file

    def _failed(self, error: BaseException) -> Response:
        return error_response(f"GET {self._path}", error, self._log)


def _not_found() -> Response:
    return problem(404, "There is no such page")


def single_file(path: str, name: str, type: str, headers: Headers, invoker: Callable[[], Invoker]) -> Files:
    """The file with this name at one path. OSError as for `File`."""
    read = functools.partial(File, functools.partial(os.path.realpath, name, strict=True), type, headers)
    files = Files(path, lambda _: read, invoker)
    files.keep(path, read())
    return files


def folder_files(path: str, name: str, headers: Headers, invoker: Callable[[], Invoker]) -> Files:
    """The files below a folder, at paths that begin with this one; `index.html` for a folder itself.

    Not served: files that a link leads to outside the folder, and names that begin with a dot.

    Raises:
        OSError: the folder does not exist.
    """
    root = os.path.realpath(name, strict=True)

    def locate(name: str) -> str:
        """The real path of the file, without links. OSError if the file must not be served."""
        found = os.path.realpath(os.path.join(root, *name.split("/")), strict=True)
        # A path outside the folder begins with "..".
        if not is_plain(os.path.relpath(found, root).replace(os.sep, "/")):
            raise FileNotFoundError(f"outside of the folder, or hidden: {name!r}")
        return found

    def reader_of(asked: str) -> Read | None:
        name = asked[len(path) :]
        if not name or name.endswith("/"):
            name += "index.html"
        return (
            functools.partial(File, functools.partial(locate, name), type_of(name), headers) if is_plain(name) else None
        )

    return Files(path, reader_of, invoker)


def is_plain(name: str) -> bool:
    """Whether a name is a relative path with `/` that goes down only, and to nothing hidden, on every system."""
    if "\0" in name or "\\" in name or (os.name == "nt" and ":" in name):
        return False
    return all(part and not part.startswith(".") for part in name.split("/"))
