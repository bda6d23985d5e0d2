"""The explorer: a page at `/docs` where people see and call the methods of a server.

The page contains nothing about the server. It makes calls to get its content, and must authenticate for them like any
other client. So the page itself is public.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from ...wire.http_messages import Request, Response
from ..html import escape
from ..static import Content, Headers, type_of

_FOLDER = Path(__file__).parent
_FILES = sorted(path.name for path in _FOLDER.iterdir() if path.suffix in (".css", ".js", ".svg"))

#: What the page may load, and from where: its own files, pictures and sounds that it has made, and its server. Texts
#: cannot become markup or programs (Trusted Types without any policy), no other page can show it in a frame, and it
#: sends no forms.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Headers = [
    ("Content-Security-Policy", _POLICY),
    ("Permissions-Policy", "camera=(self), geolocation=(), microphone=()"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


def explorer_pages(at: str, paths: Callable[[], tuple[str, ...] | None]) -> dict[str, Callable[..., Response]]:
    """What answers each path of the page.

    Args:
        at: the path of the page; its files are below.
        paths: gives the paths that take calls; None: any path does, for WebSockets.
    """

    def page(request: Request, parameters: object) -> Response:
        return _page((paths() or ("/",))[0]).answer(request)

    return {at: page, **{f"{at}/{name}": partial(_answer_file, name) for name in _FILES}}


def _answer_file(name: str, request: Request, parameters: object) -> Response:
    return _file(name).answer(request)


@cache
def _file(name: str) -> Content:
    content = (_FOLDER / name).read_bytes()
    return Content(_slim(content) if name.endswith(".js") else content, type_of(name), _HEADERS, packed=True)


#: Comments that have lines of their own, and indentation. No text of the page's programs has more than one line.
_COMMENTS = re.compile(rb"^ *(/\*\*((?!\*/).)*\*/|//[^\n]*)\n|^ +", re.DOTALL | re.MULTILINE)


def _slim(program: bytes) -> bytes:
    """A JavaScript file without comments and indentation, which saves a seventh of what the page transfers."""
    return _COMMENTS.sub(b"", program)


@cache
def _page(calls: str) -> Content:
    """The page itself, which is told where calls go."""
    text = (_FOLDER / "index.html").read_text("utf-8").replace("{calls}", escape(calls))
    return Content(text.encode(), "text/html; charset=utf-8", _HEADERS, packed=True)
