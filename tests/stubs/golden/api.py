# Written by `rpcstream --stubs python`. Do not edit it: write it again when the server changes.
# fmt: off
# ruff: noqa
"""The methods of x 1, for type checkers: `cast(Api, Client(...))`."""

from __future__ import annotations

from rpcstream.typed import AsyncClientMembers, ClientMembers
from typing import Literal, Protocol, TYPE_CHECKING, TypeAlias, TypeVar, TypedDict, overload

if TYPE_CHECKING:
    from PIL import Image
    from asyncio import Task
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future
    from rpcstream import ImageFile
    from rpcstream.typed import AsyncItems, CallOptions, Items, NotifyOptions
    from typing import Any, NotRequired, Unpack
    from typing_extensions import ReadOnly

R = TypeVar("R", covariant=True)

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

_WeirdNameParams = TypedDict("_WeirdNameParams", {
    "a-b": 'int',
})

_WeirdNameParams_2 = TypedDict("_WeirdNameParams_2", {
    "a-b": 'int',
})


class _Add(Protocol[R]):
    @overload
    def __call__(self, a: int, b: int = ..., /, **options: Unpack[CallOptions]) -> R:
        """Add two numbers.

        It takes any.

        Args:
            a: the first
            b: (default 2)
        """
        ...
    @overload
    def __call__(self, *, a: int, b: int = ..., **options: Unpack[CallOptions]) -> R:
        """Add two numbers.

        It takes any.

        Args:
            a: the first
            b: (default 2)
        """
        ...


class _AddNotification(Protocol[R]):
    @overload
    def __call__(self, a: int, b: int = ..., /, **options: Unpack[NotifyOptions]) -> R: ...
    @overload
    def __call__(self, *, a: int, b: int = ..., **options: Unpack[NotifyOptions]) -> R: ...


class _Point(Protocol[R]):
    @overload
    def __call__(self, p: PointInput, color: Color, /, **options: Unpack[CallOptions]) -> R: ...
    @overload
    def __call__(self, *, p: PointInput, color: Color, **options: Unpack[CallOptions]) -> R: ...


class _PointNotification(Protocol[R]):
    @overload
    def __call__(self, p: PointInput, color: Color, /, **options: Unpack[NotifyOptions]) -> R: ...
    @overload
    def __call__(self, *, p: PointInput, color: Color, **options: Unpack[NotifyOptions]) -> R: ...


class _Rest(Protocol[R]):
    @overload
    def __call__(self, a: int, /, *more: float, **options: Unpack[CallOptions]) -> R: ...
    @overload
    def __call__(
        self,
        *,
        a: int,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **others: str,
    ) -> R: ...


class _RestNotification(Protocol[R]):
    @overload
    def __call__(self, a: int, /, *more: float, **options: Unpack[NotifyOptions]) -> R: ...
    @overload
    def __call__(
        self,
        *,
        a: int,
        timeout: float | None = ...,
        wait_for: float | None = ...,
        **others: str,
    ) -> R: ...


class _Ticks(Protocol[R]):
    def __call__(self, n: int, **options: Unpack[CallOptions]) -> R: ...


class _TicksNotification(Protocol[R]):
    def __call__(self, n: int, **options: Unpack[NotifyOptions]) -> R: ...


class _VisionDetect(Protocol[R]):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> R: ...


class _VisionDetectNotification(Protocol[R]):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[NotifyOptions]) -> R: ...


class _VisionDetectFaces(Protocol[R]):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> R: ...


class _VisionDetectFacesNotification(Protocol[R]):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[NotifyOptions]) -> R: ...


class _ApiNotifyByName(Protocol):
    @overload
    def __call__(_self, method: Literal["class"], /, self: int, **options: Unpack[NotifyOptions]) -> None: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        argument: int,
        /,
        **options: Unpack[NotifyOptions],
    ) -> None: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        /,
        *,
        timeout: float | None = ...,
        wait_for: float | None = ...,
        **params: Unpack[_WeirdNameParams_2],
    ) -> None: ...


class _ApiNotifyVisionDetect(_VisionDetectNotification['None'], Protocol):
    faces: _VisionDetectFacesNotification[None]


class _ApiNotifyVision(Protocol):
    detect: _ApiNotifyVisionDetect


class _ApiNotify(_ApiNotifyByName, Protocol):
    add: _AddNotification[None]
    point: _PointNotification[None]
    rest: _RestNotification[None]
    ticks: _TicksNotification[None]
    vision: _ApiNotifyVision


class _ApiSubmitByName(Protocol):
    @overload
    def __call__(
        _self,
        method: Literal["class"],
        /,
        self: int,
        **options: Unpack[CallOptions],
    ) -> Future[int]: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        argument: int,
        /,
        **options: Unpack[CallOptions],
    ) -> Future[int]: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        /,
        *,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **params: Unpack[_WeirdNameParams],
    ) -> Future[int]: ...


class _ApiSubmitVisionDetect(_VisionDetect['Future[list[Point]]'], Protocol):
    faces: _VisionDetectFaces[Future[int]]


class _ApiSubmitVision(Protocol):
    detect: _ApiSubmitVisionDetect


