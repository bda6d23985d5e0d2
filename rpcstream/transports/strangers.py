"""Which connection gives way to a newcomer when there is no room: one of those whose peers are not known.

Owns their order. Knows neither why there is no room nor how a connection ends.
"""

from __future__ import annotations

from .interfaces import Connection


class UnauthenticatedConnections:
    """The connections whose peers have not shown who they are; where nobody need show that, those whose handshake is
    not done. One after the other gives way when there is no room for a newcomer.

    Whether one has shown it meanwhile is looked at only then.
    """

    def __init__(self) -> None:
        #: The oldest first; with the host it comes from.
        self._hosts: dict[Connection, str] = {}
        self._of_host: dict[str, dict[Connection, None]] = {}

    def __contains__(self, stream: Connection) -> bool:
        return stream in self._hosts

    def add(self, stream: Connection) -> None:
        host = host_of(stream)
        self._hosts[stream] = host
        self._of_host.setdefault(host, {})[stream] = None

    def discard(self, stream: Connection) -> None:
        host = self._hosts.pop(stream, None)
        if host is None:
            return
        others = self._of_host[host]
        del others[stream]
        if not others:
            del self._of_host[host]

    def take(self, newcomer: Connection | None) -> Connection | None:
        """The oldest one from the host of the newcomer, so that one host takes its places from itself; else the oldest.

        It is none of these any more. None if there is none.
        """
        host = host_of(newcomer) if newcomer is not None else None
        while True:
            candidates = self._of_host.get(host, self._hosts) if host is not None else self._hosts
            stream = next(iter(candidates), None)
            if stream is None:
                return None
            self.discard(stream)
            if not stream.is_known:
                return stream


def host_of(stream: Connection) -> str:
    """Where a connection comes from: its address without the port."""
    return stream.address.rpartition(":")[0]
