"""`allow=`: which callers may call a method, and what the others are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Context, InvalidParams, NotPermitted, RegistrationError, Server
from rpcstream.auth.allow import CallerRule, names_of
from rpcstream.peer.credentials import Credentials
from rpcstream.testing import memory_client

from .test_gate import Connect, code_of, lines, login, request


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


def find(credentials: Credentials) -> User | None:
    return USERS.get(credentials.token or "")


def serving(**options: Any) -> Server:
    server = Server(authenticate=find, **options)
    called = server.state.called = []

    @server(allow="admin")
    def erase(name: str) -> str:
        called.append(name)
        return f"{name} is gone"

    @server(allow=("staff", "nobody"))
    async def read(name: str) -> str:
        called.append(name)
        return name

    @server(allow=lambda user: user.name.startswith("c"))
    def only_c(ctx: Context) -> str:
        return str(ctx.identity.name)

    @server(allow="admin")
    def count(n: int) -> Iterator[int]:
        called.append("count")
        yield from range(n)

    @server.batched(allow="admin", max_wait=0)
    def double(x: list[int]) -> list[int]:
        called.append("double")
        return [each * 2 for each in x]

    @server(allow="admin", offload="thread")
    def in_thread() -> str:
        called.append("in_thread")
        return "done"

    @server
    def open_to_all(value: int = 1) -> int:
        return value

    return server


# -- calls ----------------------------------------------------------------------------------------------------------


async def known(client: AsyncClient, name: str) -> None:
    assert await client.call("rpc.authenticate", name) is True


async def test_who_may_does() -> None:
    async with memory_client(serving()) as client:
        await known(client, "alice")
        assert await client.call("erase", "x") == "x is gone"
        assert await client.call("read", "y") == "y"
        assert await client.call("double", 4) == 8
        assert await client.call("in_thread") == "done"
        assert await client.call("count", 3) == [0, 1, 2]
        assert [each async for each in client.stream("count", 3)] == [0, 1, 2]
        with pytest.raises(NotPermitted):
            await client.call("only_c")
        with pytest.raises(InvalidParams):
            await client.call("erase", 5)


@pytest.mark.parametrize("method", ["erase", "count", "double", "in_thread", "only_c"])
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


async def test_in_a_batch_each_member_by_itself(connect: Connect) -> None:
    server = serving()
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("bob")))
        assert (await raw.reply())["result"] is True
        batch = [
            request("erase", ["x"], id=1),
            request("read", ["y"], id=2),
            request("double", [1], id=3),
            {"jsonrpc": "2.0", "method": "erase", "params": ["silent"]},
            request("open_to_all", id=4),
            request("count", [3], id=5, stream=1),
            request("erase", ["x"], id=1.5),
        ]
        replies = {each["id"]: each for each in await raw.ask(orjson.dumps(batch))}
        assert {call_id for call_id, each in replies.items() if "error" in each} == {1, 3, 5, 1.5}
        assert {code_of(replies[call_id]) for call_id in (1, 3, 5, 1.5)} == {-32006}
        assert (replies[2]["result"], replies[4]["result"]) == ("y", 1)
    assert server.state.called == ["y"]


async def test_another_identity_may_do_other_things() -> None:
    async with memory_client(serving()) as client:
        await known(client, "carol")
        assert await client.call("only_c") == "carol"
        with pytest.raises(NotPermitted):
            await client.call("read", "x")
        await known(client, "alice")
        assert await client.call("read", "x") == "x"
        with pytest.raises(NotPermitted):
            await client.call("only_c")
        await known(client, "carol")
        with pytest.raises(NotPermitted):
            await client.call("read", "x")


async def test_malformed_requests_of_guarded_methods(connect: Connect) -> None:
    async with serving().listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice")))
        assert (await raw.reply())["result"] is True
        assert code_of(await raw.ask(b'{"id":1,"method":"erase","params":["x"]}')) == -32600
        assert code_of(await raw.ask(b'{"jsonrpc":"2.0","id":[],"method":"erase","params":["x"]}')) == -32600
        await raw.send(b'{"jsonrpc":"2.0","id":18446744073709551616,"method":"erase","params":["x"]}\n')
        assert await raw.reader.readline() == (b'{"jsonrpc":"2.0","id":18446744073709551616,"result":"x is gone"}\n')
        assert (await raw.call("erase", ["x"], None))["result"] == "x is gone"


async def test_discover_says_which_are_not_for_all() -> None:
    async with memory_client(serving()) as client:
        await known(client, "carol")
        methods = {each["name"]: each for each in (await client.call("rpc.discover"))["methods"]}
        guarded = {name for name, each in methods.items() if each.get("x-allow") is True}
        assert guarded == {"erase", "read", "only_c", "count", "double", "in_thread"}
        assert "x-allow" not in methods["open_to_all"]
        assert "rpc.authenticate" in methods
        assert "admin" not in str(methods)


async def test_a_method_in_the_place_of_another_has_its_own_rule() -> None:
    server = serving()
    server.add(lambda: "open", name="erase", replace=True)
    server.add(lambda: "closed", name="open_to_all", allow="admin", replace=True)
    async with memory_client(server) as client:
        await known(client, "bob")
        assert await client.call("erase") == "open"
        with pytest.raises(NotPermitted):
            await client.call("open_to_all")


async def test_objects_and_modules_take_the_rule() -> None:
    class Machine:
        def start(self) -> str:
            return "started"

    server = serving()
    server.add_object(Machine(), prefix="machine", allow="admin")
    server.add_module(asyncio.events, pattern="get_event_loop_policy", allow="admin")
    async with memory_client(server) as client:
        await known(client, "bob")
        for method in ("machine.start", "get_event_loop_policy"):
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


# -- registration ---------------------------------------------------------------------------------------------------


def test_a_server_that_knows_nobody_has_no_rules() -> None:
    server = Server()
    with pytest.raises(RegistrationError, match="erase: allow needs callers that are authenticated"):
        server(name="erase", allow="admin")(lambda: None)
    with pytest.raises(RegistrationError, match="allow needs"):
        server.add(lambda: None, name="x", allow=lambda identity: True)
    with pytest.raises(RegistrationError, match="allow needs"):

        @server.batched(allow="admin")
        def double(x: list[int]) -> list[int]:
            return x

    assert not {"erase", "x", "double"} & server.methods.keys()


async def test_a_client_has_no_rules_either() -> None:
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


# -- the rule -------------------------------------------------------------------------------------------------------


class Roles(Mapping[str, Any]):
    def __init__(self, **items: Any) -> None:
        self._items = items

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@pytest.mark.parametrize(
    ("identity", "names"),
    [
        ("admin", {"admin"}),
        (Role.ADMIN, {"admin"}),
        (User("admin"), set()),
        (User("x", "admin"), {"admin"}),
        (User("x", ("admin", Role.ADMIN, 5, None)), {"admin"}),
        ({"roles": ["admin"]}, {"admin"}),
        ({"roles": {"admin": True}}, {"admin"}),
        (Roles(roles={"admin"}), {"admin"}),
        ({"name": "admin"}, set()),
        ({"roles": None}, set()),
        (SimpleNamespace(roles=lambda: ["admin"]), set()),
        (SimpleNamespace(roles=5), set()),
        (["admin"], set()),
        (True, set()),
        (object(), set()),
    ],
)
def test_the_names_of_an_identity(identity: Any, names: set[str]) -> None:
    assert names_of(identity) == names
    assert CallerRule("admin", method="m").permits(identity) is bool(names)


def test_nobody_may_do_nothing() -> None:
    assert not CallerRule("None", method="m").permits(None)
    assert not CallerRule(lambda identity: True, method="m").permits(None)


def test_a_name_is_the_whole_name() -> None:
    rule = CallerRule("admin", method="m")
    assert not any(rule.permits(identity) for identity in ("a", "Admin", "admin ", "administrator", ""))


@pytest.mark.parametrize("found", [None, 0, "", []])
def test_only_what_is_true_permits(found: Any) -> None:
    assert not CallerRule(lambda identity: found, method="m").permits("x")


def test_a_rule_that_fails_permits_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        @property
        def roles(self) -> Any:
            raise ValueError("odd roles")

    caplog.set_level(logging.ERROR)
    assert not CallerRule(lambda identity: identity.missing, method="m").permits("x")
    assert not CallerRule(lambda identity: permits_later(identity), method="m").permits("x")  # type: ignore[arg-type,return-value]
    assert not CallerRule("admin", method="m").permits(Odd())
    for expected in ("'m' raised", "missing", "an awaitable", "odd roles"):
        assert expected in caplog.text
