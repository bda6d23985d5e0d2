"""Routes: which one answers, paths, methods; and what a server has by itself: for monitors, browsers and explorers."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

import rpcstream.web
from rpcstream import Http, Server, __version__
from rpcstream.errors import RegistrationError

from .conftest import RoutesClient


async def test_the_first_that_matches_answers(site: RoutesClient, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "index.html").write_text("index")
    site.get("/users/me", lambda: "me")
    site.get("/users/{n:int}", lambda n: f"number {n}")
    site.get("/users/{name}", lambda name: f"user {name}")
    site.get("/files/", lambda: "files")
    site.static("/files/", tmp_path)
    for path in ("/A", "/users/", "/users/a/b", "//users/me", "/files"):
        assert (await site.page(path)).status == 404
    site.get("/{rest:path}", lambda rest: f"rest {rest}")  # routes may come while the server runs
    for path, text in {
        "/users/me": "me",
        "/users/7": "number 7",
        "/users/ann": "user ann",
        "/users/ann/x": "rest users/ann/x",
        "/files/": "files",
        "/files/a.txt": "a",
        "/": "rest ",
        "/healthz": "ok",
    }.items():
        assert await site.text(path) == (200, text)


async def test_what_comes_behind_a_catch_all_is_not_reached(
    site: RoutesClient, caplog: pytest.LogCaptureFixture
) -> None:
    site.static("/first", b"first", type="text/plain")
    site.get("/{rest:path}", lambda rest: "all")
    site.get("/healthz", lambda: "own")
    assert caplog.records == []
    site.static("/logo.png", b"logo")
    assert "the route '/logo.png' is never reached: '/{rest:path}' matches its path, too" in caplog.text
    site.get("/x/{y}", page := lambda y: "y")
    with pytest.raises(ValueError, match="there is a route"):
        site.get("/x/{y}", page)
    for path, text in {"/logo.png": "all", "/first": "first", "/x/y": "all", "/healthz": "own"}.items():
        assert await site.text(path) == (200, text)


async def test_other_methods_are_not_allowed() -> None:
    site = RoutesClient(http=Http(path="/calls"))
    ran = []
    site.get("/a/{b}", lambda b: ran.append(b))
    site.static("/c", b"c")
    async with site:
        for method in ("POST", "PUT", "get", ""):
            for path in ("/a/b", "/c", "/healthz", "/readyz"):
                page = await site.page(path, method)
                assert (page.status, page.headers["allow"]) == (405, "GET, HEAD")
                assert page.headers["x-content-type-options"] == "nosniff"
    assert ran == []


@pytest.mark.parametrize(
    ("pattern", "path", "places"),
    [
        ("/a.b", "/axb", None),
        ("/ü ber", "/%C3%BC%20ber", ""),
        ("/users/{name}", "/users/", None),
        ("/users/{name:str}", "/users/a%0Ab", "a\nb"),
        ("/v{n:int}.png", "/v-1.png", "-1"),
        *(("/v{n:int}", f"/v{each}", None) for each in ("\N{ARABIC-INDIC DIGIT ONE}", 31 * "1")),
        ("/files/{rest:path}", "/files/", ""),
        ("/files/{rest:path}", "/files", None),
        # One that could be matched in many ways would keep this from ending.
        ("/a{a}b/c{b}d/{rest:path}", "/a" + "b" * 100_000 + "/c" + "d" * 100_000, None),
    ],
)
async def test_which_paths_match(site: RoutesClient, pattern: str, path: str, places: str | None) -> None:
    def page(a: str = "", b: str = "", n: int = 0, name: str = "", rest: str = "") -> str:
        given = {"a": a, "b": b, "n": n, "name": name, "rest": rest}
        return ",".join(str(given[each]) for each in re.findall(r"{(\w+)", pattern))

    site.get(pattern, page)
    status, text = await site.text(path)
    assert (status, text) == (200, places) if places is not None else status == 404


@pytest.mark.parametrize(
    ("path", "text"),
    [
        *((each, "begins with '/'") for each in ("", "a", b"/a")),
        *((each, "the query is not part of a path") for each in ("/a?b=1", "/a#b")),
        ("/a%20b", "the characters themselves"),
        ("/a\nb", "control character"),
        *((each, "one parameter between two slashes") for each in ("/{a}{b}", "/{a}-{b}")),
        ("/{a}/{a}", "is there twice"),
        *((each, "a parameter is a name") for each in ("/{}", "/{1}", "/{a b}")),
        ("/{a:float}", "must be one of str, int, path"),
        *((each, "without its counterpart") for each in ("/{a", "/a}")),
        *((each, "nothing can stand behind it") for each in ("/{rest:path}/x", "/{rest:path}.x")),
    ],
)
async def test_a_path_that_is_none_is_refused(site: RoutesClient, path: str, text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        site.get(path, lambda a, b=0, rest="": "")


async def test_health_and_readiness(site: RoutesClient) -> None:
    for path in ("/healthz", "/readyz"):
        page = await site.page(path)
        assert (page.status, page.content) == (200, b"ok")
        found = [page.headers[name] for name in ("content-type", "cache-control", "x-content-type-options")]
        assert found == ["text/plain; charset=utf-8", "no-store", "nosniff"]
    site.get("/readyz", lambda: {"all": "well"})
    assert await site.text("/readyz") == (200, '{"all":"well"}')


async def test_what_is_public() -> None:
    site = RoutesClient(token="s3cret", javascript=True)
    ran = []
    site.get("/page", lambda: ran.append(1))
    site.get("/login", lambda: "", public=True)
    site.get("/open/{name}", public=True)(lambda name: "")
    site.static("/logo.png", b"", public=True)
    site.static("/plan.png", b"plan")
    site.get("/healthz", lambda: "names of machines")
    open_to_all = ["/readyz", "/login", "/logo.png", "/open/a", "/rpcstream.js"]
    closed = ["/page", "/plan.png", "/other", "/", "/healthz", "/readyz/x", "/open/a/b", "/Readyz", "/openrpc.json"]
    async with site:
        for path in open_to_all + closed:
            for shown in ({}, {"authorization": "Bearer wrong"}):
                page = await site.page(path, **shown)
                assert page.status == (200 if path in open_to_all else 401), path
                assert b"plan" not in page.content
        assert ran == []
        assert await site.text("/plan.png", authorization="Bearer s3cret") == (200, "plan")
        assert (await site.page("/page", authorization="Bearer s3cret")).status == 204


# -- /rpcstream.js, the client, and /docs, the explorer --------------------------------------------------------------

WEB = Path(rpcstream.web.__file__).parent
FOLDER = WEB / "explorer"
FILES = ("/docs/explorer.js", "/docs/style.css", "/docs/icon.svg")


def lines_of(path: Path) -> list[str]:
    """The lines of a program without comments and indentation."""
    code = re.sub(r"/\*\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.strip().startswith("//")]
    return [re.sub(r"""^((?:[^"'`/]|"[^"]*")*?) *//.*""", r"\1", line) for line in lines]


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
            kind = ("Accept-Encoding", "text/javascript; charset=utf-8")
            assert (page.headers["vary"], page.headers["content-type"]) == kind
            content = gzip.decompress(page.content) if is_packed else page.content
            assert b"\nexport class Client {\n" in content
            tag = page.headers["etag"]
            assert (await site.page("/rpcstream.js", accept_encoding=said, if_none_match=tag)).status == 304
            other = "br" if is_packed else "gzip"
            assert (await site.page("/rpcstream.js", accept_encoding=other, if_none_match=tag)).status == 200
        site.static("/rpcstream.js", b"mine")  # routes of the user come first
        assert await site.text("/rpcstream.js") == (200, "mine")


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
        for name in ("__init__.py", "dom.js"):
            assert (await site.page(f"/docs/{name}", authorization="Bearer horse")).status == 404
    assert size < 90_000
    assert await found(Server(), "/docs") is None


async def test_programs_are_sent_without_comments_and_indentation(tmp_path: Path) -> None:
    async with RoutesClient(docs=True) as site:
        page, client = [(await site.text(path))[1] for path in ("/docs/explorer.js", "/rpcstream.js")]
    assert [line for line in client.splitlines() if line] == lines_of(WEB / "client.js")
    sent = "\n".join(line for line in page.splitlines() if line)
    for path in FOLDER.glob("*.js"):
        own = [line.removeprefix("export ") for line in lines_of(path) if not line.startswith("import ")]
        assert sent.count("\n".join(own)) == 1, path.name
    assert not re.search("^(import(?! \\* as \\$rpcstream )|export) ", sent, re.MULTILINE)
    if node := shutil.which("node"):
        for name, text in (("page.mjs", page), ("client.mjs", client)):
            (tmp_path / name).write_text(text)
            subprocess.run([node, "--check", tmp_path / name], check=True, timeout=60)


def test_no_string_of_a_program_has_lines_that_lose_their_indentation() -> None:
    for path in (WEB / "client.js", *FOLDER.glob("*.js")):
        for line in lines_of(path):
            quotes = re.sub(r"```|\[\^`", "", line).count("`")
            assert quotes % 2 == 0, f"{path.name}: {line}"
            assert not line.endswith("\\"), f"{path.name}: {line}"


def test_no_file_names_another_host_or_makes_markup_of_text() -> None:
    for path in FOLDER.iterdir():
        if path.suffix in (".js", ".html", ".css", ".svg"):
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"https?://|//\w+\.\w+|innerHTML|outerHTML|document\.write|eval\(|Function\(", text) == []


@pytest.mark.parametrize("path", ["/", "/rpc", '/a"><script>&b'])
async def test_the_page_is_told_where_calls_go(path: str) -> None:
    server = Server(docs=True, http=Http(path=path))
    (calls,) = re.findall(r'<html[^>]* data-calls="([^"]*)"', (await found(server, "/docs") or b"").decode())
    assert unescape(calls) == path
