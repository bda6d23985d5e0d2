"""The services on NATS that a server joins.

Owns which they are, and when they are joined and left. What an instance does there stands in `rpcstream.nats`, which is
imported for the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..limits import Limits
from ..tls import TLS, ClientTLS
from .running import RunningServer

if TYPE_CHECKING:
    from ..nats.events import NatsEvents
    from ..nats.options import NatsLogin, NatsOptions
    from ..nats.service import NatsService
    from ..nats.services_api import ServicesApi
    from ..observe.metrics import CallMetrics


@dataclass(frozen=True, kw_only=True)
class AboutServer:
    """What a server says of itself by NATS's services API.

    Attributes:
        metrics: of its calls; None: they are not counted.
    """

    version: str
    description: str
    takes_binary: bool
    metrics: CallMetrics | None


@dataclass(frozen=True, kw_only=True)
class _Membership:
    """One service that is joined; see `Server.join_nats`."""

    service: str
    options: NatsOptions
    trusts: bool
    direct: bool | str | None
    events: NatsEvents


def _services_api(service: NatsService, about: AboutServer) -> ServicesApi:
    from ..nats.services_api import ServicesApi

    return ServicesApi(
        name=service.name,
        instance=service.instance,
        version=about.version,
        description=about.description,
        takes_binary=about.takes_binary,
        endpoints=lambda: service.subscriptions,
        metrics=about.metrics,
    )


class NatsMemberships:
    """The services that one server joins whenever it runs.

    Attributes:
        is_only: the server listens nowhere else.
        services: the instances, while the server runs.
    """

    def __init__(self) -> None:
        self.is_only = False
        self.services: list[NatsService] = []
        self._joined: list[_Membership] = []

    def __bool__(self) -> bool:
        return bool(self._joined)

    def add(
        self,
        url: str,
        service: str | None,
        login: NatsLogin | None,
        tls: ClientTLS | None,
        limits: Limits,
        *,
        only: bool,
        trusts: bool,
        direct: bool | str | None = None,
    ) -> NatsEvents:
        """Have one more service joined, see `Server.join_nats`; gives what shares the events of the server there."""
        from ..nats.events import NatsEvents
        from ..nats.options import DirectOptions, joining_options

        name, options = joining_options(url, service, login, tls)
        DirectOptions.parse(direct)  # errors are for here
        events = NatsEvents(name, limits)
        self._joined.append(_Membership(service=name, options=options, trusts=trusts, direct=direct, events=events))
        self.is_only = self.is_only or only
        return events

    async def start(
        self,
        running: RunningServer,
        methods: Callable[[], Iterable[str]],
        about: AboutServer,
        *,
        certificate: TLS | None,
    ) -> None:
        """Join all of them.

        Args:
            certificate: of the server, for direct connections.

        Raises:
            ConnectFailed: one cannot be joined.
        """
        if not self._joined:
            return
        from ..nats.options import DirectOptions
        from ..nats.service import NatsService

        for each in self._joined:
            service = NatsService(
                each.options,
                each.service,
                listener=running.listener,
                methods=methods,
                trusts_nats=each.trusts,
                direct=DirectOptions.parse(each.direct, certificate),
            )
            service.on_joined.append(_services_api(service, about).start)
            service.on_joined.append(each.events.joined)
            service.on_leaving.append(each.events.leave)
            await service.start()
            self.services.append(service)
            running.listener.take_from(service, addresses=[service.address])

    def offer(self, name: str) -> None:
        """Offer one more method."""
        for service in self.services:
            service.offer(name)

    async def close(self) -> None:
        """Leave all of them, when their callers are gone."""
        services, self.services = self.services, []
        for service in services:
            await service.close()
