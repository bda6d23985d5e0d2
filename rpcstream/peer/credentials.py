"""What the other end of a connection shows of itself: a token, a verified certificate, the process at a Unix socket.

`auth` decides whether it is accepted. It stands here because a handler's `Context` shows the credentials, too.
"""

from __future__ import annotations

from asyncio import BaseTransport
from dataclasses import dataclass, field
from typing import Any

from ..local_peer import process_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How a caller identifies itself. Attributes without a value are empty or None.

    Attributes:
        token: the token from `rpc.authenticate` or `Authorization: Bearer`.
        names: the names in the caller's verified certificate (mutual TLS): the common name, then the alternative names
            (DNS, URI, email).
        pid, uid, gid: the process at the other end of a Unix socket when it connected, according to the system.
        nats_user, nats_account: the NATS user and account of a caller in another account, if the server trusts NATS
            (`join_nats(trust_identity=True)`). The user is empty unless the import has `share: true`.
        address: the caller's address: "127.0.0.1:50412".
    """

    token: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    pid: int | None = None
    uid: int | None = None
    gid: int | None = None
    nats_user: str = ""
    nats_account: str = ""
    address: str = ""

    @property
    def are_shown(self) -> bool:
        """True if the connection itself shows something: a certificate, or the process at a Unix socket."""
        return bool(self.names) or self.uid is not None


def credentials_of(transport: BaseTransport | None, *, address: str = "") -> Credentials:
    """Read the credentials that a connection shows."""
    if transport is None:
        return Credentials(address=address)
    names = _certificate_names(transport.get_extra_info("ssl_object"))
    pid, uid, gid = process_of(transport.get_extra_info("socket"))
    return Credentials(names=names, pid=pid, uid=uid, gid=gid, address=address)


def _certificate_names(tls: Any) -> tuple[str, ...]:
    # Empty for a certificate that was not asked for, and so not verified.
    certificate = (tls.getpeercert() if tls is not None else None) or {}
    subject = [pair for parts in certificate.get("subject", ()) for pair in parts]
    common = [value for kind, value in subject if kind == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")]
    return tuple(dict.fromkeys(name for name in (*common, *others) if name and "\0" not in name))