class _ApiSubmit(_ApiSubmitByName, Protocol):
    add: _Add[Future[int]]
    point: _Point[Future[Point]]
    rest: _Rest[Future[dict[str, list[int]]]]
    ticks: _Ticks[Future[list[int]]]
    vision: _ApiSubmitVision


class _ApiStream(Protocol):
    ticks: _Ticks[Items[int]]


class _ApiByName(Protocol):
    @overload
    def call(_self, method: Literal["class"], /, self: int, **options: Unpack[CallOptions]) -> int: ...
    @overload
    def call(self, method: Literal["weird name!"], argument: int, /, **options: Unpack[CallOptions]) -> int: ...
    @overload
    def call(
        self,
        method: Literal["weird name!"],
        /,
        *,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **params: Unpack[_WeirdNameParams],
    ) -> int: ...


class _ApiVisionDetect(_VisionDetect['list[Point]'], Protocol):
    faces: _VisionDetectFaces[int]


class _ApiVision(Protocol):
    detect: _ApiVisionDetect


class Api(_ApiByName, ClientMembers, Protocol):
    """What a `Client` of this server has."""

    notify: _ApiNotify
    submit: _ApiSubmit
    stream: _ApiStream
    add: _Add[int]
    point: _Point[Point]
    rest: _Rest[dict[str, list[int]]]
    ticks: _Ticks[list[int]]
    vision: _ApiVision


class _AsyncApiNotifyByName(Protocol):
    @overload
    def __call__(
        _self,
        method: Literal["class"],
        /,
        self: int,
        **options: Unpack[NotifyOptions],
    ) -> Coroutine[Any, Any, None]: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        argument: int,
        /,
        **options: Unpack[NotifyOptions],
    ) -> Coroutine[Any, Any, None]: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        /,
        *,
        timeout: float | None = ...,
        wait_for: float | None = ...,
        **params: Unpack[_WeirdNameParams_2],
    ) -> Coroutine[Any, Any, None]: ...


class _AsyncApiNotifyVisionDetect(_VisionDetectNotification['Coroutine[Any, Any, None]'], Protocol):
    faces: _VisionDetectFacesNotification[Coroutine[Any, Any, None]]


class _AsyncApiNotifyVision(Protocol):
    detect: _AsyncApiNotifyVisionDetect


class _AsyncApiNotify(_AsyncApiNotifyByName, Protocol):
    add: _AddNotification[Coroutine[Any, Any, None]]
    point: _PointNotification[Coroutine[Any, Any, None]]
    rest: _RestNotification[Coroutine[Any, Any, None]]
    ticks: _TicksNotification[Coroutine[Any, Any, None]]
    vision: _AsyncApiNotifyVision


class _AsyncApiSubmitByName(Protocol):
    @overload
    def __call__(_self, method: Literal["class"], /, self: int, **options: Unpack[CallOptions]) -> Task[int]: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        argument: int,
        /,
        **options: Unpack[CallOptions],
    ) -> Task[int]: ...
    @overload
    def __call__(
        self,
        method: Literal["weird name!"],
        /,
        *,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **params: Unpack[_WeirdNameParams],
    ) -> Task[int]: ...


class _AsyncApiSubmitVisionDetect(_VisionDetect['Task[list[Point]]'], Protocol):
    faces: _VisionDetectFaces[Task[int]]


class _AsyncApiSubmitVision(Protocol):
    detect: _AsyncApiSubmitVisionDetect


class _AsyncApiSubmit(_AsyncApiSubmitByName, Protocol):
    add: _Add[Task[int]]
    point: _Point[Task[Point]]
    rest: _Rest[Task[dict[str, list[int]]]]
    ticks: _Ticks[Task[list[int]]]
    vision: _AsyncApiSubmitVision


class _AsyncApiStream(Protocol):
    ticks: _Ticks[AsyncItems[int]]


class _AsyncApiByName(Protocol):
    @overload
    def call(
        _self,
        method: Literal["class"],
        /,
        self: int,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, int]: ...
    @overload
    def call(
        self,
        method: Literal["weird name!"],
        argument: int,
        /,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, int]: ...
    @overload
    def call(
        self,
        method: Literal["weird name!"],
        /,
        *,
        timeout: float | None = ...,
        on_progress: Callable[[Any], object] | None = ...,
        wait_for: float | None = ...,
        **params: Unpack[_WeirdNameParams],
    ) -> Coroutine[Any, Any, int]: ...


class _AsyncApiVisionDetect(_VisionDetect['Coroutine[Any, Any, list[Point]]'], Protocol):
    faces: _VisionDetectFaces[Coroutine[Any, Any, int]]


class _AsyncApiVision(Protocol):
    detect: _AsyncApiVisionDetect


class AsyncApi(_AsyncApiByName, AsyncClientMembers, Protocol):
    """What an `AsyncClient` of this server has."""

    notify: _AsyncApiNotify
    submit: _AsyncApiSubmit
    stream: _AsyncApiStream
    add: _Add[Coroutine[Any, Any, int]]
    point: _Point[Coroutine[Any, Any, Point]]
    rest: _Rest[Coroutine[Any, Any, dict[str, list[int]]]]
    ticks: _Ticks[Coroutine[Any, Any, list[int]]]
    vision: _AsyncApiVision
