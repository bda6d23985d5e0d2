"""`/rpcstream.js`, the JavaScript client, and `/docs`, the explorer: where they are, and their headers."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rpcstream.web
from rpcstream import Server, __version__
from rpcstream.testing import serve_in_thread

from .conftest import RoutesClient

WEB = Path(rpcstream.web.__file__).parent
CLIENT = (WEB / "client.js").read_bytes()
FOLDER = WEB / "explorer"
FILES = sorted(f"/docs/{path.name}" for path in FOLDER.iterdir() if path.suffix in (".js", ".css", ".svg"))


async def found(server: Server, path: str) -> bytes | None:
    async with RoutesClient(server) as site:
        page = await site.page(path)
    return page.content if page.status == 200 else None


def test_the_npm_package_has_the_version_of_this_one() -> None:
    described = json.loads((WEB / "package.json").read_text())
    assert described["version"] == __version__
    assert all((WEB / name).is_file() for name in described["files"])


async def test_only_a_server_that_is_told_to_answers_with_the_client() -> None:
    assert await found(Server(), "/rpcstream.js") is None
    async with RoutesClient(javascript=True) as site:
        for said in ("gzip, deflate, br", "br, GZIP;q=0.5", "gzip;q=0.0", "br", ""):
            page = await site.page("/rpcstream.js", accept_encoding=said)
            is_packed = page.headers.get("content-encoding") == "gzip"
            assert is_packed is (said in ("gzip, deflate, br", "br, GZIP;q=0.5"))
            assert page.headers["vary"] == "Accept-Encoding"
            assert page.headers["content-type"] == "text/javascript; charset=utf-8"
            assert (gzip.decompress(page.content) if is_packed else page.content) == CLIENT
            tag = page.headers["etag"]
            assert (await site.page("/rpcstream.js", accept_encoding=said, if_none_match=tag)).status == 304
            other = "br" if is_packed else "gzip"
            assert (await site.page("/rpcstream.js", accept_encoding=other, if_none_match=tag)).status == 200


async def test_the_explorer_and_all_its_files_are_there_public_and_small() -> None:
    size = 0
    async with RoutesClient(docs=True, token="horse") as site:
        for path in ("/docs", *FILES, "/rpcstream.js"):
            page = await site.page(path, accept_encoding="br, gzip")
            assert page.status == 200, path
            assert gzip.decompress(page.content)
            size += len(page.content)
            assert page.headers["x-content-type-options"] == "nosniff"
            if path != "/rpcstream.js":
                policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
                assert policy.pop("default-src") == "'none'"
                assert set(policy.values()) <= {"'self'", "'none'", "'self' blob:", "'script'"}
                assert (policy["require-trusted-types-for"], policy["frame-ancestors"]) == ("'script'", "'none'")
        assert (await site.page("/docs/__init__.py", authorization="Bearer horse")).status == 404
    assert size < 60_000
    assert await found(Server(), "/docs") is None


def test_no_file_names_another_host_or_makes_markup_of_text() -> None:
    for path in FOLDER.iterdir():
        if path.suffix in (".js", ".html", ".css", ".svg"):
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"https?://|//\w+\.\w+|innerHTML|outerHTML|document\.write|eval\(|Function\(", text) == []


class Root(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "html":
            self.calls = dict(attrs)["data-calls"]


@pytest.mark.parametrize("path", ["/", "/rpc", '/a"><script>&b'])
async def test_the_page_is_told_where_calls_go(path: str) -> None:
    server = Server(docs=True, path=path)
    parser = Root()
    parser.feed((await found(server, "/docs") or b"").decode())
    assert parser.calls == path
    server.take_calls_at("/later")
    assert b'data-calls="/later"' in (await found(server, "/docs") or b"")


async def test_routes_of_the_user_come_first() -> None:
    server = Server(docs=True, javascript=True)
    for path in ("/docs", "/rpcstream.js"):
        server.static(path, b"mine")
        assert await found(server, path) == b"mine"


async def test_a_default_hides_nothing_of_the_user_and_is_less_than_what_the_constructor_says(tmp_path: Path) -> None:
    server = Server()
    server.static("/", tmp_path)
    for options, is_there in (({"is_default": True}, False), ({}, True), ({"shown": False}, False)):
        server.show_docs(**options)
        assert (await found(server, "/docs") or b"").startswith(b"<!doctype html>") is is_there
        assert (await found(server, "/rpcstream.js") is not None) is is_there
    for docs in (False, None):
        server = Server(docs=docs)
        server.show_docs(is_default=True)
        assert (await found(server, "/docs") is None) is (docs is False)


def test_not_while_the_server_runs() -> None:
    server = Server()
    with serve_in_thread(server), pytest.raises(RuntimeError, match="running already"):
        server.show_docs()
