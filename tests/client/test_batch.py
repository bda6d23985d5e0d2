"""A batch that the server refuses as a whole: every call of it fails with that error."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream import AsyncClient, BatchTooLarge, Client, InvalidRequest, Limits, MessageTooLarge, RpcError, Server
from rpcstream.testing import memory_client, serve_in_thread


def small() -> Server:
    server = Server(limits=Limits(max_batch=3, max_message_size=2000, max_depth=20), drain_timeout=0.2)

    @server
    def echo(value: Any) -> Any:
        return value

    return server


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED: list[tuple[list[Any], type[RpcError]]] = [
    ([1, 2, 3, 4], BatchTooLarge),
    (["x" * 1000, "y" * 1500], MessageTooLarge),
    ([1, deep(30)], InvalidRequest),
]


@pytest.mark.parametrize(("values", "error"), REFUSED)
@pytest.mark.parametrize("scheme", ["", "http://", "ws://"])
def test_the_sync_client(values: list[Any], error: type[RpcError], scheme: str) -> None:
    with serve_in_thread(small()) as address, Client(f"{scheme}{address}") as client:
        with client.batch() as batch:
            calls = [batch.echo(value) for value in values]
        for call in calls:
            with pytest.raises(error):
                call.result()
        assert client.echo("and it goes on") == "and it goes on"


@pytest.mark.parametrize(("values", "error"), REFUSED)
async def test_the_async_client(values: list[Any], error: type[RpcError]) -> None:
    async with memory_client(small()) as client:
        await refused(client, values, error)


async def refused(client: AsyncClient, values: list[Any], error: type[RpcError]) -> None:
    other = client.submit.echo("beside it") if hasattr(client, "submit") else None
    async with client.batch() as batch:
        calls = [batch.echo(value) for value in values]
    assert {type(call.error) for call in calls} == {error}
    assert other is None or await other == "beside it"
    assert await client.echo("and it goes on") == "and it goes on"
