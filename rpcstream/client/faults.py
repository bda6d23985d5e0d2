"""Error texts for connections that fail: the reason, and which option of the client to change.

Options are named as arguments in Python, `ca=`; the command line translates the names. Imported only for such an error.
"""

from __future__ import annotations

import errno
import os
import socket

from ..errors import ConnectFailed, InvalidRequest, NotAuthenticated, RpcError
from .address import Address

#: OpenSSL's numbers of errors of a certificate (x509_vfy.h), and what to do about them.
_UNKNOWN_AUTHORITY = frozenset((2, 18, 19, 20, 21))
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME = frozenset((62, 64))

#: The first bytes of an alert of TLS, which a server sends that cannot read plain text.
TLS_ALERT = b"\x15\x03"

#: OpenSSL's names for what it finds where no TLS is.
_NOT_TLS = frozenset(
    ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_EOF_WHILE_READING")
)

#: Alerts of TLS after which another attempt may succeed.
_PASSING_ALERTS = frozenset(("INTERNAL_ERROR", "USER_CANCELLED"))

#: How TLS says that the other end does not speak it.
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNSUPPORTED_PROTOCOL"))

#: What a server says to plain HTTP where it expects TLS: rpcstream, nginx, Apache.
_TLS_EXPECTED = ("expects TLS", "sent to HTTPS port", "to an SSL-enabled server port")

#: The scheme of the same protocol with TLS, or without it.
_WITH_TLS = {"tcp": "tls", "http": "https", "ws": "wss"}
_WITHOUT_TLS = {secure: plain for plain, secure in _WITH_TLS.items()}


def connect_failed(error: OSError, seconds: float | None, address: Address, method: str | None = None) -> ConnectFailed:
    """The error of a call that has no connection.

    Args:
        error: what the system or TLS raised.
        seconds: the time that connecting was given.
        address: of the server.
        method: that was called.
    """
    reason, is_permanent = _failure(error, seconds, address), _is_permanent(error)
    return ConnectFailed(reason, method=method, address=str(address), is_permanent=is_permanent)


def _failure(error: OSError, seconds: float | None, address: Address) -> str:
    """Describe why connecting failed."""
    if is_own_timeout(error) and seconds is not None:
        return f"could not connect within {seconds:g} s"
    refusal = getattr(error, "verify_message", None)
    if refusal is not None:
        what = _certificate_advice(getattr(error, "verify_code", 0))
        return f"could not connect: the server's certificate cannot be trusted: {refusal}{what}"
    if getattr(error, "library", None) == "SSL":  # whose numbers are others than those of the system
        name = str(getattr(error, "reason", None) or error)
        what = name.lower().replace("_", " ")
        return f"could not connect: TLS failed: {what}{_without_tls(address) if name in _NOT_TLS else ''}"
    if not str(error) and isinstance(error, ConnectionResetError):
        return f"could not connect: the server closed the connection in the TLS handshake{_without_tls(address)}"
    known = error.errno in errno.errorcode and not isinstance(error, socket.gaierror)
    reason = os.strerror(error.errno) if known and error.errno is not None else error.strerror
    return f"could not connect: {_address_advice(error, address)}{reason or error or type(error).__name__}"


def _is_permanent(error: OSError) -> bool:
    """Tell whether connecting failed for a reason that another attempt does not change: certificates, no TLS at all."""
    if getattr(error, "verify_message", None) is not None:
        return True
    reason = str(getattr(error, "reason", None) or "")
    _, is_alert, alert = reason.partition("_ALERT_")
    return reason in _NO_TLS or (bool(is_alert) and alert not in _PASSING_ALERTS)


def is_own_timeout(error: OSError) -> bool:
    """Tell whether the time-out of the socket object passed, and not one of the system (which has an errno)."""
    return isinstance(error, TimeoutError) and error.errno is None


def _certificate_advice(code: int) -> str:
    if code in _UNKNOWN_AUTHORITY:
        return "; if you trust it, give the file of its authority with tls="
    if code in _OTHER_NAME:
        return "; use a name from the certificate in address=, or give the server another certificate (certificate=)"
    if code == _EXPIRED:
        return "; the server needs a new certificate (certificate=), or a clock is wrong"
    if code == _NOT_YET_VALID:
        return "; a clock is wrong, or the server needs another certificate (certificate=)"
    return ""


def _without_tls(address: Address) -> str:
    return f"; if the server has no TLS, begin address= with {_WITHOUT_TLS[address.kind]}://"


def _address_advice(error: OSError, address: Address) -> str:
    is_refused = isinstance(error, ConnectionRefusedError)
    if address.is_unix:
        if isinstance(error, FileNotFoundError) or is_refused:
            return "no server listens at this path (is it running, and address= right?): "
    elif is_refused:
        return "no server listens at this port (is it running, and address= right?): "
    elif isinstance(error, socket.gaierror):
        return "no host has this name (is address= right?): "
    return ""


def silence(address: Address) -> str:
    """What to add to the reason why a connection ended on which the server has answered nothing."""
    secure = _WITH_TLS.get(address.kind)
    if secure is None:
        return ""
    return f", before any answer; if the server expects TLS, begin address= with {secure}://"


def refusal_advice(status: int | None, text: str, address: Address, *, has_token: bool) -> str:
    """Which option to change after a refusal by HTTP; "" where it is about none.

    Args:
        status: of the response.
        text: its body, for people.
        address: of the server.
        has_token: the client was given a token.
    """
    if status == 401:
        return _token_advice(has_token)
    secure = _WITH_TLS.get(address.kind)
    if secure is not None and status == 400 and any(said in text for said in _TLS_EXPECTED):
        return f"begin address= with {secure}://"
    return ""


def _token_advice(has_token: bool) -> str:
    return "is this the right token=?" if has_token else "give token="


def explained(error: RpcError, address: Address, *, has_token: bool) -> Exception:
    """The error with advice about the client's options, or the error that it means for this client.

    Args:
        error: as the server sent it.
        address: of the server.
        has_token: the client was given a token.
    """
    if isinstance(error, NotAuthenticated):
        error.advice = _token_advice(has_token)
    elif isinstance(error, InvalidRequest) and isinstance(error.data, dict) and error.data.get("expects") == "tls":
        secure = _WITH_TLS.get(address.kind)
        if secure is not None:
            reason = f"the server expects TLS; begin address= with {secure}://"
            return ConnectFailed(reason, method=error.method, address=error.address, is_permanent=True)
    return error
