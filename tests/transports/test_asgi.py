"""HTTP calls and WebSockets as events of an ASGI server, in memory; over uvicorn they are in `tests/conversation`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import Context, Http, Limits
from rpcstream.peer.credentials import Credentials
from rpcstream.testing import connections_of
from rpcstream.web import Request

from ..kit import UsualServer, reply, until
from ..kit import frame as binary_frame
from ..kit.asgi import Driver, call, connected, get, http_scope, post, websocket_scope
from .conftest import LIMITS


class Service(UsualServer):
    """A server as an ASGI application. Limits may stand among the options."""

    def __init__(self, **options: Any) -> None:
        limits = {name: options.pop(name) for name in list(options) if name in LIMITS}
        super().__init__(limits=Limits(**limits), **{"drain_timeout": 1, **options})

        @self
        def where(ctx: Context) -> str:
            return ctx.address

        @self
        def who(ctx: Context) -> Any:
            return ctx.identity

        @self
        async def numbers(n: int) -> AsyncIterator[int]:
            for number in range(n):
                self.noted.append(number)
                yield number

        @self.get("/page")
        def page(request: Request) -> dict[str, str]:
            return {"path": request.path, "root": request.root, "target": request.target}

        self.get("/slow", self.call_wait)
        self.get("/kept/", lambda: "kept")
        self.app = self.asgi()


Begin = Callable[..., Awaitable[Service]]


@pytest.fixture
async def begin() -> AsyncIterator[Begin]:
    """`service = await begin(token=…, max_calls=…)`: runs while the test does."""
    async with AsyncExitStack() as stack:

        async def one(**options: Any) -> Service:
            service = Service(**options)
            await stack.enter_async_context(service.app.lifespan())
            return service

        yield one


@pytest.fixture
async def service(begin: Begin) -> Service:
    return await begin()


def begun(service: Service, *pieces: bytes, **headers: str) -> Driver:
    """A POST whose body begins with these pieces."""
    driver = Driver(service.app, http_scope(**headers))
    for piece in pieces:
        driver.body(piece, more=True)
    return driver


async def waiting(service: Service, token: Any = None) -> Driver:
    """A POST of a call that waits."""
    driver = Driver(service.app, http_scope())
    driver.body(orjson.dumps(call("wait", token)))
    await until(lambda: token in service.begun)
    return driver


async def closed(driver: Driver) -> None:
    """Close a WebSocket."""
    driver.close()
    await driver.ended()


async def test_a_producer_waits_for_a_client_that_does_not_read(begin: Begin) -> None:
    service = await begin(write_buffer=10_000)
    driver = begun(service, accept="application/x-ndjson")
    driver.writable.clear()
    driver.body(orjson.dumps(call("numbers", 2000)))
    await until(lambda: len(service.noted) > 50)
    before = -1
    while before != len(service.noted):
        before = len(service.noted)
        await asyncio.sleep(0.02)
    assert before < 1000
    driver.writable.set()
    await driver.ended()
    assert driver.content.count(b"\n") == 2001


async def test_a_binary_frame_comes_and_goes(service: Service) -> None:
    payload = np.arange(10_000, dtype="<f8")
    array = {"$type": "ndarray", "dtype": "<f8", "shape": [10_000], "data": {"$bin": 0}}
    body = binary_frame(call("array", array), payload.tobytes())
    frame = {"content_type": "application/x-rpcstream", "accept": "application/json, application/x-rpcstream"}
    driver = begun(service, *(body[at : at + 30_000] for at in range(0, len(body), 30_000)), **frame)
    driver.body(b"")
    await driver.ended()
    assert driver.headers["content-type"] == "application/x-rpcstream"
    assert driver.content[-payload.nbytes :] == (payload * 2).tobytes()
    assert int(driver.headers["content-length"]) == len(driver.content)
    assert all(type(event["body"]) is bytes for event in driver.sent[1:])
    broken = await post(service.app, body[:-1], **frame)
    assert broken.json["error"]["code"] == -32700


async def test_a_body_that_is_too_long_is_not_read(begin: Begin) -> None:
    service = await begin(max_message_size=1000)
    said = begun(service, content_length="1001", transfer_encoding="")
    assert ((await said.ended()).status, said.asked) == (413, 0)
    unsaid = begun(service, *[b" " * 600] * 10)
    assert ((await unsaid.ended()).status, unsaid.asked) == (413, 2)
    assert (await post(service.app, b" " * 1001)).status == 413
    frame = begun(service, b"@100 50000\n" + b" " * 50_000, content_type="application/x-rpcstream")
    assert ((await frame.ended()).status, frame.asked) == (413, 1)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "application/x-rpcstream"}, 415),
        ({"transfer_encoding": ""}, 411),
        ({"expect": "magic"}, 417),
        ({"host": "example.org"}, 403),
        ({"origin": "https://example.org"}, 403),
        ({"path": "/elsewhere"}, 404),
    ],
)
async def test_a_call_that_is_refused(begin: Begin, headers: dict[str, str], status: int) -> None:
    service = await begin(binary=False)
    answer = await post(service.app, call("add", 1, 2), root="/rpc", **headers)
    assert answer.status == status
    if status == 404:
        assert answer.content == b"there is nothing here; calls go to /rpc/\n"


async def test_without_a_length_in_http_2(service: Service) -> None:
    driver = Driver(service.app, {**http_scope(transfer_encoding=""), "http_version": "2"})
    driver.body(orjson.dumps(call("add", 1, 2)))
    assert (await driver.ended()).json == reply(1, 3)


async def test_who_is_known(begin: Begin) -> None:
    async def authenticate(credentials: Credentials) -> str | None:
        await asyncio.sleep(0)
        assert credentials.address == "127.0.0.1:50412"
        return {"a": "Ann"}.get(credentials.token or "")

    service = await begin(authenticate=authenticate)
    for token, status in (("wrong", 401), ("a", 200)):
        shown = {"authorization": f"Bearer {token}"}
        answer = await post(service.app, call("who"), **shown)
        assert (answer.status, (await get(service.app, "/page", **shown)).status) == (status, status)
    assert answer.json == reply(1, "Ann")
    driver = await connected(service.app, **shown)
    driver.text(call("who"))
    await driver.has_sent(2)
    assert driver.messages == [reply(1, "Ann")]
    await closed(driver)


async def test_too_many_requests_at_once(begin: Begin) -> None:
    service = await begin(max_connections=1)
    first = await waiting(service)
    answer = await post(service.app, call("add", 1, 2))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    service.release()
    assert (await first.ended()).status == 200
    assert (await post(service.app, call("add", 1, 2))).json == reply(1, 3)


async def test_pages_below_a_mount(service: Service) -> None:
    answer = await get(service.app, "/page?a=1", root="/rpc")
    assert answer.json == {"path": "/page", "root": "/rpc", "target": "/rpc/page?a=1"}
    assert (await get(service.app, "/healthz", root="/rpc")).content == b"ok"
    answer = await get(service.app, "/healthz", method="HEAD")
    assert (answer.status, answer.content, answer.headers["content-length"]) == (200, b"", "2")
    answer = await get(service.app, "/", root="/rpc")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    for path, status in (("", 405), ("/none", 404), ("/a\0b", 400)):
        assert (await get(service.app, path, root="/rpc")).status == status
    assert (await get(service.app, "http://example.org/page")).status == 400


async def test_a_slash_at_the_end_is_forgiven(begin: Begin) -> None:
    service = await begin(http=Http(path=["/", "/calls"]), mcp=True)
    for path, status in (("/page/", 200), ("/healthz/", 200), ("/kept/", 200), ("/kept", 404), ("/page//", 404)):
        assert (await get(service.app, path, root="/rpc")).status == status, path
    assert (await get(service.app, "/mcp/")).status == 405
    assert (await post(service.app, call("add", 1, 2), path="/calls/")).json == reply(1, 3)
    await closed(await connected(service.app, path="/calls/"))


@pytest.mark.parametrize("how", ["leaves", "is cancelled", "leaves a page", "closes its websocket", "is lost"])
async def test_whoever_is_gone_is_worked_for_no_more(service: Service, how: str) -> None:
    if how == "leaves a page":
        driver = Driver(service.app, http_scope("GET", "/slow"))
        driver.body(b"")
    elif how in ("closes its websocket", "is lost"):
        driver = await connected(service.app)
        driver.text(call("wait"))
    else:
        driver = await waiting(service)
    await until(lambda: service.begun == [None])
    if how == "is cancelled":
        driver.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driver.task
    elif how == "closes its websocket":
        driver.close(1006)
        await driver.ended()
    elif how == "is lost":  # and the server notices when it sends
        driver.is_gone = True
        driver.text(call("add", 1, 2))
        await driver.ended()
    else:
        driver.leave()
        await driver.ended()
    await until(lambda: service.ended == [(None, "CancelledError")])
    assert not connections_of(service)


async def test_a_client_that_leaves_within_its_body(service: Service) -> None:
    driver = begun(service, b'{"jsonrpc"')
    driver.leave()
    await driver.ended()
    assert not connections_of(service)


async def test_a_client_that_is_slow(begin: Begin) -> None:
    service = await begin(message_timeout=0.05, write_timeout=0.05, write_buffer=1000)
    assert (await begun(service, b'{"jsonrpc"').ended()).status == 408
    driver = Driver(service.app, http_scope())
    driver.writable.clear()
    driver.body(orjson.dumps(call("echo", "x" * 1000)))
    await driver.ended()
    assert not driver.sent
    socket = await connected(service.app)
    socket.writable.clear()
    socket.text(call("echo", "x" * 5000))
    await socket.ended()
    assert service.stats()["closed_for_limits"] == 3


async def test_a_call_in_flight_is_answered_when_the_server_stops(service: Service) -> None:
    unread, silent = begun(service, b'{"jsonrpc"'), begun(service)
    driver = await waiting(service, "in flight")
    service.stop()
    assert (await unread.ended()).status == 503
    assert unread.json["error"]["data"] == {"executed": False, "reason": "the server is stopping"}
    assert (await silent.ended()).status == 503
    assert (await get(service.app, "/readyz")).content == b"draining"
    refused = await Driver(service.app, websocket_scope(), {"type": "websocket.connect"}).ended()
    assert refused.sent[0]["status"] == 503
    late = await post(service.app, call("add", 1, 2))
    assert (late.status, late.json["error"]["data"]["executed"]) == (503, False)
    service.release()
    assert (await driver.ended()).json == reply(1, "in flight")
    await until(lambda: not service.is_running)
    stopped = await post(service.app, call("add", 1, 2))
    assert (stopped.status, stopped.content) == (503, b"the server has stopped\n")


async def test_a_call_that_outlasts_the_stop_is_cut_off() -> None:
    service = Service(drain_timeout=0.05)
    async with service.app.lifespan():
        driver = await waiting(service)
    await driver.ended()
    assert (driver.status, driver.content) == (504, b"the server stopped\n")
    assert service.ended == [(None, "CancelledError")]


@pytest.mark.parametrize("broken", [b"@nonsense", b"@2 8       \n{}", None])
async def test_what_is_malformed_ends_the_websocket(service: Service, broken: bytes | None) -> None:
    driver = await connected(service.app)
    driver.text(call("add", 1, 2))
    if broken is None:
        await driver.has_sent(2)
        driver.text("\ud800")  # no Unicode
    else:
        driver.give({"type": "websocket.receive", "bytes": broken})
    await driver.ended()
    assert driver.messages[0] == reply(1, 3)
    assert [each["error"]["code"] for each in driver.messages[1:]] == [-32700]
    assert (driver.sent[-1]["type"], driver.sent[-1]["code"]) == ("websocket.close", 1007)


async def test_a_websocket_is_told_that_the_server_stops(service: Service) -> None:
    driver = await connected(service.app, subprotocols=("other", "jsonrpc-2.0"))
    assert driver.sent[0]["subprotocol"] == "jsonrpc-2.0"
    driver.text(call("wait", "in flight"))
    await until(lambda: service.begun)
    service.stop()
    await driver.has_sent(2)
    assert driver.messages[0]["method"] == "$/goAway"
    service.release()
    await driver.ended()
    assert driver.messages[1] == reply(1, "in flight")
    assert driver.sent[-1] == {"type": "websocket.close", "code": 1001, "reason": ""}


async def test_nothing_is_read_of_a_client_whose_calls_fill_the_server(begin: Begin) -> None:
    service = await begin(max_calls=1, max_message_size=1000)
    driver = await connected(service.app)
    for number in range(1000):
        driver.text(call("wait", number, *["x" * 500] * (number > 0), id=number))
    await until(lambda: service.begun == [0])
    before = -1
    while before != driver.asked:
        before = driver.asked
        await asyncio.sleep(0.02)
    assert before < 500
    driver.close()
    driver.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driver.task


async def test_a_websocket_that_is_refused(begin: Begin) -> None:
    service = await begin(token="secret", http=Http(path="/ws"))
    for scope, status in [
        (websocket_scope("/ws", authorization="Bearer wrong"), 401),
        (websocket_scope("/elsewhere"), 404),
        (websocket_scope("/ws", origin="https://example.org"), 403),
        (websocket_scope("/ws", host="example.org"), 403),
    ]:
        driver = await Driver(service.app, scope, {"type": "websocket.connect"}).ended()
        assert [each["type"].rpartition(".")[2] for each in driver.sent] == ["start", "body"]
        assert driver.status == status
        scope["extensions"] = {}
        driver = await Driver(service.app, scope, {"type": "websocket.connect"}).ended()
        assert [event["type"] for event in driver.sent] == ["websocket.close"]


async def test_a_token_with_the_first_call(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcstream.auth.gate.MAX_AUTH_MESSAGE", 1000)
    driver = await connected((await begin(token="secret")).app)
    for method, value in (("add", 1), ("echo", "x" * 2000), ("rpc.authenticate", "secret")):
        driver.text(call(method, value))
    await driver.has_sent(4)
    driver.text(call("echo", "x" * 2000))
    await driver.has_sent(5)
    refused, long, *rest = driver.messages
    assert (refused["error"]["code"], long["error"]["code"]) == (-32005, -32001)
    assert rest == [reply(1, True), reply(1, "x" * 2000)]
    await closed(driver)


BIG = binary_frame(
    call("array", {"$type": "ndarray", "dtype": "|u1", "shape": [800_000], "data": {"$bin": 0}}), b"\1" * 800_000
)


async def turns() -> None:
    """Let the applications take what they were given."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_largest_frame_gives_way_when_all_take_too_much_memory(begin: Begin) -> None:
    service = await begin(max_message_size=1_200_000, max_held_total=1_400_000)
    kind = {"content_type": "application/x-rpcstream"}
    first = begun(service, BIG[:600_000], **kind)
    await turns()
    second = begun(service, BIG[:700_000], BIG[700_000:], b"", **kind)
    second.body(b"")
    assert "result" in (await second.ended()).json
    first.body(BIG[600_000:])
    assert (await first.ended()).json["error"]["code"] == -32002


async def test_long_bodies_for_which_there_is_no_memory(begin: Begin) -> None:
    service = await begin(max_message_size=1_000_000, max_held_total=1_000_000)
    body = orjson.dumps(call("echo", "x" * 400_000))
    first = begun(service, body[:300_000])
    await turns()
    assert (await begun(service, body[:300_000]).ended()).status == 503
    first.body(body[300_000:])
    assert len((await first.ended()).json["result"]) == 400_000
