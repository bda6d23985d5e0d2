"""The kinds of routes: pages, files, and handlers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from ..methods.invoke import Invoker
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.http_messages import Request, Response, problem
from .handlers import DeferredResponse, Handler, error_response
from .paths import PathPattern
from .static import File, Files, Read

log = get_logger("rpcstream.web")

NO_PARAMETERS: dict[str, str] = {}


class Pending(Protocol):
    """A response that must be awaited."""

    async def respond(self) -> Response:
        """Wait for the response; an error gives one, too. Cancel this when the caller is gone."""


class Route:
    """A path, or a pattern of paths, and what answers it.

    Attributes:
        path: as it was registered.
        is_public: answered without authentication.
        is_literal: it answers its path and no other.
    """

    is_literal = True

    def __init__(self, path: str, is_public: bool) -> None:
        self.path = path
        self.is_public = is_public

    def __repr__(self) -> str:
        return repr(self.path)

    def match(self, path: str) -> dict[str, str] | None:
        """The parameters in a path, by name; None if the route does not answer it."""
        raise NotImplementedError

    def answer(self, request: Request, parameters: Mapping[str, str]) -> Response | Pending:
        """The response to GET or HEAD, now or awaited; `parameters` are those of the path."""
        raise NotImplementedError


class Page(Route):
    """One path with a response of its own: static content, or a page of the server itself such as `/healthz`.

    Args:
        respond: makes the response, now or awaited.
    """

    def __init__(self, path: str, respond: Callable[[Request], Response | Pending], *, is_public: bool) -> None:
        super().__init__(path, is_public)
        self._respond = respond

    def answer(self, request: Request, parameters: Mapping[str, str]) -> Response | Pending:
        return self._respond(request)


class FilesRoute(Route):
    """A file, or the files below a folder."""

    def __init__(
        self,
        path: str,
        is_public: bool,
        files: Files,
        invoker: Callable[[], Invoker],
        *,
        is_prefix: bool = False,
    ) -> None:
        super().__init__(path, is_public)
        self.is_literal = not is_prefix
        self._files = files
        self._invoker = invoker
        self._log = LimitedLog(log)
        self._reading: dict[str, asyncio.Future[File | Response]] = {}

    def match(self, path: str) -> dict[str, str] | None:
        return NO_PARAMETERS if path.startswith(self.path) else None

    def answer(self, request: Request, parameters: Mapping[str, str]) -> Response | Pending:
        found = self._files.find(request.path)
        if isinstance(found, File):
            return found.content.answer(request)
        if found is None:
            return _not_found()
        return DeferredResponse(functools.partial(self._read, request, found), self._failed)

    async def _read(self, request: Request, read: Read) -> Response:
        reading = self._reading.get(request.path)
        if reading is None:
            # One read serves all requests that come meanwhile, and goes on when some of these are given up.
            reading = self._reading[request.path] = asyncio.ensure_future(self._read_and_keep(request, read))
            reading.add_done_callback(lambda _: self._reading.pop(request.path))
        found = await asyncio.shield(reading)
        return found.content.answer(request) if isinstance(found, File) else found

    def _failed(self, error: BaseException) -> Response:
        return error_response(f"GET {self.path}", error, self._log)

    async def _read_and_keep(self, request: Request, read: Read) -> File | Response:
        """Read a file and keep it; the response in its place where that fails."""
        file: File | None = None
        try:
            file = await asyncio.wrap_future(self._invoker().submit(read))
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
                self._log.warning(None, "a file of %r cannot be served: %s", self.path, error)
        except Exception as error:
            return self._failed(error)
        self._files.keep(request.path, file)
        return _not_found() if file is None else file


class HandlerRoute(Route):
    """A function that answers GET."""

    def __init__(
        self, path: str, is_public: bool, handler: Handler, pattern: PathPattern, invoker: Callable[[], Invoker]
    ) -> None:
        super().__init__(path, is_public)
        self.is_literal = not pattern.kinds
        self.match = pattern.match  # type: ignore[method-assign]
        self._handler = handler
        self._invoker = invoker

    def answer(self, request: Request, parameters: Mapping[str, str]) -> Response | Pending:
        return self._handler.start(request, parameters, self._invoker())


def _not_found() -> Response:
    return problem(404, "There is no such page")
