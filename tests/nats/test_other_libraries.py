"""Programs that know NATS and not rpcstream, by docs/reference/nats.md: they call, serve, and hold a session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nats")

from rpcstream import MethodNotFound, RpcError

from ..kit import UsualServer, batch, notification, reply, request, until
from ..kit.plain_nats import plain_client
from .service import Service, call_of

pytestmark = pytest.mark.nats


async def test_requests_of_plain_nats(service: Service) -> None:
    """One message is answered with one; a notification with none, and what it calls is carried out."""
    server = UsualServer()
    server.add(lambda text: text, name="sum of*")
    async with service.serving(server):
        async with plain_client(service.nats.url) as plain:

            async def ask(subject: str, data: bytes) -> Any:
                return json.loads((await plain.request(service.root + subject, data, 10)).data)

            answers = await asyncio.gather(*[ask("add", call_of("add", 1, 2, call_id=f"{n}")) for n in range(50)])
            assert answers == [{"jsonrpc": "2.0", "id": f"{n}", "result": 3} for n in range(50)]
            many = await ask("$batch", batch(request("add", 1, 2), request("echo", "x", id=2)))
            assert [each["result"] for each in many] == [3, "x"]
            assert (await ask("sum%20of%2A", call_of("sum of*", "x")))["result"] == "x"
            assert (await ask("count", call_of("count", 3)))["result"] == [0, 1, 2]
            assert (await ask("add", call_of("add", 1)))["error"]["code"] == -32602
            assert "error" in await ask("ask", call_of("ask", "name"))
            await plain.publish(f"{service.root}note", b'{"jsonrpc":"2.0","method":"note","params":[5]}')
            await until(lambda: server.noted == [5])
        await until(lambda: server.stats()["connections"] == 0)


async def test_our_client_calls_a_server_of_another_library(service: Service) -> None:
    async with plain_client(service.nats.url) as plain, service.client(binary=False) as client:

        async def serve(method: str, answer: Callable[[Any], dict[str, Any]]) -> None:
            async def handle(message: Any) -> None:
                asked = json.loads(message.data)
                await message.respond(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer(asked)}).encode())

            await plain.subscribe(service.root + method, queue="rpc", cb=handle)
            await plain.flush()

        await serve("echo", lambda asked: {"result": asked["params"][0]})
        await serve("fail", lambda asked: {"error": {"code": 7, "message": "no"}})
        assert await client.echo("hello") == "hello"
        array = np.arange(5000, dtype=np.float32)
        assert (await client.echo(array) == array).all()
        with pytest.raises(RpcError, match="no") as caught:
            await client.fail()
        assert caught.value.code == 7
        with pytest.raises(MethodNotFound):
            await client.another()


async def test_a_session_by_hand(service: Service) -> None:
    """By an inbox of our form: calls back, streams with credit, acknowledgements, and a cancel."""
    heard: list[tuple[str, Any]] = []
    async with service.raw("mine.rpcstream.*") as raw:
        async with service.serving():

            async def told(token: str, wanted: Callable[[Any], object]) -> tuple[Any, str]:
                """Wait for a message; gives its JSON and its reply subject."""
                while True:
                    message = await raw.next()
                    for line in message.data.splitlines():
                        heard.append((message.subject.rpartition(".")[2], each := json.loads(line)))
                        if heard[-1][0] == token and wanted(each):
                            return each, message.reply

            def send(subject: str, message: Any, token: str) -> None:
                data = message if isinstance(message, bytes) else json.dumps(message).encode()
                raw.publish(subject, data, f"mine.rpcstream.{token}")

            send(f"{service.root}ask", call_of("ask", "name"), "1")
            asked, session = await told("m", lambda each: each.get("method") == "name")
            send(session, reply(asked["id"], "by hand"), "i1")
            assert (await told("m", lambda each: each.get("id") == 1))[0]["result"] == "by hand"

            # Where a stream is must be told before its items and its credit, which could not be answered else.
            send(f"{service.root}count", call_of("count", 3, call_id=2, stream=1), "2")
            await told("m", lambda each: each.get("params") == {"id": 2, "value": 0})
            assert any(2 in each.get("params", {}).get("has", ()) for _, each in heard[:-1])
            send(session, notification("$/credit", id=2, n=10), "i1")
            await told("m", lambda each: each.get("id") == 2)
            assert [each["params"]["value"] for _, each in heard if "$/item" in str(each)] == [0, 1, 2]
            send(f"{service.root}total", call_of("total", {"$type": "stream", "id": "s1"}, call_id=3), "3")
            await told("m", lambda each: each.get("method") == "$/credit")
            assert any(3 in each.get("params", {}).get("has", ()) for _, each in heard)
            send(session, notification("$/cancelRequest", id=3), "i1")

            send(f"{service.root}wait", call_of("wait", call_id=4), "4")
            assert (await told("m", lambda each: each.get("params") == {"has": [4]}))[1] == session
            send(session, notification("$/cancelRequest", id=4), "i1")
            assert (await told("m", lambda each: each.get("id") == 4))[0]["error"]["code"] == -32800
        await until(lambda: not service.subscribed())  # what is sent before NATS has seen it is lost
        while not (message := await raw.request(session, b"", "mine.rpcstream.gone")).subject.endswith("gone"):
            pass
        assert message.head.startswith(b"NATS/1.0 503")
