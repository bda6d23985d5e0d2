"""Credentials, the authenticator and the users of a configuration, without a connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable
from typing import Any

import pytest

from rpcstream.auth.allow import names_of
from rpcstream.auth.authenticator import NOT_SYNC, Authenticator, User, authenticate_users
from rpcstream.hub.rules import Rule, Rules
from rpcstream.peer.credentials import Credentials, credentials_of


def shown(token: str | None) -> Credentials:
    return Credentials(token=token, address="somewhere")


@pytest.mark.parametrize(
    "token", [None, "", "secre", "secret ", "Secret", "secrets", "s" * 100_000, "\ud800", "\0secret"]
)
async def test_only_the_token_itself_is_it(token: str | None) -> None:
    authenticator = Authenticator(token="secret")
    assert authenticator.identify_now(shown(token)) is None
    assert await authenticator.identify(shown(token)) is None
    assert authenticator.identify_now(shown("secret")) == "token"
    assert await authenticator.identify(shown("secret")) == "token"


def test_a_token_of_blanks_is_nobodys() -> None:
    """The digest that stands for "no token" must not be that of a token."""
    assert Authenticator(token="x").identify_now(Credentials()) is None


def test_the_token_does_not_show() -> None:
    credentials = Credentials(token="secret", names=("alice",), uid=5)
    assert "secret" not in repr(credentials)
    assert "alice" in repr(credentials)
    authenticator = Authenticator(token="secret")
    assert "secret" not in repr(vars(authenticator))


async def later(credentials: Credentials) -> Any:
    await asyncio.sleep(0)
    return credentials.token


class Later:
    async def __call__(self, credentials: Credentials) -> Any:
        return await later(credentials)

    async def method(self, credentials: Credentials) -> Any:
        return await later(credentials)


@functools.wraps(later)
def wrapped(credentials: Credentials) -> Any:
    return later(credentials)


@pytest.mark.parametrize("function", [later, Later(), Later().method, functools.partial(later), wrapped])
async def test_async_functions_of_all_kinds(function: Any) -> None:
    authenticator = Authenticator(authenticate=function)
    assert authenticator.identify_now(shown("alice")) is NOT_SYNC
    assert await authenticator.identify(shown("alice")) == "alice"
    assert await authenticator.identify(shown(None)) is None


async def test_what_gives_something_to_await_is_called_again_for_it() -> None:
    calls = []

    def find(credentials: Credentials) -> Awaitable[Any]:
        calls.append(credentials.token)
        return later(credentials)

    authenticator = Authenticator(authenticate=find)
    assert authenticator.identify_now(shown("alice")) is NOT_SYNC
    assert authenticator.identify_now(shown("alice")) is NOT_SYNC
    assert calls == ["alice"]
    assert await authenticator.identify(shown("bob")) == "bob"
    assert await Authenticator(authenticate=find).identify(shown("carol")) == "carol"


async def test_a_sync_function_makes_no_task() -> None:
    authenticator = Authenticator(authenticate=lambda credentials: {"name": credentials.token})
    assert authenticator.identify_now(shown("alice")) == {"name": "alice"}
    before = asyncio.all_tasks()
    assert await authenticator.identify(shown("alice")) == {"name": "alice"}
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(("found", "identity"), [(None, None), (False, None), (True, True), (0, 0), ("", ""), ([], [])])
async def test_what_counts_as_an_identity(found: Any, identity: Any) -> None:
    async def find(credentials: Credentials) -> Any:
        return found

    assert Authenticator(authenticate=lambda credentials: found).identify_now(shown("x")) == identity
    assert await Authenticator(authenticate=find).identify(shown("x")) == identity


async def test_the_wish_to_stop_is_no_failure() -> None:
    def stop(credentials: Credentials) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Authenticator(authenticate=stop).identify_now(shown("x"))


async def test_cancelling_is_heeded() -> None:
    begun = asyncio.Event()

    async def never(credentials: Credentials) -> Any:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(Authenticator(authenticate=never).identify(shown("x")))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_either_a_token_or_a_function() -> None:
    with pytest.raises(ValueError, match="either"):
        Authenticator()
    with pytest.raises(ValueError, match="either"):
        Authenticator(token="x", authenticate=later)


class Shows:
    """What a transport with TLS says of it."""

    def __init__(self, certificate: Any) -> None:
        self._certificate = certificate

    def getpeercert(self) -> Any:
        return self._certificate

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else default


@pytest.mark.parametrize(
    ("certificate", "names"),
    [
        (None, ()),
        ({}, ()),
        ({"subject": ((("countryName", "XX"),), (("commonName", "alice"),))}, ("alice",)),
        ({"subject": ((("commonName", "a"), ("commonName", "b")),)}, ("a", "b")),
        (
            {
                "subject": ((("commonName", "alice"),),),
                "subjectAltName": (
                    ("DNS", "host.example"),
                    ("URI", "spiffe://example/alice"),
                    ("email", "alice@example.org"),
                    ("IP Address", "10.0.0.1"),
                    ("DNS", "alice"),
                ),
            },
            ("alice", "host.example", "spiffe://example/alice", "alice@example.org"),
        ),
        ({"subject": ((("commonName", "admin\0.evil.example"),), (("commonName", ""),))}, ()),
    ],
)
def test_names_of_a_certificate(certificate: Any, names: tuple[str, ...]) -> None:
    transport: Any = Shows(certificate)
    assert credentials_of(transport).names == names
    assert credentials_of(transport).are_shown is bool(names)


def test_nothing_is_known_of_a_lost_connection() -> None:
    assert credentials_of(None, address="a", token="t") == Credentials(address="a", token="t")


# -- users -----------------------------------------------------------------------------------------------------------

USERS = (
    User(name="gpu-1", token="token-of-gpu", roles=("worker",)),
    User(name="ada", token="token-of-ada", certificate="ada.example", roles=("admin", "worker")),
    User(name="eve", certificate="eve.example"),
)


def test_a_user_by_token() -> None:
    authenticate = authenticate_users(USERS)
    assert authenticate(Credentials(token="token-of-gpu")) == "gpu-1"
    for token in ("", "token-of-eve", "gpu-1", "token-of-gpu ", "\ud800"):
        assert authenticate(Credentials(token=token)) is None
    assert authenticate(Credentials()) is None
    assert authenticate(Credentials(uid=0, pid=1, address="x")) is None


def test_a_user_by_certificate() -> None:
    authenticate = authenticate_users(USERS)
    assert authenticate(Credentials(names=("other", "ada.example"))) == "ada"
    assert authenticate(Credentials(names=("ada", "token-of-ada"))) is None
    assert authenticate(Credentials(names=("ada.example",), token="wrong")) is None
    assert authenticate(Credentials(names=("ada.example",), token="token-of-gpu")) == "gpu-1"


def test_no_users() -> None:
    assert authenticate_users(())(Credentials(token="x")) is None


def test_rules_see_name_and_roles() -> None:
    ada = authenticate_users(USERS)(Credentials(token="token-of-ada"))
    assert names_of(ada) == {"ada", "admin", "worker"}
    rules = Rules([Rule("worker", register="vectorize"), Rule("ad*", call="erase")])
    assert rules.permits(ada, "register", "vectorize")
    assert rules.permits(ada, "call", "erase")
    assert not rules.permits(authenticate_users(USERS)(Credentials(token="token-of-gpu")), "call", "erase")
