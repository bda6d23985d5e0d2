# Written by `rpcstream --stubs python`. Do not edit it: write it again when the server changes.
# fmt: off
# ruff: noqa
"""The methods of x 1, for type checkers: `cast(Api, Client(...))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict

from rpcstream.typed import AsyncClientMembers, ClientMembers

if TYPE_CHECKING:
    from PIL import Image
    from asyncio import Task
    from collections.abc import Callable
    from concurrent.futures import Future
    from rpcstream import ImageFile
    from rpcstream.typed import AsyncItems, CallOptions, Items, NotifyOptions
    from typing import Any, NotRequired, Unpack
    from typing_extensions import ReadOnly


class Api(ClientMembers, Protocol):
    """What a `Client` of this server has.

    Only with `request`: class, weird name!
    """

    notify: _Notify
    submit: _Submit
    stream: _Stream
    vision: _ApiVision

    def add(self, a: int, b: int = ..., **options: Unpack[CallOptions]) -> int:
        """Add two numbers.

        It takes any.

        Args:
            a: the first
            b: (default 2)
        """
        ...

    def point(self, p: PointInput, color: Color, **options: Unpack[CallOptions]) -> Point: ...
    def rest(
        self,
        a: int,
        *more: float,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **named: str,
    ) -> dict[str, list[int]]: ...
    def ticks(self, n: int, **options: Unpack[CallOptions]) -> list[int]: ...


class AsyncApi(AsyncClientMembers, Protocol):
    """What an `AsyncClient` of this server has.

    Only with `request`: class, weird name!
    """

    notify: _AsyncNotify
    submit: _AsyncSubmit
    stream: _AsyncStream
    vision: _AsyncApiVision

    async def add(self, a: int, b: int = ..., **options: Unpack[CallOptions]) -> int:
        """Add two numbers.

        It takes any.

        Args:
            a: the first
            b: (default 2)
        """
        ...

    async def point(self, p: PointInput, color: Color, **options: Unpack[CallOptions]) -> Point: ...
    async def rest(
        self,
        a: int,
        *more: float,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **named: str,
    ) -> dict[str, list[int]]: ...
    async def ticks(self, n: int, **options: Unpack[CallOptions]) -> list[int]: ...

Color: TypeAlias = '_Values'


class Point(TypedDict):
    """A point.

    Members:
        x: in mm
    """

    x: float
    y: float


class PointInput(TypedDict):
    """A point.

    Members:
        x: in mm
    """

    x: ReadOnly[float]
    y: NotRequired[ReadOnly[float]]

_Values: TypeAlias = Literal["blue", "red", "it's \"grey\"\n"]


class _ApiVisionDetect(Protocol):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> list[Point]: ...
    def faces(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> int: ...


class _ApiVision(Protocol):
    detect: _ApiVisionDetect


class _NotifyVisionDetect(Protocol):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[NotifyOptions]) -> None: ...
    def faces(self, photo: Image.Image | ImageFile, **options: Unpack[NotifyOptions]) -> None: ...


class _NotifyVision(Protocol):
    detect: _NotifyVisionDetect


class _Notify(Protocol):
    vision: _NotifyVision

    def add(self, a: int, b: int = ..., **options: Unpack[NotifyOptions]) -> None: ...
    def point(self, p: PointInput, color: Color, **options: Unpack[NotifyOptions]) -> None: ...
    def rest(
        self,
        a: int,
        *more: float,
        timeout: float | None = ...,
        wait_for: float | None = ...,
        **named: str,
    ) -> None: ...
    def ticks(self, n: int, **options: Unpack[NotifyOptions]) -> None: ...


class _SubmitVisionDetect(Protocol):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> Future[list[Point]]: ...
    def faces(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> Future[int]: ...


class _SubmitVision(Protocol):
    detect: _SubmitVisionDetect


class _Submit(Protocol):
    vision: _SubmitVision

    def add(self, a: int, b: int = ..., **options: Unpack[CallOptions]) -> Future[int]: ...
    def point(self, p: PointInput, color: Color, **options: Unpack[CallOptions]) -> Future[Point]: ...
    def rest(
        self,
        a: int,
        *more: float,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **named: str,
    ) -> Future[dict[str, list[int]]]: ...
    def ticks(self, n: int, **options: Unpack[CallOptions]) -> Future[list[int]]: ...


class _Stream(Protocol):
    def ticks(self, n: int, **options: Unpack[CallOptions]) -> Items[int]: ...


class _AsyncApiVisionDetect(Protocol):
    async def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> list[Point]: ...
    async def faces(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> int: ...


class _AsyncApiVision(Protocol):
    detect: _AsyncApiVisionDetect


class _AsyncNotifyVisionDetect(Protocol):
    async def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[NotifyOptions]) -> None: ...
    async def faces(self, photo: Image.Image | ImageFile, **options: Unpack[NotifyOptions]) -> None: ...


class _AsyncNotifyVision(Protocol):
    detect: _AsyncNotifyVisionDetect


class _AsyncNotify(Protocol):
    vision: _AsyncNotifyVision

    async def add(self, a: int, b: int = ..., **options: Unpack[NotifyOptions]) -> None: ...
    async def point(self, p: PointInput, color: Color, **options: Unpack[NotifyOptions]) -> None: ...
    async def rest(
        self,
        a: int,
        *more: float,
        timeout: float | None = ...,
        wait_for: float | None = ...,
        **named: str,
    ) -> None: ...
    async def ticks(self, n: int, **options: Unpack[NotifyOptions]) -> None: ...


class _AsyncSubmitVisionDetect(Protocol):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> Task[list[Point]]: ...
    def faces(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> Task[int]: ...


class _AsyncSubmitVision(Protocol):
    detect: _AsyncSubmitVisionDetect


class _AsyncSubmit(Protocol):
    vision: _AsyncSubmitVision

    def add(self, a: int, b: int = ..., **options: Unpack[CallOptions]) -> Task[int]: ...
    def point(self, p: PointInput, color: Color, **options: Unpack[CallOptions]) -> Task[Point]: ...
    def rest(
        self,
        a: int,
        *more: float,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **named: str,
    ) -> Task[dict[str, list[int]]]: ...
    def ticks(self, n: int, **options: Unpack[CallOptions]) -> Task[list[int]]: ...


class _AsyncStream(Protocol):
    def ticks(self, n: int, **options: Unpack[CallOptions]) -> AsyncItems[int]: ...
