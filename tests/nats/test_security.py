"""Who may connect to NATS, what its users may do there, and who callers are for a server: against real servers."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

pytest.importorskip("nats")


from rpcstream import (
    AsyncClient,
    Client,
    ConnectFailed,
    Context,
    InvalidRequest,
    MethodNotFound,
    NatsLogin,
    NotAuthenticated,
    NotPermitted,
    Server,
)
from rpcstream.nats.link import NatsLink
from rpcstream.nats.options import NatsOptions
from rpcstream.tls import client_context

from ..kit import certificates, until
from ..kit.nats_accounts import Key, Operator
from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import plain_client

pytestmark = pytest.mark.nats

StartNats = Callable[..., NatsServer]


def make_server(**options: Any) -> Server:
    """A server with a method `add`, a method `whoami`, and one that calls back."""
    server = Server(**options)

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def whoami(ctx: Context) -> Any:
        return ctx.identity

    @server
    async def count(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    return server


@asynccontextmanager
async def serving(server: Server, nats: NatsServer, service: str = "vision", **options: Any) -> AsyncIterator[str]:
    """Serve on NATS alone; gives the address for clients."""
    url = f"{'nats+tls' if nats.url.startswith('tls') else 'nats'}://127.0.0.1:{nats.port}"
    server.join_nats(url, service=service, only=True, **options)
    async with server.listening() as address:
        yield address


async def connect(nats: NatsServer, login: NatsLogin | None = None, **options: Any) -> NatsLink:
    return await NatsLink.connect(
        NatsOptions(servers=(f"127.0.0.1:{nats.port}",), login=login or NatsLogin(), **options)
    )


async def failure_of(nats: NatsServer, login: NatsLogin | None = None, **options: Any) -> str:
    """The reason of an attempt to connect that fails for good."""
    with pytest.raises(ConnectFailed) as failed:
        await connect(nats, login, **options)
    assert failed.value.is_permanent
    return failed.value.reason


# -- logins -----------------------------------------------------------------------------------------------------------


async def test_user_and_password_at_both_ends(start_nats: StartNats) -> None:
    nats = start_nats(users=[{"user": "a", "password": "secret"}])
    login = NatsLogin(user="a", password="secret")
    async with serving(make_server(), nats, login=login) as address:
        async with AsyncClient(address, nats=login) as client:
            assert await client.add(1, 2) == 3
        async with AsyncClient(address, nats=NatsLogin(user="a", password="wrong"), wait_for=60) as client:
            with pytest.raises(ConnectFailed, match=r"does not accept this name and password \(user='a', password=\)"):
                await client.add(1, 2)
        async with AsyncClient(address) as client:
            with pytest.raises(ConnectFailed, match="asks for a login: give creds=, nkey=, or user= and password="):
                await client.add(1, 2)
        with Client(address, nats=login) as blocking:
            assert await asyncio.to_thread(blocking.add, 2, 2) == 4
    wrong = make_server()
    wrong.join_nats(nats.url, service="vision", login=NatsLogin(user="b", password="x"))
    with pytest.raises(ConnectFailed, match="does not accept this name and password") as failed:
        await wrong.start()
    assert failed.value.is_permanent
    assert "secret" not in repr(login)


async def test_a_token_of_nats(start_nats: StartNats) -> None:
    nats = start_nats(config={"authorization": {"token": "sesame"}})
    async with (
        serving(make_server(), nats, login=NatsLogin(user="sesame")) as address,
        AsyncClient(address, nats=NatsLogin(user="sesame")) as client,
    ):
        assert await client.add(1, 2) == 3
    assert "does not accept this token (user= without password=)" in await failure_of(nats, NatsLogin(user="open"))


async def test_credentials_files_at_both_ends(start_nats: StartNats, tmp_path: Path) -> None:
    operator = Operator()
    account = operator.account("vision")
    nats = start_nats(operator=operator)
    creds = tmp_path / "vision.creds"
    creds.write_text(account.user("vision"))
    async with (
        serving(make_server(), nats, login=NatsLogin(creds=creds)) as address,
        AsyncClient(address, nats=NatsLogin(creds=str(creds))) as client,
    ):
        assert await client.add(1, 2) == 3

    creds.write_text(account.user("late", expires=time.time() - 60))
    assert f"does not accept these credentials (creds={str(creds)!r})" in await failure_of(nats, NatsLogin(creds=creds))
    creds.write_text(Operator().account("vision").user("stranger"))
    assert "does not accept these credentials" in await failure_of(nats, NatsLogin(creds=creds))
    creds.write_text("-----BEGIN NATS USER JWT-----\n")
    assert await failure_of(nats, NatsLogin(creds=creds)) == f"creds= has no JWT of a user in it: {str(creds)!r}"
    missing = str(tmp_path / "none")
    assert await failure_of(nats, NatsLogin(creds=missing)) == (
        f"creds= cannot be read: No such file or directory: {missing!r}"
    )


async def test_nkeys_at_both_ends(start_nats: StartNats, tmp_path: Path) -> None:
    key, other = Key("U"), Key("U")
    nats = start_nats(users=[{"nkey": key.public}])
    file = tmp_path / "vision.nk"
    file.write_text(key.seed + "\n")
    async with (
        serving(make_server(), nats, login=NatsLogin(nkey=file)) as address,
        AsyncClient(address, nats=NatsLogin(nkey=file)) as client,
    ):
        assert await client.add(1, 2) == 3
    file.write_text(other.seed)
    assert await failure_of(nats, NatsLogin(nkey=file)) == (
        f"the NATS server has no user with this key (nkey={str(file)!r})"
    )
    file.write_text("hello")
    assert "nkey= has no seed of a user's key (SU...) in it" in await failure_of(nats, NatsLogin(nkey=file))
    file.write_text(key.seed[:20])
    reason = await failure_of(nats, NatsLogin(nkey=file))
    assert reason.startswith("nkey= has a seed in it that is none")
    assert key.seed[:20] not in reason


def test_a_login_has_one_way() -> None:
    with pytest.raises(ValueError, match="one of creds, nkey and user"):
        NatsLogin(creds="a", nkey="b")
    with pytest.raises(ValueError, match="password needs a user"):
        NatsLogin(password="b")
    for prefix in ("$JS", "rpc", "rpc.inbox", "a b", "a..b", "a.>", "", "x" * 129):
        with pytest.raises(ValueError, match="inbox_prefix="):
            NatsLogin(inbox_prefix=prefix)
    with pytest.raises(ValueError, match=r"nats= is a login for nats://"):
        Client("127.0.0.1:1", nats=NatsLogin(user="a"))


# -- TLS --------------------------------------------------------------------------------------------------------------


async def test_tls_with_an_authority_of_ones_own_at_both_ends(start_nats: StartNats) -> None:
    nats = start_nats(tls=True)
    trusted = client_context(ca=certificates.authority())
    async with serving(make_server(), nats, tls=trusted) as address:
        assert address == f"nats+tls://127.0.0.1:{nats.port}/vision"
        async with AsyncClient(address, ca=certificates.authority()) as client:
            assert await client.add(1, 2) == 3
        async with AsyncClient(address) as client:
            with pytest.raises(
                ConnectFailed, match=r"certificate of the NATS server is not to be trusted: .*ca="
            ) as no:
                await client.add(1, 2)
            assert no.value.is_permanent
    assert "not to be trusted" in await failure_of(nats)  # nats://, and the server asks for TLS


async def test_clients_show_certificates(start_nats: StartNats, tmp_path: Path) -> None:
    mine, other = trustme.CA(), trustme.CA()
    mine.cert_pem.write_to_path(tmp_path / "clients.pem")
    for name, authority in (("good", mine), ("bad", other)):
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    nats = start_nats(tls=True, config={"tls": {"verify": True, "ca_file": str(tmp_path / "clients.pem")}})

    def context(name: str) -> ssl.SSLContext:
        return client_context(ca=certificates.authority(), certificate=tmp_path / name)

    async with (
        serving(make_server(), nats, tls=context("good")) as address,
        AsyncClient(address, ca=certificates.authority(), certificate=tmp_path / "good") as client,
    ):
        assert await client.add(1, 2) == 3
    for _ in range(3):  # what the server says of the reason is lost now and then
        reason = await failure_of(nats, is_secure=True, tls=client_context(ca=certificates.authority()))
        assert "asks for a certificate of the client" in reason
        assert "certificate=" in await failure_of(nats, is_secure=True, tls=context("bad"))


async def test_no_login_is_sent_without_the_tls_that_was_asked_for(tmp_path: Path) -> None:
    seen = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","max_payload":1048576,"auth_required":true,"headers":true}\r\n')
        seen.extend(await reader.read(-1))
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = NatsLogin(user="a", password="secret")
    with pytest.raises(ConnectFailed, match=r"has no TLS: begin the address with nats://") as failed:
        await NatsLink.connect(NatsOptions(servers=(f"127.0.0.1:{port}",), login=login, is_secure=True))
    assert failed.value.is_permanent
    server.close()
    await server.wait_closed()
    assert not seen


# -- permissions ------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "nats-security.md"

#: What a user may publish, and what it may subscribe to: each with the subjects that are allowed and denied.
Permissions = dict[str, dict[str, list[str]]]


def permissions_of(who: str) -> Permissions:
    """All that an instance of `vision`, or a caller of it, needs: as the page says."""
    row = re.search(rf"^\| {who} \|(.*)\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    found: Permissions = {}
    for way, cell in zip(("publish", "subscribe"), row.groups(), strict=True):
        allowed, _, denied = cell.partition("but not")
        found[way] = {"allow": re.findall("`([^`=]+)`", allowed), "deny": re.findall("`([^`=]+)`", denied)}
    return found


INSTANCE, CALLER = permissions_of("an instance"), permissions_of("a caller")


def both(*users: Permissions) -> Permissions:
    """What users may together; what one of them is allowed is not denied."""
    merged: Permissions = {}
    for way in ("publish", "subscribe"):
        allowed = [each for permissions in users for each in permissions[way]["allow"]]
        denied = [each for permissions in users for each in permissions[way]["deny"] if each not in allowed]
        merged[way] = {"allow": allowed, "deny": denied}
    return merged


def only(publish: list[str], subscribe: list[str]) -> Permissions:
    return {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}


def user(name: str, permissions: Permissions) -> dict[str, Any]:
    return {"user": name, "password": "p", "permissions": permissions}


def configuration(beginning: str) -> str:
    """The example of a configuration on the page that begins so; every password in it is "p"."""
    example = re.search(rf"^```text\n({beginning}: {{\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    return "".join(f"{name}: p\n" for name in sorted(set(re.findall(r"password: \$([A-Z]+)", example[1])))) + example[1]


def login(name: str, **more: Any) -> NatsLogin:
    return NatsLogin(user=name, password="p", **more)


async def test_the_minimal_permissions_suffice(start_nats: StartNats) -> None:
    nats = start_nats(users=[user("instance", INSTANCE), user("caller", CALLER)])
    async with (
        serving(make_server(), nats, login=login("instance")) as address,
        AsyncClient(address, nats=login("caller")) as client,
    ):
        assert await client.add(1, 2) == 3
        assert [item async for item in client.stream.count(3)] == [0, 1, 2]
        async with client.batch() as batch:
            results = [batch.add(number, number) for number in range(3)]
        assert [each.result() for each in results] == [0, 2, 4]
        with pytest.raises(MethodNotFound):
            await client.nothing()
    assert "Violation" not in nats.log()


async def test_the_permissions_for_events_and_last_values_suffice(start_nats: StartNats) -> None:
    instance = both(INSTANCE, permissions_of("an instance, for last values"))
    subscriber = both(CALLER, permissions_of("a subscriber"))
    publisher = both(subscriber, permissions_of("a publisher of events"), permissions_of("a publisher of last values"))
    users = [user("instance", instance), user("subscriber", subscriber), user("publisher", publisher)]
    nats = start_nats(jetstream=True, users=users)
    server = make_server()
    own = login("instance", inbox_prefix="_INBOX_vision")
    async with (
        serving(server, nats, login=own) as address,
        AsyncClient(address, nats=login("subscriber")) as reader,
        AsyncClient(address, nats=login("publisher")) as writer,
    ):
        async with reader.subscribe("ticks.*") as ticks:
            server.publish("ticks.a", 1, retain=True)
            assert await anext(ticks) == 1
            await writer.publish("ticks.b", 2)
            assert await anext(ticks) == 2
            await writer.publish("ticks.c", 3, retain=True)
            assert await anext(ticks) == 3
        async with reader.subscribe("ticks.c") as kept:
            assert await anext(kept) == 3
        assert "Violation" not in nats.log()
        with pytest.raises(NotPermitted, match=r"\$KV\.rpc_vision_last\.ticks\.d"):
            await reader.publish("ticks.d", 4, retain=True)


async def test_the_configuration_of_the_page(start_nats: StartNats) -> None:
    """Its users can all that they need; a caller cannot publish an event, as itself or by a reply subject."""
    nats = start_nats(text=configuration("authorization"))
    server = make_server()
    async with (
        serving(server, nats, login=login("vision")) as address,
        AsyncClient(address, nats=login("caller")) as client,
        plain_client(nats.url_with("caller", "p")) as plain,
        plain_client(nats.url_with("vision", "p")) as victim,
    ):
        assert await client.add(1, 2) == 3
        assert [item async for item in client.stream.count(3)] == [0, 1, 2]
        async with client.batch() as batch:
            results = [batch.add(number, number) for number in range(3)]
        assert [each.result() for each in results] == [0, 2, 4]
        assert "Violation" not in nats.log()

        heard = await victim.subscribe("rpc.vision.$event.>")
        await victim.flush()
        with pytest.raises(NotPermitted, match=r"rpc\.vision\.\$event\.ticks"):
            await client.publish("ticks", 1)
        event = json.dumps({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "ticks", "value": 1}}).encode()
        await plain.publish("rpc.vision.$event.ticks", event)
        await plain.publish("rpc.vision.add", event, reply="rpc.vision.$event.ticks")
        await plain.flush()
        server.publish("ticks", 2)
        assert json.loads((await heard.next_msg(20)).data)["params"]["value"] == 2


async def test_the_accounts_of_the_page(start_nats: StartNats) -> None:
    """Users of the account that imports the service may call; they cannot publish an event of the service."""
    nats = start_nats(text=configuration("accounts"))
    server = make_server(authenticate=by_nats)
    async with (
        serving(server, nats, login=login("vision"), trust_identity=True) as address,
        AsyncClient(address, nats=login("ada")) as client,
        plain_client(nats.url_with("bob", "p")) as plain,
        plain_client(nats.url_with("vision", "p")) as victim,
    ):
        assert await client.whoami() == "WEB/ada"
        assert {"add", "whoami"} <= {method["name"] for method in (await client.call("rpc.discover"))["methods"]}
        async with client.batch() as batch:
            results = [batch.add(number, number) for number in range(3)]
        assert [each.result() for each in results] == [0, 2, 4]

        heard = await victim.subscribe("rpc.vision.$event.>")
        await victim.flush()
        event = json.dumps({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "ticks", "value": 1}}).encode()
        await plain.publish("rpc.vision.$event.ticks", event)
        await plain.flush()
        server.publish("ticks", 2)
        assert json.loads((await heard.next_msg(20)).data)["params"]["value"] == 2


async def test_private_inboxes(start_nats: StartNats) -> None:
    alice = {**CALLER, "subscribe": {"allow": ["_INBOX_alice.>"]}}
    instance = {**INSTANCE, "publish": {"allow": ["_INBOX_alice.>"]}}
    nats = start_nats(users=[user("instance", instance), user("alice", alice)])
    async with serving(make_server(), nats, login=login("instance")) as address:
        async with AsyncClient(address, nats=login("alice", inbox_prefix="_INBOX_alice")) as client:
            assert await client.add(1, 2) == 3
            assert [item async for item in client.stream.count(3)] == [0, 1, 2]
        async with AsyncClient(address, nats=login("alice")) as client:
            with pytest.raises(ConnectFailed, match=r"does not permit this login to subscribe to '_INBOX\.") as failed:
                await client.add(1, 2)
            assert failed.value.is_permanent
            assert "inbox_prefix=" in failed.value.reason


async def test_a_method_that_nats_does_not_permit_fails_at_once(start_nats: StartNats) -> None:
    limited = only(
        ["rpc.vision.add", "rpc.vision.count", "rpc.vision.$inquiry", "rpc.vision.$instance.*.*"], ["_INBOX.>"]
    )
    nats = start_nats(users=[user("instance", INSTANCE), user("caller", limited)])
    async with (
        serving(make_server(), nats, login=login("instance")) as address,
        AsyncClient(address, nats=login("caller"), timeout=None) as client,
    ):
        assert await client.add(1, 2) == 3
        assert [item async for item in client.stream.count(3)] == [0, 1, 2]
        with pytest.raises(NotPermitted, match=r"rpc\.vision\.whoami"):
            await client.whoami()
        async with client.batch() as batch:
            results = [batch.add(1, 2), batch.whoami()]
        for result in results:
            with pytest.raises(NotPermitted, match=r"rpc\.vision\.\$batch"):
                result.result()
        assert await client.add(2, 2) == 4


async def test_a_permitted_subject_calls_no_other_method(start_nats: StartNats) -> None:
    nats = start_nats(users=[user("instance", INSTANCE), user("caller", CALLER)])
    async with (
        serving(make_server(), nats, login=login("instance")),
        plain_client(nats.url_with("caller", "p")) as caller,
    ):
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "whoami"}).encode()
        answer = json.loads((await caller.request("rpc.vision.add", message, timeout=20)).data)
        assert answer["error"]["code"] == InvalidRequest.CODE


@pytest.mark.parametrize(
    "reply", ["$JS.API.STREAM.PURGE.KV_rpc_vision_last", "rpc.vision.$event.ticks", "rpc.other.add"]
)
async def test_an_instance_publishes_nothing_for_callers_but_to_inboxes(
    start_nats: StartNats, reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller could else have the instance publish where it may, and the caller may not."""
    nats = start_nats(users=[{"user": "all", "password": "p"}, user("caller", CALLER)])
    async with (
        serving(make_server(), nats, login=login("all")),
        plain_client(nats.url_with("caller", "p")) as caller,
        plain_client(nats.url_with("all", "p")) as victim,
    ):
        seen = await victim.subscribe(reply)
        await victim.flush()
        call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "add", "params": [1, 2]}).encode()
        for subject, message in (("add", call), ("add", b"no JSON"), ("$batch", b"[]"), ("$inquiry", b"[1]")):
            await caller.publish(f"rpc.vision.{subject}", message, reply=reply)
        assert json.loads((await caller.request("rpc.vision.add", call, timeout=20)).data)["result"] == 3
        await victim.publish("$SRV.PING", b"", reply=reply)
        await victim.request("$SRV.PING", b"", timeout=20)
        assert seen.pending_msgs == 0
        assert f"wants its answer at {reply}" in caplog.text


