"""Access to internals that have no public name: the one place in the tests for that, with a named function for each.

What users of the package could want as well is in `rpcstream.testing`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pytest

from rpcstream import AsyncClient, Client, Codec, Server
from rpcstream.client.connection import ClientConnection
from rpcstream.client.running import ServingClient
from rpcstream.client.slots import Slot
from rpcstream.client.sync_connection import SyncConnection
from rpcstream.codec import dtypes
from rpcstream.events.patterns import PatternTable
from rpcstream.events.topics import Topics
from rpcstream.hub import Hub
from rpcstream.hub.rules import Rules
from rpcstream.methods.document import OpenRpcDocument
from rpcstream.methods.invoke import Invoker
from rpcstream.methods.registry import MethodRegistry
from rpcstream.nearest import BUDGET
from rpcstream.observe.limited_log import LimitedLog
from rpcstream.peer.memory import MessageMemory
from rpcstream.peer.request_queue import RequestQueue
from rpcstream.peer.session import Session
from rpcstream.transports.connection import SocketConnection
from rpcstream.transports.listen import Listener
from rpcstream.transports.open_connections import OpenConnections, UnauthenticatedConnections
from rpcstream.transports.paced_transport import PacedTransport
from rpcstream.wire.framing import LineFramer

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


# -- a server ----------------------------------------------------------------------------------------------------------


def running_state(server: Server) -> Any:
    """What exists while a server runs: its loop, dispatcher, invoker and listener."""
    assert server._running is not None, "this server is not running"
    return server._running


def start_without_listening(server: Server) -> AbstractAsyncContextManager[Any]:
    """Run a server whose connections a test makes itself; gives its running state."""
    return server._started()


def is_stopping(server: Server) -> bool:
    return server._running is not None and server._running.stopping.is_set()


def listener_of(server: Server) -> Listener:
    listener: Listener = running_state(server).listener
    return listener


def invoker_of(server: Server) -> Invoker:
    """The threads and worker processes of a running server."""
    invoker: Invoker = running_state(server).invoker
    return invoker


def registry_of(server: Server) -> MethodRegistry:
    """The methods of a server, those whose names begin with "rpc." as well."""
    return server._registry


def document_of(server: Server) -> OpenRpcDocument:
    """The document of `rpc.discover`."""
    return server._document


def message_memory(server: Server) -> MessageMemory:
    """The count of bytes that messages of all connections hold."""
    return server._memory


def uses_tls(server: Server) -> bool:
    return server._tls is not None


def hub_methods(hub: Hub) -> Any:
    """The handlers of a hub's own methods, such as `rpc.register`."""
    return hub._methods


def ping_interval(hub: Hub) -> float | None:
    """Seconds of silence after which a hub pings a client."""
    return hub._keepalive._ping_interval


def remembered_names(rules: Rules) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """For which questions, and for which users, a hub's rules remember their answer."""
    return list(rules._answers), list(rules._merged)


def lines_counted(log: LimitedLog) -> int:
    """The number of kinds and keys whose log lines are counted."""
    return len(log._by_key)


# -- threads -----------------------------------------------------------------------------------------------------------


def waiting_for_threads(invoker: Invoker) -> int:
    """The number of calls that wait for a thread of the server."""
    return invoker._threads.waiting


def thread_pool(invoker: Invoker) -> Any:
    return invoker._threads


# -- sessions ----------------------------------------------------------------------------------------------------------


def sessions_of(server: Server) -> list[Session]:
    """The sessions of a running server: those with a connection, and those whose handlers have not ended."""
    return list(listener_of(server).sessions)


def session_of(server: Server) -> Session:
    """The only session of a running server."""
    (session,) = listener_of(server).sessions
    return session


def new_session(server: Server) -> Session:
    """A session of a running server that its listener does not know."""
    return server._make_session(running_state(server).dispatcher, lambda session: None)


def new_listener_session(listener: Listener) -> Session:
    """A session that the listener knows, for a connection that a test makes itself."""
    return listener._new_session()


def note_sessions(server: Server) -> list[Session]:
    """A list to which every session that the server makes from now on is added."""
    made: list[Session] = []
    make = server._make_session

    def noted(*args: Any) -> Session:
        made.append(make(*args))
        return made[-1]

    server._make_session = noted  # type: ignore[method-assign]
    return made


def dispatcher_of(session: Session) -> Any:
    return session._dispatch


def answer_function(session: Session) -> Callable[..., Any]:
    """The function that answers a session's requests."""
    return session._answer


