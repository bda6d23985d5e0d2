"""Addresses: the one place that knows how the place of a server is written.

Owns the forms `host:port`, `host`, `[ipv6]:port`, `tcp://…` and `unix:///path`, and the list of schemes. Pure: resolves
no name, opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..limits import DEFAULT_HOST, DEFAULT_PORT


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens. `str()` gives a form that `parse_address` takes and that errors show.

    Attributes:
        kind: the scheme: "tcp" or "unix"; or "custom", which only names what a connector of the user's joins.
        host, port: for "tcp"; the host is a name, an IPv4 or an IPv6 address without brackets.
        path: for "unix": an absolute path, or one that begins with a zero byte (Linux's abstract names); for "custom"
            the name.
    """

    kind: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.kind == "custom":
            return self.path
        if self.kind == "unix":
            return "unix://" + self.path.replace("\0", "@")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


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
    return parse(text, rest)


def _tcp(text: str, rest: str) -> Address:
    rest = rest.removesuffix("/")
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
    if not rest or any(character.isspace() or character in "/?#@" for character in host):
        raise ValueError(f"the address {text!r} has no host that can be understood")
    if host.isdecimal():
        raise ValueError(f"the address {text!r} has a number where a host should be; a port alone is written :{host}")
    return Address(kind="tcp", host=host or DEFAULT_HOST, port=_port(text, port) if has_port else DEFAULT_PORT)


def _port(text: str, port: str) -> int:
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ValueError(f"the port in the address {text!r} must be a number from 1 to 65535")
    return int(port)


def _unix(text: str, rest: str) -> Address:
    if rest.startswith("@"):
        rest = "\0" + rest[1:]
    elif not rest.startswith("/"):
        raise ValueError(f"a Unix socket is written unix:///absolute/path, got {text!r}")
    return Address(kind="unix", path=rest)


_SCHEMES: dict[str, Callable[[str, str], Address]] = {"tcp": _tcp, "unix": _unix}
