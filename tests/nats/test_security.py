"""Who may connect to NATS, what its users may do there, and who callers are for a server."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
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
    MethodNotFound,
    NatsLogin,
    NotAuthenticated,
    NotPermitted,
    Server,
    ServerBusy,
)
from rpcstream.tls import TLS, client_context

from ..kit import UsualServer, certificates, until
from ..kit.nats_accounts import Key, Operator
from ..kit.nats_server import NatsServer, skip_without_program
from ..kit.plain_nats import plain_client
from .conftest import Clock
from .service import ADD, Service, call_of, event_of, login, user

pytestmark = pytest.mark.nats

StartNats = Callable[..., NatsServer]


def knowing(**options: Any) -> UsualServer:
    """A usual server that says who its callers are, too."""
    server = UsualServer(**options)

    @server
    def whoami(ctx: Context) -> Any:
        return ctx.identity

    return server


async def failure_of(service: Service, **options: Any) -> str:
    """The reason of an attempt to connect that fails for good."""
    async with service.client(wait_for=60, **options) as client:
        with pytest.raises(ConnectFailed) as failed:
            await client.call("add", 1, 2)
    assert failed.value.is_permanent
    return failed.value.reason


async def check_usual_calls(client: AsyncClient) -> None:
    assert await client.add(1, 2) == 3
    assert [item async for item in client.stream.count(3)] == [0, 1, 2]
    async with client.batch() as batch:
        results = [batch.add(number, number) for number in range(3)]
    assert [each.result() for each in results] == [0, 2, 4]


@pytest.mark.parametrize("kind", ["password", "token", "creds", "nkey"])
async def test_a_login_at_both_ends(start_nats: StartNats, tmp_path: Path, kind: str) -> None:
    """What another login lacks is said, with the name of its option, and without its secret."""
    operator, key = Operator(), Key("U")
    account, stranger = operator.account("vision"), Operator().account("vision")
    options: dict[str, Any] = {
        "password": {"users": [{"user": "a", "password": "secret"}]},
        "token": {"config": {"authorization": {"token": "secret"}}},
        "creds": {"operator": operator},
        "nkey": {"users": [{"nkey": key.public}]},
    }
    late = account.user("late", expires=time.time() - 60)
    logins: dict[str, list[NatsLogin | str]] = {
        "password": [NatsLogin(user="a", password="secret"), NatsLogin(user="a", password="hidden"), NatsLogin()],
        "token": [NatsLogin(user="secret"), NatsLogin(user="hidden")],
        "creds": [account.user("a"), late, stranger.user("a"), "-----BEGIN NATS USER JWT-----\n", ""],
        "nkey": [key.seed + "\n", Key("U").seed, "hidden", key.seed[:20], ""],
    }
    known, *others = [
        each if isinstance(each, NatsLogin) else NatsLogin(**{kind: written(tmp_path / str(number), each)})
        for number, each in enumerate(logins[kind])
    ]
    service = Service(start_nats(**options[kind]))
    async with service.serving(login=known), service.client(nats=known) as client:
        assert await client.add(1, 2) == 3
        with Client(service.address, nats=known) as blocking:
            assert await asyncio.to_thread(blocking.add, 2, 2) == 4
    for other in [*others, *([NatsLogin(**{kind: tmp_path / "none"})] if kind in ("creds", "nkey") else [])]:
        reason = await failure_of(service, nats=other)
        assert f"{'user' if kind == 'token' else kind}=" in reason
        assert not [text for text in ("hidden", key.seed[:20]) if text in reason]
        with pytest.raises(ConnectFailed, match=re.escape(reason)) as failed:
            async with service.serving(login=other):
                pass
        assert failed.value.is_permanent
    assert known.password is None or known.password not in repr(known)


def written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


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


@pytest.mark.slow
async def test_tls_with_an_authority_and_certificates_of_clients(start_nats: StartNats, tmp_path: Path) -> None:
    mine, other = trustme.CA(), trustme.CA()
    mine.cert_pem.write_to_path(tmp_path / "clients.pem")
    for name, authority in (("good", mine), ("bad", other)):
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    ca = certificates.authority()
    plain = Service(start_nats(tls=True))
    checked = Service(start_nats(tls=True, config={"tls": {"verify": True, "ca_file": str(tmp_path / "clients.pem")}}))
    for service, own in ((plain, {}), (checked, {"certificate": tmp_path / "good"})):
        tls = TLS(ca=ca, **own)
        async with service.serving(tls=tls), service.client(tls=client_context(tls)) as client:
            assert await client.add(1, 2) == 3
    assert "certificate of the NATS server cannot be trusted: " in await failure_of(plain)
    plain.address = plain.address.replace("nats+tls", "nats")  # the server asks for TLS all the same
    assert "cannot be trusted" in await failure_of(plain)
    assert "asks for a certificate of the client" in await failure_of(checked, tls=ca)
    assert "certificate=" in await failure_of(checked, tls=TLS(ca=ca, certificate=tmp_path / "bad"))


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


def together(*users: Permissions) -> Permissions:
    """What users may together; what one of them is allowed is not denied."""
    merged: Permissions = {}
    for way in ("publish", "subscribe"):
        allowed = [each for permissions in users for each in permissions[way]["allow"]]
        denied = [each for permissions in users for each in permissions[way]["deny"] if each not in allowed]
        merged[way] = {"allow": allowed, "deny": denied}
    return merged


def configuration(beginning: str) -> str:
    """The example of a configuration on the page that begins so; every password in it is "p"."""
    example = re.search(rf"^```text\n({beginning}: {{\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    return "".join(f"{name}: p\n" for name in sorted(set(re.findall(r"password: \$([A-Z]+)", example[1])))) + example[1]


def vision(nats: NatsServer) -> Service:
    """The service of the page."""
    return Service(nats, "vision")


async def test_the_permissions_for_events_and_last_values_suffice(start_nats: StartNats) -> None:
    subscriber = together(CALLER, permissions_of("a subscriber"))
    publisher = [permissions_of(f"a publisher of {what}") for what in ("events", "retained events")]
    users = {"instance": INSTANCE, "subscriber": subscriber, "publisher": together(subscriber, *publisher)}
    service = vision(start_nats(users=[user(*each) for each in users.items()]))
    async with (
        service.serving(login=login("instance")) as server,
        service.client(nats=login("subscriber")) as reader,
        service.client(nats=login("publisher")) as writer,
    ):
        await check_usual_calls(reader)
        with pytest.raises(MethodNotFound):
            await reader.nothing()
        async with reader.subscribe("ticks.*") as ticks:
            server.publish("ticks.a", 1, retain=True)
            assert await anext(ticks) == 1
            await writer.publish("ticks.b", 2)
            assert await anext(ticks) == 2
            await writer.publish("ticks.c", 3, retain=True)
            assert await anext(ticks) == 3
        async with reader.subscribe("ticks.c") as kept:
            assert await anext(kept) == 3
        assert "Violation" not in service.nats.log()
        with pytest.raises(NotPermitted, match=r"rpc\.vision\.\$retain\.ticks\.d"):
            await reader.publish("ticks.d", 4, retain=True)


@pytest.mark.parametrize(
    ("beginning", "caller", "forger"), [("authorization", "caller", "caller"), ("accounts", "ada", "bob")]
)
async def test_the_configurations_of_the_page(start_nats: StartNats, beginning: str, caller: str, forger: str) -> None:
    """Their users can all that they need; a caller cannot publish an event, as itself or by a reply subject."""
    service = vision(start_nats(text=configuration(beginning)))
    has_accounts = beginning == "accounts"
    server = knowing(authenticate=by_nats) if has_accounts else knowing()
    async with (
        service.serving(server, login=login("vision"), trust_identity=has_accounts),
        service.client(nats=login(caller)) as client,
        plain_client(service.nats.url_with(forger, "p")) as plain,
        service.raw(f"{service.event}>", user="vision") as victim,
    ):
        if has_accounts:  # one message for each answer passes between accounts
            assert await client.whoami() == "WEB/ada"
            assert "whoami" in [method["name"] for method in (await client.call("rpc.discover"))["methods"]]
            async with client.batch() as batch:
                results = [batch.add(number, number) for number in range(3)]
            assert [each.result() for each in results] == [0, 2, 4]
        else:
            await check_usual_calls(client)
            assert "Violation" not in service.nats.log()
            for retain, subject in ((False, "event"), (True, "retain")):
                with pytest.raises(NotPermitted, match=rf"rpc\.vision\.\${subject}\.ticks"):
                    await client.publish("ticks", 1, retain=retain)
        await plain.publish(f"{service.event}ticks", event_of("ticks", 1))
        head = {"Rpc-Last": f"keep 1-{'a' * 16}"}
        await plain.publish(f"{service.root}$keep.all.ticks", event_of("ticks", 1), headers=head)
        await plain.publish(f"{service.root}add", event_of("ticks", 1), reply=f"{service.event}ticks")
        await plain.flush()
        server.publish("ticks", 2)
        assert (await victim.next()).json["params"]["value"] == 2
        assert not server.topics.retained.messages


async def test_private_inboxes(start_nats: StartNats) -> None:
    alice = {**CALLER, "subscribe": {"allow": ["_INBOX_alice.>"]}}
    instance = {**INSTANCE, "publish": {"allow": ["_INBOX_alice.>", "rpc.vision.$last.>"]}}
    service = vision(start_nats(users=[user("instance", instance), user("alice", alice)]))
    async with service.serving(login=login("instance")):
        async with service.client(nats=login("alice", inbox_prefix="_INBOX_alice")) as client:
            await check_usual_calls(client)
        reason = await failure_of(service, nats=login("alice"))
    assert "does not permit this login to subscribe to '_INBOX." in reason
    assert "inbox_prefix=" in reason


async def test_a_method_that_nats_does_not_permit_fails_at_once(start_nats: StartNats) -> None:
    allowed = [f"rpc.vision.{name}" for name in ("add", "count", "$inquiry", "$instance.*.*")]
    limited = {"publish": {"allow": allowed}, "subscribe": {"allow": ["_INBOX.>"]}}
    service = vision(start_nats(users=[user("instance", INSTANCE), user("caller", limited)]))
    async with service.serving(login=login("instance")), service.client(nats=login("caller"), timeout=None) as client:
        assert await client.add(1, 2) == 3
        assert [item async for item in client.stream.count(3)] == [0, 1, 2]
        with pytest.raises(NotPermitted, match=r"rpc\.vision\.echo"):
            await client.echo(1)
        async with client.batch() as batch:
            results = [batch.add(1, 2), batch.echo(1)]
        for result in results:
            with pytest.raises(NotPermitted, match=r"rpc\.vision\.\$batch"):
                result.result()
        assert await client.add(2, 2) == 4


@pytest.mark.parametrize(
    "reply", ["$JS.API.STREAM.PURGE.KV_rpc_vision_last", "rpc.vision.$event.ticks", "rpc.other.add"]
)
async def test_an_instance_publishes_nothing_for_callers_but_to_inboxes(
    start_nats: StartNats, reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller could else have the instance publish where it may, and the caller may not."""
    service = vision(start_nats(users=[user("all"), user("caller", CALLER)]))
    async with (
        service.serving(login=login("all")),
        plain_client(service.nats.url_with("caller", "p")) as caller,
        service.raw(reply, user="all") as victim,
    ):
        for subject, message in (("add", ADD), ("add", b"no JSON"), ("$batch", b"[]"), ("$inquiry", b"[1]")):
            await caller.publish(service.root + subject, message, reply=reply)
        assert json.loads((await caller.request(f"{service.root}add", ADD, timeout=20)).data)["result"] == 3
        victim.publish("$SRV.PING", b"", reply)
        async with plain_client(service.nats.url_with("all", "p")) as plain:
            await plain.request("$SRV.PING", b"", timeout=20)
        await victim.flush()
        assert victim.messages.empty()
        assert f"wants its answer at {reply}" in caplog.text


