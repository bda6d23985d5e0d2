"""HTTP calls and WebSockets as events of an ASGI server, in memory; over uvicorn they are in `tests/conversation`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import Context, Limits
from rpcstream.peer.credentials import Credentials
from rpcstream.testing import connections_of
from rpcstream.web import Request

from ..kit import UsualServer, until
from ..kit import frame as binary_frame
from ..kit.asgi import Driver, call, connected, get, http_scope, post, websocket_scope


class Service(UsualServer):
    """A server as an ASGI application."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)

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
        self.app = self.asgi()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service(drain_timeout=1)
    async with service.app.lifespan():
        yield service


@pytest.fixture(autouse=True)
def _no_errors(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def result(value: Any, call_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": value}


# -- calls ------------------------------------------------------------------------------------------------------------


async def test_a_call(service: Service) -> None:
    answer = await post(service.app, call("add", 1, 2))
    assert (answer.status, answer.json, answer.is_complete) == (200, result(3), True)
    assert answer.headers == {"content-type": "application/json", "content-length": str(len(answer.content))}
    assert (await post(service.app, call("where"))).json == result("127.0.0.1:50412")


async def test_an_error_a_batch_and_a_notification(service: Service) -> None:
    answer = await post(service.app, call("none"))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32601)
    answer = await post(service.app, b"nonsense")
    assert (answer.status, answer.json["error"]["code"]) == (200, -32700)
    answer = await post(service.app, [call("add", 1, 2), call("echo", "x", id="two")])
    assert answer.json == [result(3), result("x", "two")]
    note = {"jsonrpc": "2.0", "method": "wait", "params": ["note"]}
    answer = await post(service.app, note)
    assert (answer.status, answer.content, answer.headers["content-length"]) == (200, b"", "0")
    await until(lambda: service.begun == ["note"])
    service.release()
    await until(lambda: service.ended == [("note", "whole")])


async def test_the_status_of_the_response_to_notifications() -> None:
    service = Service(notification_status=204)
    async with service.app.lifespan():
        answer = await post(service.app, {"jsonrpc": "2.0", "method": "note", "params": [1]})
        assert (answer.status, answer.content, "content-length" in answer.headers) == (204, b"", False)


async def test_a_body_in_pieces(service: Service) -> None:
    body = orjson.dumps(call("echo", "x" * 100_000))
    driver = Driver(service.app, http_scope())
    for at in range(0, len(body), 7_000):
        driver.body(body[at : at + 7_000], more=True)
    driver.body(b"")
    assert (await driver.ended()).json == result("x" * 100_000)


async def test_a_call_that_waits(service: Service) -> None:
    driver = Driver(service.app, http_scope())
    driver.body(orjson.dumps(call("wait", "me")))
    await until(lambda: service.begun == ["me"])
    assert not driver.sent
    service.release()
    assert (await driver.ended()).json == result("me")


async def test_items_as_they_come(service: Service) -> None:
    answer = await post(service.app, call("count", 3), accept="application/x-ndjson")
    assert answer.headers == {"content-type": "application/x-ndjson", "cache-control": "no-store"}
    lines = [orjson.loads(line) for line in answer.content.splitlines()]
    assert [line["params"]["value"] for line in lines[:-1]] == [0, 1, 2]
    assert lines[-1] == result(None)
    assert answer.is_complete
    answer = await post(service.app, call("count", 1), accept="text/event-stream")
    assert answer.content.startswith(b'data: {"jsonrpc":"2.0","method":"$/item"')


async def test_a_producer_waits_for_a_client_that_does_not_read() -> None:
    service = Service(limits=Limits(write_buffer=10_000))
    async with service.app.lifespan():
        driver = Driver(service.app, http_scope(accept="application/x-ndjson"))
        driver.writable.clear()
        driver.body(orjson.dumps(call("numbers", 100_000)))
        await until(lambda: len(service.noted) > 50)
        before = -1
        while before != len(service.noted):
            before = len(service.noted)
            await asyncio.sleep(0.02)
        assert before < 2_000
        driver.writable.set()
        await driver.ended()
        assert driver.content.count(b"\n") == 100_001


async def test_a_binary_frame_comes_and_goes(service: Service) -> None:
    payload = np.arange(10_000, dtype="<f8")
    size = payload.nbytes
    array = {"$type": "ndarray", "dtype": "<f8", "shape": [10_000], "data": {"$bin": 0}}
    body = binary_frame(call("array", array), payload.tobytes())
    frame = {"content_type": "application/x-rpcstream", "accept": "application/json, application/x-rpcstream"}
    driver = Driver(service.app, http_scope(**frame))
    for at in range(0, len(body), 30_000):
        driver.body(body[at : at + 30_000], more=True)
    driver.body(b"")
    await driver.ended()
    assert driver.headers["content-type"] == "application/x-rpcstream"
    assert driver.content[-size:] == (payload * 2).tobytes()
    assert int(driver.headers["content-length"]) == len(driver.content)
    assert all(type(event["body"]) is bytes for event in driver.sent[1:])
    broken = await post(service.app, body[:-1], **frame)
    assert broken.json["error"]["code"] == -32700


# -- what is refused --------------------------------------------------------------------------------------------------


async def test_a_body_that_is_too_long_is_not_read() -> None:
    service = Service(limits=Limits(max_message_size=1000))
    async with service.app.lifespan():
        said = Driver(service.app, http_scope(content_length="1001", transfer_encoding=""))
        assert ((await said.ended()).status, said.asked) == (413, 0)
        unsaid = Driver(service.app, http_scope())
        for _ in range(10):
            unsaid.body(b" " * 600, more=True)
        assert ((await unsaid.ended()).status, unsaid.asked) == (413, 2)
        whole = await post(service.app, b" " * 1001)
        assert whole.status == 413
        frame = Driver(service.app, http_scope(content_type="application/x-rpcstream"))
        frame.body(b"@100 50000\n" + b" " * 50_000, more=True)
        assert ((await frame.ended()).status, frame.asked) == (413, 1)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_encoding": "gzip"}, 415),
        ({"transfer_encoding": ""}, 411),
        ({"expect": "magic"}, 417),
        ({"host": "example.org"}, 403),
        ({"origin": "https://example.org"}, 403),
        ({"path": "/elsewhere"}, 404),
    ],
)
async def test_a_call_that_is_refused(service: Service, headers: dict[str, str], status: int) -> None:
    answer = await post(service.app, call("add", 1, 2), root="/rpc", **headers)
    assert answer.status == status
    if status == 404:
        assert answer.content == b"there is nothing here; calls go to /rpc/\n"


