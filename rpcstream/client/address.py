"""Addresses: the one place that knows how the place of a server is written.

Owns the forms `host:port`, `host`, `[ipv6]:port`, `tcp://…`, `tls://…`, `unix:///path`, the URLs of HTTP and WebSocket,
and the list of schemes. Pure: resolves no name, opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..limits import DEFAULT_HOST, DEFAULT_PORT


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens. `str()` gives a form that `parse_address` takes and that errors show.

    Attributes:
        kind: the scheme, of `SCHEMES`; or "custom", which only names what a connector of the user's joins.
        host, port: unless it is a Unix socket; the host is a name, an IPv4 or an IPv6 address without brackets.
        path: of a Unix socket: an absolute path, or one that begins with a zero byte (Linux's abstract names); for
            "custom" the name.
        target: for HTTP and WebSocket: what the request asks for, path and query.
    """

    kind: str
    host: str = ""
    port: int = 0
    path: str = ""
    target: str = ""

    def __str__(self) -> str:
        if self.kind == "custom":
            return self.path
        if self.is_unix:
            return f"{self.kind}://" + self.path.replace("\0", "@")
        if self.kind == "tcp":
            return f"{self._bracketed}:{self.port}"
        target = "" if self.target == "/" else self.target
        port = "" if self.port == _PORTS.get(self.kind) else f":{self.port}"
        return f"{self.kind}://{self._bracketed}{port}{target}"

    @property
    def is_unix(self) -> bool:
        """A socket in the file system, or Linux's abstract ones."""
        return self.kind in ("unix", "http+unix")

    @property
    def is_http(self) -> bool:
        """Each call is a request of its own; nothing lasts beyond its answer."""
        return self.kind in ("http", "https", "http+unix")

    @property
    def is_websocket(self) -> bool:
        return self.kind in ("ws", "wss")

    @property
    def is_secure(self) -> bool:
        """TLS is spoken."""
        return self.kind in ("tls", "https", "wss")

    @property
    def host_header(self) -> str:
        """The host as HTTP names it: with the port, unless that is the scheme's."""
        if self.is_unix:
            return "localhost"
        name = self.host if self.host.isascii() else self.host.encode("idna").decode()
        name = f"[{name.partition('%')[0]}]" if ":" in name else name
        return name if self.port == _PORTS.get(self.kind) else f"{name}:{self.port}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_address(text: str | Address) -> Address:
    """The address that a text means; an Address is given back as it is.

    Raises:
        ValueError: the text is none of the known forms; the message says what is wrong and lists the schemes.
        TypeError: neither text nor Address.
    """
    if isinstance(text, Address):
        return text
    if not isinstance(text, str):
        raise TypeError(f"an address is a string such as '127.0.0.1:8545', got {type(text).__name__}")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "tcp", text
    parse = _SCHEMES.get(scheme.lower())
    if parse is None:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise ValueError(f"unknown scheme {scheme!r} in the address {text!r}; known: {known}, or host:port")
    return parse(text, rest, scheme.lower())


def check_lasting(address: Address, what: str) -> None:
    """Raises RuntimeError where there is no connection that lasts, which this needs."""
    if address.is_http:
        raise RuntimeError(
            f"{what} needs a connection that lasts, and HTTP has none ({address}): use the WebSocket (ws://, wss://) "
            "or the line stream (host:port, tls://, unix://) of the server"
        )


def _tcp(text: str, rest: str, kind: str) -> Address:
    host, port = _place(text, rest.removesuffix("/"))
    return Address(kind=kind, host=host, port=DEFAULT_PORT if port is None else port)


def _url(text: str, rest: str, kind: str) -> Address:
    """As browsers take it, and with their ports where it has none."""
    if "#" in rest:
        raise ValueError(f"the address {text!r} has a fragment (#), which is not sent to servers")
    ends = [at for at in (rest.find("/"), rest.find("?")) if at >= 0]
    end = min(ends, default=len(rest))
    host, port = _place(text, rest[:end])
    target = rest[end:] if rest[end:].startswith("/") else "/" + rest[end:]
    if any(character <= " " or character == "\x7f" for character in target):
        raise ValueError(f"the address {text!r} has a blank or a control character in it")
    written = "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in target.encode())
    return Address(kind=kind, host=host, port=_PORTS[kind] if port is None else port, target=written)


def _place(text: str, rest: str) -> tuple[str, int | None]:
    """Host and port."""
    if "@" in rest:  # and not repeated: what stands before it may be a password
        raise ValueError("an address has no user and no password (an @ stands in it); what a server asks for is token=")
    if rest.startswith("["):
        host, closed, tail = rest[1:].partition("]")
        if not closed or not host or (tail and not tail.startswith(":")):
            raise ValueError(f"the address {text!r} is not of the form [ipv6]:port")
        port, has_port = tail[1:], bool(tail)
    else:
        if rest.count(":") > 1:
            raise ValueError(f"an IPv6 address is written in brackets, such as [::1]:{DEFAULT_PORT}; got {text!r}")
        host, colon, port = rest.partition(":")
        has_port = bool(colon)
    if not rest or any(character.isspace() or not character.isprintable() or character in "/?#" for character in host):
        raise ValueError(f"the address {text!r} has no host that can be understood")
    if host.isdecimal():
        raise ValueError(f"the address {text!r} has a number where a host should be; a port alone is written :{host}")
    return host or DEFAULT_HOST, _port(text, port) if has_port else None


def _port(text: str, port: str) -> int:
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ValueError(f"the port in the address {text!r} must be a number from 1 to 65535")
    return int(port)


def _unix(text: str, rest: str, kind: str) -> Address:
    if rest.startswith("@"):
        rest = "\0" + rest[1:]
    elif not rest.startswith("/"):
        raise ValueError(f"a Unix socket is written {kind}:///absolute/path, got {text!r}")
    return Address(kind=kind, path=rest, target="/" if kind == "http+unix" else "")


_SCHEMES: dict[str, Callable[[str, str, str], Address]] = {
    "tcp": _tcp,
    "tls": _tcp,
    "unix": _unix,
    "http": _url,
    "https": _url,
    "ws": _url,
    "wss": _url,
    "http+unix": _unix,
}

#: Where servers of the web listen.
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}

#: How an address may begin.
SCHEMES = tuple(_SCHEMES)
