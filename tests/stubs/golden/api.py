# Written by `rpcstream --stubs python`. Do not edit it: write it again when the server changes.
# fmt: off
# ruff: noqa
"""The methods of x 1, for type checkers: `cast(Api, Client(...))`."""

from __future__ import annotations

from rpcstream.typed import AsyncClientMembers, ClientMembers
from typing import Literal, Protocol, TYPE_CHECKING, TypeAlias, TypeVar, TypedDict, overload

if TYPE_CHECKING:
    import builtins as _builtins
    import datetime
    import numpy as np
    from PIL import Image
    from asyncio import Task
    from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
    from concurrent.futures import Future
    from numpy.typing import NDArray
    from rpcstream import ImageFile
    from rpcstream.typed import AsyncItems, CallOptions, Items, NotifyOptions
    from typing import Any, NotRequired, Unpack
    from typing_extensions import ReadOnly

R = TypeVar("R", covariant=True)


class Cat(TypedDict):
    type: Literal["Cat"]
    lives: int


class CatInput(TypedDict):
    type: ReadOnly[Literal["Cat"]]
    lives: ReadOnly[int]

Color: TypeAlias = '_Values'


class Dog(TypedDict):
    type: Literal["Dog"]
    name: str


class DogInput(TypedDict):
    type: ReadOnly[Literal["Dog"]]
    name: ReadOnly[str]


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

SettingsGivenInput = TypedDict("SettingsGivenInput", {
    "a-b": 'ReadOnly[int]',
    "c": 'NotRequired[ReadOnly[str]]',
})


class SettingsResult(TypedDict):
    a: NotRequired[SettingsResultA]


class SettingsResultA(TypedDict):
    b: int


class Tree(TypedDict):
    value: int
    children: NotRequired[list[Tree]]
    up: NotRequired[int]


class TreeInput(TypedDict):
    value: ReadOnly[int]
    children: NotRequired[ReadOnly[Sequence[TreeInput]]]
    up: NotRequired[ReadOnly[int]]

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


class _Arrays(Protocol[R]):
    @overload
    def __call__(self, a: NDArray[np.float32], b: NDArray[Any], /, **options: Unpack[CallOptions]) -> R: ...
    @overload
    def __call__(self, *, a: NDArray[np.float32], b: NDArray[Any], **options: Unpack[CallOptions]) -> R: ...


class _ArraysNotification(Protocol[R]):
    @overload
    def __call__(self, a: NDArray[np.float32], b: NDArray[Any], /, **options: Unpack[NotifyOptions]) -> R: ...
    @overload
    def __call__(self, *, a: NDArray[np.float32], b: NDArray[Any], **options: Unpack[NotifyOptions]) -> R: ...


class _Bytes(Protocol[R]):
    def __call__(self, data: bytes | bytearray | memoryview, **options: Unpack[CallOptions]) -> R: ...


class _BytesNotification(Protocol[R]):
    def __call__(self, data: bytes | bytearray | memoryview, **options: Unpack[NotifyOptions]) -> R: ...


class _Call(Protocol[R]):
    def __call__(self, a: int, **options: Unpack[CallOptions]) -> R: ...


class _CallNotification(Protocol[R]):
    def __call__(self, a: int, **options: Unpack[NotifyOptions]) -> R: ...


class _Dates(Protocol[R]):
    @overload
    def __call__(
        self,
        day: datetime.date | str,
        at: datetime.datetime | str | None,
        /,
        **options: Unpack[CallOptions],
    ) -> R: ...
    @overload
    def __call__(
        self,
        *,
        day: datetime.date | str,
        at: datetime.datetime | str | None,
        **options: Unpack[CallOptions],
    ) -> R: ...


class _DatesNotification(Protocol[R]):
    @overload
    def __call__(
        self,
        day: datetime.date | str,
        at: datetime.datetime | str | None,
        /,
        **options: Unpack[NotifyOptions],
    ) -> R: ...
    @overload
    def __call__(
        self,
        *,
        day: datetime.date | str,
        at: datetime.datetime | str | None,
        **options: Unpack[NotifyOptions],
    ) -> R: ...


class _Image(Protocol[R]):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[CallOptions]) -> R: ...


class _ImageNotification(Protocol[R]):
    def __call__(self, photo: Image.Image | ImageFile, **options: Unpack[NotifyOptions]) -> R: ...


class _Int(Protocol[R]):
    def __call__(self, a: int, **options: Unpack[CallOptions]) -> R: ...


class _IntNotification(Protocol[R]):
    def __call__(self, a: int, **options: Unpack[NotifyOptions]) -> R: ...


class _Named(Protocol[R]):
    def __call__(self, *, a: int, flag: bool, deep: str | None = ..., **options: Unpack[CallOptions]) -> R: ...


