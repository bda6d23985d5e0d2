"""Remote methods as attributes: `client.vision.vectorize(…)` for `client.call("vision.vectorize", …)`.

Owns how attributes become method names. Does not know what a call is: sync, async, notification and batch give the
function that makes it. Names that begin with an underscore are never remote, so that `copy`, `pickle`, `inspect` and
notebooks, which ask objects for such names, get the answer they expect. Imports no asyncio, unlike `remote`, since the
sync client does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import Signature
from typing import Any, Protocol

#: Remote methods that a client keeps as attributes once they were used, its own attributes included.
NAMES_KEPT = 256

#: Attributes that the clients have themselves: a remote method of such a name is called by `client.call(name, …)`.
CLIENT_NAMES = frozenset(
    {
        "address",
        "batch",
        "call",
        "call_sync",
        "close",
        "discover",
        "from_config",
        "notify",
        "notify_client",
        "offer",
        "on_connect",
        "publish",
        "registered_name",
        "replies_dropped",
        "request",
        "run",
        "state",
        "stream",
        "stream_request",
        "submit",
        "subscribe",
        "wait_closed",
        "withdraw",
    }
)

MakeCall = Callable[..., Any]


class Descriptions(Protocol):
    """What a client knows of the methods of its server, for `dir`, `help` and editors.

    A client has it as its attribute `__descriptions__`, None as long as it has not asked.
    """

    def names_below(self, prefix: str) -> list[str]:
        """The attributes behind a prefix that ends in a dot, or behind ""."""

    def description(self, name: str) -> str | None:
        """The documentation of a method."""

    def signature(self, name: str) -> Signature | None:
        """The signature of a method."""


class _Documentation:
    """The attribute `__doc__`: of the class its own text, of a remote method the documentation from the server."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, method: Method | None, owner: type) -> str | None:
        if method is None:
            return self._text
        known = _descriptions(method)
        return None if known is None else known.description(_bound(method)[0])


class Method(partial[Any]):
    """A remote method by name; an attribute of it is a method with a longer, dotted name.

    A `partial`, so that a call of it costs next to nothing; the attributes of that are names like any other here.
    """

    __doc__: Any = _Documentation(__doc__ or "")

    @property
    def __signature__(self) -> Signature:
        known = _descriptions(self)
        signature = None if known is None else known.signature(_bound(self)[0])
        if signature is None:
            raise AttributeError("__signature__")
        return signature

    def __dir__(self) -> list[str]:
        known = _descriptions(self)
        return [] if known is None else known.names_below(f"{_bound(self)[0]}.")

    def __getattr__(self, name: str) -> Method:
        make_call, (own_name,) = _make_call(self), _bound(self)
        return Method(make_call, f"{own_name}.{remote_name(self, name)}")

    func = property(lambda self: _Part(self.__getattr__("func")))  # pyright: ignore[reportIncompatibleMethodOverride]
    args = property(lambda self: _Part(self.__getattr__("args")))  # pyright: ignore[reportIncompatibleMethodOverride]
    keywords = property(lambda self: _Part(self.__getattr__("keywords")))  # pyright: ignore[reportIncompatibleMethodOverride]

    def __repr__(self) -> str:
        return f"<remote method {_bound(self)[0]!r}>"


class _Part:
    """A remote method called `func`, `args` or `keywords`, as the parts of a `partial` are.

    `inspect` and asyncio unwrap a `partial` until they come to what is none: this is none, and empty as arguments are.
    """

    __slots__ = ("_method",)

    def __init__(self, method: Method) -> None:
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __dir__(self) -> list[str]:
        return dir(self._method)

    def __repr__(self) -> str:
        return repr(self._method)


_make_call = partial.func.__get__
_bound = partial.args.__get__


def _descriptions(method: Method) -> Descriptions | None:
    """What the client of a remote method knows of its server."""
    return getattr(getattr(_make_call(method), "__self__", None), "__descriptions__", None)


class Methods:
    """All remote methods, for one kind of call: `methods.name(…)`, or `methods("name", …)` for any name."""

    __slots__ = ("_make_call",)

    def __init__(self, make_call: MakeCall) -> None:
        self._make_call = make_call

    def __getattr__(self, name: str) -> Method:
        return Method(self._make_call, remote_name(self, name))

    def __dir__(self) -> list[str]:
        known: Descriptions | None = getattr(getattr(self._make_call, "__self__", None), "__descriptions__", None)
        return [] if known is None else known.names_below("")

    def __call__(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._make_call(method, *args, **kwargs)


def remote_name(owner: object, name: str) -> str:
    """The name of an attribute as (part of) a method name; AttributeError for names that are never remote."""
    if name.startswith("_"):
        raise AttributeError(
            f"{type(owner).__name__!r} has no attribute {name!r}; for a method of that name use call({name!r}, …)"
        )
    return name
