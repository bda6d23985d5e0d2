"""What the Python modules that `rpcstream --stubs python` writes are made of: the parts of a typed client.

`ClientMembers` and `AsyncClientMembers` are what a `Client` and an `AsyncClient` have beside the methods of their
server. Protocols: a client is cast to what was written for its server (`cast(Api, Client(…))`), which costs nothing
when it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, TypeVar, overload

if TYPE_CHECKING:  # these import asyncio, which plain calls do without
    from .client.batch import AsyncBatch, SyncBatch
    from .client.loop_bridge import ClientSubscription
    from .client.subscriptions import Subscription
    from .events.event_queue import Policy

__all__ = ["AsyncClientMembers", "AsyncItems", "CallOptions", "ClientMembers", "Items", "NotifyOptions"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class CallOptions(TypedDict, total=False):
    """Options of one call; see `Client.call`."""

    timeout: float | None
    on_progress: Callable[[Any], object] | None
    wait_for: float | None


class NotifyOptions(TypedDict, total=False):
    """Options of one notification."""

    timeout: float | None
    wait_for: float | None


class Items(Protocol[T_co]):
    """The items of a streaming method, as a `Client` gives them; leaving the loop early stops the method."""

    @property
    def result(self) -> Any:
        """What the method returned; None until the stream has ended."""

    def __iter__(self) -> Iterator[T_co]: ...

    def __next__(self) -> T_co: ...

    def close(self) -> None:
        """Stop the method, unless it has ended."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class AsyncItems(Protocol[T_co]):
    """The items of a streaming method, as an `AsyncClient` gives them; see `Stream`."""

    @property
    def result(self) -> Any:
        """What the method returned; None until the stream has ended."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def __anext__(self) -> Awaitable[T_co]: ...

    async def aclose(self) -> None:
        """Stop the method, unless it has ended. Does not wait for that."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class _AnyClientMembers(Protocol):
    """What a client has, whether it blocks or is awaited."""

    @property
    def address(self) -> str:
        """See `Client`, as for all that follows."""

    @property
    def state(self) -> str: ...

    @property
    def registered_name(self) -> str | None: ...

    @property
    def replies_dropped(self) -> int: ...


class ClientMembers(_AnyClientMembers, Protocol):
    """What a `Client` has beside the methods of its server. `request` calls any method, unchecked."""

    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: type[T],
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
    ) -> T: ...
    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: Any = ...,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
    ) -> Any: ...

    def stream_request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = None,
        *,
        returns: Any = ...,
        timeout: float | None = None,
        on_progress: Callable[[Any], object] | None = None,
        wait_for: float | None = ...,
    ) -> Items[Any]: ...

    def discover(self, *, timeout: float | None = ...) -> dict[str, Any]: ...

    def batch(self, *, timeout: float | None = ..., wait_for: float | None = ...) -> SyncBatch: ...

    def subscribe(
        self, topic: str, *, returns: Any = ..., max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> ClientSubscription: ...

    def publish(self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = ...) -> int: ...

    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> bool: ...

    def offer(self, *, shared: bool = False) -> list[str]: ...

    def withdraw(self, *names: str) -> list[str]: ...

    def wait_closed(self) -> None: ...

    def run(self, *, drain_timeout: float = 10.0) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class AsyncClientMembers(_AnyClientMembers, Protocol):
    """What an `AsyncClient` has beside the methods of its server. `request` calls any method, unchecked."""

    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: type[T],
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = ...,
        *,
        returns: Any = ...,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
    ) -> Coroutine[Any, Any, Any]: ...

    def stream_request(
        self,
        method: str,
        params: list[Any] | dict[str, Any] | None = None,
        *,
        returns: Any = ...,
        timeout: float | None = None,
        on_progress: Callable[[Any], object] | None = None,
        wait_for: float | None = ...,
    ) -> AsyncItems[Any]: ...

    async def discover(self, *, timeout: float | None = ...) -> dict[str, Any]: ...

    def batch(self, *, timeout: float | None = ..., wait_for: float | None = ...) -> AsyncBatch: ...

    def subscribe(
        self, topic: str, *, returns: Any = ..., max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> Subscription: ...

    def publish(
        self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = ...
    ) -> Coroutine[Any, Any, int]: ...

    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, bool]: ...

    async def offer(self, *, shared: bool = False) -> list[str]: ...

    async def withdraw(self, *names: str) -> list[str]: ...

    async def wait_closed(self) -> None: ...

    async def run(self, *, drain_timeout: float = 10.0) -> None: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
