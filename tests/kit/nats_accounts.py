"""Operator, accounts and users of NATS by JWT, made in memory: what the tool `nsc` writes, for tests.

Owns the claims and their signatures. Knows nothing of processes: `NatsServer(operator=...)` takes what is made here.

    operator = Operator()
    account = operator.account("vision")
    server = NatsServer(operator=operator)          # knows the accounts that were made before
    file.write_text(account.user("caller"))         # a credentials file
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import pytest

#: What an account is not limited in: -1 stands for "any number".
_UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)

_CREDENTIALS = """\
-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


class Key:
    """A pair of keys of Ed25519 in the notation of NATS, for an operator ("O"), an account ("A") or a user ("U").

    Attributes:
        seed: the private half, "SU...".
        public: the public half, "U...".
    """

    def __init__(self, kind: str) -> None:
        nkeys = pytest.importorskip("nkeys")
        prefixes = {"O": nkeys.PREFIX_BYTE_OPERATOR, "A": nkeys.PREFIX_BYTE_ACCOUNT, "U": nkeys.PREFIX_BYTE_USER}
        seed = nkeys.encode_seed(os.urandom(32), prefixes[kind])
        self._pair = nkeys.from_seed(seed)
        self.seed: str = seed.decode()
        self.public: str = self._pair.public_key.decode().rstrip("=")

    def sign(self, subject: str, name: str, claims: Mapping[str, Any], expires: float | None = None) -> str:
        """A JWT by this key about the holder of another one."""
        body: dict[str, Any] = {"iat": int(time.time()), "iss": self.public, "sub": subject, "name": name}
        if expires is not None:
            body["exp"] = int(expires)
        body["nats"] = {"version": 2, **claims}
        body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
        signed = _base64(_json({"typ": "JWT", "alg": "ed25519-nkey"})) + "." + _base64(_json(body))
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


class Account:
    """An account of an operator. Subjects of one are not seen in another."""

    def __init__(self, operator: Key, name: str) -> None:
        self._key = Key("A")
        self.public = self._key.public
        limits = _UNLIMITED | {"wildcards": True}
        claims = {"type": "account", "limits": limits, "default_permissions": {"pub": {}, "sub": {}}}
        self.jwt = operator.sign(self.public, name, claims)

    def user(
        self,
        name: str,
        *,
        publish: Mapping[str, Any] | None = None,
        subscribe: Mapping[str, Any] | None = None,
        expires: float | None = None,
    ) -> str:
        """The text of a credentials file for a new user.

        Args:
            name: of the user, for logs.
            publish: `{"allow": [subjects], "deny": [...]}`; by default all.
            subscribe: the same.
            expires: seconds since the epoch after which the server refuses it; and ends a connection that it has.
        """
        key = Key("U")
        limits = {"subs": -1, "data": -1, "payload": -1}
        claims = {"type": "user", "pub": publish or {}, "sub": subscribe or {}, **limits}
        return _CREDENTIALS.format(jwt=self._key.sign(key.public, name, claims, expires), seed=key.seed)


class Operator:
    """The root of trust of a server: it signs accounts, which sign users."""

    def __init__(self) -> None:
        self._key = Key("O")
        self._accounts: list[Account] = []
        self._system = self.account("SYS")

    def account(self, name: str) -> Account:
        """A new account, which a server knows that is made after it."""
        self._accounts.append(Account(self._key, name))
        return self._accounts[-1]

    def config(self) -> dict[str, Any]:
        """The members of a server's configuration file."""
        return {
            "operator": self._key.sign(self._key.public, "tests", {"type": "operator"}),
            "system_account": self._system.public,
            "resolver": "MEMORY",
            "resolver_preload": {account.public: account.jwt for account in self._accounts},
        }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
