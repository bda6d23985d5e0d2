"""`allow=`: which callers may call a method, and what the others are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from rpcstream import AsyncClient, InvalidParams, MethodNotFound, NotPermitted, Server
from rpcstream.errors import RegistrationError
from rpcstream.testing import memory_client

from ..kit import batch, notification, request
from .callers import login, outcome, outcomes, talking


@dataclass(frozen=True)
class User:
    name: str
    roles: Any = field(default=())


class Role(StrEnum):
    ADMIN = "admin"


USERS = {
    "alice": User("alice", {"admin", "staff"}),
    "bob": User("bob", ["staff"]),
    "carol": User("carol"),
}


def serving(**options: Any) -> Server:
    server = Server(authenticate=lambda credentials: USERS.get(credentials.token), **options)
    called = server.state.called = []

    @server(allow="admin")
    def erase(name: str) -> str:
        called.append(name)
        return f"{name} is gone"

    @server(allow=("staff", "nobody"))
    async def read(name: str) -> str:
        called.append(name)
        return name

    @server(allow="admin")
    def count(n: int) -> Iterator[int]:
        called.append("count")
        yield from range(n)

    @server.batched(allow="admin", max_wait=0)
    def double(x: list[int]) -> list[int]:
        called.append("double")
        return [each * 2 for each in x]

    @server
    def open_to_all(value: int = 1) -> int:
        return value

    return server


async def known(client: AsyncClient, name: str) -> None:
    assert await client.call("rpc.authenticate", name) is True


async def test_who_may_does() -> None:
    async with memory_client(serving()) as client:
        await known(client, "alice")
        assert await client.call("erase", "x") == "x is gone"
        assert await client.call("read", "y") == "y"
        assert await client.call("double", 4) == 8
        assert await client.call("count", 3) == [0, 1, 2]
        assert [each async for each in client.stream("count", 3)] == [0, 1, 2]
        with pytest.raises(InvalidParams):
            await client.call("erase", 5)
        await known(client, "carol")  # another identity may do other things
        with pytest.raises(NotPermitted):
            await client.call("read", "x")


@pytest.mark.parametrize("method", ["erase", "count", "double"])
async def test_who_may_not_does_not(method: str) -> None:
    server = serving()
    async with memory_client(server) as client:
        await known(client, "bob")
        # Nothing is said of the parameters, which are not looked at.
        for params in ([], ["x"], [1, 2, 3], [{"$type": "ndarray"}]):
            with pytest.raises(NotPermitted) as caught:
                await client.call(method, *params)
            assert caught.value.data == {"method": method}
        with pytest.raises(NotPermitted):
            async for _ in client.stream(method, 3):
                pass
        await client.notify(method, "x")
        assert await client.call("open_to_all", 3) == 3
        assert await client.call("read", "y") == "y"
    assert server.state.called == ["y"]


async def test_a_name_that_a_caller_may_not_call_is_not_suggested() -> None:
    async with memory_client(serving()) as client:
        for name, near in (("bob", []), ("alice", ["erase"])):
            await known(client, name)
            with pytest.raises(MethodNotFound) as caught:
                await client.call("eras")
            assert caught.value.data.get("nearest", []) == near
            assert ("erase" in str(caught.value)) is bool(near)


async def test_in_a_batch_each_member_by_itself() -> None:
    server = serving()
    async with talking(server) as raw:
        assert await outcomes(raw, login("bob")) == [True]
        members = [
            request("erase", "x", id=1),
            request("read", "y", id=2),
            request("double", 1, id=3),
            notification("erase", name="silent"),
            request("open_to_all", id=4),
            request("count", 3, id=5, stream=1),
            request("erase", "x", id=1.5),
        ]
        found = {each["id"]: outcome(each) for each in await raw.ask(batch(*members))}
    assert found == {1: -32006, 2: "y", 3: -32006, 4: 1, 5: -32006, 1.5: -32006}
    assert server.state.called == ["y"]


async def test_discover_says_which_are_not_for_all() -> None:
    async with memory_client(serving()) as client:
        await known(client, "carol")
        methods = {each["name"]: each for each in (await client.call("rpc.discover"))["methods"]}
    guarded = {name for name, each in methods.items() if each.get("x-allow") is True}
    assert guarded == {"erase", "read", "count", "double"}
    assert "x-allow" not in methods["open_to_all"]
    assert "rpc.authenticate" in methods
    assert "admin" not in str(methods)


async def test_objects_and_modules_and_replacements_take_the_rule() -> None:
    class Machine:
        def start(self) -> str:
            return "started"

    server = serving()
    server.add_object(Machine(), prefix="machine", allow="admin")
    server.add_module(asyncio.events, pattern="get_event_loop_policy", allow="admin")
    server.add(lambda: "open", name="erase", replace=True)
    server.add(lambda: "closed", name="open_to_all", allow="admin", replace=True)
    async with memory_client(server) as client:
        await known(client, "bob")
        assert await client.call("erase") == "open"
        for method in ("machine.start", "get_event_loop_policy", "open_to_all"):
            with pytest.raises(NotPermitted):
                await client.call(method)


async def test_a_token_has_a_name_too() -> None:
    server = Server(token="secret")
    server.add(lambda: 1, name="one", allow="token")
    server.add(lambda: 2, name="two", allow="admin")
    async with memory_client(server) as client:
        await known(client, "secret")
        assert await client.call("one") == 1
        with pytest.raises(NotPermitted):
            await client.call("two")


async def test_who_knows_nobody_has_no_rules() -> None:
    server = Server()
    with pytest.raises(RegistrationError, match="erase: allow needs authenticated callers"):
        server(name="erase", allow="admin")(lambda: None)
    assert "erase" not in server.methods
    client = AsyncClient("127.0.0.1:1")
    with pytest.raises(RegistrationError, match="allow needs"):
        client(name="m", allow="admin")(lambda: None)
    await client.close()


async def permits_later(identity: Any) -> bool:
    return True


@pytest.mark.parametrize("rule", ["", (), [""], [1], [None], 5, b"x", permits_later, {"admin": 1, 2: 2}])
def test_what_is_no_rule(rule: Any) -> None:
    server = Server(token="secret")
    with pytest.raises(RegistrationError, match="m: "):
        server.add(lambda: None, name="m", allow=rule)
    assert "m" not in server.methods


async def may_call(identity: Any, rule: Any = "admin") -> bool:
    """Whether a caller with this identity may call a method with this rule."""
    server = Server(authenticate=lambda credentials: identity)
    server.add(lambda: None, name="m", allow=rule)
    async with memory_client(server) as client:
        await known(client, "x")
        try:
            await client.call("m")
        except NotPermitted:
            return False
    return True


class Odd:
    @property
    def roles(self) -> Any:
        raise ValueError("odd roles")


@pytest.mark.parametrize(
    ("identity", "permitted"),
    [
        ("admin", True),
        (Role.ADMIN, True),
        *((name, False) for name in ("a", "Admin", "admin ", "administrator", "")),
        (User("admin"), False),
        (User("x", "admin"), True),
        (User("x", ("admin", Role.ADMIN, 5, None)), True),
        ({"roles": ["admin"]}, True),
        ({"roles": {"admin": True}}, True),
        (MappingProxyType({"roles": {"admin"}}), True),
        ({"name": "admin"}, False),
        ({"roles": None}, False),
        (SimpleNamespace(roles=lambda: ["admin"]), False),
        (SimpleNamespace(roles=5), False),
        (["admin"], False),
        (True, False),
        (object(), False),
    ],
)
async def test_the_names_of_an_identity(identity: Any, permitted: bool) -> None:
    assert await may_call(identity) is permitted


@pytest.mark.parametrize(("found", "permitted"), [(None, False), (0, False), ("", False), ([], False), ("yes", True)])
async def test_only_what_is_true_permits(found: Any, permitted: bool) -> None:
    assert await may_call("x", lambda identity: found) is permitted


async def test_a_rule_that_fails_permits_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    assert not await may_call("x", lambda identity: identity.missing)
    assert not await may_call("x", lambda identity: asyncio.get_running_loop().create_future())
    assert not await may_call(Odd())
    for expected in ("'m' raised", "missing", "an awaitable", "odd roles"):
        assert expected in caplog.text
