"""Where an HTTP request goes, by its head: to a call, a page, a WebSocket, or a refusal."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ..peer.credentials import Credentials
from ..wire.binary_frame import HEADER_MAX
from ..wire.http_messages import HttpError, Request, Response, problem, tokens
from ..wire.http_parser import body_length
from .access import AccessRules
from .http_call import CallHead, Endpoint, PageHead, is_frame

log = logging.getLogger("rpcstream.server")


class Routes(Protocol):
    """The pages: `web.Routes`."""

    def find(self, request: Request) -> Any:
        """A response; or an object whose `respond()` gives one, now or awaited; or None."""

    def has(self, path: str) -> bool:
        """Whether there is a page at this path."""

    def is_public(self, request: Request) -> bool:
        """Whether the page is for callers that are not authenticated, too."""

    def is_health_check(self, request: Request) -> bool:
        """Whether the page only says that the server runs, so that it is shown whatever host is named."""

    def is_metrics(self, request: Request) -> bool:
        """Whether the page is that of the metrics, so that it is shown whatever address is named as host."""


class CallPaths:
    """The paths at which calls are taken, by POST and by WebSockets; decoded, and without the query.

    Args:
        paths: None: POST to "/", and WebSockets at any path.

    """

    __slots__ = ("_any_websocket", "_given", "_paths")

    def __init__(self, paths: tuple[str, ...] | None = None) -> None:
        self._paths = frozenset(("/",) if paths is None else paths)
        self._any_websocket = paths is None
        self._given = ("/",) if paths is None else paths

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def below(self, root: str) -> str:
        """The paths, for people, where the server is mounted at this one."""
        return " or ".join(f"{root}{path}" for path in self._given)

    def has_websocket(self, path: str) -> bool:
        """Whether a connection may become a WebSocket at this path."""
        return self._any_websocket or path in self._paths


class HttpRouter:
    """Decides what answers a request.

    Args:
        access: which requests are permitted.
        routes: the pages; None: none.
        paths: where calls are taken.
        endpoints: what takes POST at other paths, by path.
        reads_frames: bodies may be binary frames.
        notification_status: of the response to notifications.
    """

    __slots__ = ("_access", "_endpoints", "_notification_status", "_paths", "_reads_frames", "_routes")

    def __init__(
        self,
        access: AccessRules,
        routes: Routes | None = None,
        paths: CallPaths | None = None,
        *,
        endpoints: Mapping[str, Endpoint] = MappingProxyType({}),
        reads_frames: bool = True,
        notification_status: int = 200,
    ) -> None:
        self._notification_status = notification_status
        self._endpoints = endpoints
        self._reads_frames = reads_frames
        self._access = access
        self._routes = routes
        self._paths = paths or CallPaths()

    def route(self, request: Request, max_size: int, *, needs_length: bool = True) -> CallHead | PageHead:
        """What a request asks for, by its head.

        Args:
            max_size: bytes of a message.
            needs_length: a call says how long its body is, or that it comes in chunks, as in HTTP/1.1; False: it need
                not, since something else tells where it ends.

        Raises:
            HttpError: the body is too long: the connection cannot go on after the response.
        """
        refusal = self._refusal(request)
        try:
            length = body_length(request, max_size, HEADER_MAX if is_frame(request.headers) else 0)
        except HttpError as error:
            if refusal is not None:
                raise HttpError(refusal) from None
            error.response.headers += self._access.cors(request)
            raise
        if length == -1 and not needs_length:
            length = None
        upgrade = request.headers.get("upgrade")
        if upgrade is not None:
            # A proxy might take what follows for the other protocol.
            request.keep_alive = False
        if refusal is not None:
            return PageHead(request, length, [], refusal)
        if upgrade is not None and "websocket" in tokens(upgrade):
            if self._paths.has_websocket(request.path):
                return PageHead(request, length, [], is_upgrade=True)
            return PageHead(request, length, self._access.cors(request), self._not_found(request))
        more = self._access.cors(request)
        endpoint = self._endpoints.get(request.path)
        if endpoint is not None and request.method != "POST":
            return PageHead(request, length, more, problem(405, "a message comes with POST", [("Allow", "POST")]))
        if endpoint is None and not (request.method == "POST" and request.path in self._paths):
            return PageHead(request, length, more)
        try:
            return CallHead(
                request,
                length,
                more,
                reads_frames=self._reads_frames and endpoint is None,
                notification_status=self._notification_status,
                endpoint=endpoint,
            )
        except HttpError as error:
            return PageHead(request, length, more, error.response)

    def forgive_slash(self, request: Request) -> None:
        """Take the slash off the end of a path at which nothing is: some frameworks add one to what they pass on."""
        path = request.path
        if path[-1:] != "/" or path == "/" or path in self._paths or path in self._endpoints:
            return
        if self._routes is None or not self._routes.has(path):
            request.path = path[:-1]

    def websocket_refusal(self, request: Request) -> Response | None:
        """The response to a request for a WebSocket that is not permitted, or not here; None if it may be opened."""
        refusal = self._refusal(request)
        if refusal is None and not self._paths.has_websocket(request.path):
            refusal = self._not_found(request)
        return refusal

    def is_public(self, request: Request) -> bool:
        """Whether a page is for callers that are not authenticated, too."""
        return self._routes is None or self._routes.is_public(request)

    def page(self, request: Request) -> Any:
        """The response to a request for a page, or an awaitable of it (see `response_of`)."""
        try:
            found = self._routes.find(request) if self._routes is not None else None
            if request.path in self._paths and (found is None or request.method not in ("GET", "HEAD")):
                allowed = "POST" if found is None else "GET, HEAD, POST"
                return problem(405, "a call comes with POST", [("Allow", allowed)])
            if found is None:
                return self._not_found(request)
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

    def _refusal(self, request: Request) -> Response | None:
        """The response to a request that is not permitted, or that asks what is permitted."""
        refusal = self._access.check(request)
        if refusal is not None and self._is_for_monitors(request):
            refusal = self._access.check_origin(request)  # load balancers and Prometheus ask by address
        return self._access.preflight(request) if refusal is None else refusal

    def _is_for_monitors(self, request: Request) -> bool:
        routes = self._routes
        if routes is None:
            return False
        return routes.is_health_check(request) or (routes.is_metrics(request) and self._access.names_address(request))

    def _not_found(self, request: Request) -> Response:
        return problem(404, f"there is nothing here; calls go to {self._paths.below(request.root)}")


def request_credentials(request: Request, connection: Credentials) -> Credentials:
    """The credentials of a connection, with the token of a request if it has one."""
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


def not_authenticated(*, has_shown: bool) -> Response:
    """The response to a request without accepted credentials; `has_shown`: it has shown some."""
    reason = "the token is not accepted" if has_shown else "send the header Authorization: Bearer TOKEN"
    return problem(401, f"not authenticated: {reason}", [("WWW-Authenticate", "Bearer")])


async def response_of(work: Any) -> Any:
    """Await the response to a request; one with status 500 if that fails."""
    try:
        return await work
    except HttpError as error:
        return error.response
    except Exception:
        log.exception("a request failed")
        return problem(500, "internal error")
