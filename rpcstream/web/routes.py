"""The routes of a server: which path answers what. The first that matches answers."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload
from urllib.parse import parse_qs

from ..codec import Codec
from ..errors import RegistrationError, RpcError
from ..methods.call import Invoker
from ..methods.introspect import caller_namespace
from ..methods.options import Offload
from ..openrpc.compat import COMPAT
from ..text import get_logger
from ..wire.http_messages import NOSNIFF, Request, Response, problem
from .handlers import Handler, PathPattern, check_path
from .responses import HTML, Html, check_headers
from .static import Content, Headers, folder_files, single_file, type_of, without_comments

log = get_logger("rpcstream.web")

Function = TypeVar("Function", bound=Callable[..., Any])

#: The paths of health checks, of the metrics, and of the OpenRPC document.
HEALTHZ, READYZ = "/healthz", "/readyz"
METRICS = "/metrics"
DOCUMENT = "/openrpc.json"

#: The path of the JavaScript client.
JAVASCRIPT = "/rpcstream.js"

#: The path of the explorer.
EXPLORER = "/docs"

#: Headers that are made for all static content.
_OF_CONTENT = frozenset({"etag", "x-content-type-options"})
_TEXT = "text/plain; charset=utf-8"

#: A response, or a coroutine that gives it. It is cancelled when the caller is gone.
Answer = Response | Coroutine[Any, Any, Response]

_NO_PARAMETERS: dict[str, str] = {}


@dataclass(eq=False)
class Route:
    """A path, or a pattern of paths, and what answers it.

    Attributes:
        path: as it was registered.
        answer: gives the response to GET or HEAD for a request and the parameters in its path.
        is_public: answered without authentication.
        match: gives the parameters in a path, by name, or None if the route does not answer it; None: it answers its
            own path and no other.
    """

    path: str
    answer: Callable[[Request, Mapping[str, str]], Answer]
    is_public: bool
    match: Callable[[str], dict[str, str] | None] | None = None


class Routes:
    """The routes of a server, for GET and HEAD.

    Args:
        codec: writes the JSON of what handlers return.
        debug: show callers the exceptions of handlers. Not for servers that strangers can reach.
        slow: seconds; a handler that keeps the event loop for longer is named in a warning.

    Attributes:
        is_draining: `/readyz` answers 503, so that load balancers send no new work here.
    """

    def __init__(self, *, codec: Codec, debug: bool = False, slow: float = 0.1) -> None:
        self.is_draining = False
        self._codec = codec
        self._debug = debug
        self._slow = slow
        self._invoker: Invoker | None = None
        self._handlers: list[Handler] = []
        self._literal: dict[str, Route] = {}
        self._patterns: list[Route] = []
        self._names: set[str] = set()
        #: Pages of the server itself, such as health checks, unless another route has their path.
        self._own: dict[str, Route] = {}
        own = [NOSNIFF, ("Cache-Control", "no-store")]
        ok, draining = Response(200, b"ok", _TEXT, own), Response(503, b"draining", _TEXT, own)
        self.show(HEALTHZ, lambda request, _: ok, public=True)
        self.show(READYZ, lambda request, _: draining if self.is_draining else ok, public=True)
        self._not_allowed = problem(405, "Only GET and HEAD are for this path", [("Allow", "GET, HEAD")])

    # -- registration -----------------------------------------------------------------------------------------------

    def static(
        self,
        path: str,
        content: bytes | bytearray | Html | str | os.PathLike[str],
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        public: bool = False,
    ) -> None:
        """Answer a path with bytes, a file, or the files of a folder.

        Responses have an ETag, so that clients need not fetch again what they have; `Cache-Control` is
        `no-cache` unless `headers` has one.

        Args:
            path: of the request, such as "/logo.png". For a folder it ends with "/": the files below it are served,
                `index.html` for the folder itself, but none outside, and none whose name begins with a dot.
            content: bytes, `Html`, or the path of a file or a folder. A file is read once, and again when it was
                changed, which is checked once a second at most. Files are at most 64 MiB.
            type: the content type; None: by the suffix of the path.
            headers: further headers of the response.
            public: answered without authentication.

        Raises:
            OSError: the file or folder cannot be read.
            RegistrationError: the path or a header is malformed, or the path for a folder does not end with "/".
            ValueError: the path is taken.
        """
        check_path(path)
        extra = self._headers(path, headers, type)
        if isinstance(content, bytes | bytearray | Html):
            body = content.encode() if isinstance(content, Html) else bytes(content)
            kind = HTML if isinstance(content, Html) else type_of(path)
            self._enter(Route(path, Content(body, type or kind, extra).answer, public))
            return
        if not isinstance(content, str | os.PathLike):
            raise RegistrationError(f"{path}: the content is bytes, or the path of a file or folder, got {content!r}")
        name = os.path.abspath(os.fsdecode(content))
        try:
            if os.path.isdir(name):
                self._add_folder(path, name, type, extra, public)
                return
            kind = type_of(path)
            if kind == "application/octet-stream":
                kind = type_of(name)
            self._enter(Route(path, single_file(path, name, type or kind, extra, self._running).answer, public))
        except OSError as error:
            error.add_note(f"static({path!r}, …): content that is no file is given as bytes")
            raise

    @overload
    def get(self, path: str, function: Function, /) -> Function: ...

    @overload
    def get(
        self,
        path: str,
        function: None = None,
        /,
        *,
        offload: Offload | None = None,
        timeout: float | None = None,
        public: bool = False,
    ) -> Callable[[Function], Function]: ...

    def get(
        self,
        path: str,
        function: Any = None,
        /,
        *,
        offload: Offload | None = None,
        timeout: float | None = None,
        public: bool = False,
    ) -> Any:
        """Decorator: a function answers GET (and HEAD) of a path. The function itself stays as it is.

        Its parameters are those in the path and the fields of the query, by name, converted to the types of their
        hints; a request that does not fit is answered with 400. `list[...]` takes a field that is there several times.
        A parameter with the hint `Request` gets the request.

        What it returns: str is HTML; bytes are bytes; a Pillow image is sent as PNG; a `Response` is sent as it is;
        None is 204, "no content"; everything else, such as arrays, is JSON. An exception is logged and answered with
        500, `HttpError(response)` with its response. The function is cancelled when the caller is gone.

        Args:
            path: "/about", "/users/{name}", "/pages/{number:int}", "/files/{rest:path}". The first route that matches
                answers, in order of registration.
            function: sync or async.
            offload: "thread" or "process": where a sync function that blocks or computes for long is run.
            timeout: seconds until the caller is answered with 503; for async and offloaded functions, whose default is
                60. `math.inf` for none.
            public: answered without authentication.

        Raises:
            RegistrationError: the path is malformed, the function lacks one of its parameters, has a hint that text
                cannot be converted to, or cannot have one of the options.
            ValueError: the path is taken.
        """
        if function is None:
            return functools.partial(self.get, path, offload=offload, timeout=timeout, public=public)
        pattern = PathPattern(path)
        handler = Handler(
            function,
            path=path,
            kinds=pattern.kinds,
            codec=self._codec,
            offload=offload,
            timeout=timeout,
            slow=self._slow,
            debug=self._debug,
            namespace=caller_namespace(),
            invoker=self._running,
        )
        if self._invoker is not None:
            handler.check()
        self._enter(Route(path, handler.answer, public, pattern.match if pattern.kinds else None))
        self._handlers.append(handler)
        return function

    def _add_folder(self, path: str, name: str, type: str | None, headers: Headers, public: bool) -> None:
        if not path.endswith("/"):
            raise RegistrationError(
                f"{path}: {name!r} is a folder: it is served under a path that ends with '/', such as '{path}/'"
            )
        if type is not None:
            raise RegistrationError(f"{path}: the files of a folder have types of their own; leave out type=…")
        files = folder_files(path, name, headers, self._running)

        def match(asked: str) -> dict[str, str] | None:
            return _NO_PARAMETERS if asked.startswith(path) else None

        # A folder's path is that of its files: the page of the folder itself may be another route.
        self._enter(Route(path, files.answer, public, match), name=f"{path}*")

    def _headers(self, path: str, headers: Mapping[str, str] | None, type: str | None) -> Headers:
        extra = list((headers or {}).items())
        try:
            check_headers(extra, type or "text/plain")
            Response(200, b"", type, extra).head(0, True)
            for name, _ in extra:
                if name.lower() in _OF_CONTENT:
                    raise ValueError(f"the header {name} is made from the content")
        except ValueError as error:
            raise RegistrationError(f"{path}: {error}") from None
        return extra

    def _enter(self, route: Route, name: str | None = None) -> None:
        name = name or route.path
        if name in self._names:
            raise ValueError(f"there is a route {route.path!r} already")
        self._names.add(name)
        if route.match is not None:
            self._patterns.append(route)
            return
        found = self._match_pattern(route.path)
        if found is None or route.path in self._own:
            self._literal[route.path] = route
            return
        text = "the route %r is never reached: %r matches its path, too, and was registered before it"
        log.warning(text, route.path, found[0].path)

    # -- answering --------------------------------------------------------------------------------------------------

    def show(self, path: str, answer: Callable[[Request, Mapping[str, str]], Answer], *, public: bool = False) -> None:
        """Answer a path with a page of the server itself, unless another route has that path.

        Args:
            path: the path.
            answer: as `Route.answer`.
            public: answered without authentication.
        """
        self._own[path] = Route(path, answer, public)

    def show_javascript(self) -> None:
        """Answer `/rpcstream.js` with the JavaScript client, unless another route has that path.

        It is for callers that are not authenticated, too: a browser sends no token for a script.
        """
        self.show(JAVASCRIPT, javascript_client().answer, public=True)

    def show_explorer(self, paths: Callable[[], tuple[str, ...] | None], *, is_default: bool = False) -> None:
        """Answer `/docs` with the explorer, and `/rpcstream.js` with the client that it uses.

        A route of the user with one of these paths comes first.

        Args:
            paths: gives the paths that take calls, or None where any path does, for WebSockets.
            is_default: nothing was said of it, so that patterns and folders of the user come first, too.
        """
        from .explorer import explorer_pages

        pages = {**explorer_pages(EXPLORER, paths), JAVASCRIPT: lambda request, _: javascript_client().answer(request)}
        if is_default and any(self._match_pattern(path) for path in pages):
            return
        for path in pages.keys() - self._own.keys():
            self.show(path, pages[path], public=True)

    @property
    def explorer_path(self) -> str | None:
        """Where the explorer is; None if there is none, or another route has its path."""
        found = self._match(EXPLORER)
        return EXPLORER if found is not None and found[0] is self._own.get(EXPLORER) else None

    def open(self, invoker: Invoker) -> None:
        """The server starts. Until `close`, this invoker runs offloaded handlers and reads files.

        Raises:
            RegistrationError: a handler for another process cannot be imported there.
        """
        for handler in self._handlers:
            handler.check()
        self._invoker = invoker
        self.is_draining = False

    def close(self) -> None:
        """The server has ended."""
        self._invoker = None

    def is_public(self, request: Request) -> bool:
        """Whether the route of a request is answered without authentication."""
        found = self._match(request.path)
        return found is not None and found[0].is_public

    def is_for_monitors(self, request: Request, *, names_address: bool) -> bool:
        """Whether the request is GET or HEAD of a page of the server itself that is shown to it.

        That is `/healthz` or `/readyz`, and `/metrics` if it names an address as the host, unless the user has a route
        of that path.
        """
        paths = (HEALTHZ, READYZ, METRICS) if names_address else (HEALTHZ, READYZ)
        is_there = request.path in paths and request.method in ("GET", "HEAD")
        own = self._own.get(request.path) if is_there else None
        return own is not None and self._match(request.path) == (own, _NO_PARAMETERS)

    def has(self, path: str) -> bool:
        """Whether there is a page at this path."""
        return self._match(path) is not None

    def find(self, request: Request) -> Answer | None:
        """The response to a request, now or awaited; None if no route has its path.

        A sync handler that is not offloaded has run when this returns; what it raised gives a response. The response
        to HEAD is that to GET, whose body is not to be sent.
        """
        found = self._match(request.path)
        if found is None:
            return None
        if request.method not in ("GET", "HEAD"):
            return self._not_allowed
        return found[0].answer(request, found[1])

    def _match(self, path: str) -> tuple[Route, dict[str, str]] | None:
        route = self._literal.get(path) or self._own.get(path)
        return self._match_pattern(path) if route is None else (route, _NO_PARAMETERS)

    def _match_pattern(self, path: str) -> tuple[Route, dict[str, str]] | None:
        for each in self._patterns:
            parameters = each.match(path) if each.match is not None else None
            if parameters is not None:
                return each, parameters
        return None

    def _running(self) -> Invoker:
        """The invoker of the server; RuntimeError while it does not run."""
        if self._invoker is None:
            raise RuntimeError("the server of these routes is not running")
        return self._invoker


@functools.cache
def javascript_client() -> Content:
    """The JavaScript client, read from the package, without its comments."""
    program = without_comments(Path(__file__).with_name("client.js").read_bytes())
    return Content(program, type_of(JAVASCRIPT), [], packed=True)


#: Names and addresses with a port, as they stand in the header Host.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


async def document_page(
    request: Request,
    text: Callable[[str | None], Awaitable[bytes]],
    tail: Callable[[list[dict[str, Any]] | None], bytes],
    servers: Callable[[str], list[dict[str, Any]]],
) -> Response:
    """The response to a request for the document.

    Args:
        request: whose header Host says where its sender has reached the server.
        text: gives the document; called with the version of OpenRPC that is asked for, None: the newest.
        tail: gives the end of it, for Server Objects; None: for those that it was written with.
        servers: gives the Server Objects for a host and port.
    """
    try:
        fields = parse_qs(request.query, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        return problem(400, "too many fields in the query")
    compat = fields.get("compat", [None])[-1]
    if compat not in (None, COMPAT):
        return problem(400, f"compat can be {COMPAT}, the version of OpenRPC that older tools read")
    try:
        document = await text(compat)
    except RpcError as error:
        return problem(500, f"{error}")
    own, host = tail(None), request.headers.get("host", "")
    if _HOST.fullmatch(host) and document.endswith(own):
        document = document[: -len(own)] + tail(servers(host))
    return Content(document, "application/json", [("Vary", "Host")]).answer(request)
