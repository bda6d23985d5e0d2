"""The page `/openrpc.json`: the OpenRPC document by HTTP's GET."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from ..errors import RpcError
from ..openrpc.compat import COMPAT
from ..wire.http_messages import Request, Response, problem
from .static import Content

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
