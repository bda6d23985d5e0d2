"""TLS contexts for servers and clients, made from certificate files.

A server's certificate is loaded again when its files have changed, and a client that does not begin with TLS gets an
answer in the clear.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self, cast

File = str | os.PathLike[str]

#: OpenSSL's name for the error that a client sent no certificate.
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"

#: OpenSSL's names for the error that a client began with something else than TLS: with HTTP, or with anything else.
_HTTP = ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST")
_NOT_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")

_EXPECTS_TLS = b"this port expects TLS: connect with tls://, https:// or wss://"
#: Sent in the clear to such a client; the member `expects` is for programs.
_LINE_ANSWER = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request",'
    b'"data":{"reason":"%b","expects":"tls"}}}\n' % _EXPECTS_TLS
)
_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b\n" % (len(_EXPECTS_TLS) + 1, _EXPECTS_TLS)
)


@dataclass(frozen=True, kw_only=True)
class TLS:
    """The certificate of a server or client, and the authorities that it trusts.

    A server uses changed files for new connections, without a restart. While the new files do not match, the old
    certificate stays in use. A client reads the files when you create it.

    Args:
        certificate: a PEM file with the certificate and those between it and the root. A server needs one; a client
            needs one for a server that asks for it (mutual TLS).
        key: a PEM file with its private key; by default the key is in the certificate's file.
        password: of the key.
        ca: a PEM file with certificate authorities. A server then serves only clients with a certificate from one of
            them (mutual TLS). A client trusts them instead of the system's authorities.

    Raises:
        ValueError: a key without a certificate.
        OSError: a file does not exist (when the server starts, or the client is made).
        ssl.SSLError: a file has no valid certificate or key.
    """

    certificate: File | None = None
    key: File | None = None
    password: str | None = field(default=None, repr=False)
    ca: File | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise ValueError("key= needs the certificate that it belongs to: pass certificate=, too")

    def context(self) -> ssl.SSLContext:
        """A context for a server, with TLS 1.2 and newer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.sslobject_class = _ServerSSLObject
        self.load(context)
        if self.ca is not None:
            _load_authorities(context, self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Load the certificate into a context, which uses it from the next handshake on.

        Raises:
            ValueError: there is no certificate.
        """
        certificate, key = self.certificate, self.key
        if certificate is None:
            raise ValueError("a server needs a certificate: TLS(certificate=...)")
        option = "certificate=" if key is None else "certificate= and key="
        files, wanted = [certificate] if key is None else [certificate, key], "a certificate and its private key"
        _load(lambda: context.load_cert_chain(certificate, key, self.password), option, wanted, *files)

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """A value that changes when a file does: time, size and inode of each. None stands for a file that is gone."""
        return tuple(_stamp_of(file) for file in (self.certificate, self.key) if file is not None)


def _stamp_of(file: File) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:  # it is read, and named in an error, when the stamp has changed
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


#: In a task that performs a server's handshake: gets its failure, of which the event loop may report no more than that
#: the connection was lost.
handshake_failures: ContextVar[list[ssl.SSLError] | None] = ContextVar("handshake_failures", default=None)


class _ServerSSLObject(ssl.SSLObject):
    """A server's end that says why a handshake failed.

    A client whose certificate is missing or not accepted gets a TLS alert. Event loops drop the pending alert when a
    handshake fails, so the client would only see the connection end. One that does not begin with TLS gets an answer in
    the clear. The failure is raised at the next call of `do_handshake`: by then the answer is sent.
    """

    _failure: ssl.SSLError | None = None
    _outgoing: ssl.MemoryBIO

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> Self:
        made = super()._create(incoming, outgoing, *args, **options)  # type: ignore[misc]
        made._outgoing = outgoing
        return cast(Self, made)

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            reason = getattr(error, "reason", None)
            if reason in _HTTP or reason in _NOT_TLS:
                self._outgoing.read()
                self._outgoing.write(_HTTP_ANSWER if reason in _HTTP else _LINE_ANSWER)
            elif not isinstance(error, ssl.SSLCertVerificationError) and reason != _NO_CERTIFICATE:
                raise
            self._failure = error
            failures = handshake_failures.get()
            if failures is not None:
                failures.append(error)
            raise ssl.SSLWantReadError from None


class Certificates:
    """The context of a listening server, reloaded when its files have changed."""

    def __init__(self, tls: TLS) -> None:
        self._tls = tls
        self._stamp = tls.stamp()
        self.context = tls.context()

    def refresh(self, *, always: bool = False) -> Exception | None:
        """Reload the files if they have changed. Returns the error if that failed: the old certificate stays then.

        Args:
            always: reload them even if they look unchanged.
        """
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp and not always:
                return None
            self._stamp = stamp
            # First into another context: after a partial change the old key would stand with the new certificate.
            self._tls.context()
            self._tls.load(self.context)
        except (OSError, ssl.SSLError) as error:
            return error
        return None


#: Whom a client trusts, and its own certificate: a PEM file of authorities, a `TLS`, or a context.
ClientTLS = File | TLS | ssl.SSLContext


def client_context(tls: ClientTLS | None = None) -> ssl.SSLContext:
    """A context for a client, which verifies the server's certificate and its name.

    Args:
        tls: a PEM file with the authorities to trust, a `TLS`, or a context, which is returned. None: trust the
            authorities of the system.

    Raises:
        TypeError: it is none of these.
        OSError, ssl.SSLError: a file is missing or not valid.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    if isinstance(tls, str | os.PathLike):
        tls = TLS(ca=tls)
    if tls is not None and not isinstance(tls, TLS):
        raise TypeError(f"tls= takes a PEM file with authorities, a TLS or an ssl.SSLContext, got {tls!r:.100}")
    if tls is None or tls.ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls is not None and tls.certificate is not None:
        tls.load(context)
    return context


def _load(load: Callable[[], None], option: str, wanted: str, *files: File) -> None:
    """Load files into a context. An error names the option and the files."""
    try:
        load()
    except OSError as error:  # ssl.SSLError is one
        names = " and ".join([repr(os.fspath(file)) for file in files])
        why = f"cannot be read: {error.strerror}"
        if isinstance(error, ssl.SSLError):
            why = f"must have {wanted} in PEM form" + (f" ({error.reason})" if error.reason else "")
        raise type(error)(error.errno, f"{option} {why}: {names}") from None


def _load_authorities(context: ssl.SSLContext, file: File) -> None:
    _load(lambda: context.load_verify_locations(file), "ca=", "certificates", file)
