"""Addresses of servers: the accepted forms, and what each form means for a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..limits import DEFAULT_HOST, DEFAULT_PORT

#: Servers in one address, at most: each that cannot be reached takes a share of the time for connecting.
SEVERAL_MAX = 8


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a server. `str()` gives a form that `parse_address` takes and that errors show.

    Attributes:
        kind: the scheme, one of `SCHEMES`; or "custom" for a name that stands for the user's own `connect` function.
        host: a name, an IPv4 address, or an IPv6 address without brackets; empty for a Unix socket.
        port: the port; 0 for a Unix socket.
        path: the path of a Unix socket: absolute, or beginning with a zero byte (an abstract name of Linux); for
            "custom" the name.
        target: the request target of HTTP and WebSocket: path and query; for NATS the name of the service.
        servers: `host:port` of each NATS server.
        others: of the line stream, addresses to be tried where this one cannot be reached, in this order.
    """

    kind: str
    host: str = ""
    port: int = 0
    path: str = ""
    target: str = ""
    servers: tuple[str, ...] = ()
    others: tuple[Address, ...] = ()

    def __str__(self) -> str:
        if self.kind == "custom":
            return self.path
        if self.others:
            first = replace(self, others=())
            return ",".join([str(first), *(str(each).partition("://")[2] or str(each) for each in self.others)])
        if self.is_nats:
            return f"{self.kind}://{','.join(self.servers)}/{self.target}"
        if self.is_unix:
            return f"{self.kind}://" + self.path.replace("\0", "@")
        if self.kind == "tcp":
            return f"{self._bracketed}:{self.port}"
        target = "" if self.target == "/" else self.target
        port = "" if self.port == _PORTS.get(self.kind) else f":{self.port}"
        return f"{self.kind}://{self._bracketed}{port}{target}"

    @property
    def in_turn(self) -> tuple[Address, ...]:
        """The addresses of the single servers, in the order in which they are tried."""
        return (replace(self, others=()), *self.others) if self.others else (self,)

    @property
    def is_unix(self) -> bool:
        """A Unix socket, in the file system or with an abstract name of Linux."""
        return self.kind in ("unix", "http+unix")

    @property
    def is_http(self) -> bool:
        """HTTP: each message is a request of its own, and no connection lasts between them."""
        return self.kind in ("http", "https", "http+unix")

    @property
    def is_websocket(self) -> bool:
        """WebSocket, with or without TLS."""
        return self.kind in ("ws", "wss")

    @property
    def is_nats(self) -> bool:
        """A service on NATS: each call goes to one of its instances."""
        return self.kind in ("nats", "nats+tls")

    @property
    def is_secure(self) -> bool:
        """The connection is encrypted with TLS."""
        return self.kind in ("tls", "https", "wss", "nats+tls")

    @property
    def host_header(self) -> str:
        """The value of the HTTP header `Host`: with the port, unless it is the scheme's default."""
        if self.is_unix:
            return "localhost"
        name = self.host if self.host.isascii() else self.host.encode("idna").decode()
        name = f"[{name.partition('%')[0]}]" if ":" in name else name
        return name if self.port == _PORTS.get(self.kind) else f"{name}:{self.port}"

    @property
    def span_attributes(self) -> dict[str, str | int]:
        """The attributes of this server in the spans of OpenTelemetry."""
        if self.is_unix:
            return {"network.transport": "unix", "server.address": self.path.replace("\0", "@")}
        if self.is_nats or self.kind == "custom":
            return {"server.address": str(self)}
        return {"network.transport": "tcp", "server.address": self.host, "server.port": self.port}

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_address(text: str | Address) -> Address:
    """Parse an address; an Address is returned as it is.

    Raises:
        ValueError: the text has none of the known forms; the message says what is wrong and lists the schemes.
        TypeError: neither a str nor an Address.
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
    """Raise RuntimeError if the address is an HTTP one, for `what` needs a connection that lasts."""
    if address.is_http:
        raise RuntimeError(
            f"{what} needs a connection that lasts, and HTTP has none ({address}): connect to the server by WebSocket "
            "(ws://, wss://) or line stream (host:port, tls://, unix://)"
        )


def check_one_server(address: Address, what: str) -> None:
    """Raise RuntimeError unless all calls of a client go to one server, by a connection that lasts."""
    check_lasting(address, what)
    if address.is_nats:
        raise RuntimeError(f"{what} needs a connection to one server, and calls to {address} go to any instance")


def _nats(text: str, rest: str, kind: str) -> Address:
    from ..nats.options import parse_url

    servers, service, _ = parse_url(text)
    if service is None:
        raise ValueError(f"the service is missing in the address {text!r}: {kind}://host:port/service")
    host, _, port = servers[0].rpartition(":")
    return Address(kind=kind, host=host.strip("[]"), port=int(port), target=service, servers=servers)


def _tcp(text: str, rest: str, kind: str) -> Address:
    """Parse one address of the line stream, or several with commas between them."""
    first, *others = (_one_tcp(text, each, kind) for each in rest.split(","))
    if len(others) >= SEVERAL_MAX:
        raise ValueError(f"the address {text!r:.200} has more than {SEVERAL_MAX} servers")
    return replace(first, others=tuple(others)) if others else first


def _one_tcp(text: str, rest: str, kind: str) -> Address:
    host, port = _host_and_port(text, rest.removesuffix("/"))
    return Address(kind=kind, host=host, port=DEFAULT_PORT if port is None else port)


def _url(text: str, rest: str, kind: str) -> Address:
    """Parse a URL as browsers do, with the scheme's default port."""
    if "#" in rest:
        raise ValueError(f"the address {text!r} has a fragment (#), which is not sent to servers")
    ends = [at for at in (rest.find("/"), rest.find("?")) if at >= 0]
    end = min(ends, default=len(rest))
    host, port = _host_and_port(text, rest[:end])
    target = rest[end:] if rest[end:].startswith("/") else "/" + rest[end:]
    if any(character <= " " or character == "\x7f" for character in target):
        raise ValueError(f"the address {text!r} contains a blank or a control character")
    written = "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in target.encode())
    return Address(kind=kind, host=host, port=_PORTS[kind] if port is None else port, target=written)


def _host_and_port(text: str, rest: str) -> tuple[str, int | None]:
    """Parse host and port; the port is None if there is none."""
    if "@" in rest:  # the text is not shown: it may contain a password
        raise ValueError("an address has no user and no password, but this one has an '@'; to authenticate use token=")
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
        raise ValueError(f"the address {text!r} has no valid host")
    if host.isdecimal():
        raise ValueError(f"the address {text!r} has a number instead of a host; a port alone is written :{host}")
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
    "nats": _nats,
    "nats+tls": _nats,
}

#: Default ports of URLs.
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}

#: The schemes of addresses.
SCHEMES = tuple(_SCHEMES)
