"""What tests/nats_server.py starts, as nats-py sees it: without that, no other test of this folder says anything."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.kv import KeyValue

from ..kit import certificates, until, until_in_thread
from ..kit.nats_accounts import Key, Operator
from ..kit.nats_server import NatsCluster, NatsServer
from ..kit.plain_nats import plain_client

pytestmark = pytest.mark.nats

StartNats = Callable[..., NatsServer]
StartCluster = Callable[..., NatsCluster]


@asynccontextmanager
async def client(*urls: str, **options: Any) -> AsyncIterator[Client]:
    """A connection of nats-py, which looks for another server after 10 ms, and at the end closes at once."""

    async def keep(error: Exception) -> None:
        errors.append(error)

    errors: list[Exception] = []
    options = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1, "error_cb": keep} | options
    async with plain_client(*urls, **options) as connection:
        yield connection


async def echo(message: Msg) -> None:
    await message.respond(message.data)


async def ask(connection: Client, subject: str, data: bytes) -> bytes:
    """The reply, asked for again while the other end is between two servers."""
    while True:
        try:
            return (await connection.request(subject, data, timeout=1)).data
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            await asyncio.sleep(0.01)


async def refused(url: str, **options: Any) -> str:
    """The words with which a server refuses a connection."""
    words: list[str] = []

    async def keep(error: Exception) -> None:
        words.append(str(error))

    connection = Client()
    with pytest.raises((nats.errors.Error, ssl.SSLError)):
        await connection.connect(url, allow_reconnect=False, error_cb=keep, **options)
    # nats-py leaves that to its caller, and waits for ever for the end of what was closed when TLS failed.
    with suppress(TimeoutError):
        await asyncio.wait_for(connection.close(), 0.1)
    return " ".join(words).lower()


async def test_a_request_is_answered_or_has_no_responders(shared_nats: NatsServer) -> None:
    async with client(shared_nats.url) as one, client(shared_nats.url) as other:
        await other.subscribe("infrastructure.echo", cb=echo, queue="rpc")
        await other.flush()
        assert (await one.request("infrastructure.echo", b"4", headers={"k": "v"})).data == b"4"
        with pytest.raises(nats.errors.NoRespondersError):
            await one.request("infrastructure.nothing", b"4", timeout=20)


async def test_a_client_is_back_after_a_kill_and_so_is_what_was_stored(start_nats: StartNats) -> None:
    server = start_nats(jetstream=True)
    async with client(server.url) as one:
        bucket = await one.jetstream().create_key_value(bucket="kept")
        await bucket.put("a", b"1")
        url = server.url
        server.kill()
        await until(lambda: one.is_reconnecting)
        server.restart()
        await until(lambda: one.is_connected)
        assert server.url == url
        assert (await bucket.get("a")).value == b"1"


async def test_a_paused_server_answers_nothing_until_it_is_resumed(start_nats: StartNats) -> None:
    server = start_nats()
    async with client(server.url) as one:
        await one.subscribe("echo", cb=echo)
        server.pause()
        with pytest.raises(nats.errors.TimeoutError):
            await one.request("echo", b"4", timeout=0.05)
        server.resume()
        assert (await one.request("echo", b"5", timeout=20)).data == b"5"


async def test_max_payload_is_what_the_test_asked_for(start_nats: StartNats) -> None:
    async with client(start_nats(max_payload=1000).url) as one:
        assert one.max_payload == 1000
        with pytest.raises(nats.errors.MaxPayloadError):
            await one.publish("a", b"x" * 1001)


async def test_users_have_passwords_and_permissions(start_nats: StartNats) -> None:
    user = {"user": "caller", "password": "right", "permissions": {"publish": ["may.>"], "subscribe": ["_INBOX.>"]}}
    server = start_nats(users=[user])
    assert "authorization violation" in await refused(server.url_with("caller", "wrong"))
    assert "authorization violation" in await refused(server.url)
    errors: list[str] = []

    async def keep(error: Exception) -> None:
        errors.append(str(error))

    async with client(server.url_with("caller", "right"), error_cb=keep) as one:
        await one.publish("may.do", b"")
        await one.flush()
        assert errors == []
        await one.publish("not.this", b"")
        await until(lambda: errors)
        assert 'permissions violation for publish to "not.this"' in errors[0].lower()


async def test_users_have_keys(start_nats: StartNats) -> None:
    known, unknown = Key("U"), Key("U")
    server = start_nats(users=[{"nkey": known.public}])
    async with client(server.url, nkeys_seed_str=known.seed) as one:
        await one.flush()
    assert "authorization violation" in await refused(server.url, nkeys_seed_str=unknown.seed)


async def test_users_have_credentials_of_an_account(start_nats: StartNats, tmp_path: Path) -> None:
    operator = Operator()
    vision, speech = operator.account("vision", jetstream=True), operator.account("speech")
    server = start_nats(operator=operator, jetstream=True)
    files = {
        "right": vision.user("caller", publish={"deny": ["not.this"]}),
        "elsewhere": speech.user("caller"),
        "expired": vision.user("caller", expires=time.time() - 10),
        "unknown": Operator().account("vision").user("caller"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    assert "authorization violation" in await refused(server.url, user_credentials=str(tmp_path / "unknown"))
    assert "authorization violation" in await refused(server.url, user_credentials=str(tmp_path / "expired"))
    assert "authorization violation" in await refused(server.url)
    right, elsewhere = str(tmp_path / "right"), str(tmp_path / "elsewhere")
    async with (
        client(server.url, user_credentials=right) as one,
        client(server.url, user_credentials=elsewhere) as other,
    ):
        await one.subscribe("echo", cb=echo)
        assert (await one.request("echo", b"4")).data == b"4"
        with pytest.raises(nats.errors.NoRespondersError):
            await other.request("echo", b"4")
        assert (await one.jetstream().account_info()).limits.max_memory == -1


async def test_tls_by_the_authority_of_the_tests(start_nats: StartNats) -> None:
    server = start_nats(tls=True)
    async with client(server.url, tls=certificates.client_side()) as one:
        await one.subscribe("echo", cb=echo)
        assert (await one.request("echo", b"4")).data == b"4"
    assert "certificate verify failed" in await refused(server.url, tls=ssl.create_default_context())


async def test_nodes_of_a_cluster_forward_to_each_other(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    first, _, third = cluster.nodes
    async with client(first.url) as one, client(third.url) as other:
        await other.subscribe("echo", queue="rpc", cb=echo)
        await other.flush()
        cluster.wait_for_subscription("echo", at=third)
        assert (await one.request("echo", b"4")).data == b"4"


async def test_a_client_of_a_killed_node_goes_to_another(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    first, second, third = cluster.nodes
    async with (
        client(first.url, second.url, dont_randomize=True) as one,
        client(third.url, second.url, dont_randomize=True) as other,
    ):
        await other.subscribe("echo", cb=echo)
        for victim in (third, first):
            victim.kill()
            cluster.wait_joined()
            assert await ask(one, "echo", b"4") == b"4"
            victim.restart()
            cluster.wait_joined()
        assert one.connected_url is not None
        assert one.connected_url.port in (second.port, third.port)


async def test_nodes_of_a_cluster_store_together(start_cluster: StartCluster) -> None:
    cluster = start_cluster(jetstream=True)
    async with client(*cluster.urls) as one:
        bucket = await one.jetstream().create_key_value(bucket="kept", replicas=3)
        await bucket.put("a", b"1")
    for url in cluster.urls:
        async with client(url) as other:
            found = await other.jetstream().key_value("kept")
            while await last_value(found, "a") != b"1":
                await asyncio.sleep(0.01)


async def last_value(bucket: KeyValue, key: str) -> bytes | None:
    """The value as the node knows it, which may hear of it after the others have stored it; None: not yet."""
    try:
        return (await bucket.history(key))[-1].value
    except (nats.js.errors.NoKeysError, nats.errors.TimeoutError):
        return None


def test_a_configuration_that_nats_refuses_is_shown(start_nats: StartNats) -> None:
    with pytest.raises(RuntimeError, match='unknown field "max_pailoud"'):
        start_nats(config={"max_pailoud": 1})


@pytest.mark.slow
def test_no_server_outlives_a_test_run_that_is_killed() -> None:
    program = """
import time
from tests.kit.nats_server import NatsServer
server = NatsServer()
print(server.process.pid, server.folder, flush=True)
time.sleep(60)
"""
    root = Path(__file__).parent.parent.parent
    run = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid, folder = run.stdout.readline().split()
    assert is_alive(int(pid))
    run.kill()
    run.communicate()
    until_in_thread(lambda: not is_alive(int(pid)) and not Path(folder).exists())


def is_alive(pid: int) -> bool:
    """Whether a process runs; not where it has ended and its parent has not asked for its status."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
