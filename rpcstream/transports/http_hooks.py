"""What an HTTP connection asks others: who may ask, who asks, what is answered to what is no call.

Owns how those are asked, and what becomes of their failures. Knows neither bytes nor calls.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ..auth.authenticator import Authenticator
from ..peer.credentials import Credentials
from ..wire.http_messages import HttpError, Request, Response, problem
from .interfaces import ProtocolConnection

log = logging.getLogger("rpcstream.server")


class Access(Protocol):
    """Who may ask: `transports.access.AccessRules`."""

    def check(self, request: Request) -> Response | None:
        """The answer to a request that is not permitted."""

    def preflight(self, request: Request) -> Response | None:
        """The answer to a browser that wants to know whether a page may ask."""

    def cors(self, request: Request) -> list[tuple[str, str]]:
        """Headers of the answer to a page of another site."""


class Routes(Protocol):
    """What is answered to what is no call: `web.Routes`."""

    def find(self, request: Request) -> Any:
        """A response; or what has a method `respond()` that gives one, now or later; or None."""

    def is_public(self, request: Request) -> bool:
        """Is it answered to whoever asks?"""


class CallPaths:
    """Where calls are taken: POST, and WebSockets. A path is a request's as it is after decoding, without the query.

    Args:
        paths: None: POST to "/", and WebSockets at any path.
    """

    __slots__ = ("_any_socket", "_paths", "shown")

    def __init__(self, paths: tuple[str, ...] | None = None) -> None:
        self._paths = frozenset(("/",) if paths is None else paths)
        self._any_socket = paths is None
        #: For people.
        self.shown = " or ".join(("/",) if paths is None else paths)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def take_socket(self, path: str) -> bool:
        """May a connection go on as a WebSocket here?"""
        return self._any_socket or path in self._paths


class Page:
    """A request that is no call.

    Args:
        length: of its body; None: it comes in chunks.
        more: headers of the response.
    """

    __slots__ = ("length", "more", "request")

    def __init__(self, request: Request, length: int | None, more: list[tuple[str, str]]) -> None:
        self.request = request
        self.length = length
        self.more = more


class Hooks:
    """The others, each None where there is none.

    Args:
        websocket: makes the protocol that a connection goes on with; the request's identity is known then.
        paths: where calls are taken.
    """

    __slots__ = ("access", "authenticator", "paths", "routes", "websocket")

    def __init__(
        self,
        access: Access | None = None,
        routes: Routes | None = None,
        authenticator: Authenticator | None = None,
        websocket: Callable[[Request], ProtocolConnection] | None = None,
        paths: CallPaths | None = None,
    ) -> None:
        self.paths = paths or CallPaths()
        self.access = access
        self.routes = routes
        self.authenticator = authenticator
        self.websocket = websocket

    def refusal(self, request: Request) -> Response | None:
        """The answer to what is not permitted, or to a browser that wants to know."""
        if self.access is None:
            return None
        refusal = self.access.check(request)
        if refusal is None and request.method == "OPTIONS":
            return self.access.preflight(request)
        return refusal

    def cors(self, request: Request) -> list[tuple[str, str]]:
        """Headers of the answer to a page of another site."""
        return self.access.cors(request) if self.access is not None else []

    def is_open(self, request: Request) -> bool:
        """Is it answered without knowing who asks?"""
        return self.authenticator is None or self.routes is None or self.routes.is_public(request)

    @property
    def nothing(self) -> Response:
        """The answer where neither a route nor calls are."""
        return problem(404, f"there is nothing here; calls go to {self.paths.shown}")

    def page(self, request: Request) -> Any:
        """The response to what is no call, or what is to be awaited for it."""
        try:
            found = self.routes.find(request) if self.routes is not None else None
            if request.path in self.paths and (found is None or request.method not in ("GET", "HEAD")):
                allowed = "POST" if found is None else "GET, HEAD, POST"
                return problem(405, "a call comes with POST", [("Allow", allowed)])
            if found is None:
                return self.nothing
            if not isinstance(found, Response):
                found = found.respond()
            if isinstance(found, Response) or inspect.isawaitable(found):
                return found
            raise TypeError(f"a route gave {type(found).__name__}, no response")
        except HttpError as error:
            return error.response
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return problem(500, "internal error")


def shown(request: Request, connection: Credentials) -> Credentials:
    """What a request tells of who asks, besides what its connection tells."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip(" ")
    if kind.lower() != "bearer" or not token:
        return connection
    return Credentials(
        token=token,
        names=connection.names,
        pid=connection.pid,
        uid=connection.uid,
        gid=connection.gid,
        address=connection.address,
    )


async def outcome(work: Any) -> Any:
    """What it gives; a response that says so, where it fails."""
    try:
        return await work
    except HttpError as error:
        return error.response
    except Exception:
        log.exception("a request failed")
        return problem(500, "internal error")
