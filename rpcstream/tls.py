"""Certificates: what a server shows and asks for, and what a client trusts.

Owns the making of `ssl` contexts from files, and the reading of them anew when the files have changed. Knows no socket.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

File = str | os.PathLike[str]

#: What OpenSSL calls it when a client showed no certificate.
_NONE_SHOWN = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


@dataclass(frozen=True, kw_only=True)
class TLS:
    """The certificate of a server, and whose certificates it asks for.

    Connections that are made after the files have changed get the new certificate, without a restart; while the new
    files do not fit together, the old one stays.

    Args:
        certificate: a PEM file: the server's certificate and those between it and the root.
        key: a PEM file with its private key; where it is not given, the key is in the certificate's file.
        password: of the key.
        client_ca: a PEM file: only clients with a certificate of one of these authorities are served (mutual TLS).

    Raises:
        OSError: a file is not there (when the server starts).
        ssl.SSLError: a file is not what it should be.
    """

    certificate: File
    key: File | None = None
    password: str | None = field(default=None, repr=False)
    client_ca: File | None = None

    def context(self) -> ssl.SSLContext:
        """The context of a server; TLS 1.2 and newer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self.load(context)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.sslobject_class = _Telling
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Put the certificate into a context, which shows it with the next handshake."""
        context.load_cert_chain(self.certificate, self.key, self.password)

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file does."""
        files = [self.certificate, *([self.key] if self.key is not None else [])]
        found = [os.stat(file) for file in files]
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


class _Telling(ssl.SSLObject):
    """A server's end that tells a client that its certificate is not taken, or that it showed none.

    Event loops drop what TLS has to say when a handshake fails, so all that the client would see is the end. Here the
    failure waits for the next thing that comes, be it the end: what was to be said is on its way by then.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if not isinstance(error, ssl.SSLCertVerificationError) and getattr(error, "reason", None) != _NONE_SHOWN:
                raise
            self._failure = error
            raise ssl.SSLWantReadError from None


class Certificates:
    """The context of a listening server, read anew when its files have changed."""

    def __init__(self, tls: TLS) -> None:
        self._tls = tls
        self._stamp = tls.stamp()
        self.context = tls.context()

    def refresh(self) -> Exception | None:
        """Look at the files; why they could not be read, if so (then the old certificate stays)."""
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            # First into a context of its own: half a change would leave the old key with the new certificate.
            self._tls.context()
            self._tls.load(self.context)
        except (OSError, ssl.SSLError) as error:
            return error
        return None


def client_context(
    *, ca: File | None = None, certificate: File | None = None, key: File | None = None
) -> ssl.SSLContext:
    """The context of a client, which verifies the server's certificate and its name.

    Args:
        ca: a PEM file with the authorities to trust, in the place of the system's.
        certificate, key: the client's own, for servers that ask for one.
    """
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
