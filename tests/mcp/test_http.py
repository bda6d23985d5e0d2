"""MCP over HTTP: statuses, headers, streams of events, cancels, roles, bad input."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import re
import threading
from pathlib import Path
from typing import Any

import orjson
import PIL.Image
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rpcstream
from rpcstream import CallNext, Context, Http, Hub, Info, Limits, MethodCall, Server
from rpcstream.errors import CallCancelled

from ..kit import UsualServer, until
from ..kit.asgi import Driver
from ..kit.http import post
from .conftest import META, STATELESS, Serve, request

VERSION = f"MCP-Protocol-Version: {STATELESS}"
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def make_server(**options: Any) -> UsualServer:
    server = UsualServer(**{"mcp": True, "info": Info(title="demo", version="1.2"), **options})

    @server
    async def work(steps: int, ctx: Context) -> str:
        for done in range(steps):
            ctx.progress(done, steps, f"step {done}")
            await asyncio.sleep(0)
        return "done"

    return server


async def test_a_request_says_all_that_is_needed_to_answer_it(serve: Serve) -> None:
    async with serve(make_server()) as agent:
        found = (await agent.ask("server/discover")).json["result"]
        assert found["supportedVersions"][0] == STATELESS
        assert found["capabilities"] == {"tools": {}}
        assert found["_meta"] == {"io.modelcontextprotocol/serverInfo": {"name": "demo", "version": "1.2"}}
        assert (found["resultType"], found["cacheScope"]) == ("complete", "public")
        assert {"add", "crash", "fail", "work"} < {tool["name"] for tool in await agent.tools()}
        result = await agent.call("add", a=2, b=1)
        assert result["structuredContent"] == 3
        assert result["content"] == [{"type": "text", "text": "3"}]
        assert result["isError"] is False


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("fail", {}, "as asked"),
        ("crash", {}, "Internal error"),
        ("add", {"a": "x", "b": 1}, "Invalid params: a: expected an integer"),
        ("add", {"c": 1}, "Invalid params"),
        ("blow", {"size": 60_000}, "Message too large"),  # as text and as structured content: twice
    ],
)
async def test_errors_of_a_tool_are_results_that_the_agent_sees(
    serve: Serve, tool: str, arguments: Any, text: str
) -> None:
    server = make_server(limits=Limits(max_message_size=65536))

    @server
    def blow(size: int) -> str:
        return "x" * size

    async with serve(server) as agent:
        result = await agent.call(tool, **arguments)
        assert result["isError"] is True
        assert "structuredContent" not in result
        assert result["content"][0]["text"].startswith(text)
        assert "crashed" not in str(result)
        too_large = await agent.post(b"x" * 65537)
        assert too_large.status == 413
        # MCP has meanings of its own for the codes from -32099 to -32000.
        assert b"-320" not in too_large.body


async def test_what_is_no_tool_or_no_method_is_an_error_of_the_protocol(serve: Serve) -> None:
    async with serve(make_server()) as agent:
        for params in ({"name": "rpc.stats", "arguments": {}}, {"name": "add", "arguments": [1]}):
            answer = await agent.ask("tools/call", **params)
            assert (answer.status, answer.json["error"]["code"]) == (400, -32602)
        for method in ("resources/list", "initialize", "ping", "add", "rpc.discover"):
            answer = await agent.ask(method)
            assert (answer.status, answer.json["error"]["code"]) == (404, -32601)


HEADERS = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "add"}
SUPPORTED = [STATELESS, "2025-11-25", "2025-06-18"]


@pytest.mark.parametrize(
    ("headers", "name", "code"),
    [
        ({}, "add", None),
        *(({header: None}, "add", -32020) for header in HEADERS),
        ({"MCP-Protocol-Version": "2025-11-25"}, "add", -32020),
        *(({"Mcp-Method": each}, "add", -32020) for each in ("tools/list", "Tools/call")),
        *(({"Mcp-Name": each}, "add", -32020) for each in ("sub", "add, add", "=?base64?YWRk=?=", "=?base64?/w==?=")),
        # A header may be encoded.
        ({"Mcp-Name": "=?base64?YWRk?="}, "add", None),
        ({"Mcp-Name": "=?BASE64?YWRk?="}, "add", -32020),
        ({"Mcp-Name": "=?base64?SGVsbG8sIOS4lueVjA==?="}, "Hello, 世界", -32602),
        ({"Mcp-Name": "=?base64?IHBhZGRlZCA=?="}, " padded ", -32602),
        ({"Mcp-Name": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="}, "=?base64?literal?=", -32602),
    ],
)
async def test_headers_say_what_the_message_says(serve: Serve, headers: Any, name: str, code: int | None) -> None:
    lines = [f"{header}: {text}" for header, text in {**HEADERS, **headers}.items() if text is not None]
    async with serve(make_server()) as agent:
        answer = await agent.post(request("tools/call", name=name, arguments={"a": 1, "b": 1}), *lines)
        assert (answer.status, answer.json.get("error", {}).get("code")) == (400 if code else 200, code)
        assert answer.json["id"] == 1


async def test_a_request_without_its_meta_is_refused(serve: Serve) -> None:
    async with serve(make_server()) as agent:
        for key, value in itertools.product(META, (None, 7, [])):
            meta = {name: other for name, other in {**META, key: value}.items() if other is not None}
            message = {**request("tools/call"), "params": {"name": "add", "_meta": meta}}
            answer = await agent.post(message, *(f"{header}: {text}" for header, text in HEADERS.items()))
            assert (answer.status, answer.json["error"]["code"] in (-32602, -32020)) == (400, True)


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_version_that_is_not_spoken_is_told_which_are(serve: Serve, is_old: bool) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "1900-01-01"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"} if is_old else request("tools/list", meta=meta)
    async with serve(make_server()) as agent:
        answer = await agent.post(message, "MCP-Protocol-Version: 1900-01-01", "Mcp-Method: tools/list")
        assert (answer.status, answer.json["error"]["code"]) == (400, -32022)
        assert answer.json["error"]["data"] == {"supported": SUPPORTED, "requested": "1900-01-01"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        *((each, -32600) for each in (b"[]", b"7", b'{"id":1,"method":"ping"}')),
        (b"{", -32700),
        *(
            (b'{"jsonrpc":"2.0",%b}' % each, -32600)
            for each in (
                b'"id":null,"method":"ping"',
                b'"id":1.5,"method":"ping"',
                b'"id":true,"method":"ping"',
                b'"id":1,"method":7',
                b'"id":1,"method":"ping","params":' + b"[" * 500 + b"]" * 500,
            )
        ),
    ],
)
async def test_what_is_no_message_is_400(serve: Serve, body: bytes, code: int) -> None:
    async with serve(make_server()) as agent:
        answer = await agent.post(body)
        assert (answer.status, answer.json["error"]["code"]) == (400, code)
        assert (await agent.call("add", a=1, b=1))["structuredContent"] == 2


async def test_foreign_hosts_and_origins_are_refused(serve: Serve) -> None:
    async with serve(make_server()) as agent:
        for line in ("Origin: https://evil.example", "Origin: null"):
            assert (await agent.ask("tools/list", line)).status == 403
        body = orjson.dumps(request("tools/list"))
        evil = post(body, VERSION, "Mcp-Method: tools/list", target="/mcp").replace(b"127.0.0.1", b"evil.example")
        assert (await agent.connection.ask(evil)).status == 403
        assert (await agent.ask("tools/list", "Origin: http://127.0.0.1")).status == 200


async def test_only_post_is_answered_and_only_json_and_pages_of_allowed_origins_may_send_the_headers(
    serve: Serve,
) -> None:
    async with serve(make_server(http=Http(origins=["https://example.org"]))) as agent:
        for method in ("GET", "DELETE", "PUT"):
            answer = await agent.connection.ask(f"{method} /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
        lines = ("Content-Type: text/plain", "Origin: http://127.0.0.1")
        assert (await agent.connection.ask(post(b"{}", *lines, target="/mcp", json=False))).status == 415
        answer = await agent.connection.ask(
            b"OPTIONS /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://example.org\r\n"
            b"Access-Control-Request-Method: POST\r\n\r\n"
        )
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert {"Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id"} <= set(allowed)


async def test_progress_is_a_stream_of_events_before_the_result(serve: Serve) -> None:
    async with serve(make_server()) as agent:
        answer = await agent.ask("tools/call", meta={"progressToken": "t"}, name="work", arguments={"steps": 3})
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        events = [orjson.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n\n") if line]
        *reports, reply = events
        assert reply["result"]["structuredContent"] == "done"
        assert {report["method"] for report in reports} == {"notifications/progress"}
        assert [report["params"]["progress"] for report in reports] == [0, 1, 2]
        assert reports[0]["params"] == {"progressToken": "t", "progress": 0, "total": 3, "message": "step 0"}
        # Without a token, or without somebody who reads events, the result comes alone.
        assert (await agent.call("work", steps=3))["structuredContent"] == "done"
        body = orjson.dumps(request("tools/call", meta={"progressToken": 1}, name="work", arguments={"steps": 3}))
        lines = ("Accept: application/json", VERSION, "Mcp-Method: tools/call", "Mcp-Name: work")
        answer = await agent.connection.ask(post(body, *lines, target="/mcp"))
        assert answer.json["result"]["structuredContent"] == "done"


async def test_the_versions_with_a_handshake(serve: Serve) -> None:
    async with serve(make_server()) as agent:
        answer = await agent.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE})
        assert answer.json["result"] == {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "demo", "version": "1.2"},
        }
        lines = (f"Mcp-Session-Id: {answer.headers['mcp-session-id']}", "MCP-Protocol-Version: 2025-11-25")
        done = await agent.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, *lines)
        assert (done.status, done.body) == (202, b"")
        assert (await agent.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, *lines)).json["result"] == {}
        call = {"name": "add", "arguments": {"a": 1, "b": 1}}
        result = await agent.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}, *lines)
        assert result.json["result"] == {
            "content": [{"type": "text", "text": "2"}],
            "isError": False,
            "structuredContent": {"result": 2},
        }
        # An error of a method is no failure of the connection, as clients of these versions take other statuses.
        unknown = await agent.post({"jsonrpc": "2.0", "id": 3, "method": "nope"}, *lines)
        assert (unknown.status, unknown.json["error"]["code"]) == (200, -32601)
        older = {**INITIALIZE, "protocolVersion": "2024-11-05"}
        answer = await agent.post({"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": older})
        assert answer.json["result"]["protocolVersion"] == "2025-11-25"
        reply = await agent.post({"jsonrpc": "2.0", "id": 4, "result": {}}, *lines)
        assert (reply.status, reply.body) == (202, b"")


async def test_a_call_ends_with_its_connection_or_by_another_post_of_its_session(serve: Serve) -> None:
    server = make_server()
    async with serve(server) as agent:
        lines = ("Mcp-Session-Id: mine", "MCP-Protocol-Version: 2025-11-25")
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "wait"}}
        other = await agent.another()
        held = asyncio.ensure_future(agent.post(call, *lines))
        await until(lambda: len(server.begun) == 1)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        for own in ("Mcp-Session-Id: other", "X-Nothing: 1"):
            assert (await other.post(cancel, own)).status == 202
        assert not server.ended
        assert (await other.post(cancel, *lines)).status == 202
        answer = await held
        assert (answer.status, answer.body) == (202, b""), "a call that was cancelled has no reply"
        assert len(server.ended) == 1
        assert (await agent.call("add", a=1, b=1))["structuredContent"] == 2
        body = orjson.dumps(request("tools/call", name="wait", arguments={}))
        agent.connection.send(post(body, VERSION, "Mcp-Method: tools/call", "Mcp-Name: wait", target="/mcp"))
        await until(lambda: len(server.begun) == 2)
        agent.connection.writer.close()
        await until(lambda: len(server.ended) == 2)


async def test_a_call_that_no_client_has_cancelled_is_answered(serve: Serve) -> None:
    server = make_server()

    @server
    async def raises() -> None:
        raise CallCancelled()

    @server(offload="thread")
    def raises_in_thread() -> None:
        raise CallCancelled()

    @server
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    async with serve(server) as agent:
        for tool in ("raises", "raises_in_thread", "cancels_itself"):
            assert (await agent.call(tool))["isError"] is True
            lines = ("Mcp-Session-Id: mine", "MCP-Protocol-Version: 2025-11-25")
            called = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool}}
            assert (await agent.post(called, *lines)).json["result"]["isError"] is True


async def test_a_caller_sees_and_calls_what_its_roles_permit(serve: Serve) -> None:
    users = {"a": {"roles": ["admin"]}, "b": {"roles": []}}
    server = make_server(authenticate=lambda credentials: users.get(credentials.token))

    @server(allow="admin")
    def delete() -> bool:
        return True

    async with serve(server) as agent:
        assert (await agent.ask("tools/list")).status == 401
        as_admin, as_other = "Authorization: Bearer a", "Authorization: Bearer b"
        assert "delete" in [tool["name"] for tool in await agent.tools(as_admin)]
        assert "delete" not in [tool["name"] for tool in await agent.tools(as_other)]
        assert (await agent.call("delete", as_admin))["structuredContent"] is True
        refused = await agent.ask("tools/call", as_other, name="delete", arguments={})
        assert (refused.status, refused.json["error"]["code"]) == (400, -32602)
        assert (await agent.call("add", as_other, a=1, b=1))["structuredContent"] == 2
        assert (await agent.ask("tools/list", as_admin)).json["result"]["cacheScope"] == "private"


async def test_the_trace_in_meta_is_continued(serve: Serve) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with serve(make_server(tracing=provider)) as agent:
        await agent.call("add", meta={"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "tracestate": "x=1"}, a=1, b=1)
        await agent.call("add", meta={"traceparent": 7}, a=1, b=1)
    first, second = exporter.get_finished_spans()
    assert (first.name, f"{first.context.trace_id:032x}") == ("add", trace)
    assert first.parent is not None
    assert first.context.trace_state.get("x") == "1"
    assert second.parent is None
    provider.shutdown()


async def test_a_handler_sees_the_meta_and_integers_beyond_64_bits(serve: Serve) -> None:
    server, seen, big = make_server(), [], 10**30

    @server
    def look(n: int, ctx: Context) -> int:
        seen.append(ctx.metadata.get("_meta"))
        return n + 1

    async with serve(server) as agent:
        await agent.call("look", meta={"example.com/user": "u"}, n=1)
        assert seen == [{**META, "example.com/user": "u"}]
        params = {"name": "look", "arguments": {"n": big}}
        call = {"jsonrpc": "2.0", "id": big, "method": "tools/call", "params": params}
        answer = await agent.post(json.dumps(call).encode())
        assert f'"id":{big}'.encode() in answer.body
        assert f'"text":"{big + 1}"'.encode() in answer.body


async def test_images_beyond_64_kib_go_in_and_out(serve: Serve) -> None:
    picture = PIL.Image.effect_noise((400, 400), 50)
    file = io.BytesIO()
    picture.save(file, "png")
    assert file.tell() > 65536
    content = base64.b64encode(file.getvalue()).decode()
    async with serve(make_server()) as agent:
        [block] = (await agent.call("image", image=content))["content"]
    back = PIL.Image.open(io.BytesIO(base64.b64decode(block["data"])))
    assert back.tobytes() == picture.transpose(PIL.Image.Transpose.FLIP_TOP_BOTTOM).tobytes()


async def test_another_path_and_none(serve: Serve) -> None:
    async with serve(make_server(mcp="/agents"), path="/agents") as agent:
        assert await agent.tools()
    async with serve(make_server(mcp=False)) as agent:
        assert (await agent.ask("tools/list")).status == 404
    with pytest.raises(ValueError, match="mcp: "):
        Server(mcp="agents")
    with pytest.raises(ValueError, match="mcp: /mcp is a path for calls already"):
        async with Server(mcp=True, http=Http(path="/mcp")).listening(port=0):
            raise AssertionError


async def test_it_is_served_in_an_asgi_server() -> None:
    app = make_server().asgi()
    body = orjson.dumps(request("tools/call", meta={"progressToken": 1}, name="work", arguments={"steps": 2}))
    lines = {
        **{"content-type": "application/json", "accept": "application/json, text/event-stream", "host": "localhost"},
        **{"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "work"},
        "content-length": str(len(body)),
    }
    for name, status, kind in [("work", 200, b"text/event-stream"), ("x", 400, b"application/json")]:
        headers = [(key.encode(), value.encode()) for key, value in {**lines, "mcp-name": name}.items()]
        async with app.lifespan():
            scope = {"type": "http", "method": "POST", "path": "/mcp", "http_version": "1.1", "headers": headers}
            driver = Driver(app, scope)
            driver.body(body)
            await asyncio.wait_for(driver.task, 20)
        assert driver.sent[0]["status"] == status
        assert dict(driver.sent[0]["headers"])[b"content-type"] == kind
        text = b"".join(event.get("body", b"") for event in driver.sent)
        assert (b'"structuredContent":"done"' in text) is (status == 200)


def test_a_server_without_it_imports_nothing_of_it() -> None:
    package = Path(rpcstream.__file__).parent
    for path in package.rglob("*.py"):
        if path.parent.name != "mcp":  # what is imported with the module itself stands at the beginning of a line
            assert re.search(r"^(from|import) [\w.]*\bmcp\b", path.read_text(), re.MULTILINE) is None, path


async def test_middleware_and_metrics_see_calls_of_tools_as_calls_of_their_methods(serve: Serve) -> None:
    server = make_server(metrics=True)
    seen: list[tuple[str, Any]] = []

    @server.middleware
    async def watch(call: MethodCall, call_next: CallNext) -> Any:
        seen.append((call.method.name, dict(call.arguments)))
        return await call_next(call)

    async with serve(server) as agent:
        assert (await agent.call("add", a=2, b=3))["structuredContent"] == 5
        await agent.call("fail")
        text = server.metrics_text()
    assert [name for name, _ in seen] == ["add", "fail"]
    assert 'rpcstream_calls_total{method="add",code="0"} 1' in text
    assert 'rpcstream_calls_total{method="fail",code="1"} 1' in text
    assert "tools/call" not in text


async def test_a_hub_offers_its_own_methods_and_tools_may_come_and_go(serve: Serve) -> None:
    hub = Hub(mcp=True)
    hub.add(lambda n: 2 * n, name="twice")
    async with serve(hub) as agent:
        assert [tool["name"] for tool in await agent.tools()] == ["twice"]
        hub.add(lambda: 7, name="seven")
        assert [tool["name"] for tool in await agent.tools()] == ["seven", "twice"]
        assert json.loads((await agent.call("twice", n=4))["content"][0]["text"]) == 8


async def test_too_many_calls_wait_and_are_refused_beyond_that(serve: Serve) -> None:
    server = make_server(threads=1, limits=Limits(max_queue=1))
    go = threading.Event()

    @server(offload="thread")
    def block() -> str:
        go.wait(20)
        return "done"

    async with serve(server) as agent:
        others = [await agent.another() for _ in range(4)]
        calls = [asyncio.ensure_future(other.call("block")) for other in others]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        refused = done.pop().result()
        go.set()
        results = [await call for call in calls]
    assert refused["isError"]
    assert refused["content"][0]["text"].startswith("Server busy")
    assert "done" in [result.get("structuredContent") for result in results]
