"""The group of hubs that a hub joins on NATS, if it does.

Owns what is given for that before the hub runs, and when it is joined and left. What hubs do there stands in `nats` and
`other_hubs`, which are imported for the first time here.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..config.files import ConfigError
from ..events.topics import Topics
from ..limits import Limits
from ..methods.registry import MethodRegistry
from ..observe.metrics import Family, Sample
from ..peer.session import Session
from ..server.running import RunningServer
from ..tls import client_context
from .directory import Directory
from .dispatch import HubDispatcher
from .methods import HubMethods
from .registrations import Registrations

if TYPE_CHECKING:
    from ..nats.options import NatsLogin, NatsOptions
    from .nats import NatsGroup, Trace
    from .other_hubs import OtherHubs

#: The name of the group where none is given.
GROUP = "hub"


class GroupMembership:
    """The group that one hub joins whenever it runs.

    Args:
        directory, registrations, topics, limits: of the hub.

    Attributes:
        others: the other hubs; None: it joins no group.
    """

    def __init__(self, directory: Directory, registrations: Registrations, topics: Topics, *, limits: Limits) -> None:
        self.others: OtherHubs | None = None
        self._directory = directory
        self._registrations = registrations
        self._topics = topics
        self._limits = limits
        self._options: NatsOptions | None = None
        self._name = GROUP
        self._group: NatsGroup | None = None

    def add(self, url: str, service: str | None, login: NatsLogin | None, tls: ssl.SSLContext | None) -> None:
        """Have the group joined; see `Hub.join_nats`."""
        from ..nats.options import joining_options

        if self.others is not None:
            raise ValueError("a hub joins one group")
        self._name, self._options = joining_options(
            url, service, login, tls, what="group", default=GROUP, program="rpcstream hub of"
        )
        from .other_hubs import OtherHubs

        self.others = OtherHubs(self._directory, self._registrations, self._topics, limits=self._limits)
        self._directory.suffix = f"-{secrets.token_hex(3)}"

    def dispatcher(self, kind: type[HubDispatcher], registry: MethodRegistry, options: dict[str, Any]) -> HubDispatcher:
        """Make the dispatcher of calls of other hubs.

        Args:
            kind: of the hub's dispatcher for its own clients.
            registry: the methods of the hub.
            options: that both have.
        """
        from .calls_of_hubs import for_hubs

        assert self.others is not None
        notifying = HubMethods(
            self._directory,
            self._registrations,
            self._topics,
            limits=self._limits,
            rules=None,
            held=None,
            is_for_hubs=True,
        )
        return for_hubs(kind)(
            registry,
            **options,
            rules=None,
            passing={"rpc.notify": notifying.passing["rpc.notify"]},
            listings={},
            held=None,
            told=self.others,
            on_subscriptions=self.others.events.seen,
        )

    @property
    def session_limits(self) -> Limits:
        """The limits of a session with another hub: it carries the calls of many callers."""
        return replace(self._limits, max_calls=max(self._limits.max_calls, self._limits.max_queue))

    async def start(
        self, running: RunningServer, make_session: Callable[[], Session], *, binary: bool, trace: Trace | None
    ) -> None:
        """Join; left when `close` is called, and said to be left when the listener stops.

        Raises:
            ConnectFailed: NATS does not take the login.
        """
        if self.others is None or self._options is None:
            return
        from .nats import NatsGroup

        group = NatsGroup(
            self._options,
            self._name,
            self.others,
            make_session=make_session,
            takes_binary=binary,
            limits=self._limits,
            trace=trace,
        )
        await group.start()
        self._group = group
        running.listener.take_from(group, [])

    async def close(self) -> None:
        """Leave, when all calls are answered."""
        group, self._group = self._group, None
        if group is not None:
            await group.close()

    # -- what is counted ----------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What `rpc.stats` says of it."""
        if self.others is None:
            return {}
        group = self._group
        return {
            "hubs": len(self.others.by_id),
            "clients_elsewhere": len(self._directory.elsewhere),
            "methods_elsewhere": self._directory.offered_elsewhere,
            "not_taken": self.others.refused,
            "nats": group.stats() if group is not None else {"connected": False, "group": self._name},
        }

    def metrics(self) -> list[Family]:
        """The metrics of it."""
        if self.others is None:
            return []
        stats = self.stats()
        gauges = (
            ("hubs", "Other hubs of the group."),
            ("clients_elsewhere", "Clients with a name at other hubs."),
            ("methods_elsewhere", "Methods that clients of other hubs offer."),
        )
        connected = Sample(int(stats["nats"]["connected"]))
        return [
            *(Family(f"hub_{name}", "gauge", text, [Sample(stats[name])]) for name, text in gauges),
            Family("hub_nats_connected", "gauge", "1 while the hub is connected to NATS.", [connected]),
        ]


def join_as_configured(join: Callable[..., None], given: Mapping[str, Any], place: str) -> None:
    """Call `Hub.join_nats` with what a configuration gives.

    Raises:
        ConfigError: it makes no sense, or a file cannot be read; the text says where it stands.
    """
    from ..nats.options import NatsLogin

    try:
        login = NatsLogin(**{name: given[name] for name in ("creds", "nkey", "user", "password") if name in given})
        files = {name: given[name] for name in ("ca", "certificate", "key") if name in given}
        tls = client_context(**files) if files else None
        join(given["url"], service=given.get("service"), login=login, tls=tls)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{place}: nats: {error}") from None
