"""What a sync client is at a hub: `HubRegistration`, for threads that wait.

Owns nothing but the way there; the registration lives in the client's conversation.
"""

from __future__ import annotations

from .sync_engine import SyncEngine

_OFFERING = "offering a method to the server"


class SyncHubRegistration:
    """The registration of one sync client."""

    def __init__(self, caller: SyncEngine) -> None:
        self._caller = caller

    def offer(self, *, shared: bool = False) -> list[str]:
        """Offer what is marked with `@client` to all on the hub, and wait until the hub has taken it.

        Gives the names that this client offers now. Options, errors and what becomes of it when the connection is lost:
        as for an AsyncClient, see `HubRegistration.offer`. A process that is forked has to offer for itself, under a
        name that the hub makes.
        """
        return self._caller.conversing(_OFFERING, "rpc.register").offer(shared=shared)

    def withdraw(self, *names: str) -> list[str]:
        """Offer these methods no more; without names: none at all, and give up the client's name. Gives which."""
        return self._caller.conversing(_OFFERING, "rpc.unregister").withdraw(names)

    def wait_closed(self) -> None:
        """Wait until another thread has closed the client. Being interrupted (Ctrl-C) ends the wait, not the client.

        Raises:
            ConnectionLost: there is no connection any more, and the client does not `reconnect`.
            RuntimeError: the client calls over HTTP, which has no connection that lasts.
        """
        if not self._caller.connections.is_closed:
            self._caller.conversing("wait_closed", "wait_closed").wait_closed()