async def test_an_instance_without_a_permission(start_nats: StartNats, caplog: pytest.LogCaptureFixture) -> None:
    few = [user(name, {**INSTANCE, "subscribe": {"allow": [it]}}) for name, it in (("a", "$SRV.>"), ("b", "rpc.>"))]
    service = vision(start_nats(users=[*few, user("caller", CALLER)]))
    with pytest.raises(ConnectFailed, match=r"not permit this login to subscribe to 'rpc\.vision\.") as failed:
        async with service.serving(login=login("a")):
            pass
    assert failed.value.is_permanent
    # It is of use without the services API.
    async with service.serving(login=login("b")), service.client(nats=login("caller")) as client:
        assert await client.add(1, 2) == 3
        await until(lambda: "NATS does not permit this login the subscription to $SRV.PING" in caplog.text)


async def test_a_token_stands_in_a_header(service: Service) -> None:
    async with service.serving(knowing(token="sesame")):
        async with service.client(token="sesame") as client:
            assert await client.whoami() == "token"
            await check_usual_calls(client)
        for options in ({"token": "wrong"}, {}):
            async with service.client(**options) as client:
                with pytest.raises(NotAuthenticated):
                    await client.add(1, 2)
                async with client.batch() as batch:
                    result = batch.add(1, 2)
                with pytest.raises(NotAuthenticated):
                    result.result()
                with pytest.raises(NotAuthenticated, match="for connections"):
                    await client.request("rpc.authenticate", {"token": "sesame"})


