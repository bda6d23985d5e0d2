"""Joins and leaves the services on NATS of a server; `rpcstream.nats` is imported with the first of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..limits import Limits
from ..methods.registry import MethodRegistry
from ..tls import TLS, ClientTLS
from .running import RunningServer

if TYPE_CHECKING:
    from ..nats.events import NatsEvents
    from ..nats.options import DirectOptions, NatsLogin
    from ..nats.service import NatsService


class NatsMemberships:
    """The services that one server joins whenever it runs.

    Args:
        methods: of the server.
        about: returns what the server says about itself: the arguments of `ServicesApi` that are the same for each
            instance.
        certificate: gives the certificate of the server, for direct connections; None: it has none.

    Attributes:
        is_only: the server listens nowhere else.
        services: the instances, while the server runs.
    """

    def __init__(
        self,
        methods: MethodRegistry,
        about: Callable[[], Mapping[str, Any]],
        certificate: Callable[[], TLS | None],
    ) -> None:
        self._methods = methods
        self._about = about
        self._certificate = certificate
        self.is_only = False
        self.services: list[NatsService] = []
        #: What makes an instance, its direct connections, and its events, for each service.
        self._joined: list[tuple[Callable[..., NatsService], DirectOptions, NatsEvents]] = []

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
        from ..nats.service import NatsService

        name, options = joining_options(url, service, login, tls)
        events = NatsEvents(name, limits)
        make = partial(NatsService, options, name, methods=lambda: list(self._methods), trusts_nats=trusts)
        self._joined.append((make, DirectOptions.parse(direct), events))
        self.is_only = self.is_only or only
        return events

    async def start(self, running: RunningServer) -> None:
        """Join all services.

        Raises:
            ConnectFailed: one cannot be joined.
        """
        if not self._joined:
            return
        from ..nats.services_api import ServicesApi

        self._methods.on_added = self._offer
        for make, direct, events in self._joined:
            service = make(listener=running.listener, direct=replace(direct, tls=self._certificate()))
            api = ServicesApi(
                name=service.name,
                instance=service.instance,
                endpoints=partial(getattr, service, "subscriptions"),
                **self._about(),
            )
            service.on_joined += (api.start, events.joined)
            service.on_leaving.append(events.leave)
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
