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
from ..responses import escape
from ..static import Content, Headers, type_of, without_comments

_FOLDER = Path(__file__).parent
_FILES = ("explorer.js", "style.css", "icon.svg")

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
    content = _program() if name == "explorer.js" else without_comments((_FOLDER / name).read_bytes())
    return Content(content, type_of(name), _HEADERS, packed=True)


#: Imports and exports as the modules of the page write them.
_IMPORT = re.compile(r'^import (\{[^}]+\}) from "\.\.?/(\w+)\.js"$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|class|function\*?) (\w+))", re.MULTILINE)


def _program() -> bytes:
    """All modules of the page in one file, which the browser gets in one round trip.

    Each module becomes a function that returns what it exports; those that it imports come before it.
    """
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        text = without_comments((_FOLDER / f"{name}.js").read_bytes()).decode()
        for _, imported in _IMPORT.findall(text):
            if imported != "rpcstream" and imported not in parts:
                add(imported)
        exported = ", ".join(each for _, each in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = $\2", text))
        parts[name] = f"const ${name} = (() => {{\n{body}return {{ {exported} }}\n}})()\n"

    add("explorer")
    return "".join(['import * as $rpcstream from "../rpcstream.js"\n', *parts.values()]).encode()


@cache
def _page(calls: str) -> Content:
    """The page itself, which is told where calls go."""
    text = (_FOLDER / "index.html").read_text("utf-8").replace("{calls}", escape(calls))
    return Content(text.encode(), "text/html; charset=utf-8", _HEADERS, packed=True)
