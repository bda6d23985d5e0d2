"""Access to internals of running servers and clients that have no public name: the one place in the tests for that.

What users of the package could want as well is in `rpcstream.testing`.
"""

from __future__ import annotations

from typing import Any

from rpcstream import AsyncClient, Client, Server
from rpcstream.client.connection import ClientConnection
from rpcstream.client.pool import Slot
from rpcstream.events.topics import Topics
from rpcstream.methods.invoke import Invoker
from rpcstream.peer.memory import MessageMemory
from rpcstream.peer.session import Session
from rpcstream.transports.listen import Listener


def running_state(server: Server) -> Any:
    """What exists while a server runs: its loop, dispatcher, invoker and listener."""
    assert server._running is not None, "this server is not running"
    return server._running


def listener_of(server: Server) -> Listener:
    listener: Listener = running_state(server).listener
    return listener


def invoker_of(server: Server) -> Invoker:
    """The threads and worker processes of a running server."""
    invoker: Invoker = running_state(server).invoker
    return invoker


def sessions_of(server: Server) -> list[Session]:
    """The sessions of a running server: those with a connection, and those whose handlers have not ended."""
    return list(listener_of(server).sessions)


def session_of(server: Server) -> Session:
    """The only session of a running server."""
    (session,) = listener_of(server).sessions
    return session


def open_connections(server: Server) -> list[Any]:
    """The connections of a running server, whatever they speak."""
    return list(listener_of(server).connections)


def message_memory(server: Server) -> MessageMemory:
    """The count of bytes that messages of all connections hold."""
    return server._memory


def slots_of(client: AsyncClient) -> list[Slot]:
    """The slots of a client's pool, with a connection or without."""
    return client._pool._slots


def client_connections(client: AsyncClient) -> list[ClientConnection]:
    """The open connections of an async client."""
    return client._pool.open_connections


def connection_at_hub(client: AsyncClient) -> ClientConnection | None:
    """The connection on which a client is registered at a hub; None while it is not."""
    return client._registration.connection


def engine_of(client: Client) -> Any:
    """The pool of blocking connections of a sync client, and its loop thread."""
    return client._engine


def subscription_table(topics: Topics) -> Any:
    """The subscribers of each topic and pattern."""
    return topics._table


def note_sessions(server: Server) -> list[Session]:
    """A list to which every session that the server makes from now on is added."""
    made: list[Session] = []
    make = server._make_session

    def noted(*args: Any) -> Session:
        made.append(make(*args))
        return made[-1]

    server._make_session = noted  # type: ignore[method-assign]
    return made
