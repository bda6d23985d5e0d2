"""The addresses of a server as Server Objects of OpenRPC."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlsplit

#: Name, plain scheme and encrypted scheme of each kind of address.
_KINDS = (("http", "http", "https"), ("websocket", "ws", "wss"), ("stream", "tcp", "tls"))
_NAMES = {scheme: name for name, *schemes in _KINDS for scheme in schemes} | {"unix": "unix"}

#: Hosts that mean all addresses of a machine; callers cannot use them.
_ALL = ("0.0.0.0", "[::]")


def checked_urls(given: Iterable[str]) -> tuple[str, ...]:
    """The option `public_urls`, as a tuple.

    Raises:
        ValueError, TypeError: one of them is no URL by which a server can be reached.
    """
    if isinstance(given, str):
        raise TypeError(f"public_urls is a list of URLs, got {given!r}")
    urls = tuple(given)
    for url in urls:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in _NAMES or not (parts.netloc or parts.scheme == "unix"):
            raise ValueError(f"public_urls: a URL begins with one of {', '.join(_NAMES)}, got {url!r}")
    return urls


def server_objects(
    addresses: Iterable[str], *, paths: tuple[str, ...] | None, is_encrypted: bool, public: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The Server Objects of a server, HTTP first, which most tools can do.

    Args:
        addresses: `host:port`, a service on NATS, or `unix:///path`, which only counts where there is no other.
        paths: for calls by HTTP and WebSocket; None: "/".
        is_encrypted: there is a certificate.
        public: URLs to be taken in place of all that.
    """
    if public:
        return [{"name": _NAMES[urlsplit(url).scheme], "url": url} for url in public]
    addresses = list(addresses)
    services = [{"name": "nats", "url": each} for each in addresses if each.startswith("nats")]
    listed = [each for each in addresses if not each.startswith("nats")]
    hosts = [each for each in listed if not each.startswith("unix:")]
    if not hosts:
        return [{"name": "unix", "url": each} for each in listed] + services
    target = quote(paths[0] if paths else "/")
    objects = []
    for name, plain, encrypted in _KINDS:
        for each in hosts:
            host, colon, port = each.rpartition(":")
            reachable = f"localhost{colon}{port}" if host in _ALL else each
            path = "" if name == "stream" else target
            objects.append({"name": name, "url": f"{encrypted if is_encrypted else plain}://{reachable}{path}"})
    return list({each["url"]: each for each in [*objects, *services]}.values())
