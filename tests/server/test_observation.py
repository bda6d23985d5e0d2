"""What is observed of a server: every way in which a call ends is counted once, on every transport."""

from __future__ import annotations

import asyncio
import gc
import http.client
import logging
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from rpcstream import CallNext, Client, Context, Hub, InvalidParams, Limits, MethodCall, RpcError, Server
from rpcstream.testing import drop_connections, memory_client, serve_in_thread, wait_until_idle
from rpcstream.wire import envelope

from ..kit import authority, server_tls, until
from ..kit.asgi import Driver, call, connected, http_scope, post
from ..kit.raw_connection import raw_connections
from ..methods.worker_functions import add as add_elsewhere
from ..observe.reading import check_with_promtool, outcomes, value


def make_server(**options: Any) -> Server:
    server = Server(**{"metrics": True, **options})

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def add_later(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    @server(offload="thread")
    def add_in_thread(a: int, b: int) -> int:
        return a + b

    @server
    def fail(code: int) -> None:
        raise RpcError(code, "as asked")

    @server
    async def fail_later(code: int) -> None:
        await asyncio.sleep(0)
        raise RpcError(code, "as asked")

    @server
    def break_down() -> None:
        raise ZeroDivisionError

    @server
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    @server
    async def count_later(n: int) -> AsyncIterator[int]:
        for number in range(n):
            await asyncio.sleep(0)
            yield number

    @server
    def who(ctx: Context) -> str:
        return ctx.method

    @server(timeout=0.01)
    async def wait() -> None:
        await asyncio.Event().wait()

    @server
    async def hang() -> None:
        await asyncio.Event().wait()

    return server


class Lines(logging.Handler):
    """The lines that a logger writes while the block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def lines_of(name: str) -> Iterator[list[str]]:
    logger, handler = logging.getLogger(name), Lines()
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


class TestOutcomes:
    async def test_results_of_every_kind_of_handler(self) -> None:
        server = make_server()
        async with memory_client(server) as client:
            for name in ("add", "add_later", "add_in_thread"):
                assert await client.request(name, [1, 2]) == 3
                assert await client.request(name, [3, 4]) == 7
            assert await client.request("count", [3]) == [0, 1, 2]
            assert await client.request("count_later", [3]) == [0, 1, 2]
            assert [item async for item in client.stream("count", 3)] == [0, 1, 2]
            assert [item async for item in client.stream("count_later", 3)] == [0, 1, 2]
            assert await client.request("who") == "who"
            text = server.metrics_text()
        assert outcomes(text) == {
            ("add", "0"): 2,
            ("add_later", "0"): 2,
            ("add_in_thread", "0"): 2,
            ("count", "0"): 2,
            ("count_later", "0"): 2,
            ("who", "0"): 1,
        }
        assert value(text, "rpcstream_call_duration_seconds_count", method="add_later") == 2
        check_with_promtool(text)

    async def test_errors_by_their_code(self) -> None:
        server = make_server()
        async with memory_client(server) as client:
            for name, params in (
                ("fail", [7]),
                ("fail_later", [7]),
                ("fail_later", [7]),
                ("fail", ["no number"]),
                ("break_down", []),
                ("wait", []),
                ("nothing_like_it", []),
                ("add_in_thread", [1]),
            ):
                with pytest.raises(RpcError):
                    await client.request(name, params)
            text = server.metrics_text()
        assert outcomes(text) == {
            ("fail", "7"): 1,
            ("fail_later", "7"): 2,
            ("fail", "-32602"): 1,
            ("break_down", "-32603"): 1,
            ("wait", "-32003"): 1,
            (UNKNOWN, "-32601"): 1,
            ("add_in_thread", "-32602"): 1,
        }

    async def test_an_error_is_not_counted_with_the_result_behind_it(self) -> None:
        server = make_server()
        async with raw_connections(server) as connect:
            peer = await connect()
            lines = [orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "fail", "params": [7]})]
            lines += [orjson.dumps({"jsonrpc": "2.0", "method": "fail", "params": [8]})]  # a notification
            lines += [orjson.dumps({"jsonrpc": "2.0", "method": "add", "params": [1, 2]})]
            lines += [orjson.dumps({"jsonrpc": "2.0", "id": 2, "method": "add", "params": [1, 2]})]
            await peer.send(b"\n".join(lines) + b"\n")
            assert [(await peer.reply())["id"], (await peer.reply())["id"]] == [1, 2]
            assert outcomes(server.metrics_text()) == {("fail", "7"): 1, ("fail", "8"): 1, ("add", "0"): 2}

    async def test_a_cancelled_call(self) -> None:
        server = make_server()
        async with memory_client(server) as client:
            task = asyncio.ensure_future(client.request("hang"))
            await until(lambda: value(server.metrics_text(), "rpcstream_calls_in_flight") == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.request("add", [1, 2])
            await wait_until_idle(server)
            text = server.metrics_text()
        assert outcomes(text) == {("hang", "-32800"): 1, ("add", "0"): 1}
        assert value(text, "rpcstream_calls_in_flight") == 0

    async def test_calls_whose_caller_is_lost(self) -> None:
        server = make_server()
        async with memory_client(server) as client:
            tasks = [asyncio.ensure_future(client.request("hang")) for _ in range(3)]
            await until(lambda: value(server.metrics_text(), "rpcstream_calls_in_flight") == 3)
            drop_connections(server)
            await asyncio.gather(*tasks, return_exceptions=True)
            await wait_until_idle(server)
            assert outcomes(server.metrics_text())["hang", "-32800"] == 3

    async def test_calls_that_are_cancelled_before_they_begin(self) -> None:
        server = make_server(limits=Limits(max_calls=2))
        async with raw_connections(server) as connect:
            peer = await connect()
            hang = '{"jsonrpc":"2.0","id":%s,"method":"hang"}\n'
            await peer.send(hang % 1 + hang % 3 + '{"jsonrpc":"2.0","id":2,"method":"add"}\n')
            await until(lambda: value(server.metrics_text(), "rpcstream_requests_waiting") == 1)
            for call_id in (2, 1, 3):
                await peer.send(envelope.cancel(call_id) + b"\n")
            assert {(await peer.reply())["id"] for _ in range(3)} == {1, 2, 3}
            text = server.metrics_text()
        assert outcomes(text) == {("hang", "-32800"): 2, ("add", "-32800"): 1}
        assert value(text, "rpcstream_call_duration_seconds_count", method="add") == 0

    @pytest.mark.parametrize(
        ("line", "code"),
        [
            ("no json", "-32700"),
            ("5", "-32600"),
            ("[]", "-32600"),
            ('{"id":1}', "-32600"),
            ('{"jsonrpc":"2.0","id":1,"method":["add"]}', "-32600"),
            ('{"jsonrpc":"2.0","id":1,"method":5}', "-32600"),
            ("[" * 200 + "]" * 200, "-32600"),
            ("[" + ",".join(['{"jsonrpc":"2.0","method":"add"}'] * 20) + "]", "-32004"),
            ("x" * 5000, "-32001"),
        ],
    )
    async def test_what_is_no_request_is_counted_as_unknown(self, line: str, code: str) -> None:
        server = make_server(limits=Limits(max_batch=10, max_message_size=4096))
        async with raw_connections(server) as connect:
            peer = await connect()
            await peer.ask(line)
            assert outcomes(server.metrics_text()) == {(UNKNOWN, code): 1}

    async def test_members_of_a_batch_are_counted_one_by_one(self) -> None:
        server = make_server()
        members = [
            {"jsonrpc": "2.0", "id": 1, "method": "add", "params": [1, 2]},
            {"jsonrpc": "2.0", "id": 2, "method": "add_later", "params": [1, 2]},
            {"jsonrpc": "2.0", "id": 3, "method": "fail", "params": [7]},
            {"jsonrpc": "2.0", "method": "add", "params": [1, 2]},
            {"jsonrpc": "2.0", "id": 4, "method": "nothing"},
            {"jsonrpc": "2.0", "id": 5, "method": "fail_later", "params": [9]},
        ]
        async with raw_connections(server) as connect:
            peer = await connect()
            assert len(await peer.ask(orjson.dumps(members))) == 5
            text = server.metrics_text()
        assert outcomes(text) == {
            ("add", "0"): 2,
            ("add_later", "0"): 1,
            ("fail", "7"): 1,
            (UNKNOWN, "-32601"): 1,
            ("fail_later", "9"): 1,
        }

    async def test_in_worker_processes_and_micro_batches(self) -> None:
        server = make_server(processes=1)
        server.add(add_elsewhere, name="elsewhere", offload="process")

        @server.batched(max_size=4, max_wait=0.001)
        def double(numbers: list[int]) -> list[int]:
            return [2 * number for number in numbers]

        async with memory_client(server) as client:
            assert await client.request("elsewhere", [1, 2]) == 3
            assert await asyncio.gather(*(client.request("double", [number]) for number in range(4))) == [0, 2, 4, 6]
            text = server.metrics_text()
        assert outcomes(text) == {("elsewhere", "0"): 1, ("double", "0"): 4}
        assert value(text, "rpcstream_worker_processes") == 1

    async def test_ten_thousand_names_that_do_not_exist_are_one_label(self) -> None:
        server = make_server()
        async with raw_connections(server) as connect:
            peer = await connect()
            calls = [{"jsonrpc": "2.0", "id": n, "method": f'"made\nup {n}'} for n in range(10_000)]
            sending = asyncio.ensure_future(peer.send(b"\n".join(map(orjson.dumps, calls)) + b"\n"))
            for _ in calls:
                assert (await peer.reply())["error"]["code"] == -32601
            await sending
            text = server.metrics_text()
        assert outcomes(text) == {(UNKNOWN, "-32601"): 10_000}
        assert "made" not in text

    async def test_codes_that_a_handler_makes_up_have_a_bound(self) -> None:
        server = make_server()
        async with memory_client(server) as client:
            for code in range(1, MAX_OWN_CODES + 11):
                with pytest.raises(RpcError):
                    await client.request("fail", [code])
            found = outcomes(server.metrics_text())
        assert len(found) == MAX_OWN_CODES + 1
        assert found["fail", OTHER] == 10

    async def test_the_time_of_middleware_belongs_to_the_call(self) -> None:
        server = make_server()

        @server.middleware
        async def refuse_sevens(call: MethodCall, call_next: CallNext) -> Any:
            if 7 in call.arguments.values():
                raise InvalidParams("no sevens")
            return await call_next(call)

        async with memory_client(server) as client:
            assert await client.request("add", [1, 2]) == 3
            with pytest.raises(InvalidParams):
                await client.request("add", [7, 2])
            assert outcomes(server.metrics_text()) == {("add", "0"): 1, ("add", "-32602"): 1}

    async def test_logins_and_what_comes_before_them(self) -> None:
        server = make_server(token="correct-horse")
        async with raw_connections(server) as connect:
            peer = await connect()
            assert "error" in await peer.call("add", [1, 2])
            assert "error" in await peer.call("made up")
            assert "error" in await peer.call("rpc.authenticate", {"token": "wrong"})
            assert (await peer.call("rpc.authenticate", {"token": "correct-horse"}))["result"] is True
            assert (await peer.call("add", [1, 2]))["result"] == 3
            text = server.metrics_text()
        assert outcomes(text) == {
            ("add", "-32005"): 1,
            (UNKNOWN, "-32005"): 1,
            ("rpc.authenticate", "-32005"): 1,
            ("rpc.authenticate", "0"): 1,
            ("add", "0"): 1,
        }
        assert value(text, "rpcstream_logins_refused_total") == 1

    async def test_a_server_without_metrics_has_none(self) -> None:
        server = make_server(metrics=False)
        async with memory_client(server) as client:
            await client.request("add", [1, 2])
            with pytest.raises(RuntimeError, match="has no metrics"):
                server.metrics_text()


class TestDuration:
    async def test_a_slow_call_is_in_a_later_bucket(self) -> None:
        server = make_server()
        blocked = threading.Event()
        server.add(lambda: blocked.wait(20) and None, name="block", offload="thread")
        async with memory_client(server) as client:
            task = asyncio.ensure_future(client.request("block"))
            await asyncio.sleep(0.06)
            text = server.metrics_text()
            assert value(text, "rpcstream_offload_busy", kind="thread") == 1
            blocked.set()
            await task
            text = server.metrics_text()
        assert value(text, "rpcstream_call_duration_seconds_bucket", method="block", le="0.05") == 0
        assert value(text, "rpcstream_call_duration_seconds_bucket", method="block", le="+Inf") == 1
        assert (value(text, "rpcstream_call_duration_seconds_sum", method="block") or 0) >= 0.05

    async def test_the_time_in_the_queue_counts(self) -> None:
        server = make_server(limits=Limits(max_calls=1))

        @server
        async def pause() -> None:
            await asyncio.sleep(0.06)

        async with raw_connections(server) as connect:
            peer = await connect()
            await peer.send(
                '{"jsonrpc":"2.0","id":1,"method":"pause"}\n{"jsonrpc":"2.0","id":2,"method":"add","params":[1,2]}\n'
            )
            assert [(await peer.reply())["id"], (await peer.reply())["id"]] == [1, 2]
            text = server.metrics_text()
        assert value(text, "rpcstream_call_duration_seconds_bucket", method="add", le="0.05") == 0


def ask(address: str, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, text in headers.items():
            connection.putheader(name, text)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, {name.lower(): text for name, text in response.getheaders()}, response.read().decode()
    finally:
        connection.close()


class TestPage:
    def test_it_is_the_text_format_of_prometheus(self) -> None:
        with serve_in_thread(make_server()) as address:
            status, headers, text = ask(address)
            assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            assert headers["cache-control"] == "no-store"
            assert value(text, "rpcstream_connections", transport="http") == 1
            assert ask(address, method="HEAD")[2] == ""
            assert ask(address, method="PUT")[0] == 405
            check_with_promtool(text)

    def test_without_the_option_there_is_no_such_page(self) -> None:
        with serve_in_thread(make_server(metrics=False)) as address:
            assert ask(address)[0] == 404

    def test_a_token_is_wanted_unless_the_metrics_are_public(self) -> None:
        with serve_in_thread(make_server(token="correct-horse")) as address:
            assert ask(address)[0] == 401
            assert ask(address, Authorization="Bearer wrong")[0] == 401
            assert ask(address, Authorization="Bearer correct-horse")[0] == 200
        with serve_in_thread(make_server(token="correct-horse", metrics="public")) as address:
            assert ask(address)[0] == 200

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("10.1.2.3:9000", 200),
            ("[2001:db8::1]:9000", 200),
            ("evil.example", 403),
            ("10.1.2.3.evil.example", 403),
            ("0x7f.1", 403),
        ],
    )
    def test_it_is_asked_for_by_address_or_by_a_name_of_the_server(self, host: str, status: int) -> None:
        with serve_in_thread(make_server()) as address:
            assert ask(address, Host=host)[0] == status
            assert ask(address, Host=host, Origin="https://evil.example")[0] == 403
            assert ask(address, "/", method="POST", Host=host)[0] == 403

    def test_a_route_of_the_user_has_its_path(self) -> None:
        server = make_server()
        server.static("/metrics", b"mine")
        with serve_in_thread(server) as address:
            assert ask(address)[2] == "mine"
            assert ask(address, Host="10.1.2.3")[0] == 403


class TestTransports:
    @pytest.mark.parametrize("transport", ["tcp", "tls", "unix", "http", "websocket"])
    def test_calls_and_connections(self, transport: str, tmp_path: Path) -> None:
        server = make_server(access_log="json", tls=server_tls() if transport == "tls" else None)
        where = {"unix": tmp_path / "s"} if transport == "unix" else {}
        with lines_of("rpcstream.access") as lines, serve_in_thread(server, **where) as address:
            scheme = {"tls": "tls://", "http": "http://", "websocket": "ws://"}.get(transport, "")
            options: dict[str, Any] = {"ca": authority()} if transport == "tls" else {}
            with Client(scheme + address, **options) as client:
                assert client.request("add", [1, 2]) == 3
                assert client.request("add_later", [1, 2]) == 3
                shown = server.metrics_text()
        assert value(shown, "rpcstream_connections", transport=transport) == 1
        assert outcomes(shown) == {("add", "0"): 1, ("add_later", "0"): 1}
        assert [(line["transport"], line["method"], line["code"]) for line in map(orjson.loads, lines)] == [
            (transport, "add", 0),
            (transport, "add_later", 0),
        ]

    async def test_under_an_asgi_server(self) -> None:
        server = make_server(access_log="json")
        app = server.asgi()
        with lines_of("rpcstream.access") as lines:
            answer = await post(app, call("add", 1, 2))
            assert answer.json["result"] == 3
            asked = Driver(app, http_scope())
            asked.body(orjson.dumps(call("hang")))
            websocket = await connected(app)
            websocket.text(call("add_later", 1, 2))
            await until(lambda: websocket.messages and value(server.metrics_text(), "rpcstream_calls_in_flight") == 1)
            shown = server.metrics_text()
            asked.leave()
            websocket.close()
            await asyncio.gather(asked.ended(), websocket.ended())
            await until(lambda: len(lines) == 3)
        assert value(shown, "rpcstream_connections", transport="http") == 1
        assert value(shown, "rpcstream_connections", transport="websocket") == 1
        assert value(shown, "rpcstream_connections_accepted_total") == 3
        assert outcomes(shown) == {("add", "0"): 1, ("add_later", "0"): 1}
        assert [(line["transport"], line["method"], line["address"]) for line in map(orjson.loads, lines)] == [
            ("http", "add", "127.0.0.1:50412"),
            ("websocket", "add_later", "127.0.0.1:50412"),
            ("http", "hang", "127.0.0.1:50412"),
        ]
        server.stop()
        await until(lambda: not server.is_running)
        assert "rpcstream_connections{" not in server.metrics_text()

    async def test_in_memory(self) -> None:
        server = make_server(access_log="json")
        with lines_of("rpcstream.access") as lines:
            async with memory_client(server) as client:
                await client.request("add", [1, 2])
                assert value(server.metrics_text(), "rpcstream_connections_accepted_total") == 1
        assert orjson.loads(lines[0])["transport"] == "memory"


class TestAccessLog:
    async def test_a_line_for_each_call(self) -> None:
        server = make_server(metrics=False, authenticate=lambda credentials: {"s3cret": "alice"}.get(credentials.token))
        server.observe(access_log="json")
        with lines_of("rpcstream.access") as lines:
            async with raw_connections(server) as connect:
                peer = await connect()
                await peer.call("add", [1, 2], call_id="early")
                await peer.call("rpc.authenticate", ["s3cret"], call_id=0)
                request = {"jsonrpc": "2.0", "id": "\n7", "method": "fail", "params": [7]}
                reply = await peer.ask(orjson.dumps(request))
                await peer.send('{"jsonrpc":"2.0","method":"add_later","params":[1,2]}\n')
                await peer.call("rpc.ping")
                address = "{}:{}".format(*peer.writer.get_extra_info("sockname"))
        found = [orjson.loads(line) for line in lines]
        found.sort(key=lambda line: line["id"] is None)  # when the notification ends is not known
        assert [(line["identity"], line["method"], line["id"], line["code"]) for line in found] == [
            (None, "add", "early", -32005),
            ("alice", "rpc.authenticate", 0, 0),
            ("alice", "fail", "\n7", 7),
            *sorted(
                [("alice", "add_later", None, 0), ("alice", "rpc.ping", 1, 0)],
                key=lambda line: found[3]["method"] != line[1],
            ),
        ]
        assert found[2]["address"] == address
        assert found[2]["request_bytes"] == len(orjson.dumps(request))
        assert found[2]["reply_bytes"] == len(orjson.dumps(reply))
        assert not any("s3cret" in line or "params" in line for line in lines)

    async def test_members_of_a_batch_have_lines_of_their_own(self) -> None:
        server = make_server(access_log="text")
        with lines_of("rpcstream.access") as lines:
            async with raw_connections(server) as connect:
                peer = await connect()
                member = '{"jsonrpc":"2.0","id":%d,"method":"add","params":[1,2]}'
                await peer.ask(f"[{member % 1},{member % 2}]")
        assert [line.partition(" add ")[2].partition(" ms=")[0] for line in lines] == ["id=1 code=0", "id=2 code=0"]

    async def test_it_is_off_by_default(self) -> None:
        with lines_of("rpcstream.access") as lines:
            async with memory_client(make_server()) as client:
                await client.request("add", [1, 2])
        assert lines == []


class TestSlowCalls:
    async def test_a_call_that_took_longer_is_named(self) -> None:
        server = make_server(metrics=False, log_slow_calls=0.02)

        @server
        async def pause(seconds: float) -> None:
            await asyncio.sleep(seconds)

        with lines_of("rpcstream.server") as lines:
            async with memory_client(server) as client:
                await client.request("pause", [0.0])
                await client.request("pause", [0.03])
        (line,) = [line for line in lines if "slow call" in line]
        assert re.match(r"slow call: pause took \d+\.\d{3} s ", line)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"metrics": "yes"}, "metrics must be True, False or 'public', got 'yes'"),
            ({"access_log": "xml"}, "access_log must be 'text', 'json' or None, got 'xml'"),
            ({"log_slow_calls": 0}, "log_slow_calls must be a positive number of seconds, or None, got 0"),
            ({"log_slow_calls": float("nan")}, "log_slow_calls must be a positive number of seconds, or None, got nan"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            Server(**options)

    async def test_a_running_server_is_not_changed(self) -> None:
        server = make_server()
        async with memory_client(server):
            with pytest.raises(RuntimeError, match="running already"):
                server.observe(metrics=True)


async def test_streams_are_counted_while_they_are_open() -> None:
    server = make_server()
    async with memory_client(server) as client:
        stream = client.stream("count", 100_000)
        await anext(aiter(stream))
        assert value(server.metrics_text(), "rpcstream_streams_open") == 1
        await stream.aclose()
        await client.request("add", [1, 2])
        await wait_until_idle(server)
        assert value(server.metrics_text(), "rpcstream_streams_open") == 0


async def test_events_are_counted() -> None:
    server = make_server()
    async with memory_client(server) as client, client.subscribe("ticks") as ticks:
        server.publish("ticks", 1)
        assert await asyncio.wait_for(anext(aiter(ticks)), 20) == 1
        text = server.metrics_text()
    assert value(text, "rpcstream_subscriptions") == 1
    assert value(text, "rpcstream_events_published_total") == 1
    assert value(text, "rpcstream_events_sent_total") == 1


async def test_no_coroutine_is_left_behind_by_calls_that_never_begin() -> None:
    server = make_server(limits=Limits(max_calls=2))
    async with raw_connections(server) as connect:
        for _ in range(5):
            peer = await connect()
            members = [{"jsonrpc": "2.0", "id": number, "method": "hang"} for number in range(20)]
            await peer.send(orjson.dumps(members) + b"\n")
            await asyncio.sleep(0.01)
            drop_connections(server)
            await wait_until_idle(server)
        gc.collect()  # a coroutine that was never awaited is a warning, and so an error
        found = outcomes(server.metrics_text())
    assert found.keys() == {("hang", "-32800")}
    assert found["hang", "-32800"] >= 10


async def test_calls_with_spans_are_counted_as_others() -> None:
    provider = pytest.importorskip("opentelemetry.sdk.trace").TracerProvider()
    server = make_server(tracing=provider)

    @server.middleware
    async def pass_on(call: MethodCall, call_next: CallNext) -> Any:
        return await call_next(call)

    async with memory_client(server) as client:
        assert await client.request("add", [1, 2]) == 3
        assert await client.request("add_later", [1, 2]) == 3
        with pytest.raises(RpcError):
            await client.request("fail_later", [7])
        assert outcomes(server.metrics_text()) == {("add", "0"): 1, ("add_later", "0"): 1, ("fail_later", "7"): 1}


async def test_the_page_about_it_names_every_family() -> None:
    hub = Hub(metrics=True, access_log="text")
    async with memory_client(hub) as client:
        await client.request("rpc.ping")
        text = hub.metrics_text()
    page = (Path(__file__).parents[2] / "docs/how-to/observe.md").read_text()
    named = set(re.findall("`((?:rpcstream|process)_[a-z_]+)`", page))
    of_workers = {"rpcstream_workers", "rpcstream_worker_restarts_total"}  # where there are some
    of_groups = {
        f"rpcstream_hub_{name}" for name in ("nats_connected", "hubs", "clients_elsewhere", "methods_elsewhere")
    }
    assert set(re.findall("^# TYPE ([a-z_]+) ", text, re.MULTILINE)) | of_workers | of_groups == named