@pytest.mark.parametrize("missing", ["rpc.vision.>", "$SRV.>"])
async def test_an_instance_without_a_permission(
    start_nats: StartNats, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    few = {
        **INSTANCE,
        "subscribe": {"allow": [subject for subject in INSTANCE["subscribe"]["allow"] if subject != missing]},
    }
    nats = start_nats(users=[user("instance", few), user("caller", CALLER)])
    server = make_server()
    if missing != "$SRV.>":
        server.join_nats(nats.url, service="vision", login=login("instance"), only=True)
        with pytest.raises(ConnectFailed, match=r"not permit this login to subscribe to 'rpc\.vision\.") as failed:
            await server.start()
        assert failed.value.is_permanent
        return
    async with serving(server, nats, login=login("instance")) as address:  # it is of use without these
        async with AsyncClient(address, nats=login("caller")) as client:
            assert await client.add(1, 2) == 3
        await until(lambda: "NATS does not permit this login the subscription to $SRV.PING" in caplog.text)


# -- tokens of a server -----------------------------------------------------------------------------------------------


async def test_a_token_stands_in_a_header(shared_nats: NatsServer) -> None:
    async with serving(make_server(token="sesame"), shared_nats, "tokens") as address:
        async with AsyncClient(address, token="sesame") as client:
            assert await client.whoami() == "token"
            assert [item async for item in client.stream.count(3)] == [0, 1, 2]
            async with client.batch() as batch:
                results = [batch.add(number, number) for number in range(3)]
            assert [each.result() for each in results] == [0, 2, 4]
        async with AsyncClient(address, token="wrong") as client:
            with pytest.raises(NotAuthenticated, match="token"):
                await client.add(1, 2)
            async with client.batch() as batch:
                results = [batch.add(1, 2), batch.whoami()]
            for result in results:
                with pytest.raises(NotAuthenticated):
                    result.result()
        async with AsyncClient(address) as client:
            with pytest.raises(NotAuthenticated):
                await client.add(1, 2)
            with pytest.raises(NotAuthenticated, match="for connections"):
                await client.request("rpc.authenticate", {"token": "sesame"})
            with pytest.raises(NotAuthenticated):
                await client.add(1, 2)


async def test_the_inbox_of_another_caller_is_no_identity(shared_nats: NatsServer) -> None:
    """Who writes another one's inbox into a message is not taken for it, although sessions are found by inboxes."""
    tokens = {"a": "alice", "m": "mallory"}
    server = make_server(authenticate=lambda shown: tokens.get(shown.token))
    async with serving(server, shared_nats, "forged"), plain_client(shared_nats.url) as plain:
        inbox = f"{plain.new_inbox()}.rpcstream"
        answers = await plain.subscribe(f"{inbox}.*")

        async def ask(number: int, token: str | None) -> Any:
            message = json.dumps({"jsonrpc": "2.0", "id": number, "method": "whoami"}).encode()
            headers = {"Authorization": f"Bearer {token}"} if token is not None else None
            await plain.publish("rpc.forged.whoami", message, reply=f"{inbox}.{number}", headers=headers)
            while (told := await answers.next_msg(20)).subject.endswith(".ack"):
                pass
            answer = json.loads(told.data)
            return answer["result"] if "result" in answer else answer["error"]["code"]

        assert await ask(1, "a") == "alice"
        assert await ask(2, None) == NotAuthenticated.CODE
        assert await ask(3, "m") == "mallory"
        assert await ask(4, "a") == "alice"


async def test_calls_wait_for_an_async_function_and_keep_their_order(shared_nats: NatsServer) -> None:
    looked, seen = asyncio.Event(), list[str]()

    async def authenticate(shown: Any) -> str | None:
        seen.append(shown.token)
        await looked.wait()
        return "alice" if shown.token == "a" else None

    order: list[int] = []
    server = make_server(authenticate=authenticate)

    @server
    def note(number: int) -> None:
        order.append(number)

    async with (
        serving(server, shared_nats, "looked_up") as address,
        AsyncClient(address, token="a") as client,
        AsyncClient(address, token="b") as other,
    ):
        calls = [asyncio.ensure_future(client.note(number)) for number in range(20)]
        refused = [asyncio.ensure_future(other.note(-1)) for _ in range(3)]
        await until(lambda: sorted(seen) == ["a", "b"])  # one look-up for each
        looked.set()
        await asyncio.gather(*calls)
        assert await client.whoami() == "alice"
        for each in await asyncio.gather(*refused, return_exceptions=True):
            assert isinstance(each, NotAuthenticated)
    assert order == list(range(20))


# -- what NATS says of callers ----------------------------------------------------------------------------------------


def two_accounts(*, share: bool) -> dict[str, Any]:
    """An account with the instances, and one of callers, which imports the service."""
    imported = {"service": {"account": "VISION", "subject": "rpc.vision.*"}, "share": share}
    users = [{"user": "alice", "password": "p"}, {"user": "bob", "password": "p"}]
    instances = {"users": [{"user": "instance", "password": "p"}], "exports": [{"service": "rpc.vision.*"}]}
    return {"accounts": {"VISION": instances, "CALLERS": {"users": users, "imports": [imported]}}}


def by_nats(shown: Any) -> str | None:
    """A function for `authenticate=` that knows the users of NATS."""
    return f"{shown.nats_account}/{shown.nats_user}" if shown.nats_account else None


async def test_nats_says_who_calls_from_another_account(start_nats: StartNats) -> None:
    nats = start_nats(config=two_accounts(share=True))
    server = make_server(authenticate=by_nats)

    @server(allow="CALLERS/alice")
    def secret() -> str:
        return "for alice"

    @server
    def shown(ctx: Context) -> list[str | None]:
        return [ctx.credentials.nats_user, ctx.credentials.nats_account, ctx.credentials.token]

    async with serving(server, nats, login=login("instance"), trust_identity=True) as address:
        async with AsyncClient(address, nats=login("alice")) as alice, AsyncClient(address, nats=login("bob")) as bob:
            assert await alice.whoami() == "CALLERS/alice"
            assert await bob.whoami() == "CALLERS/bob"
            assert await alice.secret() == "for alice"
            assert await alice.shown() == ["alice", "CALLERS", None]
            with pytest.raises(NotPermitted):
                await bob.secret()

        told = json.dumps({"acc": "CALLERS", "user": "alice"})
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "whoami"}).encode()
        async with plain_client(nats.url_with("bob", "p")) as forger:
            answer = await forger.request("rpc.vision.whoami", message, timeout=20, headers={"Nats-Request-Info": told})
            assert json.loads(answer.data)["result"] == "CALLERS/bob"  # nats-server takes this line out
            for name in ("nats-request-info", "NATS-REQUEST-INFO"):
                answer = await forger.request("rpc.vision.whoami", message, timeout=20, headers={name: told})
                assert json.loads(answer.data)["error"]["code"] == NotAuthenticated.CODE


