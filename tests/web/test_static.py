"""Static contents: prepared once, tagged, read again when they change, and nothing outside their folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpcstream.errors import RegistrationError
from rpcstream.web import html

from .conftest import RoutesClient

LONG_AGO = 1_600_000_000

MIB = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With files to be seen, and others."""
    root = tmp_path / "site"
    (root / "deep" / ".git").mkdir(parents=True)
    (root / "index.html").write_text("<p>home")
    (root / "a.txt").write_text("a")
    (root / "deep" / "b.css").write_text("b")
    (root / ".env").write_text("secret")
    (root / "deep\\b.css").write_text("secret")  # a file of a folder, on Windows
    (root / "deep" / ".git" / "config").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "site2").mkdir()
    (tmp_path / "site2" / "secret.txt").write_text("secret")
    return root


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were opened."""
    names: list[str] = []
    real = os.open

    def recording(path: Any, *args: Any, **kwargs: Any) -> int:
        names.append(os.path.basename(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", recording)
    return names


async def test_what_a_caller_has_is_not_sent_again(site: RoutesClient) -> None:
    site.static("/a.txt", b"text")
    first = await site.page("/a.txt?v=2")
    assert (first.status, first.content) == (200, b"text")
    tag = first.headers["etag"]
    assert tag[0] == tag[-1] == '"'
    for tags in ("{tag}", "W/{tag}", '"x", {tag}', '"x",{tag},"y"', "*", '"x"', "{tag}x"):
        again = await site.page("/a.txt", if_none_match=tags.format(tag=tag))
        status = 200 if tags in ('"x"', "{tag}x") else 304
        assert (again.status, again.content) == (status, b"" if status == 304 else b"text")
        assert ("content-length" in again.headers) is (status == 200)
        for name in ("etag", "cache-control", "x-content-type-options"):
            assert again.headers[name] == first.headers[name]
    assert (await site.page("/a.txt", "HEAD", if_none_match=tag)).status == 304
    site.static("/same.txt", b"text")
    site.static("/other.txt", b"other")
    assert (await site.page("/same.txt", if_none_match=tag)).status == 304
    assert (await site.page("/other.txt", if_none_match=tag)).status == 200


async def test_type_and_headers_may_be_given(site: RoutesClient) -> None:
    site.static("/", b"Pong!", type="text/plain", headers={"Cache-Control": "max-age=60", "X-Own": "yes"})
    headers = (await site.page("/")).headers
    assert [headers[name] for name in ("content-type", "cache-control", "x-own")] == ["text/plain", "max-age=60", "yes"]
    site.static("/home", html("<p>{x}", x="<"))
    page = await site.page("/home")
    assert (page.headers["content-type"], page.content) == ("text/html; charset=utf-8", b"<p>&lt;")
    assert page.headers["cache-control"] == "no-cache"


async def test_the_type_is_what_the_ending_says(site: RoutesClient) -> None:
    for name, kind in {
        "/a.html": "text/html; charset=utf-8",
        "/a.mjs": "text/javascript; charset=utf-8",
        "/a.tar.gz": "application/gzip",
        "/data:text/html,a": "application/octet-stream",
        "/": "application/octet-stream",
    }.items():
        site.static(name, b"")
        assert (await site.page(name)).headers["content-type"] == kind


async def test_headers_and_contents_that_are_none_are_refused(site: RoutesClient, folder: Path) -> None:
    headers: list[tuple[str, Any]] = [
        *(("X-A", value) for value in ("a\r\nSet-Cookie: b", "a\nb", 1, "\N{SNOWMAN}")),
        *((name, "b") for name in ("X-A\r\nSet-Cookie", "X A", "", "connection")),
        *((name, "0") for name in ("Content-Length", "Transfer-Encoding", "Date", "Content-Type", "ETag")),
    ]
    refusals: list[tuple[str, Any, dict[str, Any], str]] = [
        *(("/a", b"", {"headers": {name: value}}, "^/a: ") for name, value in headers),
        *(("/a", b"", {"type": each}, "^/a: ") for each in ("text/html\r\nX-A: b", 7)),
        ("/a", 7, {}, "the content is bytes, or the path"),
        ("a", b"", {}, "begins with '/'"),
        ("/a", folder, {}, "is a folder: it is served under a path that ends with '/'"),
        ("/a/", folder, {"type": "text/plain"}, "leave out type=…"),
    ]
    for path, content, options, text in refusals:
        with pytest.raises(RegistrationError, match=text):
            site.static(path, content, **options)
    with pytest.raises(FileNotFoundError) as refused:
        site.static("/a", "Pong!")
    assert "given as bytes" in refused.value.__notes__[0]
    large = folder / "large"
    large.touch()
    os.truncate(large, 64 * MIB + 1)
    with pytest.raises(OSError, match="too large to be served, 67108865 bytes, the limit is 67108864"):
        site.static("/a", large)
    site.static("/a", b"")  # the path is free


async def test_an_unchanged_file_is_not_sent_again(site: RoutesClient, folder: Path) -> None:
    os.utime(folder / "a.txt", (LONG_AGO, LONG_AGO))
    site.static("/a", str(folder / "a.txt"))
    page = await site.page("/a")
    assert (page.content, page.headers["content-type"]) == (b"a", "text/plain; charset=utf-8")
    assert (await site.page("/a", if_none_match=page.headers["etag"])).status == 304
    assert (await site.page("/a", if_none_match='"x"')).status == 200


async def test_the_files_of_a_folder_are_found(
    site: RoutesClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    site.static("/linked/", "../link")
    site.static("/assets/", folder, headers={"Cache-Control": "max-age=5"})
    assert await site.text("/linked/a.txt") == (200, "a")
    assert await site.text("/assets/a.txt") == (200, "a")
    page = await site.page("/assets/deep/b.css")
    assert (page.content, page.headers["content-type"]) == (b"b", "text/css; charset=utf-8")
    assert page.headers["cache-control"] == "max-age=5"
    assert (await site.page("/assets/a.txt", if_none_match="*")).status == 304
    assert await site.text("/assets/") == (200, "<p>home")
    for path in ("/assets/deep/", "/assets/deep", "/assets/missing.txt", "/assetsx/a.txt"):
        assert (await site.page(path)).status == 404


@pytest.mark.slow
async def test_changes_are_seen_within_a_second(site: RoutesClient, folder: Path, opened: list[str]) -> None:
    """One wait serves all kinds of changes, of files with a path of their own and of those in a folder."""

    changes: dict[str, tuple[Callable[[Path], object], tuple[int, str]]] = {
        "same.txt": (lambda file: None, (200, "one")),
        "other.txt": (lambda file: file.write_text("three"), (200, "three")),
        "gone.txt": (Path.unlink, (404, "There is no such page\n")),
    }
    for name in changes:
        (folder / name).write_text("one")
        site.static(f"/own/{name}", folder / name)
    site.static("/", folder)
    paths = [f"{way}/{name}" for name in changes for way in ("", "/own")]
    tags = {}
    for path in paths:
        page = await site.page(path)
        assert (page.status, page.content) == (200, b"one")
        tags[path] = page.headers["etag"]
    for name, (change, _) in changes.items():
        change(folder / name)
    await asyncio.sleep(1.01)
    opened.clear()
    for _ in range(2):
        for path in paths:
            assert await site.text(path) == changes[path.rpartition("/")[2]][1], path
    assert (await site.page("/other.txt", if_none_match=tags["/other.txt"])).status == 200
    assert (await site.page("/same.txt", if_none_match=tags["/same.txt"])).status == 304
    assert [opened.count(name) for name in ("same.txt", "other.txt")] == [0, 2]
    (folder / "gone.txt").write_text("back")
    assert await site.text("/gone.txt") == await site.text("/own/gone.txt") == (200, "back")


OUTSIDE = r"""
../secret.txt ..%2fsecret.txt %2e%2e/secret.txt %2E%2E%2Fsecret.txt deep/../../secret.txt deep/../a.txt
..\secret.txt ..%5Csecret.txt deep\b.css ../site2/secret.txt ./a.txt /a.txt /etc/passwd %2Fetc%2Fpasswd
.env %2eenv deep/.git/config . .. ../ a.txt/index.html %ED%A0%80
"""


async def test_nothing_else_is_seen(site: RoutesClient, folder: Path) -> None:
    site.static("/assets/", folder)
    for name in [*OUTSIDE.split(), "x" * 5000, "x/" * 5000]:
        response = await site.page(f"/assets/{name}")
        assert response.status == 404, name
        assert b"secret" not in response.content


async def test_links_lead_nowhere_but_inside_and_what_is_no_file_is_not_found(
    site: RoutesClient, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    links = {"out.txt": "../secret.txt", "up": "..", "beside": "../site2", "hidden.txt": ".env", "loop": "loop"}
    for name, target in {**links, "again.txt": "a.txt"}.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    site.static("/", folder)
    paths = ("/out.txt", "/up/secret.txt", "/beside/secret.txt", "/hidden.txt", "/loop", "/up/site/.env", "/pipe")
    for path in paths:
        assert (await site.page(path)).status == 404, path
    assert "not a file" in caplog.text
    assert await site.text("/again.txt") == (200, "a")


async def read_again(site: RoutesClient, opened: list[str], folder: str, names: str) -> str:
    """Ask for these files; the names of those that were read."""
    opened.clear()
    for name in names.split():
        assert (await site.page(f"{folder}{name}")).status == 200
    return " ".join(opened)


@pytest.mark.slow
async def test_no_more_than_128_mib_and_1024_files_of_a_folder_are_kept(
    site: RoutesClient, folder: Path, opened: list[str]
) -> None:
    """Those not asked for the longest are dropped."""
    for name in ("x", "y", "z", *map(str, range(1025))):
        (folder / name).touch()
    for name in "xyz":
        os.truncate(folder / name, 43 * MIB)
    site.static("/large/", folder)
    site.static("/many/", folder)
    assert await read_again(site, opened, "/large/", "a.txt x y x z") == "a.txt x y z"
    assert await read_again(site, opened, "/large/", "z x y a.txt") == "y a.txt"
    await read_again(site, opened, "/many/", " ".join(map(str, [*range(1024), 0, 1024])))
    assert await read_again(site, opened, "/many/", "0 3 1024 1 2") == "1 2"
