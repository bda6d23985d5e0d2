"""Remote methods as attributes: `client.vision.vectorize(…)` for `client.call("vision.vectorize", …)`.

Owns how attributes become method names. Does not know what a call is: sync, async, notification and batch give the
function that makes it. Names that begin with an underscore are never remote, so that `copy`, `pickle`, `inspect` and
notebooks, which ask objects for such names, get the answer they expect. Imports no asyncio, unlike `remote`, since the
sync client does without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

#: Remote methods that a client keeps as attributes once they were used, its own attributes included.
NAMES_KEPT = 256

MakeCall = Callable[..., Any]


class Method(partial[Any]):
    """A remote method by name; an attribute of it is a method with a longer, dotted name.

    A `partial`, so that a call of it costs next to nothing; the attributes of that are names like any other here.
    """

    def __getattr__(self, name: str) -> Method:
        make_call, (own_name,) = _make_call(self), _bound(self)
        return Method(make_call, f"{own_name}.{remote_name(self, name)}")

    func = property(lambda self: self.__getattr__("func"))  # pyright: ignore[reportIncompatibleMethodOverride]
    args = property(lambda self: self.__getattr__("args"))  # pyright: ignore[reportIncompatibleMethodOverride]
    keywords = property(lambda self: self.__getattr__("keywords"))  # pyright: ignore[reportIncompatibleMethodOverride]

    def __repr__(self) -> str:
        return f"<remote method {_bound(self)[0]!r}>"


_make_call = partial.func.__get__
_bound = partial.args.__get__


class Methods:
    """All remote methods, for one kind of call: `methods.name(…)`, or `methods("name", …)` for any name."""

    __slots__ = ("_make_call",)

    def __init__(self, make_call: MakeCall) -> None:
        self._make_call = make_call

    def __getattr__(self, name: str) -> Method:
        return Method(self._make_call, remote_name(self, name))

    def __call__(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._make_call(method, *args, **kwargs)


def remote_name(owner: object, name: str) -> str:
    """The name of an attribute as (part of) a method name; AttributeError for names that are never remote."""
    if name.startswith("_"):
        raise AttributeError(
            f"{type(owner).__name__!r} has no attribute {name!r}; for a method of that name use call({name!r}, …)"
        )
    return name
