"""Static contents: prepared once, tagged, read again when they change, and nothing outside their folder."""

from __future__ import annotations

import asyncio
import os
import threading
from email.utils import formatdate
from pathlib import Path

import pytest

from rpcstream import RegistrationError
from rpcstream.methods.invoke import Invoker
from rpcstream.transports.http_output import response_parts
from rpcstream.web import Request, Response, html, static
from rpcstream.web.static import is_plain, type_of

from ..internals import record_calls
from .routes_client import RoutesClient, body_of, headers_of, request

LONG_AGO = 1_600_000_000


class Clock:
    """The time by which files are looked at."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(static, "monotonic", clock)
    return clock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With files to be seen, and others."""
    root = tmp_path / "site"
    (root / "deep" / ".git").mkdir(parents=True)
    (root / "index.html").write_text("<p>home")
    (root / "a.txt").write_text("a")
    (root / "deep" / "b.css").write_text("b")
    (root / ".env").write_text("secret")
    (root / "deep" / ".git" / "config").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "site2").mkdir()
    (tmp_path / "site2" / "secret.txt").write_text("secret")
    return root


# -- bytes ------------------------------------------------------------------------------------------------------------


async def test_bytes_are_answered_at_once(site: RoutesClient) -> None:
    site.static("/logo.png", b"PNG")
    found = site.routes.find(request("/logo.png?v=2"))
    assert isinstance(found, Response)
    assert (found.status, found.type, found.body) == (200, "image/png", b"PNG")
    headers = headers_of(found)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-cache"
    assert headers["content-length"] == "3"
    assert "last-modified" not in headers


async def test_the_bytes_of_a_response_are_made_once(site: RoutesClient) -> None:
    site.static("/a.txt", b"a" * 1000)
    first, second = site.routes.find(request("/a.txt")), site.routes.find(request("/a.txt"))
    assert first is second
    assert isinstance(first, Response)
    dates = [b"Date: Sat, 21 Nov 2026 18:00:00 GMT\r\n", b"Date: Sat, 21 Nov 2026 18:00:01 GMT\r\n"]
    made = [first.whole(dates[0]), first.whole(dates[0]), first.whole(dates[1])]
    assert made[0] is made[1]
    for date, ready in zip((dates[0], dates[1]), made[1:], strict=True):
        assert ready == first.head(1000, True)[:-2] + date + b"\r\n" + b"a" * 1000
    assert first.whole(b"") == first.head(1000, True) + b"a" * 1000


async def test_what_is_large_is_not_copied_to_its_head(site: RoutesClient) -> None:
    site.static("/large", b"a" * 1_000_000)
    found = await site.page("/large")
    head, body = response_parts(found, Request("GET", "/large"), True)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body is found.body
    assert len(found.body) == 1_000_000


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ("{tag}", 304),
        ("W/{tag}", 304),
        ('"x", {tag}', 304),
        ('"x",{tag},"y"', 304),
        ("*", 304),
        ('"x"', 200),
        ("", 200),
        ("{tag}x", 200),
    ],
)
async def test_what_a_caller_has_is_not_sent_again(site: RoutesClient, tags: str, status: int) -> None:
    site.static("/a.txt", b"text")
    tag = headers_of(await site.page("/a.txt"))["etag"]
    again = await site.page("/a.txt", if_none_match=tags.format(tag=tag))
    assert again.status == status
    assert body_of(again) == (b"" if status == 304 else b"text")
    headers = headers_of(again)
    assert headers["etag"] == tag
    assert headers["cache-control"] == "no-cache"
    assert ("content-length" in headers) is (status == 200)


async def test_the_tag_is_that_of_the_content(site: RoutesClient) -> None:
    for path, content in {"/a": b"1", "/b": b"2", "/c": b"1"}.items():
        site.static(path, content)
    a, b, c = [headers_of(await site.page(path))["etag"] for path in ("/a", "/b", "/c")]
    assert a == c != b
    assert a.startswith('"')
    assert a.endswith('"')