class _NamedNotification(Protocol[R]):
    def __call__(self, *, a: int, flag: bool, deep: str | None = ..., **options: Unpack[NotifyOptions]) -> R: ...


class _Old(Protocol[R]):
    def __call__(self, **options: Unpack[CallOptions]) -> R:
        """Deprecated."""
        ...


class _OldNotification(Protocol[R]):
    def __call__(self, **options: Unpack[NotifyOptions]) -> R: ...


class _Options(Protocol[R]):
    def __call__(self, timeout_2: float, argument: bool = ..., /, **options: Unpack[CallOptions]) -> R: ...


class _OptionsNotification(Protocol[R]):
    def __call__(self, timeout_2: float, argument: bool = ..., /, **options: Unpack[NotifyOptions]) -> R: ...


class _Pets(Protocol[R]):
    def __call__(self, pets: Sequence[CatInput | DogInput], **options: Unpack[CallOptions]) -> R: ...


class _PetsNotification(Protocol[R]):
    def __call__(self, pets: Sequence[CatInput | DogInput], **options: Unpack[NotifyOptions]) -> R: ...


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


class _Settings(Protocol[R]):
    def __call__(self, given: SettingsGivenInput, **options: Unpack[CallOptions]) -> R: ...


class _SettingsNotification(Protocol[R]):
    def __call__(self, given: SettingsGivenInput, **options: Unpack[NotifyOptions]) -> R: ...


class _Ticks(Protocol[R]):
    def __call__(self, n: int, **options: Unpack[CallOptions]) -> R: ...


class _TicksNotification(Protocol[R]):
    def __call__(self, n: int, **options: Unpack[NotifyOptions]) -> R: ...


class _Tree(Protocol[R]):
    def __call__(self, tree: TreeInput, **options: Unpack[CallOptions]) -> R: ...


class _TreeNotification(Protocol[R]):
    def __call__(self, tree: TreeInput, **options: Unpack[NotifyOptions]) -> R: ...


class _Tuple(Protocol[R]):
    def __call__(self, pair: tuple[int, str] | list[int | str], **options: Unpack[CallOptions]) -> R: ...


class _TupleNotification(Protocol[R]):
    def __call__(self, pair: tuple[int, str] | list[int | str], **options: Unpack[NotifyOptions]) -> R: ...


class _Untyped(Protocol[R]):
    def __call__(self, a: Any, **options: Unpack[CallOptions]) -> R: ...


class _UntypedNotification(Protocol[R]):
    def __call__(self, a: Any, **options: Unpack[NotifyOptions]) -> R: ...


class _Upload(Protocol[R]):
    def __call__(self, items: Iterable[float] | AsyncIterable[float], **options: Unpack[CallOptions]) -> R: ...


class _UploadNotification(Protocol[R]):
    def __call__(self, items: Sequence[float], **options: Unpack[NotifyOptions]) -> R: ...


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
    arrays: _ArraysNotification[None]
    bytes: _BytesNotification[None]
    call: _CallNotification[None]
    dates: _DatesNotification[None]
    image: _ImageNotification[None]
    int: _IntNotification[None]
    named: _NamedNotification[None]
    old: _OldNotification[None]
    options: _OptionsNotification[None]
    pets: _PetsNotification[None]
    point: _PointNotification[None]
    rest: _RestNotification[None]
    settings: _SettingsNotification[None]
    ticks: _TicksNotification[None]
    tree: _TreeNotification[None]
    tuple: _TupleNotification[None]
    untyped: _UntypedNotification[None]
    upload: _UploadNotification[None]
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
    add: _Add[Future[_builtins.int]]
    arrays: _Arrays[Future[list[NDArray[np.float32]]]]
    bytes: _Bytes[Future[_builtins.bytes]]
    call: _Call[Future[_builtins.int]]
    dates: _Dates[Future[str]]
    image: _Image[Future[Image.Image]]
    int: _Int[Future[_builtins.int]]
    named: _Named[Future[None]]
    old: _Old[Future[None]]
    options: _Options[Future[_builtins.int]]
    pets: _Pets[Future[Cat | Dog | None]]
    point: _Point[Future[Point]]
    rest: _Rest[Future[dict[str, list[_builtins.int]]]]
    settings: _Settings[Future[SettingsResult]]
    ticks: _Ticks[Future[list[_builtins.int]]]
    tree: _Tree[Future[Tree]]
    tuple: _Tuple[Future[list[_builtins.int | str]]]
    untyped: _Untyped[Future[Any]]
    upload: _Upload[Future[float]]
    vision: _ApiSubmitVision


class _ApiStream(Protocol):
    ticks: _Ticks[Items[int]]


