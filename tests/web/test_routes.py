"""Routes: which one answers, methods, and routes for monitors."""

from __future__ import annotations

import pytest

from rpcstream import Codec
from rpcstream.methods.invoke import Invoker
from rpcstream.web import Response, Routes

from .routes_client import RoutesClient, body_of, headers_of, request


async def test_the_first_that_matches_answers(site: RoutesClient) -> None:
    site.get("/users/me", lambda: "me")
    site.get("/users/{n:int}", lambda n: f"number {n}")
    site.get("/users/{name}", lambda name: f"user {name}")
    site.get("/{rest:path}", lambda rest: f"rest {rest}")
    assert await site.text("/users/me") == (200, "me")
    assert await site.text("/users/7") == (200, "number 7")
    assert await site.text("/users/ann") == (200, "user ann")
    assert await site.text("/users/ann/x") == (200, "rest users/ann/x")
    assert await site.text("/") == (200, "rest ")


async def test_what_comes_behind_a_catch_all_is_not_reached(
    site: RoutesClient, caplog: pytest.LogCaptureFixture
) -> None:
    site.static("/first", b"first", type="text/plain")
    site.get("/{rest:path}", lambda rest: "all")
    assert caplog.records == []
    site.static("/logo.png", b"logo")
    assert (
        "the route '/logo.png' is never reached: '/{rest:path}' matches its path, too, and was registered before it"
        in caplog.text
    )
    site.get("/x/{y}", lambda y: "y")
    assert await site.text("/logo.png") == (200, "all")
    assert await site.text("/first") == (200, "first")
    assert await site.text("/x/y") == (200, "all")


async def test_a_path_is_taken_once(site: RoutesClient) -> None:
    site.get("/a/{b}", lambda b: "")
    site.static("/c", b"")
    with pytest.raises(ValueError, match=r"there is a route '/a/\{b\}' already"):
        site.get("/a/{b}", lambda b: "")
    with pytest.raises(ValueError, match="there is a route '/c' already"):
        site.get("/c", lambda: "")


async def test_a_page_for_a_folder_itself(site: RoutesClient, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "index.html").write_text("index")
    site.get("/", lambda: "home")
    site.static("/", tmp_path)
    assert await site.text("/") == (200, "home")
    assert await site.text("/a.txt") == (200, "a")


async def test_a_decorated_function_stays_as_it_is(site: RoutesClient) -> None:
    def page() -> str:
        return "x"

    assert site.get("/a")(page) is page
    assert site.get("/b", offload="thread")(page) is page
    assert site.get("/c", page) is page
    assert [await site.text(path) for path in ("/a", "/b", "/c")] == [(200, "x")] * 3


async def test_other_paths_are_for_others(site: RoutesClient) -> None:
    site.get("/a", lambda: "")
    for path in ("/", "/A", "/a/", "/a/b", "//a", "*", ""):
        assert await site.ask(path) is None


async def test_routes_may_come_while_the_server_runs(site: RoutesClient) -> None:
    assert await site.ask("/a") is None
    site.get("/a", lambda: "late")
    assert await site.text("/a") == (200, "late")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", ""])
async def test_other_methods_are_not_allowed(site: RoutesClient, method: str) -> None:
    ran = []
    site.get("/a/{b}", lambda b: ran.append(b))
    site.static("/c", b"c")
    for path in ("/a/b", "/c", "/healthz", "/readyz"):
        page = await site.page(path, method)
        assert page.status == 405
        assert headers_of(page)["allow"] == "GET, HEAD"
        assert headers_of(page)["x-content-type-options"] == "nosniff"
    assert ran == []
    assert await site.ask("/other", method) is None


async def test_head_is_answered_as_get(site: RoutesClient) -> None:
    """The transport leaves the body away."""
    site.static("/static", b"static")
    site.get("/page", lambda: "page")
    for path in ("/static", "/page", "/healthz"):
        got, asked = await site.page(path), await site.page(path, "HEAD")
        assert got.head(len(got.body), True) == asked.head(len(asked.body), True)
    tag = headers_of(await site.page("/static"))["etag"]
    assert (await site.page("/static", "HEAD", if_none_match=tag)).status == 304


# -- for monitors -----------------------------------------------------------------------------------------------------


async def test_health_and_readiness(site: RoutesClient) -> None:
    for path in ("/healthz", "/readyz"):
        page = await site.page(path)
        assert (page.status, page.body, page.type) == (200, b"ok", "text/plain; charset=utf-8")
        assert headers_of(page) == {
            "content-type": "text/plain; charset=utf-8",
            "content-length": "2",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
    site.routes.is_draining = True
    assert await site.text("/healthz") == (200, "ok")
    assert await site.text("/readyz") == (503, "draining")


async def test_a_server_that_starts_again_is_ready_again(site: RoutesClient, invoker: Invoker) -> None:
    site.routes.is_draining = True
    site.routes.close()
    site.routes.open(invoker)
    assert await site.text("/readyz") == (200, "ok")


async def test_they_may_be_replaced(site: RoutesClient) -> None:
    site.get("/healthz", lambda: {"all": "well"})
    site.static("/readyz", b"always", type="text/plain")
    site.routes.is_draining = True
    assert await site.text("/healthz") == (200, '{"all":"well"}')
    assert await site.text("/readyz") == (200, "always")


async def test_a_catch_all_does_not_hide_them(site: RoutesClient, caplog: pytest.LogCaptureFixture) -> None:
    site.get("/{rest:path}", lambda rest: "all")
    assert await site.text("/healthz") == (200, "ok")
    site.get("/healthz", lambda: "own")
    assert await site.text("/healthz") == (200, "own")
    assert caplog.records == []


async def test_what_is_public(site: RoutesClient) -> None:
    site.get("/page", lambda: "")
    site.get("/login", lambda: "", public=True)
    site.get("/open/{name}", public=True)(lambda name: "")
    site.static("/logo.png", b"", public=True)
    site.static("/plan.png", b"")
    public = ["/healthz", "/readyz", "/login", "/logo.png", "/open/a"]
    closed = ["/page", "/plan.png", "/other", "/", "/healthz/", "/readyz/x", "/open/a/b", "/Healthz"]
    assert [path for path in public + closed if site.routes.is_public(request(path))] == public


async def test_a_route_in_place_of_theirs_is_public_only_if_it_says_so(site: RoutesClient) -> None:
    site.get("/healthz", lambda: "names of machines")
    site.get("/readyz", lambda: "ok", public=True)
    assert not site.routes.is_public(request("/healthz"))
    assert site.routes.is_public(request("/readyz"))


def test_routes_of_a_server_that_does_not_run() -> None:
    routes = Routes(codec=Codec())
    routes.static("/a", b"a")
    found = routes.find(request("/a"))
    assert isinstance(found, Response)
    assert body_of(found) == b"a"
    routes.get("/b", lambda: "b")
    with pytest.raises(RuntimeError, match="the server of these routes is not running"):
        routes.find(request("/b"))