async def test_without_a_length_in_http_2(service: Service) -> None:
    driver = Driver(service.app, {**http_scope(transfer_encoding=""), "http_version": "2"})
    driver.body(orjson.dumps(call("add", 1, 2)))
    assert (await driver.ended()).json == result(3)


async def test_binary_frames_may_be_switched_off() -> None:
    service = Service(binary=False)
    async with service.app.lifespan():
        assert (await post(service.app, b"@", content_type="application/x-rpcstream")).status == 415


async def test_tokens() -> None:
    service = Service(token="correct horse".replace(" ", "-"))
    async with service.app.lifespan():
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = await post(service.app, call("add", 1, 2), **headers)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert (await get(service.app, "/page", **headers)).status == 401
        right = {"authorization": "Bearer correct-horse"}
        assert (await post(service.app, call("add", 1, 2), **right)).json == result(3)
        assert (await get(service.app, "/page", **right)).status == 200
        assert (await get(service.app, "/healthz")).status == 200
        assert service.stats()["not_authenticated"] == 4


async def test_an_async_function_that_knows_the_callers() -> None:
    async def authenticate(credentials: Credentials) -> str | None:
        await asyncio.sleep(0)
        assert credentials.address == "127.0.0.1:50412"
        return {"a": "Ann"}.get(credentials.token or "")

    service = Service(authenticate=authenticate)
    async with service.app.lifespan():
        assert (await post(service.app, call("who"), authorization="Bearer a")).json == result("Ann")
        assert (await post(service.app, call("who"), authorization="Bearer b")).status == 401
        driver = await connected(service.app, authorization="Bearer a")
        driver.text(call("who"))
        await driver.has_sent(2)
        assert driver.messages == [result("Ann")]
        driver.close()
        await driver.ended()


async def test_too_many_requests_at_once() -> None:
    service = Service(limits=Limits(max_connections=1))
    async with service.app.lifespan():
        first = Driver(service.app, http_scope())
        first.body(orjson.dumps(call("wait")))
        await until(lambda: service.begun)
        answer = await post(service.app, call("add", 1, 2))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        service.release()
        assert (await first.ended()).status == 200
        assert (await post(service.app, call("add", 1, 2))).json == result(3)