class _ApiByName(Protocol):
    @overload
    def call(self, method: Literal["call"], /, a: int, **options: Unpack[CallOptions]) -> int: ...
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
    add: _Add[_builtins.int]
    arrays: _Arrays[list[NDArray[np.float32]]]
    bytes: _Bytes[_builtins.bytes]
    dates: _Dates[str]
    image: _Image[Image.Image]
    int: _Int[_builtins.int]
    named: _Named[None]
    old: _Old[None]
    options: _Options[_builtins.int]
    pets: _Pets[Cat | Dog | None]
    point: _Point[Point]
    rest: _Rest[dict[str, list[_builtins.int]]]
    settings: _Settings[SettingsResult]
    ticks: _Ticks[list[_builtins.int]]
    tree: _Tree[Tree]
    tuple: _Tuple[list[_builtins.int | str]]
    untyped: _Untyped[Any]
    upload: _Upload[float]
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
    arrays: _ArraysNotification[Coroutine[Any, Any, None]]
    bytes: _BytesNotification[Coroutine[Any, Any, None]]
    call: _CallNotification[Coroutine[Any, Any, None]]
    dates: _DatesNotification[Coroutine[Any, Any, None]]
    image: _ImageNotification[Coroutine[Any, Any, None]]
    int: _IntNotification[Coroutine[Any, Any, None]]
    named: _NamedNotification[Coroutine[Any, Any, None]]
    old: _OldNotification[Coroutine[Any, Any, None]]
    options: _OptionsNotification[Coroutine[Any, Any, None]]
    pets: _PetsNotification[Coroutine[Any, Any, None]]
    point: _PointNotification[Coroutine[Any, Any, None]]
    rest: _RestNotification[Coroutine[Any, Any, None]]
    settings: _SettingsNotification[Coroutine[Any, Any, None]]
    ticks: _TicksNotification[Coroutine[Any, Any, None]]
    tree: _TreeNotification[Coroutine[Any, Any, None]]
    tuple: _TupleNotification[Coroutine[Any, Any, None]]
    untyped: _UntypedNotification[Coroutine[Any, Any, None]]
    upload: _UploadNotification[Coroutine[Any, Any, None]]
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
    add: _Add[Task[_builtins.int]]
    arrays: _Arrays[Task[list[NDArray[np.float32]]]]
    bytes: _Bytes[Task[_builtins.bytes]]
    call: _Call[Task[_builtins.int]]
    dates: _Dates[Task[str]]
    image: _Image[Task[Image.Image]]
    int: _Int[Task[_builtins.int]]
    named: _Named[Task[None]]
    old: _Old[Task[None]]
    options: _Options[Task[_builtins.int]]
    pets: _Pets[Task[Cat | Dog | None]]
    point: _Point[Task[Point]]
    rest: _Rest[Task[dict[str, list[_builtins.int]]]]
    settings: _Settings[Task[SettingsResult]]
    ticks: _Ticks[Task[list[_builtins.int]]]
    tree: _Tree[Task[Tree]]
    tuple: _Tuple[Task[list[_builtins.int | str]]]
    untyped: _Untyped[Task[Any]]
    upload: _Upload[Task[float]]
    vision: _AsyncApiSubmitVision


class _AsyncApiStream(Protocol):
    ticks: _Ticks[AsyncItems[int]]


class _AsyncApiByName(Protocol):
    @overload
    def call(
        self,
        method: Literal["call"],
        /,
        a: int,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, int]: ...
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
    add: _Add[Coroutine[Any, Any, _builtins.int]]
    arrays: _Arrays[Coroutine[Any, Any, list[NDArray[np.float32]]]]
    bytes: _Bytes[Coroutine[Any, Any, _builtins.bytes]]
    dates: _Dates[Coroutine[Any, Any, str]]
    image: _Image[Coroutine[Any, Any, Image.Image]]
    int: _Int[Coroutine[Any, Any, _builtins.int]]
    named: _Named[Coroutine[Any, Any, None]]
    old: _Old[Coroutine[Any, Any, None]]
    options: _Options[Coroutine[Any, Any, _builtins.int]]
    pets: _Pets[Coroutine[Any, Any, Cat | Dog | None]]
    point: _Point[Coroutine[Any, Any, Point]]
    rest: _Rest[Coroutine[Any, Any, dict[str, list[_builtins.int]]]]
    settings: _Settings[Coroutine[Any, Any, SettingsResult]]
    ticks: _Ticks[Coroutine[Any, Any, list[_builtins.int]]]
    tree: _Tree[Coroutine[Any, Any, Tree]]
    tuple: _Tuple[Coroutine[Any, Any, list[_builtins.int | str]]]
    untyped: _Untyped[Coroutine[Any, Any, Any]]
    upload: _Upload[Coroutine[Any, Any, float]]
    vision: _AsyncApiVision
