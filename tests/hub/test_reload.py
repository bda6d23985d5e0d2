"""SIGHUP and `Hub.reload`: users and rules are read again while the hub runs; who has other rights now has to go."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, NotAuthenticated, NotPermitted, RpcError
from rpcstream.config import ConfigError
from rpcstream.hub import Hub

from ..kit import until

USERS = """
[[users]]
name = "ada"
token = "a"
roles = ["gpu"]

[[users]]
name = "bob"
token = "b"
"""

RULES = """
[[rules]]
who = "gpu"
register = "work"
publish = ">"

[[rules]]
who = "*"
call = "*"
subscribe = "news.>"
"""


@dataclass
class Configured:
    """A hub that serves, made from a file."""

    path: Path
    hub: Hub
    address: str
    clients: list[AsyncClient] = field(default_factory=list)

    def client(self, token: str, **options: Any) -> AsyncClient:
        self.clients.append(AsyncClient(self.address, token=token, **options))
        return self.clients[-1]

    def change(self, *pairs: tuple[str, str]) -> None:
        """Replace texts in the file, and reload."""
        text = self.path.read_text()
        for before, after in pairs:
            assert before in text
            text = text.replace(before, after)
        self.path.write_text(text)
        self.hub.reload()


@asynccontextmanager
async def configured(path: Path, text: str = USERS + RULES, **arguments: Any) -> AsyncIterator[Configured]:
    path.write_text(text)
    hub = Hub.from_config(path, **arguments)
    async with hub.listening(port=0) as address:
        found = Configured(path, hub, address)
        yield found
        for client in found.clients:
            await client.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.toml"


async def two(there: Configured, **options: Any) -> tuple[AsyncClient, AsyncClient]:
    """Ada, who offers `work`, and bob; both are connected."""
    ada, bob = there.client("a", name="ada"), there.client("b", **options)
    ada(lambda: "done", name="work")
    assert await ada.offer() == ["work"]
    assert await bob.call("rpc.ping") == "pong"
    return ada, bob


async def test_users_come_and_go_and_rules_count_at_once(path: Path) -> None:
    async with configured(path) as there:
        ada, bob = await two(there)
        assert await bob.call("work") == "done"
        there.change(('call = "*"', 'call = "other"'))
        with pytest.raises(NotPermitted):
            await bob.call("work")
        there.change(('name = "bob"\ntoken = "b"', 'name = "eve"\ntoken = "e"'))
        assert await there.client("e").call("rpc.ping") == "pong"
        for gone in (bob, there.client("b")):
            with pytest.raises(NotAuthenticated):
                await gone.call("rpc.ping")
        assert ada.state == "connected"
        assert await ada.call("rpc.ping") == "pong"


@pytest.mark.parametrize(
    ("who", "before", "after"),
    [
        ("bob", 'token = "b"', 'token = "c"'),
        ("bob", 'token = "b"', 'token = "b"\nroles = ["gpu"]'),
        ("ada", 'register = "work"', 'register = "other"'),
        ("bob", 'subscribe = "news.>"', 'subscribe = "news.>"\ndeny_subscribe = "news.secret"'),
    ],
)
async def test_who_has_other_rights_now_has_to_go(path: Path, who: str, before: str, after: str) -> None:
    """A user who is not what it was, and what may not be offered or subscribed to any more."""
    async with configured(path) as there:
        ada, bob = await two(there)
        async with bob.subscribe("news.>"), ada.subscribe("news.local"):
            there.change((before, after))
            gone, stays = (bob, ada) if who == "bob" else (ada, bob)
            await until(lambda: gone.state == "idle")
            assert stays.state == "connected"


@pytest.mark.parametrize("finishes", [True, False])
async def test_what_has_begun_is_finished_in_the_drain_timeout(path: Path, finishes: bool) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with configured(path, drain_timeout=5 if finishes else 0.05) as there:
        ada, bob = await two(there, reconnect=True)

        @ada(name="work", replace=True)
        async def work() -> str:
            begun.set()
            await go_on.wait()
            return "done"

        call = bob.submit.work()
        await begun.wait()
        there.change(('token = "b"', 'token = "b"\nroles = ["new"]'), ('roles = ["gpu"]', 'roles = ["gpu", "new"]'))
        if finishes:
            assert await bob.call("rpc.ping") == "pong"  # on another connection, with its new roles
            go_on.set()
            assert await call == "done"
        else:
            with pytest.raises((ConnectionError, RpcError)):
                await call


async def test_a_token_for_all_becomes_another_and_users(path: Path) -> None:
    async with configured(path, 'token = "one"\n') as there:
        before = 'token = "one"\n'
        for after, token, old in (('token = "two"\n', "two", "one"), (USERS, "a", "two")):
            client = there.client(old)
            assert await client.call("rpc.ping") == "pong"
            there.hub.reload()
            assert client.state == "connected"
            there.change((before, after))
            await until(lambda client=client: client.state == "idle")
            assert await there.client(token).call("rpc.ping") == "pong"
            with pytest.raises(NotAuthenticated):
                await client.call("rpc.ping")
            before = after


async def test_times_and_the_log_are_taken_over_the_rest_is_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("rpcstream")
    before = logger.level
    try:
        async with configured(path, 'port = 1\ncall_timeout = 1000\nlog_level = "info"\n' + USERS + RULES) as there:
            ada, bob = await two(there)
            ada(asyncio.Event().wait, name="work", replace=True)
            caplog.set_level(logging.INFO, "rpcstream.hub")
            there.change(("1000", "0.01"), ("port = 1", 'port = 2\ntitle = "other"'))
            with pytest.raises(TimeoutError):
                await bob.call("work", timeout=None)
            assert "need a restart of the hub: port, title" in caplog.text
            there.change(('log_level = "info"', 'log_level = "error"'))
            assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)


async def test_what_a_running_hub_cannot_change_stays(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for first, second in ((USERS, USERS + RULES), (USERS + RULES, USERS), (USERS, ""), ("", USERS)):
        caplog.clear()
        named = "whether there are rules" if first and second else "whether callers are authenticated"
        async with configured(path, first) as there:
            client = there.client("a") if first else AsyncClient(there.address)
            assert await client.call("rpc.ping") == "pong"
            path.write_text(second)
            there.hub.reload()
            assert f"need a restart of the hub: {named}" in caplog.text
            assert client.state == "connected"
            assert (there.hub.rules is not None) == ("rules" in first)
            await client.close()


WRONG = [
    ('who = "gpu"', 'whom = "gpu"', "rules[0]: 'whom' is unknown"),
    ('token = "b"', 'token = "a"', "have the same token"),
    ('token = "b"', "token = ", "hub.toml"),
    ("[[rules]]", "[[rulez]]", "rulez"),
]


async def test_a_wrong_file_changes_nothing(path: Path) -> None:
    async with configured(path) as there:
        ada = there.client("a")
        assert await ada.call("rpc.ping") == "pong"
        for right, wrong, told in WRONG:
            with pytest.raises((ConfigError, ValueError), match=r"hub\.toml") as caught:
                there.change((right, wrong), ('name = "ada"', 'name = "eve"'))
            assert told in str(caught.value)
            path.write_text(USERS + RULES)
        assert ada.state == "connected"
        assert await there.client("b").call("rpc.ping") == "pong"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_signal(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first file is wrong, which is logged; the second is right; the third is gone."""
    path.write_text(USERS)
    hub = Hub.from_config(path)
    before = signal.getsignal(signal.SIGHUP)
    caplog.set_level(logging.INFO, "rpcstream.hub")

    async def drive() -> None:
        for text, expected in ((USERS + "x", "was not reloaded"), (USERS, "was read again"), (None, "No such file")):
            path.write_text(text) if text is not None else path.unlink()
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda expected=expected: expected in caplog.text)
        hub.stop()

    tasks: list[Any] = []
    hub.run(port=0, on_listening=lambda address: tasks.append(asyncio.ensure_future(drive())))
    assert tasks[0].exception() is None
    assert signal.getsignal(signal.SIGHUP) is before
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["hub.toml" in each for each in errors] == [True, True]
