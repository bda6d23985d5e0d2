"""Which HTTP requests a server answers, by their `Host` and `Origin`; and whom a trusted proxy passes on.

This protects a server from pages in its users' browsers: only allowed origins may call it (CORS and WebSockets), and
only the server's own names are accepted as `Host` (against DNS rebinding).
"""

from __future__ import annotations

import copy
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..wire.http_messages import Response, problem

if TYPE_CHECKING:
    from ..wire.http_messages import Request

#: Seconds for which a browser may keep the response to a preflight request: the most that Chromium accepts.
MAX_AGE = 7200

#: Characters of a host name (RFC 1035); longer ones are not looked at.
MAX_NAME = 253

#: Methods and headers that a page of an allowed origin may send.
METHODS = "GET, HEAD, POST"
HEADERS = (
    "Accept, Authorization, Content-Type, Traceparent, "
    "Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"  # of the Model Context Protocol
)

_LABEL = r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^\[\]:/@\\?#\s,]+)(:(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host_port>[^/]+)")
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


class AccessRules:
    """The hosts and origins that are allowed.

    Always allowed are the loopback names (localhost, names below it, 127.0.0.0/8, [::1]), and pages of the host itself.

    Args:
        hosts: further host names: exact ones, "*.example.org" for all names below, "*" for any.
        origins: of pages that may call: exact ones, as browsers write them ("https://example.org:8443"); "*" for any;
            "null" for pages without one, such as files, which "*" does not cover.

    Raises:
        ValueError: one of them is malformed.
    """

    def __init__(self, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        hosts, origins = _listed(hosts), _listed(origins)
        self._any_host = "*" in hosts
        self._any_origin = "*" in origins
        self._is_unix = False
        self._below = tuple(_configured_host(host[2:], host) for host in hosts if host.startswith("*."))
        self._names = frozenset(
            _configured_host(host, host) for host in hosts if host != "*" and not host.startswith("*.")
        )
        self._origins = frozenset(_configured_origin(origin) for origin in origins if origin != "*")

    def at(self, host: str | None) -> AccessRules:
        """The rules for a server that listens at this host, whose name is then allowed, too.

        Args:
            host: None for a Unix socket, where the header Host is not checked.
        """
        rules = copy.copy(self)
        if host is None:
            rules._is_unix = True
        elif (name := _canonical(f"[{host}]" if ":" in host else host.lower())) and not _is_unspecified(name):
            rules._names |= {name}
        return rules

    def check(self, request: Request) -> Response | None:
        """The refusal of a request, of any method, that is not allowed, else None. Also for WebSocket handshakes."""
        refusal = None if self._is_unix else self._check_host(request)
        return self.check_origin(request) if refusal is None else refusal

    def check_origin(self, request: Request) -> Response | None:
        """The refusal of a request from a page whose origin is not allowed, else None; whatever host it names."""
        origin = request.headers.get("origin")
        if origin is None or self._is_allowed(origin, request.headers.get("host", "")):
            return None
        return problem(
            403,
            f"The origin {_shown(origin)} is not allowed here. The server permits pages of an origin with "
            "--set origins=ORIGIN, in Python Http(origins=[...])",
        )

    def names_address(self, request: Request) -> bool:
        """Whether the request names an IP address as its host.

        A page whose name its owner has made lead to this server (DNS rebinding) cannot send such a request: its own
        name stands there.
        """
        split = _split(request.headers.get("host", ""))
        return split is not None and (split[0].startswith("[") or split[0].rpartition(".")[2].isdigit())

    def cors(self, request: Request) -> list[tuple[str, str]]:
        """Headers of the response to a request that is allowed, so that the page which sent it may read it."""
        origin = request.headers.get("origin")
        if origin is not None and self._is_allowed(origin, request.headers.get("host", "")):
            return [("Access-Control-Allow-Origin", origin), ("Vary", "Origin")]
        # A cache must not give this response to a page of another origin.
        return [("Vary", "Origin")] if self._origins or self._any_origin else []

    def preflight(self, request: Request) -> Response | None:
        """The response to a browser that asks whether a page may send a request, which is permitted; else None."""
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        if "origin" not in request.headers:
            return None
        headers = [
            *self.cors(request),
            ("Access-Control-Allow-Methods", METHODS),
            ("Access-Control-Allow-Headers", HEADERS),
            ("Access-Control-Max-Age", str(MAX_AGE)),
        ]
        return Response(204, headers=headers)

    def _check_host(self, request: Request) -> Response | None:
        host = request.headers.get("host")
        if host is None:
            # Browsers always send it.
            if request.is_http10 and "origin" not in request.headers:
                return None
            return problem(400, "The header Host is missing")
        if self._is_ours(host):
            return None
        return problem(
            403,
            f"The host {_shown(host)} is not this server's. The server takes further names with "
            "--set hosts=NAME, in Python Http(hosts=[...])",
        )

    def _is_ours(self, host_port: str) -> bool:
        """Whether the value of a Host header names this server."""
        split = _split(host_port)
        if split is None:
            return False
        name = split[0]
        if self._any_host or name in self._names or _is_loopback(name):
            return True
        return any(name.endswith("." + above) for above in self._below)

    def _is_allowed(self, origin: str, host: str) -> bool:
        if origin == "null":
            return "null" in self._origins
        parsed = _parsed_origin(origin.lower())
        if parsed is None:
            return False
        if self._any_origin or parsed in self._origins:
            return True
        return self._is_same(parsed, host)

    def _is_same(self, origin: str, host: str) -> bool:
        """Whether a page was loaded from the host that it calls.

        Only for hosts that are allowed by name, since any name can be made to lead here. The scheme is ignored, since a
        proxy may end TLS.
        """
        scheme, _, host_port = origin.partition("://")
        if scheme not in _PORTS or not self._is_ours(host):
            return False
        own, other = _split(host), _split(host_port)
        if own is None or other is None:
            return False
        return (own[0], own[1] or _PORTS[scheme]) == (other[0], other[1] or _PORTS[scheme])


def _listed(texts: Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _split(host_port: str) -> tuple[str, int | None] | None:
    """Host in canonical form, and port, of "host:port"; None for malformed text."""
    if len(host_port) > MAX_NAME + len(":65535") or not host_port.isascii():
        return None
    found = _HOST_PORT.fullmatch(host_port.lower())
    name = _canonical(found["host"]) if found else None
    if found is None or name is None:
        return None
    port = int(found["port"]) if found["port"] else None
    return (name, port) if port is None or 0 < port < 65536 else None


def _canonical(host: str) -> str | None:
    """The canonical form of a host in lower case; None if it is malformed, or could be read in several ways."""
    if host.startswith("["):
        if "%" in host:  # a zone has no meaning to other machines
            return None
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            return None
    if len(host) > MAX_NAME or not host.isascii() or not _NAME.fullmatch(host):
        return None
    last = host.rpartition(".")[2]
    if last.isdigit() or last.startswith("0x"):  # an address: only the form with four decimal numbers
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            return None
    return host


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost") or name == "[::1]":
        return True
    # A canonical name that ends in a number is an address.
    return name.rpartition(".")[2].isdigit() and ipaddress.IPv4Address(name) in _LOOPBACK


def _is_unspecified(name: str) -> bool:
    return name in ("0.0.0.0", "[::]")


def _parsed_origin(origin: str) -> str | None:
    """The canonical form of an origin, without the default port of its scheme; None if it is malformed."""
    found = _ORIGIN.fullmatch(origin)
    split = _split(found["host_port"]) if found else None
    if found is None or split is None:
        return None
    name, port = split
    scheme = found["scheme"]
    return f"{scheme}://{name}" if port is None or port == _PORTS.get(scheme) else f"{scheme}://{name}:{port}"


def _configured_host(host: str, given: str) -> str:
    name = _canonical(f"[{host}]" if ":" in host and not host.startswith("[") else host.lower())
    if name is None:
        raise ValueError(
            f'hosts: {given!r} is not a host name; write "example.org", without scheme or port, '
            '"*.example.org" for all names below, or "*" for any'
        )
    return name


def _configured_origin(origin: str) -> str:
    if origin == "null":
        return origin
    parsed = _parsed_origin(origin.lower())
    if parsed is None:
        raise ValueError(
            f'origins: {origin!r} is not an origin; write "https://example.org" or "https://example.org:8443", '
            'without a path, "*" for any, or "null"'
        )
    return parsed


def _shown(text: str) -> str:
    """Text of a caller, shortened and in ASCII, for a response."""
    return ascii(text[:100])


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: How a header of the PROXY protocol begins: version 1 is a line of text, version 2 is binary.
V1_START, V2_START = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"

#: Bytes of a header of version 1 at most, with its line end; and of one of version 2 before the addresses.
V1_MAX, V2_HEAD = 107, 16

#: Version 2: address family and transport -> bytes of an address. Only TCP over IPv4 and IPv6 has addresses for us.
_V2_SIZES = {0x11: 4, 0x21: 16}

#: An address, perhaps with a port, as proxies write it.
_NODE = re.compile(r"\[(?P<v6>[0-9A-Fa-f:.]+)\](:[0-9]+)?|(?P<v4>[0-9.]+)(:[0-9]+)?|(?P<bare>[0-9A-Fa-f:.]+)")
_FORWARDED_FOR = re.compile(r'(?:^|;)[ \t]*for="?([^";]*)', re.IGNORECASE)


class ProxyHeaderError(Exception):
    """A header of the PROXY protocol is malformed."""


class TrustedProxies:
    """The proxies whose word is taken for the address of a client.

    Args:
        networks: "10.0.0.0/8", "2001:db8::/32", a single address, or "unix" for all that comes by a Unix socket.

    Raises:
        ValueError: one of them is no network.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        given = {networks} if isinstance(networks, str) else set(networks)
        self._trusts_unix = "unix" in given
        try:
            self._networks: list[_Network] = [ipaddress.ip_network(each) for each in given - {"unix"}]
        except ValueError as error:
            raise ValueError(f'trusted_proxies: {error}; write networks such as "10.0.0.0/8", or "unix"') from None

    def trusts(self, address: str) -> bool:
        """Whether this is the address of a trusted proxy: "10.0.0.2:50412", "[::1]:50412", "unix:///path"."""
        if address.startswith("unix:") or address == "unknown":  # ASGI servers tell nothing of Unix sockets
            return self._trusts_unix
        found = _parse(address) if self._networks else None
        return found is not None and any(found in network for network in self._networks)

    def client_of(self, headers: Mapping[str, str], address: str) -> str:
        """The client that sent a request with these headers, which came from this address.

        That is the last address in the header that is not a trusted proxy's. If the proxies have written both headers,
        and these differ, it is the proxy's own address: one of the two may be the client's invention.
        """
        if not self.trusts(address):
            return address
        found = {self._last_untrusted(hops, address) for hops in _hops(headers)}
        return found.pop() if len(found) == 1 else address

    def _last_untrusted(self, hops: list[str], address: str) -> str:
        for hop in reversed(hops):
            if not self.trusts(address) or _parse(hop) is None:
                break
            address = f"[{hop}]" if hop.count(":") > 1 and hop[0] != "[" else hop
        return address


def _hops(headers: Mapping[str, str]) -> Iterator[list[str]]:
    """The addresses in each of the two headers that is there, the first one that of the client, if it is true."""
    if "x-forwarded-for" in headers:
        yield [each.strip(" \t") for each in headers["x-forwarded-for"].split(",")]
    if "forwarded" in headers:
        found = [_FORWARDED_FOR.search(each) for each in headers["forwarded"].split(",")]
        yield ["" if each is None else each[1].strip(" \t") for each in found]


def _parse(node: str) -> _Address | None:
    """The IP address in this text; None for "unknown", a name, or what is malformed."""
    found = _NODE.fullmatch(node)
    if found is None:
        return None
    try:
        address = ipaddress.ip_address(found["v6"] or found["v4"] or found["bare"])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def read_proxy_header(data: bytes) -> tuple[str | None, int] | None:
    """Read the header of the PROXY protocol with which a connection may begin.

    Args:
        data: the first bytes of the connection.

    Returns:
        The address of the client (None: the header has none, so that of the proxy stays), and the bytes of the header,
        0 where there is none. None while it is not complete.

    Raises:
        ProxyHeaderError: the header is malformed.
    """
    if data.startswith(V1_START):
        return _read_v1(data)
    if data.startswith(V2_START):
        return _read_v2(data)
    return None if V1_START.startswith(data) or V2_START.startswith(data) else (None, 0)


def _read_v1(data: bytes) -> tuple[str | None, int] | None:
    end = data.find(b"\r\n", 0, V1_MAX)
    if end < 0:
        if len(data) < V1_MAX:
            return None
        raise ProxyHeaderError(f"the line has over {V1_MAX} bytes")
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return None, end + 2
    if len(words) == 6 and words[1] == ("TCP6" if ":" in words[2] else "TCP4") and re.fullmatch("[0-9]{1,5}", words[4]):
        host = f"[{words[2]}]" if ":" in words[2] else words[2]
        if _parse(host) is not None:
            return f"{host}:{words[4]}", end + 2
    raise ProxyHeaderError(f"not a line of version 1: {data[:end]!r}")


def _read_v2(data: bytes) -> tuple[str | None, int] | None:
    if len(data) < V2_HEAD:
        return None
    version, command = divmod(data[12], 16)
    if version != 2 or command > 1:
        raise ProxyHeaderError(f"not version 2, or an unknown command: {data[12]:#04x}")
    size = int.from_bytes(data[14:V2_HEAD], "big")
    if len(data) < V2_HEAD + size:
        return None
    length = _V2_SIZES.get(data[13])
    if command == 0 or length is None:  # from the proxy itself, or from what is not TCP
        return None, V2_HEAD + size
    if size < 2 * length + 4:
        raise ProxyHeaderError(f"too short for its addresses: {size} bytes")
    host = ipaddress.ip_address(data[V2_HEAD : V2_HEAD + length])
    at = V2_HEAD + 2 * length
    port = int.from_bytes(data[at : at + 2], "big")
    return f"[{host}]:{port}" if length == 16 else f"{host}:{port}", V2_HEAD + size