FORGED = b'{"acc":"CALLERS","user":"alice"}'

INFO = b"Nats-Request-Info"


@pytest.mark.parametrize(
    "head",
    [
        b"NATS/1.0\r\n" + INFO + b" : " + FORGED + b"\r\nZ: ",  # the server's own line is put behind this Z
        b"NATS/1.0\r\n" + INFO + b" : " + FORGED + b"\r\n\r\n",
        b"NATS/1.0\r\n" + INFO + b"\t: " + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\n " + INFO + b": " + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\n" + INFO + b":" + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\nnats-request-info: " + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\n" + INFO + b": " + FORGED + b"zz",
        b"NATS/1.0\r\n" + INFO + b": " + FORGED + b"\r\n" + INFO + b": " + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\n\r\n" + INFO + b": " + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\nA: \n" + INFO + b": " + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\nA: \r" + INFO + b": " + FORGED + b"\nZ: ",
        b"NATS/1.0 200 " + INFO + b": " + FORGED + b"\r\n" + INFO + b" : " + FORGED + b"\r\nZ: ",
        b"NATS/1.0\r\n\xff: x\r\n" + INFO + b" : " + FORGED + b"\r\nZ: ",
        b"XATS/1.0\r\n" + INFO + b" : " + FORGED + b"\r\nZ: ",
    ],
    ids=repr,
)
async def test_a_forged_identity_is_not_believed(start_nats: StartNats, head: bytes) -> None:
    """nats-server puts its line behind what the caller has written, whatever that is."""
    nats = start_nats(config=two_accounts(share=True))
    server = make_server(authenticate=by_nats)
    called = 0

    @server(allow="CALLERS/alice")
    def secret() -> None:
        nonlocal called
        called += 1

    answers = []
    async with serving(server, nats, login=login("instance"), trust_identity=True) as address:
        raw = await RawClient.connect(nats.port, "bob")
        await raw.subscribe("answers.*")
        for name in ("whoami", "secret"):
            call = {"jsonrpc": "2.0", "id": 1, "method": name}
            raw.publish(f"rpc.vision.{name}", json.dumps(call).encode(), "answers.here", head)
            answers.append((await raw.next()).json)
        await raw.close()
        async with AsyncClient(address, nats=login("alice")) as alice:
            assert await alice.whoami() == "CALLERS/alice"
    assert not called
    who, refused = answers
    assert who.get("result") == "CALLERS/bob" or who["error"]["code"] == NotAuthenticated.CODE
    assert refused["error"]["code"] in (NotAuthenticated.CODE, NotPermitted.CODE)