# -- pages ------------------------------------------------------------------------------------------------------------


async def test_pages_below_a_mount(service: Service) -> None:
    answer = await get(service.app, "/page?a=1", root="/rpc")
    assert answer.json == {"path": "/page", "root": "/rpc", "target": "/rpc/page?a=1"}
    assert (await get(service.app, "/healthz", root="/rpc")).content == b"ok"
    answer = await get(service.app, "/healthz", method="HEAD")
    assert (answer.status, answer.content, answer.headers["content-length"]) == (200, b"", "2")
    answer = await get(service.app, "/", root="/rpc")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert (await get(service.app, "", root="/rpc")).status == 405
    assert (await get(service.app, "/none")).status == 404
    assert (await get(service.app, "/a\0b")).status == 400


async def test_a_slash_at_the_end_is_forgiven() -> None:
    service = Service(path=["/", "/calls"], mcp=True)

    @service.get("/kept/")
    def kept(request: Request) -> str:
        return request.path

    async with service.app.lifespan():
        assert (await get(service.app, "/page/", root="/rpc")).json["path"] == "/page"
        assert (await get(service.app, "/healthz/")).content == b"ok"
        assert (await get(service.app, "/kept/")).content == b"/kept/"
        assert (await get(service.app, "/kept")).status == 404
        assert (await get(service.app, "/page//")).status == 404
        assert (await get(service.app, "/mcp/")).status == 405
        assert (await post(service.app, call("add", 1, 2), path="/calls/")).json == result(3)
        socket = await connected(service.app, path="/calls/")
        socket.close()
        await socket.ended()


async def test_a_page_whose_reader_leaves_is_cancelled(service: Service) -> None:
    driver = Driver(service.app, http_scope("GET", "/slow"))
    driver.body(b"")
    await until(lambda: service.begun == [None])
    driver.leave()
    await driver.ended()
    await until(lambda: service.ended)


# -- clients that leave, or do not go on ------------------------------------------------------------------------------


async def test_a_client_that_leaves_cancels_its_call(service: Service) -> None:
    driver = Driver(service.app, http_scope())
    driver.body(orjson.dumps(call("wait", "gone")))
    await until(lambda: service.begun == ["gone"])
    driver.leave()
    await driver.ended()
    await until(lambda: service.ended == [("gone", "CancelledError")])
    assert not driver.sent
    assert not connections_of(service)


async def test_a_client_that_leaves_within_its_body(service: Service) -> None:
    driver = Driver(service.app, http_scope())
    driver.body(b'{"jsonrpc"', more=True)
    driver.leave()
    await driver.ended()
    assert not connections_of(service)


async def test_an_application_that_is_cancelled_cancels_the_call(service: Service) -> None:
    driver = Driver(service.app, http_scope())
    driver.body(orjson.dumps(call("wait", "cut")))
    await until(lambda: service.begun == ["cut"])
    driver.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driver.task
    await until(lambda: service.ended == [("cut", "CancelledError")])


async def test_a_body_that_does_not_end(service: Service) -> None:
    slow = Service(limits=Limits(message_timeout=0.05))
    async with slow.app.lifespan():
        driver = Driver(slow.app, http_scope())
        driver.body(b'{"jsonrpc"', more=True)
        assert (await driver.ended()).status == 408
        assert slow.stats()["closed_for_limits"] == 1


async def test_a_client_that_does_not_read_its_response() -> None:
    service = Service(limits=Limits(write_timeout=0.05))
    async with service.app.lifespan():
        driver = Driver(service.app, http_scope())
        driver.writable.clear()
        driver.body(orjson.dumps(call("echo", "x" * 1000)))
        await driver.ended()
        assert not driver.sent
        assert service.stats()["closed_for_limits"] == 1


async def test_a_call_in_flight_is_answered_when_the_server_stops(service: Service) -> None:
    begun, unread, silent = (Driver(service.app, http_scope()) for _ in range(3))
    begun.body(orjson.dumps(call("wait", "in flight")))
    unread.body(b'{"jsonrpc"', more=True)
    await until(lambda: service.begun)
    service.stop()
    assert (await unread.ended()).status == 503
    assert unread.json["error"]["data"] == {"executed": False, "reason": "the server is stopping"}
    assert (await silent.ended()).status == 503
    assert (await get(service.app, "/readyz")).content == b"draining"
    late = await post(service.app, call("add", 1, 2))
    assert (late.status, late.json["error"]["data"]["executed"]) == (503, False)
    service.release()
    assert (await begun.ended()).json == result("in flight")
    await until(lambda: not service.is_running)
    stopped = await post(service.app, call("add", 1, 2))
    assert (stopped.status, stopped.content) == (503, b"the server has stopped\n")


