"""Pages over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcstream import Server
from rpcstream.testing import serve_in_thread
from rpcstream.web import Request, Response, html


class RoutesClient:
    """A server with pages; `begun`, `ended`: of the page that waits."""

    def __init__(self, folder: Path) -> None:
        self.server = server = Server(drain_timeout=5)
        self.begun, self.ended = threading.Event(), threading.Event()
        server.static("/page.html", b"<p>page")
        server.static("/large", b"x" * 1_000_000)
        server.static("/files/", folder)

        @server.get("/hello/{name}")
        def hello(name: str) -> str:
            return html("<p>{name}", name=name)

        @server.get("/slow/{name}", offload="thread")
        def slow(name: str) -> bytes:
            return name.encode()

        @server.get("/waits")
        async def waits() -> None:
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        @server.get("/nothing")
        def nothing() -> None: ...

        @server.get("/split")
        def split(value: str) -> Response:
            return Response(200, b"", None, [("X-Value", value)])

        @server
        def add(a: int, b: int) -> int:
            return a + b


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> RoutesClient:
    folder = tmp_path_factory.mktemp("site")
    (folder / "files").mkdir()
    (folder / "files" / "a.txt").write_text("a")
    (folder / "secret.txt").write_text("secret")
    return RoutesClient(folder / "files")


@pytest.fixture(scope="module")
def address(site: RoutesClient) -> Iterator[str]:
    with serve_in_thread(site.server) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[http.client.HTTPConnection]:
    client = http.client.HTTPConnection(address, timeout=20)
    with contextlib.closing(client):
        yield client


Got = tuple[int, dict[str, str], bytes]


def ask(client: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str) -> Got:
    client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = client.getresponse()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def test_pages_and_calls_share_a_connection(client: http.client.HTTPConnection) -> None:
    assert ask(client, "/page.html")[::2] == (200, b"<p>page")
    first = client.sock
    assert ask(client, "/hello/%3Cb%3E")[::2] == (200, b"<p>&lt;b&gt;")
    client.request("POST", "/", b'{"jsonrpc":"2.0","method":"add","params":[1,2],"id":1}', JSON)
    assert client.getresponse().read() == b'{"jsonrpc":"2.0","id":1,"result":3}'
    assert ask(client, "/slow/x")[::2] == (200, b"x")
    assert ask(client, "/nothing")[::2] == (204, b"")
    assert len(ask(client, "/large")[2]) == 1_000_000
    assert ask(client, "/nowhere")[0] == 404
    assert ask(client, "/page.html")[::2] == (200, b"<p>page")
    assert client.sock is first


JSON = {"Content-Type": "application/json"}


def test_what_a_browser_has_is_not_sent_again(client: http.client.HTTPConnection) -> None:
    for path in ("/page.html", "/large", "/files/a.txt"):
        status, headers, body = ask(client, path)
        assert (status, headers["x-content-type-options"]) == (200, "nosniff")
        again, now, nothing = ask(client, path, if_none_match=headers["etag"])
        assert (again, nothing, now["etag"]) == (304, b"", headers["etag"])
        assert ask(client, path)[2] == body


@pytest.mark.parametrize(
    "path", ["/page.html", "/large", "/files/a.txt", "/hello/x", "/slow/x", "/healthz", "/files/no"]
)
def test_head_has_everything_but_the_body(client: http.client.HTTPConnection, path: str) -> None:
    status, headers, body = ask(client, path)
    asked, told, nothing = ask(client, path, "HEAD")
    for each in (headers, told):
        each.pop("date", None)
    assert (asked, told, nothing) == (status, headers, b"")
    assert int(told["content-length"]) == len(body)
    assert ask(client, "/page.html")[2] == b"<p>page"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
def test_other_methods_are_not_allowed(client: http.client.HTTPConnection, method: str) -> None:
    status, headers, _ = ask(client, "/hello/x", method)
    assert status == 405
    assert headers["allow"] == "GET, HEAD"


def test_pipelined_pages_come_in_order(address: str) -> None:
    paths = ["/slow/1", "/page.html", "/hello/2", "/files/a.txt", "/large", "/slow/3", "/healthz"] * 5
    asked = "".join(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n" for path in paths)
    lengths = []
    with raw(address) as connection, connection.makefile("rb") as lines:
        connection.sendall(asked.encode())
        for _ in paths:
            assert lines.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = http.client.parse_headers(lines)
            length = int(headers["content-length"])
            assert len(lines.read(length)) == length
            lengths.append(length)
    assert lengths == [1, 7, 4, 1, 1_000_000, 1, 2] * 5


@contextlib.contextmanager
def raw(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        yield connection


def test_an_older_client_is_answered_and_left(address: str) -> None:
    with raw(address) as connection:
        connection.sendall(f"GET /page.html HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        with connection.makefile("rb") as lines:
            head, _, body = lines.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close" in head
    assert body == b"<p>page"


def test_the_connection_closes_where_that_was_asked(client: http.client.HTTPConnection) -> None:
    for path in ("/page.html", "/hello/x", "/slow/x"):
        status, headers, _ = ask(client, path, Connection="close")
        assert (status, headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    "path", ["/files/../secret.txt", "/files/%2e%2e/secret.txt", "/files/..%2fsecret.txt", "/files/..%5csecret.txt"]
)
def test_nothing_outside_of_a_folder_is_seen(client: http.client.HTTPConnection, path: str) -> None:
    status, _, body = ask(client, path)
    assert status in (400, 404)
    assert b"secret" not in body


def test_no_header_can_be_put_in(client: http.client.HTTPConnection) -> None:
    status, headers, _ = ask(client, "/split?value=a%0d%0aSet-Cookie:%20b")
    assert status == 500
    assert "set-cookie" not in headers
    assert ask(client, "/split?value=a")[1]["x-value"] == "a"


def test_a_page_is_cancelled_when_its_reader_is_gone(site: RoutesClient, address: str) -> None:
    site.begun.clear()
    with raw(address) as connection:
        connection.sendall(f"GET /waits HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        assert site.begun.wait(20)
        assert not site.ended.is_set()
    assert site.ended.wait(20)


@pytest.mark.parametrize("path", ["/page.html", "/hello/x"])
def test_a_page_of_another_name_is_not_shown(client: http.client.HTTPConnection, path: str) -> None:
    """DNS rebinding: a site whose name leads here must see nothing."""
    status, _, body = ask(client, path, Host="evil.example")
    assert status == 403
    assert "--allow-host" in body.decode()
    assert "hosts=" in body.decode()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_health_check_is_answered_by_any_name(client: http.client.HTTPConnection, path: str) -> None:
    """A load balancer asks by address, and what it is told says nothing."""
    for host in ("10.1.2.3:8545", "evil.example", "[::2]", "no host at all"):
        assert ask(client, path, Host=host)[::2] == (200, b"ok")
        assert ask(client, path, "HEAD", Host=host)[0] == 200
        assert ask(client, path, "POST", Host=host)[0] == 403
    status, headers, body = ask(client, path, Host="10.1.2.3", Origin="http://10.1.2.3")
    assert (status, "access-control-allow-origin" in headers) == (403, False)
    assert "--allow-origin" in body.decode()
    assert ask(client, f"/{path}", Host="10.1.2.3")[0] == 403


def test_a_page_at_the_path_of_a_health_check_is_a_page() -> None:
    server = Server()
    server.static("/healthz", b"mine")
    with (
        serve_in_thread(server) as address,
        contextlib.closing(http.client.HTTPConnection(address, timeout=20)) as client,
    ):
        assert ask(client, "/healthz", Host="10.1.2.3")[0] == 403
        assert ask(client, "/healthz")[::2] == (200, b"mine")
        assert ask(client, "/readyz", Host="10.1.2.3")[::2] == (200, b"ok")


# -- with a token -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server with a token."""
    server = Server(token="s3cret")
    ran = []

    @server.get("/page")
    def page(request: Request) -> str:
        ran.append(request)
        return str(request.identity is not None)

    server.static("/plan.png", b"plan")
    server.static("/logo.png", b"logo", public=True)
    with serve_in_thread(server) as address:
        yield address
    assert len(ran) == 1


def test_pages_want_the_token_and_monitors_do_not(guarded: str) -> None:
    with contextlib.closing(http.client.HTTPConnection(guarded, timeout=20)) as client:
        for path in ("/page", "/plan.png", "/nowhere"):
            status, _, body = ask(client, path)
            assert (status, b"plan" in body) == (401, False), path
            assert ask(client, path, Authorization="Bearer wrong")[0] == 401
        assert ask(client, "/page", Authorization="Bearer s3cret")[::2] == (200, b"True")
        assert ask(client, "/plan.png", Authorization="Bearer s3cret")[::2] == (200, b"plan")
        assert ask(client, "/plan.png")[0] == 401
        assert ask(client, "/logo.png")[::2] == (200, b"logo")
        assert ask(client, "/healthz")[::2] == (200, b"ok")
        assert ask(client, "/readyz")[::2] == (200, b"ok")
