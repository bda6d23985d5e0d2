"""Access to internals that have no public name: the one place in the tests for that, with a named function for each.

What users of the package could want as well is in `rpcstream.testing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from rpcstream import AsyncClient, Server
from rpcstream.client.connection import ClientConnection
from rpcstream.client.running import ServingClient
from rpcstream.methods.invoke import Invoker
from rpcstream.nearest import BUDGET
from rpcstream.peer.memory import MessageMemory
from rpcstream.peer.session import Session
from rpcstream.transports.listen import Listener
from rpcstream.transports.open_connections import OpenConnections

if TYPE_CHECKING:  # not everywhere is NATS
    from rpcstream.nats.link import NatsLink
    from rpcstream.nats.service import NatsService


def record_calls(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, before: Callable[[], object] = lambda: None
) -> list[tuple[Any, ...]]:
    """A list to which the arguments of every call of a module's or class's function are added from now on.

    Args:
        before: called in each call, before the function itself.
    """
    calls: list[tuple[Any, ...]] = []
    function = getattr(owner, name)

    def recorded(*args: Any) -> Any:
        calls.append(args)
        before()
        return function(*args)

    monkeypatch.setattr(owner, name, recorded)
    return calls


def running_state(server: Server) -> Any:
    """What exists while a server runs: its loop, dispatcher, invoker and listener."""
    assert server._running is not None, "this server is not running"
    return server._running


def listener_of(server: Server) -> Listener:
    listener: Listener = running_state(server).listener
    return listener


def message_memory(server: Server) -> MessageMemory:
    """The count of bytes that messages of all connections hold."""
    return server._memory


def waiting_for_threads(invoker: Invoker) -> int:
    """The number of calls that wait for a thread of the server."""
    return invoker._threads.waiting


def sessions_of(server: Server) -> list[Session]:
    """The sessions of a running server: those with a connection, and those whose handlers have not ended."""
    return list(listener_of(server).sessions)


def note_sessions(server: Server) -> list[Session]:
    """A list to which every session that the server makes from now on is added."""
    made: list[Session] = []
    make = server._make_session

    def noted(*args: Any) -> Session:
        made.append(make(*args))
        return made[-1]

    server._make_session = noted  # type: ignore[method-assign]
    return made


def connection_table(server: Server) -> OpenConnections:
    """The table of open connections of a running server, which also checks their time-outs."""
    return listener_of(server)._connections


def client_connections(client: AsyncClient) -> list[ClientConnection]:
    """The open connections of an async client."""
    return client._pool.open_connections


def serving_client(client: AsyncClient, drain_timeout: float = 10.0) -> ServingClient:
    """What `AsyncClient.run` serves with, which a signal stops."""
    return client._serving(drain_timeout)


def forget_searches() -> None:
    """Leave the time for nearest names, which all servers of a process share, as it is at the start."""
    BUDGET._settled = 0.0


def nats_transport(link: NatsLink) -> Any:
    """The transport of nats-py below a connection to NATS."""
    return link.client._transport


def memory_of(server: Server) -> Any:
    """The memory that all messages of a server take (`peer.memory`)."""
    return server._memory


def direct_listener_of(server: Server) -> Any:
    """What listens for direct connections, of a server that has joined one service."""
    (service,) = server._nats.services
    return service.listener


def direct_port_of(server: Server) -> int:
    """The port of that."""
    return int(direct_listener_of(server)._acceptors[0]._sock.getsockname()[1])


def entering_of(server: Server) -> int:
    """How many direct connections have not shown a secret."""
    return len(direct_listener_of(server)._entering)


def direct_ways_of(server: Server) -> list[Any]:
    """The direct ways to all callers (`nats.instance_way`)."""
    return [caller.way for service in server._nats.services for caller in service._callers.clients()]


def places_of(server: Server) -> list[Any]:
    """The places for calls that were given and not used."""
    return [place for way in direct_ways_of(server) for place in way._places.values()]


def carrier_of(way: Any) -> str:
    """What carries the direct connection of a way."""
    return str(way._stream.carrier)


def joined_services(server: Server) -> list[NatsService]:
    """The services on NATS that a running server has joined."""
    return server._nats.services
