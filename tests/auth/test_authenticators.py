"""`token=` and `authenticate=`: who is accepted, functions of all kinds, and the users of a configuration."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Context, Credentials, Server
from rpcstream.hub import Hub
from rpcstream.peer.credentials import credentials_of

from ..kit import raw_peers, request
from .callers import (
    REFUSED,
    Authority,
    Door,
    accept,
    login,
    one_by_one,
    outcome,
    outcomes,
    talking,
    with_certificate,
)


@pytest.mark.parametrize("token", ["secret", "Schlüssel-鍵"])
async def test_only_the_token_itself_is_it(token: str) -> None:
    async with raw_peers(Door(token=token)) as connect:
        for wrong in ("", token[:-1], f"{token} ", token.upper(), f"{token}s", "s" * 10_000, f"\0{token}"):
            assert await outcomes(await connect(), login(wrong)) == [REFUSED]
        raw = await connect()
        lone = b'{"jsonrpc":"2.0","id":1,"method":"rpc.authenticate","params":["\\ud800"]}'
        assert outcome(await raw.ask(lone)) in (-32700, REFUSED)
        assert await outcomes(raw, login(token), request("who")) == [True, "token"]


def test_the_token_does_not_show() -> None:
    credentials = Credentials(token="secret", names=("alice",), uid=5)
    assert "secret" not in repr(credentials)
    assert "alice" in repr(credentials)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"token": ""}, ValueError),
        ({"token": "with blank"}, ValueError),
        ({"token": "line\n"}, ValueError),
        ({"token": "x", "authenticate": accept}, ValueError),
        ({"token": b"x"}, ValueError),
        ({"token": 5}, ValueError),
        ({"authenticate": "x"}, TypeError),
    ],
)
def test_what_is_no_token_and_no_function(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"token|authenticate"):
        Server(**options)


async def later(credentials: Credentials) -> Any:
    await asyncio.sleep(0)
    return accept(credentials)


class Later:
    async def __call__(self, credentials: Credentials) -> Any:
        return await later(credentials)


def looks_sync(credentials: Credentials) -> Awaitable[Any]:
    return later(credentials)


@pytest.mark.parametrize(
    "function",
    [accept, later, Later(), functools.partial(later), looks_sync],
)
async def test_functions_of_all_kinds(function: Any) -> None:
    async with talking(Door(authenticate=function)) as raw:
        found = await outcomes(raw, login("wrong"), request("who"), login("alice-secret"), request("who"))
        assert found == [REFUSED, REFUSED, True, "alice"]


@pytest.mark.parametrize(("found", "identity"), [(None, None), (False, None), (True, True), (0, 0), ("", ""), ([], [])])
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_counts_as_an_identity(found: Any, identity: Any, is_async: bool) -> None:
    async def find(credentials: Credentials) -> Any:
        return found

    async with talking(Door(authenticate=find if is_async else lambda credentials: found)) as raw:
        accepted = [True, identity] if identity is not None else [REFUSED, REFUSED]
        assert await outcomes(raw, login("x"), request("who")) == accepted


@pytest.mark.parametrize("is_async", [False, True])
async def test_one_that_fails_lets_nobody_in(caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    def fail(credentials: Credentials) -> Any:
        raise ValueError("boom")

    async def fail_later(credentials: Credentials) -> Any:
        await asyncio.sleep(0)
        return fail(credentials)

    async with talking(Door(authenticate=fail_later if is_async else fail)) as raw:
        assert await outcomes(raw, login("x"), request("who")) == [REFUSED, REFUSED]
    assert "authenticate function raised" in caplog.text
    assert "127.0.0.1:" in caplog.text


class Shows:
    """What a transport with TLS says of it."""

    def __init__(self, certificate: Any) -> None:
        self.certificate = certificate

    def getpeercert(self) -> Any:
        return self.certificate

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else default


@pytest.mark.parametrize(
    ("certificate", "names"),
    [
        (None, ()),
        ({"subject": ((("countryName", "XX"),), (("commonName", "alice"),))}, ("alice",)),
        ({"subject": ((("commonName", "a"), ("commonName", "b")),)}, ("a", "b")),
        ({"subject": ((("commonName", "admin\0.evil.example"),), (("commonName", ""),))}, ()),
    ],
)
def test_names_of_a_certificate(certificate: Any, names: tuple[str, ...]) -> None:
    transport: Any = Shows(certificate)
    assert credentials_of(transport).names == names


async def test_the_users_of_a_configuration(tmp_path: Path) -> None:
    """By token or by certificate, the token before the certificate."""
    authority = Authority(tmp_path)
    users = [
        {"name": "gpu-1", "token": "token-of-gpu", "roles": ["worker"]},
        {"name": "ada", "token": "token-of-ada", "certificate": "ada.example", "roles": ["admin", "worker"]},
        {"name": "eve", "certificate": "eve.example"},
    ]
    tls = {"certificate": str(tmp_path / "server.pem"), "ca": str(authority.file)}
    hub = Hub.from_config({"users": users, "tls": tls})

    @hub
    def who(ctx: Context) -> list[Any]:
        return [ctx.identity, *sorted(ctx.identity.roles)]

    gpu, ada = ["gpu-1", "worker"], ["ada", "admin", "worker"]
    async with hub.listening(port=0) as address:
        for names, sent, found in [
            (["stranger"], [login("token-of-gpu"), request("who")], [True, gpu]),
            (["other.example", "ada.example"], [request("who")], [ada]),
            (["ada.example"], [login("wrong"), request("who"), login("token-of-gpu")], [REFUSED, ada, True]),
            (["ada"], [request("who"), login("token-of-eve"), login("gpu-1")], [REFUSED] * 3),
            (["eve.example"], [request("who")], [["eve"]]),
            (["token-of-ada"], [request("who"), login("token-of-gpu ")], [REFUSED] * 2),
        ]:
            async with with_certificate(address, authority.client(*names)) as raw:
                assert await one_by_one(raw, *sent) == found