async def test_a_call_that_outlasts_the_stop_is_cut_off() -> None:
    service = Service(drain_timeout=0.05)
    async with service.app.lifespan():
        driver = Driver(service.app, http_scope())
        driver.body(orjson.dumps(call("wait", "long")))
        await until(lambda: service.begun)
    await driver.ended()
    assert (driver.status, driver.content) == (504, b"the server stopped\n")
    assert service.ended == [("long", "CancelledError")]


# -- WebSockets -------------------------------------------------------------------------------------------------------


async def test_messages_of_a_websocket(service: Service) -> None:
    driver = await connected(service.app, subprotocols=("other", "jsonrpc-2.0"))
    assert driver.sent[0]["subprotocol"] == "jsonrpc-2.0"
    driver.text(call("add", 1, 2))
    driver.give({"type": "websocket.receive", "bytes": orjson.dumps(call("echo", "bytes", id=2)), "text": None})
    driver.text("nonsense")
    driver.text([call("add", 3, 4, id=3)])
    await driver.has_sent(5)
    first, second, third, fourth = driver.messages
    assert (first, second, fourth) == (result(3), result("bytes", 2), [result(7, 3)])
    assert third["error"]["code"] == -32700
    driver.close()
    await driver.ended()
    assert not connections_of(service)


async def test_a_client_that_closes_its_websocket_cancels_its_calls(service: Service) -> None:
    driver = await connected(service.app)
    driver.text(call("wait", "gone"))
    await until(lambda: service.begun == ["gone"])
    driver.close(1006)
    await driver.ended()
    await until(lambda: service.ended == [("gone", "CancelledError")])


async def test_a_message_that_is_too_long_keeps_the_websocket_open() -> None:
    service = Service(limits=Limits(max_message_size=1000))
    async with service.app.lifespan():
        driver = await connected(service.app)
        driver.text(call("echo", "x" * 2000, id="long"))
        driver.text(call("add", 1, 2))
        await driver.has_sent(3)
        long, short = driver.messages
        assert (long["id"], long["error"]["code"], short) == ("long", -32001, result(3))
        driver.close()
        await driver.ended()


@pytest.mark.parametrize("broken", [b"@nonsense", b"@2 8       \n{}"])
async def test_a_malformed_frame_ends_the_websocket(service: Service, broken: bytes) -> None:
    driver = await connected(service.app)
    driver.text(call("add", 1, 2))
    driver.give({"type": "websocket.receive", "bytes": broken})
    await driver.ended()
    assert driver.messages[0] == result(3)
    assert driver.messages[1]["error"]["code"] == -32700
    assert (driver.sent[-1]["type"], driver.sent[-1]["code"]) == ("websocket.close", 1007)


async def test_text_that_is_not_unicode_ends_the_websocket(service: Service) -> None:
    driver = await connected(service.app)
    driver.text("\ud800")
    await driver.ended()
    assert driver.sent[-1]["code"] == 1007


async def test_a_websocket_is_told_that_the_server_stops(service: Service) -> None:
    driver = await connected(service.app)
    driver.text(call("wait", "in flight"))
    await until(lambda: service.begun)
    service.stop()
    await driver.has_sent(2)
    assert driver.messages[0]["method"] == "$/goAway"
    service.release()
    await driver.ended()
    assert driver.messages[1] == result("in flight")
    assert driver.sent[-1] == {"type": "websocket.close", "code": 1001, "reason": ""}


async def test_nothing_is_read_of_a_client_whose_calls_fill_the_server() -> None:
    service = Service(limits=Limits(max_calls=1, max_message_size=1000))
    async with service.app.lifespan():
        driver = await connected(service.app)
        for number in range(1000):
            driver.text(call("wait", number, "x" * 500, id=number) if number > 1 else call("wait", number, id=number))
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


