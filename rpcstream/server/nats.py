"""Joins and leaves the services on NATS of a server; `rpcstream.nats` is imported with the first of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..limits import Limits
from ..methods.registry import MethodRegistry
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
    """What a server says about itself in NATS's services API.

    Attributes:
        metrics: of its calls; None: they are not counted.
        certificate: for direct connections.
    """

    version: str
    description: str
    metrics: CallMetrics | None
    certificate: TLS | None


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
        endpoints=lambda: service.subscriptions,
        metrics=about.metrics,
    )


class NatsMemberships:
    """The services that one server joins whenever it runs.

    Args:
        methods: of the server.
        about: what the server says about itself.

    Attributes:
        is_only: the server listens nowhere else.
        services: the instances, while the server runs.
    """

    def __init__(self, methods: MethodRegistry, about: Callable[[], AboutServer]) -> None:
        self._methods = methods
        self._about = about
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
        """Add a service, see `Server.join_nats`; returns what shares the events of the server there."""
        from ..nats.events import NatsEvents
        from ..nats.options import DirectOptions, joining_options

        name, options = joining_options(url, service, login, tls)
        DirectOptions.parse(direct)  # errors are for here
        events = NatsEvents(name, limits)
        self._joined.append(_Membership(service=name, options=options, trusts=trusts, direct=direct, events=events))
        self.is_only = self.is_only or only
        return events

    async def start(self, running: RunningServer) -> None:
        """Join all services.

        Raises:
            ConnectFailed: one cannot be joined.
        """
        if not self._joined:
            return
        from ..nats.options import DirectOptions
        from ..nats.service import NatsService

        about = self._about()
        self._methods.on_added = self._offer
        for each in self._joined:
            service = NatsService(
                each.options,
                each.service,
                listener=running.listener,
                methods=lambda: list(self._methods),
                trusts_nats=each.trusts,
                direct=DirectOptions.parse(each.direct, about.certificate),
            )
            service.on_joined.append(_services_api(service, about).start)
            service.on_joined.append(each.events.joined)
            service.on_leaving.append(each.events.leave)
            await service.start()
            self.services.append(service)
            running.listener.take_from(service, addresses=[service.address])

    def _offer(self, name: str) -> None:
        """Offer one more method at all services."""
        for service in self.services:
            service.offer(name)

    async def close(self) -> None:
        """Leave all services, after their callers are gone."""
        services, self.services = self.services, []
        for service in services:
            await service.close()