def unsent_messages(session: Any) -> list[Any]:
    """The messages of a session that have not been given to its connection."""
    outbox: list[Any] = session._outbox
    return outbox


def queue_counts(queue: RequestQueue) -> tuple[int, int, int, int]:
    """The messages and bytes that wait, and those among them that were not sorted yet."""
    return queue._count, queue._size, queue._new_count, queue._new_size


def has_cancel_index(running: Any) -> bool:
    """Whether running calls are kept by their ids, for cancels."""
    return running._by_id is not None


def deadline_entries(calls: Any) -> int:
    """The number of deadlines that outgoing calls keep, those of answered calls among them."""
    return len(calls._deadlines)


# -- connections -------------------------------------------------------------------------------------------------------


def open_connections(server: Server) -> list[Any]:
    """The connections of a running server, of any protocol."""
    return list(listener_of(server).connections)


def connection_table(server: Server) -> OpenConnections:
    """The table of open connections of a running server, which also checks their time-outs."""
    return listener_of(server)._connections


def fail_accepts(server: Server, errors: list[OSError]) -> None:
    """Have the server's next attempts to accept a connection fail, the last error of the list first."""
    acceptor: Any
    (acceptor,) = listener_of(server)._sources
    real: Any = acceptor._sock

    class FailingSocket:
        def accept(self) -> Any:
            if errors:
                raise errors.pop()
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    acceptor._sock = FailingSocket()


def paced_transport(connection: SocketConnection) -> PacedTransport | None:
    """The transport of a connection, if it hands long messages over in parts."""
    return connection._paced


def waiting_parts(paced: PacedTransport) -> list[memoryview]:
    """The parts of messages that a paced transport has not handed over."""
    return list(paced._waiting)


def system_write_buffer(paced: PacedTransport) -> int:
    """Bytes that a paced transport has handed over and the peer has not read."""
    return paced._transport.get_write_buffer_size()


def remembered_hosts(strangers: UnauthenticatedConnections) -> list[Any]:
    """The hosts for which connections without authentication are counted."""
    return [*strangers._hosts, *strangers._of_host]


def unread_request_bytes(connection: Any) -> int:
    """Bytes that an HTTP connection has received and not yet handled."""
    return len(connection._reader)


def is_in_call(connection: Any) -> bool:
    """Whether an HTTP connection carries out a call."""
    return connection._exchange is not None


def is_in_page(connection: Any) -> bool:
    """Whether an HTTP connection runs the handler of a page."""
    return connection._task is not None


def is_in_frame(stream: Any) -> bool:
    """Whether a WebSocket connection has received part of a frame or message."""
    return bool(stream._reader.partial)


def last_unanswered_ping(stream: Any) -> bytes | None:
    """The ping that a WebSocket connection will answer when its peer reads again."""
    ping: bytes | None = stream._last_ping
    return ping


def limits_of(stream: Any) -> Any:
    return stream._limits


def held_size(framer: LineFramer) -> int:
    """Bytes of an incomplete message that a framer holds."""
    return framer._held.size


def held_pieces(holder: Any) -> int:
    """The number of pieces in which a framer, or the body of an HTTP request, holds an incomplete message."""
    pieces = holder._held._pieces if isinstance(holder, LineFramer) else holder._pieces
    return len(pieces)


def set_reading(stream: SocketConnection, wanted: bool) -> None:
    """Resume or pause reading at one end of a connection, as if its program were blocked."""
    transport = stream._transport
    if transport is not None and not transport.is_closing() and not stream.is_paused:
        (transport.resume_reading if wanted else transport.pause_reading)()


# -- codec -------------------------------------------------------------------------------------------------------------


def encoder_count(codec: Codec) -> int:
    """The number of classes for which a codec keeps how they are encoded."""
    return len(codec._encoders)


def forget_dtypes() -> None:
    """Have the texts of dtypes be looked up anew."""
    dtypes._from_text.cache_clear()


# -- events ------------------------------------------------------------------------------------------------------------


def subscription_table(topics: Topics) -> Any:
    """The subscribers of each topic and pattern."""
    return topics._table


def events_waiting(topics: Topics) -> int:
    """Bytes of the events that wait for subscribers of a server."""
    return sum(subscriber.queue.size for subscriber in topics._table.subscribers.values())


def is_empty(patterns: PatternTable[Any]) -> bool:
    """Whether a table of patterns holds nothing, no levels of former patterns either."""
    return not len(patterns) and not patterns._root.below


