"""Where an instance listens for direct connections, and what it tells a client of one. Pure: opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..tls import TLS


class DirectError(ConnectionError):
    """A direct connection could not be made; the text says why."""


@dataclass(frozen=True, kw_only=True)
class DirectOptions:
    """Where an instance listens for direct connections.

    Attributes:
        is_on: there are direct connections. Where it is True and the connection to NATS is encrypted, but the server
            has no certificate, direct connections are not encrypted; None: then there are none.
        host: to bind; None: the address from which this machine reaches NATS.
        port: to bind; 0: a free one.
        advertised: `host:port` that clients are told; None: what is bound.
        tls: the certificate; None: without TLS.
    """

    is_on: bool | None = None
    host: str | None = None
    port: int = 0
    advertised: str | None = None
    tls: TLS | None = None

    @classmethod
    def parse(cls, direct: bool | str | None, tls: TLS | None = None) -> DirectOptions:
        """Read the option `direct`: True, False, None, or `host:port`, perhaps with `=advertised:port` behind it.

        Raises:
            ValueError: the text has another form.
        """
        if direct is None or isinstance(direct, bool):
            return cls(is_on=direct, tls=tls)
        bound, _, advertised = direct.partition("=")
        host, port = split_address(bound) if bound else ("", "0")
        if advertised:
            split_address(advertised)
        return cls(is_on=True, host=host or None, port=int(port), advertised=advertised or None, tls=tls)


def split_address(text: str) -> tuple[str, str]:
    """The host and the port of `host:port` or `[host]:port`.

    Raises:
        ValueError: the text has another form.
    """
    host, separator, port = text.rpartition(":")
    if not (separator and port.isascii() and port.isdecimal() and int(port) < 65536) or (
        host.count(":") and (not (host.startswith("[") and host.endswith("]")))
    ):
        raise ValueError(f"an address for direct connections is host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), port


@dataclass(frozen=True, slots=True)
class Offer:
    """What opens one direct connection, once.

    Attributes:
        address: `host:port`.
        secret: as hexadecimal digits.
        fingerprint: SHA-256 of the certificate, as hexadecimal digits; None: without TLS.
    """

    address: str
    secret: str
    fingerprint: str | None = None

    def to_wire(self) -> dict[str, str]:
        """As members of a message."""
        wire = {"address": self.address, "secret": self.secret}
        return wire if self.fingerprint is None else {**wire, "tls": self.fingerprint}

    @classmethod
    def of(cls, params: dict[str, Any]) -> Offer | None:
        """The offer in a message; None where there is none, or a malformed one."""
        address, secret, fingerprint = params.get("address"), params.get("secret"), params.get("tls")
        if type(address) is not str or type(secret) is not str or not secret.isalnum():
            return None
        return cls(address, secret, fingerprint if type(fingerprint) is str else None)