async def test_the_inbox_of_another_caller_is_no_identity(service: Service) -> None:
    """Who writes another one's inbox into a message is not taken for it, although sessions are found by inboxes."""
    tokens = {"a": "alice", "m": "mallory"}
    server = knowing(authenticate=lambda shown: tokens.get(shown.token))
    async with service.serving(server), service.raw("mine.rpcstream.*") as raw:
        for token, who in ((b"a", "alice"), (None, None), (b"m", "mallory"), (b"a", "alice")):
            head = None if token is None else b"NATS/1.0\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
            raw.publish(f"{service.root}whoami", call_of("whoami"), "mine.rpcstream.1", head)
            answer = (await raw.next_but_acks()).json
            assert answer.get("result") == who
            assert who or answer["error"]["code"] == NotAuthenticated.CODE


async def test_calls_wait_for_an_async_function_and_keep_their_order(service: Service) -> None:
    looked, seen = asyncio.Event(), list[str]()

    async def authenticate(shown: Any) -> str | None:
        seen.append(shown.token)
        await looked.wait()
        return "alice" if shown.token == "a" else None

    server = knowing(authenticate=authenticate)
    async with service.serving(server), service.client(token="a") as client, service.client(token="b") as other:
        calls = [asyncio.ensure_future(client.note(number)) for number in range(20)]
        refused = [asyncio.ensure_future(other.note(-1)) for _ in range(3)]
        await until(lambda: sorted(seen) == ["a", "b"])  # one look-up for each
        looked.set()
        await asyncio.gather(*calls)
        assert await client.whoami() == "alice"
        for each in await asyncio.gather(*refused, return_exceptions=True):
            assert isinstance(each, NotAuthenticated)
    assert server.noted == list(range(20))


