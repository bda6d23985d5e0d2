"""Remote methods as attributes: `client.vision.vectorize(…)` for `client.call("vision.vectorize", …)`.

Names that begin with an underscore are never remote, so that `copy`, `pickle`, `inspect` and notebooks, which ask
objects for such names, get the answer they expect.
"""

from __future__ import annotations

from functools import partial
from inspect import Signature
from typing import Any

#: Remote methods that a client keeps as attributes once they were used, its own attributes included.
NAMES_KEPT = 256

#: Attributes that the clients have themselves: a remote method of such a name is called by `client.call(name, …)`.
CLIENT_NAMES = frozenset(
    """address batch call call_sync close discover from_config notify notify_client offer on_connect publish
    registered_name replies_dropped request run state stream stream_request submit subscribe wait_closed
    withdraw""".split()  # noqa: SIM905 - a list takes a line for each name
)


class _Documentation:
    """The attribute `__doc__`: of the class its own text, of a remote method the documentation from the server."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, method: Method | None, owner: type) -> str | None:
        if method is None:
            return self._text
        known = _known_methods(method)
        return None if known is None else known.description(_name(method))


class Method(partial[Any]):
    """A remote method: a function that makes a call, and the name of the method.

    An attribute of it is a method with a longer, dotted name. Without a name it stands for all methods of an object:
    `client.notify.name(…)`, or `client.notify("name", …)` for any name.

    A `partial`, so that a call of it costs next to nothing. Methods below it that are named as its own attributes are,
    `func`, `args` and `keywords`, are called by `client.call("a.func", …)`.
    """

    __doc__: Any = _Documentation(__doc__ or "")

    @property
    def __signature__(self) -> Signature:
        known = _known_methods(self)
        signature = None if known is None else known.signature(_name(self))
        if signature is None:
            raise AttributeError("__signature__")
        return signature  # type: ignore[no-any-return]

    def __dir__(self) -> list[str]:
        known = _known_methods(self)
        return [] if known is None else known.names_below(_prefix(self))

    def __getattr__(self, name: str) -> Method:
        return Method(_make_call(self), _prefix(self) + remote_name(self, name))

    def __repr__(self) -> str:
        return f"<remote method {_name(self)!r}>"


_make_call = partial.func.__get__
_bound = partial.args.__get__


def _name(method: Method) -> str:
    return "".join(_bound(method))


def _prefix(method: Method) -> str:
    name = _name(method)
    return f"{name}." if name else ""


def _known_methods(method: Method) -> Any:
    """What the client of a remote method knows of its server (`client.discovery.KnownMethods`); None: nothing."""
    return getattr(getattr(_make_call(method), "__self__", None), "__descriptions__", None)


def remote_name(owner: object, name: str) -> str:
    """The name of an attribute as (part of) a method name; AttributeError for names that are never remote."""
    if name.startswith("_"):
        raise AttributeError(
            f"{type(owner).__name__!r} has no attribute {name!r}; for a method of that name use call({name!r}, …)"
        )
    return name