def pattern_beginnings(topics: Topics) -> set[str]:
    """The first levels of the patterns that a server's table of patterns has branches for."""
    return set(topics._table.patterns._root.below)


def remains_of(topics: Topics) -> list[Any]:
    """What a server without subscribers still keeps of former ones: topics, queues, due deliveries, patterns."""
    return [*topics, *topics._table.subscribers, *topics._delivery.due, *pattern_beginnings(topics)]


# -- clients -----------------------------------------------------------------------------------------------------------


def settings_of(client: AsyncClient | Client) -> Any:
    return client._settings


def slots_of(client: AsyncClient) -> list[Slot]:
    """The slots of a client's pool, with a connection or without."""
    return client._pool._slots


def client_connections(client: AsyncClient) -> list[ClientConnection]:
    """The open connections of an async client."""
    return client._pool.open_connections


def connection_at_hub(client: AsyncClient) -> ClientConnection | None:
    """The connection on which a client is registered at a hub; None while it is not."""
    return client._registration.connection


def share_hub_key(client: AsyncClient, other: AsyncClient) -> None:
    """Have a client register at the hub with the other one's key, as if it were that one."""
    client._registration._key = other._registration._key


def has_subscriptions(client: AsyncClient) -> bool:
    """Whether a client keeps anything for its subscriptions: subscribers, patterns, or what the server confirmed."""
    subscriptions = client._subscriptions
    subscribers = subscriptions._subscribers
    return bool(subscribers) or bool(len(subscribers._patterns)) or bool(subscriptions._confirmed)


def subscribed_topics(client: AsyncClient) -> set[str]:
    """The topics and patterns that a client has subscribers for."""
    return set(client._subscriptions._subscribers)


def events_wait_for(subscription: Any) -> bool:
    """Whether a subscription of an async client has events that were not read."""
    return bool(subscription._subscriber.queue)


def engine_of(client: Client) -> Any:
    """The pool of blocking connections of a sync client, and its loop thread."""
    return client._engine


def blocking_connections(client: Client) -> list[SyncConnection]:
    """The open blocking connections of a sync client."""
    return list(engine_of(client).pool._connections)


def free_connections(client: Client) -> list[SyncConnection]:
    """The blocking connections of a sync client that no thread uses."""
    return list(engine_of(client).pool._free)


def threads_in_line(client: Client) -> int:
    """The number of threads that wait for a blocking connection of a sync client."""
    return len(engine_of(client).pool._line)


def loop_thread_of(client: Client) -> Any:
    """The loop thread of a sync client; None where it was not started."""
    return engine_of(client)._loop_thread


def run_in_loop_thread(client: Client, function: Callable[[], Any]) -> Any:
    """Run a function in the loop thread of a sync client."""
    return loop_thread_of(client)._bridge.run(function)


def socket_of(connection: SyncConnection) -> Any:
    return connection._socket


def interrupt_waiting(monkeypatch: pytest.MonkeyPatch, connection: SyncConnection) -> None:
    """Raise KeyboardInterrupt in the thread that next waits for a reply on this connection."""
    wait = connection._wait_readable

    def interrupted(milliseconds: int) -> object:
        if milliseconds:
            raise KeyboardInterrupt
        return wait(0)

    monkeypatch.setattr(connection, "_wait_readable", interrupted)


def forget_end(stream: Any) -> Any:
    """Have a client's stream look as if its end had not come."""
    stream._has_ended = False
    return stream


# -- calls that a hub holds --------------------------------------------------------------------------------------------


def waiting_memory(hub: Hub) -> int:
    """Bytes of the messages that wait for members, and of the calls that are held."""
    return hub.directory._memory.used


def hold_no_more(hub: Hub) -> None:
    """What a hub that stops does with the calls that it holds."""
    assert hub._held is not None
    hub._held.end()


def names_away(hub: Hub) -> list[str]:
    """The names that were offered a moment ago."""
    assert hub._held is not None
    return sorted(hub._held._away)


# -- a client that serves ----------------------------------------------------------------------------------------------


def serving_client(client: AsyncClient, drain_timeout: float = 10.0) -> ServingClient:
    """What `AsyncClient.run` serves with, which a signal stops."""
    return client._serving(drain_timeout)


def forget_searches() -> None:
    """Leave the time for nearest names, which all servers of a process share, as it is at the start."""
    BUDGET._settled = 0.0


def ring_memory(server: Server) -> int:
    """Bytes of the shared memory of all connections of a server."""
    return server._memory.rings.taken


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
