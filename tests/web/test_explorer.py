"""The explorer's routes: where they are, their headers, and what other routes and options do to them."""

from __future__ import annotations

import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rpcstream.web.explorer
from rpcstream import Server
from rpcstream.testing import serve_in_thread
from rpcstream.web import Request, Response

FOLDER = Path(rpcstream.web.explorer.__file__).parent
FILES = sorted(f"/docs/{path.name}" for path in FOLDER.iterdir() if path.suffix in (".js", ".css", ".svg"))


def ask(server: Server, path: str, **headers: str):
    named = {name.replace("_", "-"): value for name, value in {"host": "localhost", **headers}.items()}
    return server.routes.find(Request("GET", path, headers=named))


def test_the_page_and_all_its_files_are_there_and_public() -> None:
    server = Server(docs=True, token="horse")
    for path in ["/docs", *FILES, "/rpcstream.js"]:
        response = ask(server, path)
        assert response.status == 200, path
        assert server.routes.is_public(Request("GET", path, headers={}))
    assert ask(server, "/docs/__init__.py") is None
    assert ask(Server(), "/docs") is None


def test_the_policy_names_nothing_but_the_server_itself() -> None:
    for path in ["/docs", *FILES]:
        headers = dict(ask(Server(docs=True), path).headers)
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) <= {"'self'", "'none'", "'self' blob:", "'script'"}
        assert policy["require-trusted-types-for"] == "'script'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_no_file_names_another_host_or_makes_markup_of_text() -> None:
    for path in FOLDER.iterdir():
        if path.suffix in (".js", ".html", ".css", ".svg"):
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"https?://|//\w+\.\w+|innerHTML|outerHTML|document\.write|eval\(|Function\(", text) == []


def test_the_page_and_its_client_weigh_less_than_60_kb_on_the_way() -> None:
    server = Server(docs=True)
    bodies = [ask(server, path, accept_encoding="br, gzip").body for path in ["/docs", *FILES, "/rpcstream.js"]]
    assert all(gzip.decompress(body) for body in bodies)
    assert sum(map(len, bodies)) < 60_000
    plain = ask(server, "/docs/forms.js", accept_encoding="gzip;q=0, br")
    assert plain.body == (FOLDER / "forms.js").read_bytes()
    assert ("Vary", "Accept-Encoding") in plain.headers


class _Root(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "html":
            self.calls = dict(attrs)["data-calls"]


@pytest.mark.parametrize("path", ["/", "/rpc", '/a"><script>&b'])
def test_the_page_is_told_where_calls_go(path: str) -> None:
    server = Server(docs=True, path=path)
    parser = _Root()
    parser.feed(ask(server, "/docs").body.decode())
    assert parser.calls == path
    server.take_calls_at("/later")
    assert b'data-calls="/later"' in ask(server, "/docs").body


def test_routes_of_the_user_come_first() -> None:
    server = Server(docs=True)
    server.static("/docs", b"mine")
    assert ask(server, "/docs").body == b"mine"


def test_a_folder_of_the_user_comes_before_the_default_alone(tmp_path: Path) -> None:
    server = Server()
    server.static("/", tmp_path)
    server.show_docs(is_default=True)
    assert not isinstance(ask(server, "/docs"), Response)  # a file is looked for
    server.show_docs()
    assert ask(server, "/docs").body.startswith(b"<!doctype html>")
    assert ask(server, "/rpcstream.js").status == 200
    server.show_docs(False)
    assert not isinstance(ask(server, "/docs"), Response)


def test_what_the_constructor_says_is_more_than_a_default() -> None:
    server = Server(docs=False)
    server.show_docs(is_default=True)
    assert ask(server, "/docs") is None
    server = Server()
    server.show_docs(is_default=True)
    assert ask(server, "/docs").status == 200


def test_not_while_the_server_runs() -> None:
    server = Server()
    with serve_in_thread(server), pytest.raises(RuntimeError, match="running already"):
        server.show_docs()
