"""A server that may share its clients with other hubs: the part of `Hub` that joins them.

Owns what `join_nats` of a hub means, and the session with another hub. The group itself is `GroupMembership`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..methods.builtin_methods import add_event_methods
from ..peer.session import Session
from ..server import Server
from ..server.running import RunningServer, log_message
from .dispatch import HubDispatcher
from .membership import GroupMembership

if TYPE_CHECKING:
    import ssl

    from ..nats.options import NatsLogin


class SharingServer(Server):
    """Joins a group of hubs, and leaves it. The part of `Hub` that does so."""

    _group: GroupMembership
    #: Answers other hubs; None before the hub runs, or where it joins no group.
    _for_hubs: HubDispatcher | None = None

    def join_nats(
        self,
        url: str,
        *,
        service: str | None = None,
        login: NatsLogin | None = None,
        tls: ssl.SSLContext | None = None,
        **others: Any,
    ) -> None:
        """Share with other hubs what clients offer and publish, whenever the hub runs; they find each other on NATS.

        Clients of each hub of the group then call the methods of all, and get the events of all. Needs the extra
        `rpcstream[nats]`.

        Args:
            url: one or more NATS servers: "nats://host:4222,other:4222", perhaps with the group behind a slash.
            service: the name of the group, "hub" by default: letters, digits, "-" and "_".
            login: who this hub is for NATS; None: it needs none.
            tls: for the connection to NATS; None: the system's authorities, where NATS asks for TLS.
            others: those of `Server.join_nats` are for calls from NATS, which a hub does not take: to be left out.

        Raises:
            ValueError: the address or the name is malformed, or the hub has a group already.
            RuntimeError: the hub is running.
        """
        if self._running is not None:
            raise RuntimeError("this hub is running already")
        for name, value in others.items():
            if value not in (None, False):
                raise ValueError(f"{name}= is for calls from NATS: a hub takes calls of its clients, at a port")
        self._group.add(url, service, login, tls)
        add_event_methods(self._registry, self.topics, self._check_subscription, is_shared=True)

    async def _join_services(self, running: RunningServer) -> None:
        await self._group.start(
            running, self._make_hub_session, binary=self.binary, trace=log_message if self.debug else None
        )

    async def _leave_services(self) -> None:
        await self._group.close()

    def _make_hub_session(self) -> Session:
        """Make the session with another hub."""
        assert self._for_hubs is not None
        options = self._session_options(self._for_hubs)
        session = Session(self._for_hubs, **{**options, "limits": self._group.session_limits})
        session.takes_binary, session.counters = self.binary, self.counters
        return session
