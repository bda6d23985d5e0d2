"""TLS contexts for servers and clients, made from certificate files.

Owns the reloading of a server's certificate when its files have changed. Knows no socket.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

File = str | os.PathLike[str]

#: OpenSSL's name for the error that a client sent no certificate.
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


@dataclass(frozen=True, kw_only=True)
class TLS:
    """The certificate of a server, and the authorities of its clients' certificates.

    After the files have changed, new connections get the new certificate without a restart; while the new files do not
    fit together, the old certificate stays in use.

    Args:
        certificate: a PEM file with the server's certificate and those between it and the root.
        key: a PEM file with its private key; by default the key is in the certificate's file.
        password: of the key.
        client_ca: a PEM file of authorities: only clients with a certificate of one of them are served (mutual TLS).

    Raises:
        OSError: a file does not exist (when the server starts).
        ssl.SSLError: a file has no valid certificate or key.
    """

    certificate: File
    key: File | None = None
    password: str | None = field(default=None, repr=False)
    client_ca: File | None = None

    def context(self) -> ssl.SSLContext:
        """A context for a server, with TLS 1.2 and newer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self.load(context)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.sslobject_class = _AlertingSSLObject
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Load the certificate into a context, which uses it from the next handshake on."""
        context.load_cert_chain(self.certificate, self.key, self.password)

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes when a file does: time, size and inode of each."""
        files = [self.certificate, *([self.key] if self.key is not None else [])]
        found = [os.stat(file) for file in files]
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


class _AlertingSSLObject(ssl.SSLObject):
    """A server's end that sends a TLS alert when a client's certificate is missing or not accepted.

    Event loops drop the pending alert when a handshake fails, so the client would only see the connection end. Here the
    failure is raised at the next call of `do_handshake`: by then the alert is sent.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if (
                not isinstance(error, ssl.SSLCertVerificationError)
                and getattr(error, "reason", None) != _NO_CERTIFICATE
            ):
                raise
            self._failure = error
            raise ssl.SSLWantReadError from None


class Certificates:
    """The context of a listening server, reloaded when its files have changed."""

    def __init__(self, tls: TLS) -> None:
        self._tls = tls
        self._stamp = tls.stamp()
        self.context = tls.context()

    def refresh(self) -> Exception | None:
        """Reload the files if they have changed. Returns the error if that failed: the old certificate stays then."""
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            # First into another context: after a partial change the old key would stand with the new certificate.
            self._tls.context()
            self._tls.load(self.context)
        except (OSError, ssl.SSLError) as error:
            return error
        return None


def client_context(
    *, ca: File | None = None, certificate: File | None = None, key: File | None = None
) -> ssl.SSLContext:
    """A context for a client, which verifies the server's certificate and its name.

    Args:
        ca: a PEM file with the authorities to trust instead of the system's.
        certificate: a PEM file with the client's certificate, for a server that asks for one.
        key: a PEM file with its private key; by default it is in the certificate's file.
    """
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
