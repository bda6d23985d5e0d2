"""What the Python modules that `rpcstream --stubs python` writes are made of: the parts of a typed client.

`ClientMembers` and `AsyncClientMembers` are what callers use of a `Client` and an `AsyncClient` beside the methods of
their server. Protocols: a client is cast to what was written for its server (`cast(Api, Client(…))`), which costs
nothing when it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, TypeVar, Unpack, overload

if TYPE_CHECKING:  # these import asyncio, which plain calls do without
    from .client.batch import AsyncBatch, SyncBatch
    from .client.blocking_streams import ClientSubscription
    from .client.subscriptions import Subscription
    from .events.event_queue import Policy

__all__ = ["AsyncClientMembers", "AsyncItems", "CallOptions", "ClientMembers", "Items", "NotifyOptions"]

Params = list[Any] | dict[str, Any] | None

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

    def __exit__(self, *error: Any) -> None: ...


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

    async def __aexit__(self, *error: Any) -> None: ...


class ClientMembers(Protocol):
    """What a `Client` has beside the methods of its server. `request` calls any method, unchecked."""

    @overload
    def request(self, method: str, params: Params = ..., *, returns: type[T], **options: Unpack[CallOptions]) -> T: ...
    @overload
    def request(
        self, method: str, params: Params = ..., *, returns: Any = ..., **options: Unpack[CallOptions]
    ) -> Any: ...

    def stream_request(
        self, method: str, params: Params = ..., *, returns: Any = ..., **options: Unpack[CallOptions]
    ) -> Items[Any]: ...

    def batch(self, *, timeout: float | None = ..., wait_for: float | None = ...) -> SyncBatch: ...

    def subscribe(
        self, topic: str, *, returns: Any = ..., max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> ClientSubscription: ...

    def publish(self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = ...) -> int: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...


class AsyncClientMembers(Protocol):
    """What an `AsyncClient` has beside the methods of its server. `request` calls any method, unchecked."""

    @overload
    def request(
        self, method: str, params: Params = ..., *, returns: type[T], **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def request(
        self, method: str, params: Params = ..., *, returns: Any = ..., **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]: ...

    def stream_request(
        self, method: str, params: Params = ..., *, returns: Any = ..., **options: Unpack[CallOptions]
    ) -> AsyncItems[Any]: ...

    def batch(self, *, timeout: float | None = ..., wait_for: float | None = ...) -> AsyncBatch: ...

    def subscribe(
        self, topic: str, *, returns: Any = ..., max_queue: int = 1000, policy: Policy = "drop_oldest"
    ) -> Subscription: ...

    def publish(
        self, topic: str, value: Any, retain: bool = False, *, timeout: float | None = ...
    ) -> Coroutine[Any, Any, int]: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: Any) -> None: ...
