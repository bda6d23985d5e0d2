"""Routes: which one answers, paths with places, methods, and pages for monitors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rpcstream import RegistrationError

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
    site = RoutesClient(path="/calls")
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


# -- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "places"),
    [
        ("/a.b", "/axb", None),
        ("/ü ber", "/%C3%BC%20ber", ""),
        ("/users/{name}", "/users/", None),
        ("/users/{name:str}", "/users/a%0Ab", "a\nb"),
        ("/{a}/{b}", "/x/y", "x,y"),
        ("/v{n:int}.png", "/v-1.png", "-1"),
        ("/v{n:int}.png", "/vx.png", None),
        *(("/v{n:int}", f"/v{each}", None) for each in ("\N{ARABIC-INDIC DIGIT ONE}", 31 * "1")),
        ("/files/{rest:path}", "/files/a/b", "a/b"),
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


# -- for monitors -----------------------------------------------------------------------------------------------------


async def test_health_and_readiness(site: RoutesClient) -> None:
    for path in ("/healthz", "/readyz"):
        page = await site.page(path)
        assert (page.status, page.content) == (200, b"ok")
        assert page.headers == {
            "content-type": "text/plain; charset=utf-8",
            "content-length": "2",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
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
