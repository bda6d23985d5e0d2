"""The explorer: a page at `/docs` on which people see the methods of a server, and call them.

Owns the files of the page and the headers that they are served with. The page has nothing of the server in it: what it
shows comes by the calls that it makes, for which it must authenticate like any other client. So it is public.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from ..entries import Page, Route
from ..html import escape
from ..static import Headers, PackedContent, type_of

_FOLDER = Path(__file__).parent
_FILES = (
    "arrays.js",
    "copy.js",
    "dom.js",
    "explorer.js",
    "forms.js",
    "icon.svg",
    "panels.js",
    "pictures.js",
    "style.css",
    "values.js",
)

#: What the page may load, and from where: its own files, pictures that it has made, and its server. Texts cannot become
#: markup or programs (Trusted Types without any policy), no other page can show it in a frame, and it sends no forms.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
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


class ExplorerPage(Page):
    """One file of the page, read when it is asked for first."""

    def __init__(self, path: str, content: Callable[[], PackedContent]) -> None:
        super().__init__(path, lambda request: content().answer(request), is_public=True)


def explorer_routes(at: str, paths: Callable[[], tuple[str, ...] | None]) -> dict[str, Route]:
    """The routes of the page, by path.

    Args:
        at: the path of the page; its files are below.
        paths: gives the paths that take calls; None: any path does, for WebSockets.
    """
    routes: dict[str, Route] = {
        f"{at}/{name}": ExplorerPage(f"{at}/{name}", partial(_file, _FOLDER / name)) for name in _FILES
    }
    routes[at] = ExplorerPage(at, lambda: _page((paths() or ("/",))[0]))
    return routes


@cache
def _file(path: Path) -> PackedContent:
    return PackedContent(path.read_bytes(), type_of(path.name), _HEADERS)


@cache
def _page(calls: str) -> PackedContent:
    """The page itself, which is told where calls go."""
    text = (_FOLDER / "index.html").read_text("utf-8").replace("{calls}", escape(calls))
    return PackedContent(text.encode(), "text/html; charset=utf-8", _HEADERS)
