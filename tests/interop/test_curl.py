"""curl: the commands of the manual, and what curl adds by itself to large bodies."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from ..kit import authority, server_tls
from .service import CODE, DATA, LARGE, MEASURED, MESSAGE, PATIENCE, TEXT, Service, serving

pytestmark = [pytest.mark.tools, pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")]

JSON = ("-H", "Content-Type: application/json")
LINES = (*JSON, "-N", "-H", "Accept: application/x-ndjson")
EVENTS = (*JSON, "-N", "-H", "Accept: text/event-stream")

#: Without the settings of whoever runs the tests, and past any proxy.
CURL = ["curl", "-q", "--noproxy", "*", "--silent", "--show-error", "--max-time", str(PATIENCE * 2)]


def curl(*arguments: object, said: str = "", status: int = 0) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    command = [*CURL, *map(str, arguments)]
    done = subprocess.run(command, input=said.encode(), capture_output=True, timeout=PATIENCE * 3)
    assert done.returncode == status, done.stderr.decode()
    return done


def answer(*arguments: object, said: str = "") -> tuple[list[str], Any]:
    """The head of the response, line by line, and the body: the values of its lines, the only one where it is one."""
    head, _, body = curl("--include", *arguments, said=said).stdout.partition(b"\r\n\r\n")
    lines = [json.loads(line.removeprefix(b"data: ")) for line in body.splitlines() if line]
    return head.decode().split("\r\n"), lines[0] if len(lines) == 1 else lines


def request(method: str, *params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1}, ensure_ascii=False)


def notification(method: str, *params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def reply(result: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "result": result}


@pytest.fixture
def url(service: Service) -> str:
    return f"http://{service.address}/"


def test_calls_errors_and_batches(url: str, service: Service) -> None:
    head, body = answer(*JSON, "-d", request("add", 1, 2), url)
    assert head[0] == "HTTP/1.1 200 OK"
    assert "Content-Type: application/json" in head
    assert body == reply(3)
    assert answer(*JSON, "--data-binary", "@-", url, said=request("later", TEXT))[1] == reply(TEXT)
    head, body = answer(*JSON, "-d", request("refuse"), url)
    assert (head[0], body["error"]) == ("HTTP/1.1 200 OK", {"code": CODE, "message": MESSAGE, "data": DATA})
    body = answer(*JSON, "-d", "{no json", url)[1]
    assert (body["error"]["code"], body["id"]) == (-32700, None)
    calls = [request("add", 1, 1), notification("note", "in a batch"), "1"]
    first, second = answer(*JSON, "-d", f"[{','.join(calls)}]", url)[1]
    assert (first, second["error"]["code"]) == (reply(2), -32600)
    head, body = answer(*JSON, "-d", notification("note", TEXT), url)
    assert (head[0], "Content-Length: 0" in head, body) == ("HTTP/1.1 200 OK", True, [])
    assert service.noted(2) == ["in a batch", TEXT]


@pytest.mark.parametrize(
    "how",
    [
        (),
        ("-H", "Transfer-Encoding: chunked"),
        # Where it is not asked at once, curl waits for minutes here.
        ("-H", "Expect: 100-continue", "--expect100-timeout", PATIENCE * 10),
    ],
    ids=["as curl sends it", "in chunks", "once it is asked for"],
)
def test_a_large_body(url: str, how: tuple[object, ...]) -> None:
    done = curl(*JSON, *how, "-v", "--data-binary", "@-", url, said=request("measure", LARGE))
    assert json.loads(done.stdout) == reply(MEASURED)
    if "Expect: 100-continue" in how:
        assert b"< HTTP/1.1 100 Continue" in done.stderr
    done = curl(*JSON, *how, "--data-binary", "@-", url, said=request("echo", LARGE))
    assert json.loads(done.stdout) == reply(LARGE)


def test_one_connection_for_several_addresses(url: str, service: Service) -> None:
    """The pages of the same port among them; after errors too. HTTP/1.0 is answered and closed."""
    call = ("-w", "%{num_connects}\n", *JSON, "-d", request("refuse"), "-o", "/dev/null")
    page = ("-w", "%{num_connects}\n", f"{url}healthz", "-o", "/dev/null", f"{url}nothing", "-o", "/dev/null")
    done = curl(*call, url, "-o", "/dev/null", url, "--next", "-s", *page)
    assert done.stdout.split() == [b"1", b"0", b"0", b"0"]
    assert service.connections == 1
    done = curl("--http1.0", *JSON, "-d", request("add", 1, 2), url, url)
    assert (done.stdout.count(b'"result":3'), service.connections) == (2, 3)


def test_a_unix_socket(unix_service: Service) -> None:
    path = unix_service.address.removeprefix("unix://")
    done = curl("--unix-socket", path, *JSON, "-d", request("add", 1, 2), "http://localhost/", "http://localhost/")
    assert (done.stdout.count(b'"result":3'), unix_service.connections) == (2, 1)


def test_encrypted_with_a_token() -> None:
    with serving(tls=server_tls(), token="s3cret") as service:
        url = f"https://127.0.0.1:{service.port}/"
        call = (*JSON, "-d", request("note", 1), url)
        curl(*call, status=60)  # the certificate is none that curl trusts
        assert curl("--cacert", authority(), f"{url}healthz").stdout.strip() == b"ok"  # for monitors, without a token
        for token in ((), ("--oauth2-bearer", "secret")):
            said = curl("--include", "--cacert", authority(), *token, *call).stdout
            assert said.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
            assert b"\r\nWWW-Authenticate: Bearer" in said
        assert service.nothing_noted
        answer("--cacert", authority(), "--oauth2-bearer", "s3cret", *call)
        assert service.noted() == [1]


@pytest.mark.parametrize("how", [LINES, EVENTS], ids=["lines", "events"])
def test_a_stream(url: str, service: Service, how: tuple[str, ...]) -> None:
    """The handler gives its second item when curl has written the first."""
    head, body = answer(*how, "-d", request("count", 1000), url)
    assert f"Content-Type: {how[-1].split()[-1]}" in head
    items = [{"jsonrpc": "2.0", "method": "$/item", "params": {"id": 1, "value": value}} for value in range(1000)]
    assert body == [*items, reply(None)]
    with subprocess.Popen([*CURL, *how, "-d", request("drip"), url], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b'"first"' in process.stdout.readline()
            service.let_go.set()
            rest = process.stdout.read()
        finally:
            process.kill()
    assert b'"second"' in rest
    assert rest.rstrip().endswith(b'"result":null}')


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("-d", request("note", 1)), 415),  # curl says that it is a form
        ((), 405),
        (("--head",), 405),
        ((*JSON, "-X", "PUT", "-d", request("note", 1)), 405),
        ((*JSON, "-H", "Host: evil.example", "-d", request("note", 1)), 403),
        ((*JSON, "-H", "Origin: http://evil.example", "-d", request("note", 1)), 403),
    ],
)
def test_what_is_refused_runs_nothing(url: str, service: Service, arguments: tuple[str, ...], status: int) -> None:
    done = curl("-o", "/dev/null", "-w", "%{http_code}", *arguments, url)
    assert int(done.stdout) == status
    assert service.server.counters.requests == 0
    assert service.nothing_noted
