"""The users of a configuration: how they authenticate, and the names by which rules know them."""

from __future__ import annotations

from rpcstream import Credentials
from rpcstream.auth.allow import names_of
from rpcstream.auth.users import User, authenticate_users
from rpcstream.hub.rules import Rule, Rules

USERS = (
    User(name="gpu-1", token="token-of-gpu", roles=("worker",)),
    User(name="ada", token="token-of-ada", certificate="ada.example", roles=("admin", "worker")),
    User(name="eve", certificate="eve.example"),
)


def test_by_token() -> None:
    authenticate = authenticate_users(USERS)
    assert authenticate(Credentials(token="token-of-gpu")) == "gpu-1"
    for token in ("", "token-of-eve", "gpu-1", "token-of-gpu ", "\ud800"):
        assert authenticate(Credentials(token=token)) is None
    assert authenticate(Credentials()) is None
    assert authenticate(Credentials(uid=0, pid=1, address="x")) is None


def test_by_certificate() -> None:
    authenticate = authenticate_users(USERS)
    assert authenticate(Credentials(names=("other", "ada.example"))) == "ada"
    assert authenticate(Credentials(names=("ada", "token-of-ada"))) is None
    assert authenticate(Credentials(names=("ada.example",), token="wrong")) is None
    assert authenticate(Credentials(names=("ada.example",), token="token-of-gpu")) == "gpu-1"


def test_nobody_at_all() -> None:
    assert authenticate_users(())(Credentials(token="x")) is None


def test_rules_see_name_and_roles() -> None:
    ada = authenticate_users(USERS)(Credentials(token="token-of-ada"))
    assert names_of(ada) == {"ada", "admin", "worker"}
    rules = Rules([Rule("worker", register="vectorize"), Rule("ad*", call="erase")])
    assert rules.permits(ada, "register", "vectorize")
    assert rules.permits(ada, "call", "erase")
    assert not rules.permits(authenticate_users(USERS)(Credentials(token="token-of-gpu")), "call", "erase")
