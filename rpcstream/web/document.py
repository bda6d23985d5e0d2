"""The page `/openrpc.json`: the OpenRPC document by HTTP's GET.

Owns the query, and what the document says of where the server is. Does not know how the document is made.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from ..errors import RpcError
from ..methods.openrpc_compat import COMPAT
from ..wire.http_messages import Request, Response, problem
from .static import Content

#: Names and addresses with a port, as they stand in the header Host.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class DocumentPage:
    """The response to a request for the document; it is awaited.

    Args:
        request: whose header Host says where its sender has reached the server.
        text: gives the document; called with the version of OpenRPC that is asked for, None: the newest.
        tail: gives the end of it, for Server Objects; None: for those that it was written with.
        servers: gives the Server Objects for a host and port.
    """

    def __init__(
        self,
        request: Request,
        text: Callable[[str | None], Awaitable[bytes]],
        tail: Callable[[list[dict[str, Any]] | None], bytes],
        servers: Callable[[str], list[dict[str, Any]]],
    ) -> None:
        self._request = request
        self._text = text
        self._tail = tail
        self._servers = servers

    async def respond(self) -> Response:
        """Wait for the document."""
        try:
            fields = parse_qs(self._request.query, keep_blank_values=True, max_num_fields=10)
        except ValueError:
            return problem(400, "too many fields in the query")
        compat = fields.get("compat", [None])[-1]
        if compat not in (None, COMPAT):
            return problem(400, f"compat can be {COMPAT}, the version of OpenRPC that older tools read")
        try:
            text = await self._text(compat)
        except RpcError as error:
            return problem(500, f"{error}")
        own, host = self._tail(None), self._request.headers.get("host", "")
        if _HOST.fullmatch(host) and text.endswith(own):
            text = text[: -len(own)] + self._tail(self._servers(host))
        return Content(text, "application/json", [("Vary", "Host")]).answer(self._request)