async def test_type_and_headers_may_be_given(site: RoutesClient) -> None:
    site.static("/", b"Pong!", type="text/plain", headers={"Cache-Control": "max-age=60", "X-Own": "yes"})
    page = await site.page("/")
    assert page.type == "text/plain"
    assert headers_of(page)["cache-control"] == "max-age=60"
    assert headers_of(page)["x-own"] == "yes"
    site.static("/home", html("<p>{x}", x="<"))
    page = await site.page("/home")
    assert (page.type, page.body) == ("text/html; charset=utf-8", b"<p>&lt;")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/a.html", "text/html; charset=utf-8"),
        ("/a.txt", "text/plain; charset=utf-8"),
        ("/a.js", "text/javascript; charset=utf-8"),
        ("/a.mjs", "text/javascript; charset=utf-8"),
        ("/a.css", "text/css; charset=utf-8"),
        ("/a.svg", "image/svg+xml; charset=utf-8"),
        ("/a.json", "application/json"),
        ("/a.wasm", "application/wasm"),
        ("/a.woff2", "font/woff2"),
        ("/a.webp", "image/webp"),
        ("/A.PNG", "image/png"),
        ("/a.tar.gz", "application/gzip"),
        ("/data:text/html,a", "application/octet-stream"),
        ("/a", "application/octet-stream"),
        ("/", "application/octet-stream"),
    ],
)
def test_the_type_is_what_the_ending_says(name: str, kind: str) -> None:
    assert type_of(name) == kind


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "a\r\nSet-Cookie: b"},
        {"X-A\r\nSet-Cookie": "b"},
        {"X-A": "a\nb"},
        {"X A": "b"},
        {"": "b"},
        {"X-A": 1},
        {"Content-Length": "0"},
        {"Transfer-Encoding": "chunked"},
        {"connection": "close"},
        {"Date": "today"},
        {"Content-Type": "text/html"},
        {"ETag": '"1"'},
        {"X-A": "\N{SNOWMAN}"},
    ],
)
async def test_a_header_that_cannot_be_is_refused(site: RoutesClient, headers: dict[str, str]) -> None:
    with pytest.raises(RegistrationError, match=r"^/a: "):
        site.static("/a", b"", headers=headers)
    assert await site.ask("/a") is None


@pytest.mark.parametrize("kind", ["text/html\r\nX-A: b", 7])
async def test_a_type_that_cannot_be_is_refused(site: RoutesClient, kind: str) -> None:
    with pytest.raises(RegistrationError, match=r"^/a: "):
        site.static("/a", b"", type=kind)
    assert await site.ask("/a") is None


async def test_content_that_is_none_is_refused(site: RoutesClient) -> None:
    with pytest.raises(RegistrationError, match="the content is bytes, or the path"):
        site.static("/a", 7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError) as refused:
        site.static("/a", "Pong!")
    assert "given as bytes" in refused.value.__notes__[0]
    with pytest.raises(RegistrationError, match="begins with '/'"):
        site.static("a", b"")
    with pytest.raises(RegistrationError, match="the characters themselves"):
        site.static("/a%20b", b"")


# -- a file -----------------------------------------------------------------------------------------------------------