async def test_a_websocket_that_is_refused() -> None:
    service = Service(token="secret", path="/ws")
    async with service.app.lifespan():
        for scope, status in [
            (websocket_scope("/ws", authorization="Bearer wrong"), 401),
            (websocket_scope("/elsewhere"), 404),
            (websocket_scope("/ws", origin="https://example.org"), 403),
            (websocket_scope("/ws", host="example.org"), 403),
        ]:
            driver = await Driver(service.app, scope, {"type": "websocket.connect"}).ended()
            assert [event["type"] for event in driver.sent] == [
                "websocket.http.response.start",
                "websocket.http.response.body",
            ]
            assert driver.status == status
            scope["extensions"] = {}
            driver = await Driver(service.app, scope, {"type": "websocket.connect"}).ended()
            assert [event["type"] for event in driver.sent] == ["websocket.close"]


async def test_a_token_with_the_first_call() -> None:
    service = Service(token="secret", limits=Limits(auth_message_size=1000))
    async with service.app.lifespan():
        driver = await connected(service.app)
        driver.text(call("add", 1, 2))
        driver.text(call("echo", "x" * 2000))
        driver.text(call("rpc.authenticate", "secret"))
        driver.text(call("echo", "x" * 2000))
        await driver.has_sent(5)
        refused, long, *rest = driver.messages
        assert (refused["error"]["code"], long["error"]["code"]) == (-32005, -32001)
        assert rest == [result(True), result("x" * 2000)]
        driver.close()
        await driver.ended()


async def test_a_websocket_whose_client_does_not_read_is_closed() -> None:
    service = Service(limits=Limits(write_timeout=0.05, write_buffer=1000))
    async with service.app.lifespan():
        driver = await connected(service.app)
        driver.writable.clear()
        driver.text(call("echo", "x" * 5000))
        await driver.ended()
        assert service.stats()["closed_for_limits"] == 1


async def test_send_that_fails_ends_the_connection_quietly(service: Service) -> None:
    driver = await connected(service.app)
    driver.is_gone = True
    driver.text(call("wait", "lost"))
    driver.text(call("add", 1, 2))
    await driver.ended()
    await until(lambda: service.ended == [("lost", "CancelledError")])


# -- memory -----------------------------------------------------------------------------------------------------------

BIG = binary_frame(
    call("array", {"$type": "ndarray", "dtype": "|u1", "shape": [800_000], "data": {"$bin": 0}}), b"\1" * 800_000
)


def frames_by_http(service: Service, *pieces: bytes) -> Driver:
    """The beginning of a body that is a frame."""
    driver = Driver(service.app, http_scope(content_type="application/x-rpcstream"))
    for piece in pieces:
        driver.body(piece, more=True)
    return driver


async def turns() -> None:
    """Let the applications take what they were given."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("behind", [b"", b"x"])
@pytest.mark.parametrize("over", ["http", "websocket"])
async def test_a_frame_waits_for_memory(over: str, behind: bytes) -> None:
    """Until the one that has it is whole, or its client leaves."""
    service = Service(limits=Limits(max_message_size=1_200_000, max_held_total=1_400_000))
    async with service.app.lifespan():
        first = frames_by_http(service, BIG[:600_000])
        await turns()
        if over == "http":
            second = frames_by_http(service, BIG[:700_000], BIG[700_000:] + behind, b"")
            second.body(b"")
        else:
            second = await connected(service.app)
            second.give({"type": "websocket.receive", "bytes": BIG + behind})
            second.text(call("add", 1, 2, id="behind"))
        await turns()
        assert second.asked <= 2 + (over == "websocket")  # no more is read meanwhile
        assert not second.sent[over == "websocket" :]
        if behind:
            first.leave()
            await first.ended()
        else:
            first.body(BIG[600_000:])
            assert "result" in (await first.ended()).json
        if over == "http":
            assert ("result" in (await second.ended()).json) is not bool(behind)
        elif behind:
            await second.ended()
            assert second.messages[0]["error"]["code"] == -32700
            assert second.sent[-1]["code"] == 1007
        else:
            await second.has_sent(3)
            assert [each["id"] for each in second.messages] == [1, "behind"]
            second.close()
            await second.ended()


async def test_long_bodies_for_which_there_is_no_memory() -> None:
    service = Service(limits=Limits(max_message_size=1_000_000, max_held_total=1_000_000))
    async with service.app.lifespan():
        first, second = Driver(service.app, http_scope()), Driver(service.app, http_scope())
        body = orjson.dumps(call("echo", "x" * 400_000))
        first.body(body[:300_000], more=True)
        await turns()
        second.body(body[:300_000], more=True)
        assert (await second.ended()).status == 503
        first.body(body[300_000:])
        assert len((await first.ended()).json["result"]) == 400_000