async def test_an_import_that_is_not_shared_tells_the_account_alone(start_nats: StartNats) -> None:
    nats = start_nats(config=two_accounts(share=False))
    server = make_server(authenticate=by_nats)
    async with (
        serving(server, nats, login=login("instance"), trust_identity=True) as address,
        AsyncClient(address, nats=login("alice")) as client,
    ):
        assert await client.whoami() == "CALLERS/"


async def test_nats_is_not_trusted_unless_the_server_says_so(start_nats: StartNats) -> None:
    nats = start_nats(config=two_accounts(share=True))
    async with (
        serving(make_server(authenticate=by_nats), nats, login=login("instance")) as address,
        AsyncClient(address, nats=login("alice")) as client,
    ):
        with pytest.raises(NotAuthenticated):
            await client.whoami()


def test_trust_needs_a_function_that_reads_it() -> None:
    for options in ({}, {"token": "x"}):
        with pytest.raises(ValueError, match="trust_identity="):
            Server(**options).join_nats("nats://127.0.0.1", service="vision", trust_identity=True)


async def test_a_long_call_from_another_account_is_not_given_up(
    start_nats: StartNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS gives its callers other inboxes, so that an instance cannot tell which calls are theirs."""
    from rpcstream.nats import places

    monkeypatch.setattr(places, "WATCH_EVERY", 0.01)
    monkeypatch.setattr(places, "LATE_AFTER", 0.01)
    nats = start_nats(config=two_accounts(share=True))
    server = make_server(authenticate=by_nats)
    asked, going = 0, asyncio.Event()

    @server
    async def wait() -> str:
        await going.wait()
        return "done"

    async with (
        serving(server, nats, login=login("instance"), trust_identity=True) as address,
        plain_client(nats.url_with("instance", "p")) as watcher,
    ):

        async def count(message: Any) -> None:
            nonlocal asked
            asked += 1
            if asked == 3:
                going.set()

        await watcher.subscribe("rpc.vision.$inquiry", cb=count)
        await watcher.flush()
        async with AsyncClient(address, nats=login("alice")) as client:
            assert await client.wait() == "done"