async def test_callers_without_an_identity_are_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is known is answered meanwhile."""
    monkeypatch.setattr("rpcstream.nats.callers.MAX_UNKNOWN", 2)
    looked, seen = asyncio.Event(), list[str | None]()

    async def authenticate(shown: Any) -> str | None:
        seen.append(shown.token)
        if shown.token != "known":
            await looked.wait()
        return shown.token

    server = knowing(authenticate=authenticate)
    async with (
        service.serving(server),
        service.client(token="known") as known,
        service.client(token="one") as one,
        service.raw("answers.*") as raw,
    ):
        assert await known.whoami() == "known"
        waiting = asyncio.ensure_future(one.whoami())
        raw.publish(f"{service.root}whoami", call_of("whoami"), "answers.1")
        await until(lambda: len(seen) == 3)
        raw.publish(f"{service.root}whoami", call_of("whoami", call_id=2), "answers.2")
        assert (await raw.next()).json["error"]["code"] == ServerBusy.CODE
        assert await known.whoami() == "known"
        looked.set()
        assert await waiting == "one"
        assert (await raw.next()).json["error"]["code"] == NotAuthenticated.CODE
        raw.publish(f"{service.root}whoami", call_of("whoami", call_id=3), "answers.3")  # there is room again
        assert (await raw.next()).json["error"]["code"] == NotAuthenticated.CODE


def two_accounts(*, share: bool) -> dict[str, Any]:
    """An account with the instances, and one of callers, which imports the service."""
    imported = {"service": {"account": "VISION", "subject": "rpc.vision.*"}, "share": share}
    instances = {"users": [user("instance")], "exports": [{"service": "rpc.vision.*"}]}
    callers = {"users": [user("alice"), user("bob")], "imports": [imported]}
    return {"accounts": {"VISION": instances, "CALLERS": callers}}


def by_nats(shown: Any) -> str | None:
    """A function for `authenticate=` that knows the users of NATS."""
    return f"{shown.nats_account}/{shown.nats_user}" if shown.nats_account else None


@pytest.fixture(scope="module")
def accounts() -> Iterator[Service]:
    """A service at a server that says to instances who calls."""
    skip_without_program()
    with NatsServer(config=two_accounts(share=True)) as nats:
        yield vision(nats)


#: An instance that believes what NATS says of callers.
TRUSTING: dict[str, Any] = {"login": login("instance"), "trust_identity": True}


def for_alice() -> UsualServer:
    server = knowing(authenticate=by_nats)

    @server(allow="CALLERS/alice")
    def secret() -> None:
        server.noted.append("secret")

    @server
    def shown(ctx: Context) -> list[str | None]:
        return [ctx.credentials.nats_user, ctx.credentials.nats_account, ctx.credentials.token]

    return server


async def test_nats_says_who_calls_from_another_account(accounts: Service) -> None:
    async with (
        accounts.serving(for_alice(), **TRUSTING) as server,
        accounts.client(nats=login("alice")) as alice,
        accounts.client(nats=login("bob")) as bob,
    ):
        assert await alice.whoami() == "CALLERS/alice"
        assert await bob.whoami() == "CALLERS/bob"
        assert await alice.shown() == ["alice", "CALLERS", None]
        with pytest.raises(NotPermitted):
            await bob.secret()
        assert server.noted == []
        await alice.secret()
        assert server.noted == ["secret"]


#: What headers show, to a server that trusts NATS: a token, the user, and the account.
TOKEN = b"Authorization: Bearer t\r\n"
TOLD = b'Nats-Request-Info: {"acc":"WEB","user":"ann"}\r\n'

SHOWN: list[tuple[bytes, str]] = [
    (TOKEN, "t  "),
    (TOLD, " ann WEB"),
    (b"A: b: c\t\r\nEmpty:\r\n" + TOKEN.replace(b" ", b"", 1) + TOLD, "t ann WEB"),
    (TOKEN.replace(b" ", b" \t", 1), "t  "),
    (b"A: \xc3\xb6\xff\r\n" + TOKEN, "t  "),
    (b"", "  "),
]

#: Behind TOKEN, which does not count then.
NOT_READ = [
    *(b"A: b", TOLD + b"A: b\r\n\r\n"),
    *(each + b"\r\n\r\n" for each in (b"A : b", b" A: b", b"A", b": b", b"\xc3\xb6: b", b"A: b\nC: d", b"A: b\rC: d")),
    b"A: b\r\n\r\nC: d\r\n\r\n",
    TOLD + TOLD + b"\r\n",
    TOLD.lower() + b"\r\n",
    TOLD.lower() + TOLD + b"\r\n",
    b"Z" + TOLD + b"\r\n",
    TOLD.replace(b": ", b":") + b"\r\n",
    TOLD.replace(b":", b" :", 1) + b"Z" + TOLD + b"\r\n",
]

BLOCKS = [(b"NATS/1.0\r\n" + lines + b"\r\n", shown) for lines, shown in SHOWN]
BLOCKS += [(b"NATS/1.0 100 Idle Heartbeat\r\n" + TOKEN + b"\r\n", "t  ")]
BLOCKS += [(b"NATS/1.0\r\n" + TOKEN + rest, "  ") for rest in NOT_READ]
BLOCKS += [
    (rest, "  ") for rest in (b"", b"N", b"NATS/1.0", b"NATS/1.0\r\n" + TOKEN, b"NATS/1.1\r\n" + TOKEN + b"\r\n")
]


async def test_what_headers_show(service: Service) -> None:
    server = knowing(authenticate=lambda shown: f"{shown.token or ''} {shown.nats_user} {shown.nats_account}")
    async with service.serving(server, trust_identity=True), service.raw("answers.*") as raw:
        for block, shown in BLOCKS:
            raw.publish(service.root + "whoami", call_of("whoami"), "answers.here", block)
            assert (await raw.next_but_acks()).json["result"] == shown, block


FORGED = b'{"acc":"CALLERS","user":"alice"}'

INFO = b"Nats-Request-Info"


#: What a caller writes in the place of headers. nats-server puts its own line behind that, whatever it is.
HEADS = [
    b"\r\n" + INFO + b": " + FORGED + b"\r\n\r\n",  # nats-server takes this line out
    b"\r\nnats-request-info: " + FORGED + b"\r\n\r\n",
    b"\r\nNATS-REQUEST-INFO: " + FORGED + b"\r\n\r\n",
    b"\r\n" + INFO + b" : " + FORGED + b"\r\nZ: ",  # the server's own line is put behind this Z
    b"\r\n" + INFO + b" : " + FORGED + b"\r\n\r\n",
    b"\r\n" + INFO + b"\t: " + FORGED + b"\r\nZ: ",
    b"\r\n" + INFO + b":" + FORGED + b"\r\nZ: ",
    b"\r\nnats-request-info: " + FORGED + b"\r\nZ: ",
    b"\r\n" + INFO + b": " + FORGED + b"zz",
    b"\r\n" + INFO + b": " + FORGED + b"\r\n" + INFO + b": " + FORGED + b"\r\nZ: ",
    b" 200 " + INFO + b": " + FORGED + b"\r\n" + INFO + b" : " + FORGED + b"\r\nZ: ",
]


async def test_a_forged_identity_is_not_believed(accounts: Service) -> None:
    async with (
        accounts.serving(for_alice(), **TRUSTING) as server,
        accounts.raw("answers.*", user="bob") as raw,
        accounts.client(nats=login("alice")) as alice,
    ):
        whos = []
        for head in [*(b"NATS/1.0" + each for each in HEADS), b"XATS/1.0" + HEADS[4]]:
            answers = []
            for name in ("whoami", "secret"):
                raw.publish(accounts.root + name, call_of(name), "answers.here", head)
                answers.append((await raw.next_but_acks()).json)
            whos.append(answers[0].get("result"))
            assert whos[-1] == "CALLERS/bob" or answers[0]["error"]["code"] == NotAuthenticated.CODE, head
            assert answers[1]["error"]["code"] in (NotAuthenticated.CODE, NotPermitted.CODE), head
        assert whos[0] == "CALLERS/bob"
        assert await alice.whoami() == "CALLERS/alice"
        assert server.noted == []


async def test_an_import_that_is_not_shared_tells_the_account_alone(start_nats: StartNats) -> None:
    service = vision(start_nats(config=two_accounts(share=False)))
    async with service.serving(for_alice(), **TRUSTING), service.client(nats=login("alice")) as client:
        assert await client.whoami() == "CALLERS/"


async def test_nats_is_not_trusted_unless_the_server_says_so(accounts: Service) -> None:
    async with accounts.serving(for_alice(), login=login("instance")), accounts.client(nats=login("alice")) as client:
        with pytest.raises(NotAuthenticated):
            await client.whoami()
    for options in ({}, {"token": "x"}):
        with pytest.raises(ValueError, match="trust_identity="):
            Server(**options).join_nats("nats://127.0.0.1", service="vision", trust_identity=True)


async def test_a_long_call_from_another_account_is_not_given_up(clock: Clock, accounts: Service) -> None:
    """NATS gives its callers other inboxes, so that an instance cannot tell which calls are theirs."""
    async with (
        accounts.serving(for_alice(), **TRUSTING) as server,
        accounts.raw("rpc.vision.$inquiry", user="instance") as watcher,
        accounts.client(nats=login("alice"), timeout=None) as client,
    ):
        call = asyncio.create_task(client.wait("done"))
        await clock.until(lambda: watcher.messages.qsize() >= 3)
        server.release()
        assert await call == "done"