async def test_a_file_says_when_it_was_changed(site: RoutesClient, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    os.utime(file, (LONG_AGO, LONG_AGO))
    site.static("/a", file)
    page = await site.page("/a")
    assert (body_of(page), page.type) == (b"one", "text/plain; charset=utf-8")
    assert headers_of(page)["last-modified"] == formatdate(LONG_AGO, usegmt=True)


@pytest.mark.parametrize(
    ("since", "tag", "status"),
    [
        (formatdate(LONG_AGO, usegmt=True), None, 304),
        (formatdate(LONG_AGO + 1, usegmt=True), None, 304),
        (formatdate(LONG_AGO - 1, usegmt=True), None, 200),
        ("yesterday", None, 200),
        ("Sun, 99 Sep 99999 12:26:40 GMT", None, 200),
        (formatdate(LONG_AGO, usegmt=True), '"x"', 200),  # RFC 9110, 13.1.3: the tag alone counts
    ],
)
async def test_an_unchanged_file_is_not_sent_again(
    site: RoutesClient, tmp_path: Path, since: str, tag: str | None, status: int
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    os.utime(file, (LONG_AGO, LONG_AGO))
    site.static("/a.txt", str(file))
    headers = {"if_modified_since": since} | ({} if tag is None else {"if_none_match": tag})
    assert (await site.page("/a.txt", **headers)).status == status


async def test_a_changed_file_is_read_again_within_a_second(site: RoutesClient, tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    site.static("/a.txt", file)
    tag = headers_of(await site.page("/a.txt"))["etag"]
    file.write_text("three")
    clock.now += 0.9
    assert await site.text("/a.txt") == (200, "one")
    clock.now += 0.1
    assert await site.text("/a.txt") == (200, "three")
    assert (await site.page("/a.txt", if_none_match=tag)).status == 200


async def test_an_unchanged_file_is_not_read_again(
    site: RoutesClient, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    site.static("/a.txt", file)
    looked = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path: looked.append(path) or stat(path))
    first = site.routes.find(request("/a.txt"))
    assert looked == []
    for _ in range(10):
        clock.now += 1
        for _ in range(10):
            assert site.routes.find(request("/a.txt")) is first
    assert len(looked) == 10


async def test_a_file_is_read_while_others_get_it_as_it_was(site: RoutesClient, tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    site.static("/a.txt", file)
    file.write_text("three")
    clock.now += 1
    reading = site.routes.find(request("/a.txt"))
    assert not isinstance(reading, Response)
    assert await site.text("/a.txt") == (200, "one")
    assert reading is not None
    assert (await reading.respond()).body == b"three"
    assert await site.text("/a.txt") == (200, "three")


async def test_a_relative_path_is_meant_from_where_it_was_given(
    site: RoutesClient, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one")
    monkeypatch.chdir(tmp_path)
    site.static("/a.txt", "a.txt")
    site.static("/files/", ".")
    monkeypatch.chdir("/")
    clock.now += 1
    assert await site.text("/a.txt") == (200, "one")
    assert await site.text("/files/a.txt") == (200, "one")


async def test_a_file_that_is_gone_is_not_found_until_it_is_back(
    site: RoutesClient, tmp_path: Path, clock: Clock
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    site.static("/a.txt", file)
    file.unlink()
    clock.now += 1
    assert (await site.page("/a.txt")).status == 404
    assert (await site.page("/a.txt")).status == 404
    file.write_text("back")
    assert await site.text("/a.txt") == (200, "back")


async def test_a_file_that_has_become_a_pipe_keeps_nobody_waiting(
    site: RoutesClient, tmp_path: Path, clock: Clock
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    site.static("/a.txt", file)
    file.unlink()
    os.mkfifo(file)
    clock.now += 1
    assert (await site.page("/a.txt")).status == 404


async def test_a_file_that_is_too_large_is_refused(
    site: RoutesClient, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(static, "MAX_FILE", 10)
    file = tmp_path / "a.txt"
    file.write_bytes(b"a" * 11)
    with pytest.raises(OSError, match="too large to be served, 11 bytes, the limit is 10"):
        site.static("/a.txt", file)
    file.write_bytes(b"a" * 10)
    site.static("/a.txt", file)
    file.write_bytes(b"a" * 11)
    clock.now += 1
    assert (await site.page("/a.txt")).status == 404
    assert "too large to be served" in caplog.text


async def test_a_folder_without_a_slash_is_refused(site: RoutesClient, folder: Path) -> None:
    with pytest.raises(RegistrationError, match="is a folder: it is served under a path that ends with '/'"):
        site.static("/assets", folder)
    with pytest.raises(RegistrationError, match=r"leave out type=…"):
        site.static("/assets/", folder, type="text/plain")


# -- a folder ---------------------------------------------------------------------------------------------------------


async def test_the_files_of_a_folder_are_found(site: RoutesClient, folder: Path) -> None:
    site.static("/assets/", folder, headers={"Cache-Control": "max-age=5"})
    assert await site.text("/assets/a.txt") == (200, "a")
    page = await site.page("/assets/deep/b.css")
    assert (body_of(page), page.type) == (b"b", "text/css; charset=utf-8")
    assert headers_of(page)["cache-control"] == "max-age=5"
    assert (await site.page("/assets/a.txt", if_none_match="*")).status == 304
    assert await site.text("/assets/") == (200, "<p>home")
    assert (await site.page("/assets/deep/")).status == 404
    assert (await site.page("/assets/deep")).status == 404
    assert (await site.page("/assets/missing.txt")).status == 404
    assert await site.ask("/assets") is None
    assert await site.ask("/assetsx/a.txt") is None


async def test_a_file_of_a_folder_is_read_once(site: RoutesClient, folder: Path) -> None:
    site.static("/", folder)
    assert not isinstance(site.routes.find(request("/a.txt")), Response)
    first = await site.page("/a.txt")
    assert site.routes.find(request("/a.txt")) is first


async def test_one_reads_for_all_who_ask(site: RoutesClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on when that one leaves."""
    go = threading.Event()
    reads = record_calls(monkeypatch, static, "_read", before=go.wait)
    site.static("/", folder)
    asking = [asyncio.ensure_future(site.page("/a.txt")) for _ in range(10)]
    try:
        while not reads:
            await asyncio.sleep(0.001)
        asking[0].cancel()
    finally:
        go.set()
    first, *others = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert [isinstance(each, Response) and each.status for each in others] == [200] * 9
    assert len(reads) == 1


async def test_a_changed_file_of_a_folder_is_read_again(site: RoutesClient, folder: Path, clock: Clock) -> None:
    site.static("/", folder)
    assert await site.text("/a.txt") == (200, "a")
    (folder / "a.txt").write_text("other")
    assert await site.text("/a.txt") == (200, "a")
    clock.now += 1
    assert await site.text("/a.txt") == (200, "other")
    (folder / "a.txt").unlink()
    clock.now += 1
    assert (await site.page("/a.txt")).status == 404


@pytest.mark.parametrize(
    "target",
    [
        "/assets/../secret.txt",
        "/assets/..%2fsecret.txt",
        "/assets/%2e%2e/secret.txt",
        "/assets/%2E%2E%2Fsecret.txt",
        "/assets/deep/../../secret.txt",
        "/assets/deep/../a.txt",
        "/assets/..\\secret.txt",
        "/assets/..%5Csecret.txt",
        "/assets/deep\\b.css",
        "/assets/../site2/secret.txt",
        "/assets/./a.txt",
        "/assets//a.txt",
        "/assets//etc/passwd",
        "/assets/%2Fetc%2Fpasswd",
        "/assets/a.txt%00.png",
        "/assets/.env",
        "/assets/%2eenv",
        "/assets/deep/.git/config",
        "/assets/.",
        "/assets/..",
        "/assets/../",
        "/assets/a.txt/",
        "/assets/a.txt/index.html",
        "/assets/" + "x" * 5000,
        "/assets/" + "x/" * 5000,
        "/assets/%ED%A0%80",
    ],
)
async def test_nothing_else_is_seen(site: RoutesClient, folder: Path, target: str) -> None:
    site.static("/assets/", folder)
    response = await site.page(target)
    assert response.status == 404
    assert b"secret" not in body_of(response)


async def test_links_lead_nowhere_but_inside(site: RoutesClient, folder: Path) -> None:
    (folder / "out.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "up").symlink_to(folder.parent)
    (folder / "beside").symlink_to(folder.parent / "site2")
    (folder / "hidden.txt").symlink_to(folder / ".env")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "again.txt").symlink_to(folder / "a.txt")
    site.static("/", folder)
    for path in ("/out.txt", "/up/secret.txt", "/beside/secret.txt", "/hidden.txt", "/loop", "/up/site/.env"):
        assert (await site.page(path)).status == 404, path
    assert await site.text("/again.txt") == (200, "a")


async def test_a_link_that_is_turned_outside_is_not_followed(site: RoutesClient, folder: Path, clock: Clock) -> None:
    link = folder / "b.txt"
    link.symlink_to(folder / "a.txt")
    site.static("/", folder)
    assert await site.text("/b.txt") == (200, "a")
    link.unlink()
    link.symlink_to(folder.parent / "secret.txt")
    clock.now += 1
    assert (await site.page("/b.txt")).status == 404


async def test_a_folder_may_be_reached_through_a_link(site: RoutesClient, folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    site.static("/", link)
    assert await site.text("/a.txt") == (200, "a")


async def test_what_is_no_file_is_not_found(site: RoutesClient, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(folder / "pipe")
    site.static("/", folder)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert (await site.page("/pipe")).status == 404
    assert (await site.page("/deep")).status == 404
    assert "not a file" in caplog.text
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)


async def test_only_so_much_is_kept(site: RoutesClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "MAX_FILES", 3)
    for number in range(5):
        (folder / f"{number}.txt").write_text(str(number))
    site.static("/", folder)
    for number in range(5):
        assert await site.text(f"/{number}.txt") == (200, str(number))
    kept = [isinstance(site.routes.find(request(f"/{number}.txt")), Response) for number in range(5)]
    assert kept == [False, False, True, True, True]
    assert await site.text("/2.txt") == (200, "2")
    assert await site.text("/1.txt") == (200, "1")  # 2 was asked for later than 3
    kept = [isinstance(site.routes.find(request(f"/{number}.txt")), Response) for number in (1, 2, 3, 4)]
    assert kept == [True, True, False, True]
    monkeypatch.setattr(static, "MAX_KEPT", 2)
    assert await site.text("/0.txt") == (200, "0")
    kept = [isinstance(site.routes.find(request(f"/{number}.txt")), Response) for number in range(5)]
    assert kept == [True, False, False, False, True]


async def test_a_server_without_a_thread_to_spare_says_so(folder: Path) -> None:
    invoker = Invoker(threads=1, processes=1, max_queue=1)
    site = RoutesClient(invoker)
    site.static("/", folder)
    go = threading.Event()
    begun = threading.Event()
    try:
        invoker.submit(lambda: (begun.set(), go.wait()))
        await asyncio.to_thread(begun.wait)
        waiting = invoker.submit(lambda: None)
        assert await site.text("/a.txt") == (503, "The server is busy; try again later\n")
        go.set()
        await asyncio.wrap_future(waiting)
        assert await site.text("/a.txt") == (200, "a")
    finally:
        go.set()
        invoker.close()


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a", True),
        ("a/b.c", True),
        ("", False),
        ("a//b", False),
        ("a/", False),
        ("../a", False),
        ("a/.b", False),
        ("a\\b", False),
        ("a\0b", False),
    ],
)
def test_which_names_are_plain(name: str, plain: bool) -> None:
    assert is_plain(name) is plain


def test_names_of_drives_are_not_plain_where_there_are_drives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_plain("a:b")
    monkeypatch.setattr(static, "os", type("os", (), {"name": "nt"}))
    assert not is_plain("c:/a")
    assert not is_plain("a.txt::$DATA")
