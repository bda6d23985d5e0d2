"""The address of the client behind a proxy: the PROXY protocol (versions 1, 2), `X-Forwarded-For`, and `Forwarded`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping

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
