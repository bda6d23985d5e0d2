"""`drain_delay`: a server that reports its stop to load balancers before it begins."""

from __future__ import annotations

import asyncio

from rpcstream import AsyncClient, Server


async def status(address: str, path: str) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return int(answer.split()[1])


async def test_it_is_not_ready_but_serves_on() -> None:
    server = Server(drain_delay=60)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(server.serve(port=0, on_listening=listening.set_result))
    address = await listening
    assert await status(address, "/readyz") == 200
    async with AsyncClient(address) as client:
        server.stop()
        async with asyncio.timeout(20):
            while await status(address, "/readyz") == 200:
                pass
        assert await status(address, "/readyz") == 503
        assert await status(address, "/healthz") == 200
        assert await client.call("rpc.ping") == "pong"
        server.abort()  # nobody need wait any more
        await asyncio.wait_for(serving, 20)
