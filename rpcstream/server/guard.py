"""Decides who may connect to a server: authentication, certificate, and permitted hosts and origins."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from ..auth.authenticator import Authenticator
from ..limits import Limits
from ..observe.counters import Counters
from ..text import get_logger
from ..tls import TLS
from ..transports.access import AccessRules
from .life import RunningServer
from .options import Http, ReadAccess

log = get_logger("rpcstream.server")


class Guard:
    """The authentication, the certificate and the rules of access of one server.

    Args:
        given: the options of the server, including those from a configuration.
        own: the options that the program has given.
        limits: of the server.
        counters: of the server.

    Attributes:
        authenticator: finds out who a caller is. None: callers are not authenticated.
        tls: the certificate. None: connections are not encrypted.
        rules: which hosts and origins requests may have.
    """

    def __init__(self, given: Mapping[str, Any], own: Mapping[str, Any], *, limits: Limits, counters: Counters) -> None:
        http: Http = given["http"]
        self.authenticator: Authenticator | None = None
        self.tls: TLS | None = given["tls"]
        self.rules = AccessRules(hosts=http.hosts, origins=http.origins)
        self._read_access: ReadAccess | None = None
        names = ("token", "authenticate")
        shown = {name: given[name] for name in names if given[name] is not None}
        self._is_of_configuration = any(given[name] != own.get(name) for name in names)
        if shown:
            self.authenticator = Authenticator(**shown, timeout=limits.auth_timeout, counters=counters)

    def add(self, read_access: ReadAccess | None, tls: TLS | None) -> None:
        """Read the access again with each reload, and add a certificate; see `Server.guard`."""
        if read_access is not None and not self._is_of_configuration:
            if self.authenticator is None:
                raise ValueError("read_access= has no effect on a server that was not made within `configured(...)`")
            raise ValueError("this server already has token= or authenticate=")
        if tls is not None and self.tls is not None:
            raise ValueError("this server already has a certificate (tls=)")
        self._read_access = read_access
        self.tls = tls or self.tls

    def reload(self, running: RunningServer | None, drain_timeout: float) -> None:
        """Read the certificate and the token file again.

        Args:
            running: the server, if it runs; connections that may not stay are closed.
            drain_timeout: seconds that their calls in flight have.

        Raises:
            ValueError, TypeError, OSError: one of them cannot be used; the text says which.
        """
        access, may_stay = ({}, None) if self._read_access is None else self._read_access()
        fresh = Authenticator(**access) if access else None
        if running is not None:
            running.listener.reload_certificate()
        if fresh is None or self.authenticator is None or not self.authenticator.replace(fresh):
            return
        closed = 0
        if running is not None:
            closed = running.dismiss(
                lambda each: each.identity is None or (may_stay is not None and may_stay(each.identity)), drain_timeout
            )
        log.info("the token was read again; connections to close: %d", closed)

    def warn_of_strangers(self, host: str) -> None:
        """Log a warning if other machines can reach this host without authentication or encryption."""
        if is_loopback(host):
            return
        if self.authenticator is None:
            log.warning("listening at %s, not a loopback address: there is no authentication", host)
        elif self.tls is None:
            log.warning("listening at %s without TLS: tokens cross the network unencrypted (tls=, or a proxy)", host)

    def security(self) -> list[dict[str, Any]]:
        """How callers authenticate, as Security Scheme Objects for `rpc.discover`."""
        found: list[dict[str, Any]] = []
        if self.authenticator is not None:
            how = "the header Authorization of each request or of the WebSocket, or the method rpc.authenticate"
            found.append({"type": "http", "scheme": "bearer", "description": how})
        if self.tls is not None and self.tls.ca is not None:
            found.append({"type": "mutualTLS", "description": "a certificate of the client"})
        return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
