"""`Server.guard`: authentication that is added to an existing server."""

from __future__ import annotations

import pytest

from rpcstream import AsyncClient, NotAuthenticated, Server

from ..kit import authority, server_tls


def make_server(**options: object) -> Server:
    server = Server(**options)  # type: ignore[arg-type]

    @server
    def add(a: int, b: int) -> int:
        return a + b

    return server


async def test_a_token_and_a_certificate() -> None:
    server = make_server()
    server.guard(token="abc", tls=server_tls())
    async with server.listening(port=0) as address:
        async with AsyncClient(f"tls://{address}", ca=authority(), token="abc") as client:
            assert await client.add(2, 3) == 5
        async with AsyncClient(f"tls://{address}", ca=authority()) as client:
            with pytest.raises(NotAuthenticated):
                await client.add(2, 3)


def test_what_is_there_is_not_replaced() -> None:
    for options in ({"token": "abc"}, {"authenticate": lambda credentials: None}):
        with pytest.raises(ValueError, match="of its own"):
            make_server(**options).guard(token="other")
    with pytest.raises(ValueError, match="a certificate"):
        make_server(tls=server_tls()).guard(tls=server_tls())


@pytest.mark.parametrize("options", [{"token": ""}, {"hosts": ["a b"]}, {"origins": ["x"]}])
async def test_what_makes_no_sense_changes_nothing(options: dict[str, object]) -> None:
    server = make_server()
    with pytest.raises(ValueError, match=r"."):
        server.guard(**options)  # type: ignore[arg-type]
    async with server.listening(port=0) as address, AsyncClient(address) as client:
        assert await client.add(2, 3) == 5


async def test_not_while_it_runs() -> None:
    server = make_server()
    async with server.listening(port=0):
        with pytest.raises(RuntimeError, match="running already"):
            server.guard(token="abc")
