"""What a socket shows of its other end: the names in a verified certificate, the process at a Unix socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from ..peer.credentials import Credentials

#: pid, uid and gid as Linux gives them for the other end of a Unix socket.
_PEER = struct.Struct("3i")


def credentials_of(
    transport: asyncio.BaseTransport | None, *, address: str = "", token: str | None = None
) -> Credentials:
    """Read the credentials that a connection shows, and add a token to them."""
    if transport is None:
        return Credentials(address=address, token=token)
    names = _certificate_names(transport.get_extra_info("ssl_object"))
    pid, uid, gid = _unix_peer(transport.get_extra_info("socket"))
    return Credentials(token=token, names=names, pid=pid, uid=uid, gid=gid, address=address)


def _certificate_names(tls: Any) -> tuple[str, ...]:
    # Empty for a certificate that was not asked for, and so not verified.
    certificate = (tls.getpeercert() if tls is not None else None) or {}
    subject = [pair for parts in certificate.get("subject", ()) for pair in parts]
    common = [value for kind, value in subject if kind == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")]
    return tuple(dict.fromkeys(name for name in (*common, *others) if name and "\0" not in name))


def _unix_peer(sock: Any) -> tuple[int | None, int | None, int | None]:
    if sock is None or sock.family != getattr(socket, "AF_UNIX", None) or not hasattr(socket, "SO_PEERCRED"):
        return None, None, None
    try:
        pid, uid, gid = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:  # closed meanwhile
        return None, None, None
    return pid, uid, gid
