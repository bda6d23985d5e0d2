"""curl: the commands of the manual, and what curl adds by itself to large bodies."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .service import CODE, DATA, LARGE, MEASURED, MESSAGE, PATIENCE, TEXT, Service, serving

pytestmark = [pytest.mark.tools, pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")]

JSON = ("-H", "Content-Type: application/json")
LINES = (*JSON, "-N", "-H", "Accept: application/x-ndjson")
EVENTS = (*JSON, "-N", "-H", "Accept: text/event-stream")

#: Without the settings of whoever runs the tests, and past any proxy.
CURL = ["curl", "-q", "--noproxy", "*", "--silent", "--show-error", "--max-time", str(PATIENCE * 2)]


def curl(*arguments: object, said: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end, which must be a good one."""
    done = subprocess.run([*CURL, *map(str, arguments)], input=said, capture_output=True, timeout=PATIENCE * 3)
    assert done.returncode == 0, done.stderr.decode()
    return done


def answer(*arguments: object, said: bytes | None = None) -> tuple[list[str], bytes]:
    """The head of the response, line by line, and the body."""
    head, _, body = curl("--include", *arguments, said=said).stdout.partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


def request(method: str, *params: Any, **more: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1, **more})


def notification(method: str, *params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def reply(result: Any, call_id: Any = 1) -> Any:
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


@pytest.fixture
def url(service: Service) -> str:
    return f"http://{service.address}/"


# -- calls ------------------------------------------------------------------------------------------------------------


def test_a_call(url: str) -> None:
    head, body = answer(*JSON, "-d", request("add", 1, 2), url)
    assert head[0] == "HTTP/1.1 200 OK"
    assert "Content-Type: application/json" in head
    assert f"Content-Length: {len(body)}" in head
    assert json.loads(body) == reply(3)


def test_text_comes_back_as_it_went(url: str) -> None:
    data = json.dumps({"jsonrpc": "2.0", "method": "later", "params": {"value": TEXT}, "id": "ü"}, ensure_ascii=False)
    _, body = answer(*JSON, "--data-binary", "@-", url, said=data.encode())
    assert json.loads(body) == reply(TEXT, "ü")


def test_an_error_is_an_answer_like_others(url: str) -> None:
    head, body = answer(*JSON, "-d", request("refuse"), url)
    assert head[0] == "HTTP/1.1 200 OK"
    assert json.loads(body)["error"] == {"code": CODE, "message": MESSAGE, "data": DATA}
    head, body = answer(*JSON, "-d", "{no json", url)
    assert head[0] == "HTTP/1.1 200 OK"
    assert (json.loads(body)["error"]["code"], json.loads(body)["id"]) == (-32700, None)


def test_a_batch(url: str, service: Service) -> None:
    calls = [request("add", 1, 1), notification("note", "in a batch"), request("refuse", id=2), "1"]
    _, body = answer(*JSON, "-d", f"[{','.join(calls)}]", url)
    first, second, third = json.loads(body)
    assert first == reply(2)
    assert (second["id"], second["error"]["data"]) == (2, DATA)
    assert third["error"]["code"] == -32600
    assert service.noted() == ["in a batch"]


@pytest.mark.parametrize("form", ["{}", "[{},{}]"], ids=["one", "a batch"])
def test_notifications_are_answered_with_nothing(url: str, service: Service, form: str) -> None:
    head, body = answer(*JSON, "-d", form.replace("{}", notification("note", TEXT)), url)
    assert (head[0], body) == ("HTTP/1.1 200 OK", b"")
    assert "Content-Length: 0" in head
    number = form.count("{}")
    assert service.noted(number) == [TEXT] * number


# -- bodies -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file with a call of more than a megabyte."""
    path = tmp_path / "call.json"
    path.write_text(request("measure", LARGE))
    return path


def test_a_large_body_that_waits_to_be_asked_for(url: str, large: Path) -> None:
    """`Expect: 100-continue`: curl would wait for minutes here, and it is asked at once."""
    how = ("-v", "-H", "Expect: 100-continue", "--expect100-timeout", PATIENCE * 10)
    done = curl(*JSON, *how, "--data-binary", f"@{large}", url)
    heard = [line[2:].strip() for line in done.stderr.decode().splitlines() if line.startswith("< HTTP/")]
    assert heard == ["HTTP/1.1 100 Continue", "HTTP/1.1 200 OK"]
    assert json.loads(done.stdout) == reply(MEASURED)


def test_a_large_body_as_curl_sends_it(url: str, large: Path) -> None:
    assert json.loads(curl(*JSON, "--data-binary", f"@{large}", url).stdout) == reply(MEASURED)


def test_a_large_body_in_chunks(url: str, large: Path) -> None:
    done = curl(*JSON, "-v", "-H", "Transfer-Encoding: chunked", "--data-binary", f"@{large}", url)
    assert b"> Transfer-Encoding: chunked" in done.stderr
    assert b"> Content-Length" not in done.stderr
    assert json.loads(done.stdout) == reply(MEASURED)


def test_a_large_answer(url: str) -> None:
    large = LARGE[: 2**19]
    _, body = answer(*JSON, "--data-binary", "@-", url, said=request("echo", large).encode())
    assert json.loads(body) == reply(large)


# -- connections ------------------------------------------------------------------------------------------------------


def test_one_connection_for_several_addresses(url: str, service: Service) -> None:
    """The pages of the same port among them; after errors too."""
    call = ("-w", "%{num_connects}\n", *JSON, "-d", request("refuse"), "-o", "/dev/null")
    page = ("-w", "%{num_connects}\n", f"{url}healthz", "-o", "/dev/null", f"{url}nothing", "-o", "/dev/null")
    done = curl(*call, url, "-o", "/dev/null", url, "--next", "-s", *page)
    assert done.stdout.split() == [b"1", b"0", b"0", b"0"]
    assert service.connections == 1


def test_http_1_0_is_answered_and_closed(url: str, service: Service) -> None:
    done = curl("--http1.0", *JSON, "-d", request("add", 1, 2), url, url)
    assert done.stdout.count(b'"result":3') == 2
    assert service.connections == 2


def test_a_unix_socket(unix_service: Service) -> None:
    path = unix_service.address.removeprefix("unix://")
    done = curl("--unix-socket", path, *JSON, "-d", request("add", 1, 2), "http://localhost/", "http://localhost/")
    assert done.stdout.count(b'"result":3') == 2
    assert unix_service.connections == 1


def test_encrypted() -> None:
    pytest.importorskip("trustme")
    from ..kit import authority, server_tls

    with serving(tls=server_tls()) as service:
        url = f"https://127.0.0.1:{service.port}/"
        done = curl("--cacert", authority(), *JSON, "-d", request("add", 1, 2), url, url)
        unknown = subprocess.run([*CURL, *JSON, "-d", request("add", 1, 2), url], capture_output=True, timeout=PATIENCE)
        assert done.stdout.count(b'"result":3') == 2
        assert unknown.returncode == 60  # the certificate is none that curl trusts
        assert service.connections == 1


def test_a_token() -> None:
    with serving(token="s3cret") as service:
        url = f"http://{service.address}/"
        head, _ = answer(*JSON, "-d", request("note", 1), url)
        assert head[0] == "HTTP/1.1 401 Unauthorized"
        assert any(line.startswith("WWW-Authenticate: Bearer") for line in head)
        assert answer(*JSON, "--oauth2-bearer", "secret", "-d", request("note", 1), url)[0][0] == head[0]
        _, body = answer(*JSON, "--oauth2-bearer", "s3cret", "-d", request("add", 1, 2), url)
        assert json.loads(body) == reply(3)
        assert answer(f"{url}healthz")[0][0] == "HTTP/1.1 200 OK"  # for monitors, which know no token
        assert service.nothing_noted


# -- streams ----------------------------------------------------------------------------------------------------------


def item(value: Any) -> Any:
    return {"jsonrpc": "2.0", "method": "$/item", "params": {"id": 1, "value": value}}


def test_a_stream_as_lines(url: str) -> None:
    head, body = answer(*LINES, "-d", request("count", 1000), url)
    assert "Content-Type: application/x-ndjson" in head
    assert [json.loads(line) for line in body.splitlines()] == [*map(item, range(1000)), reply(None)]


def test_a_stream_as_events(url: str) -> None:
    head, body = answer(*EVENTS, "-d", request("count", 1000), url)
    assert "Content-Type: text/event-stream" in head
    *events, rest = body.split(b"\n\n")
    assert rest == b""
    assert all(event.startswith(b"data: ") for event in events)
    assert [json.loads(event[6:]) for event in events] == [*map(item, range(1000)), reply(None)]


@pytest.mark.parametrize("how", [LINES, EVENTS], ids=["lines", "events"])
def test_items_come_when_they_are_there(url: str, service: Service, how: tuple[str, ...]) -> None:
    """The handler gives its second item when curl has written the first."""
    command = [*CURL, *how, "-d", request("drip"), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b'"first"' in process.stdout.readline()
            service.let_go.set()
            rest = process.stdout.read()
        finally:
            process.kill()
    assert b'"second"' in rest
    assert rest.rstrip().endswith(b'"result":null}')


# -- what is no call --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("-d", request("note", 1)), 415),  # curl says that it is a form
        (("-H", "Content-Type: text/plain", "-d", request("note", 1)), 415),
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
