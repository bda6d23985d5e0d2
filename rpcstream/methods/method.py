"""A remote method, as it is registered, and the arguments that it gets from the server (its `Context`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from ..auth.authenticator import CallerRule
from ..errors import RegistrationError
from ..peer.context import CallContext
from . import stream_params
from .arguments import Arguments, Bind, ImageDecoder
from .options import Offload
from .signature import Signature
from .stream_params import BindItem

#: Where an argument stands: at a position, or under its name.
Place = int | str


@dataclass(frozen=True, slots=True)
class Injection:
    """The injected parameters of one handler, found once, at registration.

    Attributes:
        streams: where streams stand among the arguments that came, each with what checks its items.
        inserted: places in the order in which they are filled, each with the number of its value.
    """

    streams: tuple[tuple[Place, BindItem], ...]
    inserted: tuple[tuple[Place, int], ...]

    @classmethod
    def of(cls, signature: Signature, *, is_async: bool, offload: str | None) -> Injection | None:
        """Find the injected parameters of a handler; None if it has none.

        Raises:
            RegistrationError: the handler runs in another process, where there is no connection; or it is a sync
                function in the event loop, which could not wait for the items of a stream.
        """
        if not signature.streams and not signature.provided:
            return None
        if offload == "process":
            why = "a handler in another process can have neither a Context nor streams nor dependencies"
            raise RegistrationError(f"{signature.method}: {why}; use offload='thread'")
        if signature.streams and not is_async and offload is None:
            why = "a sync function in the event loop cannot wait for the items of a stream"
            raise RegistrationError(f"{signature.method}: {why}; make it async, or use offload='thread'")
        by_position: list[tuple[Place, int]] = []
        by_name: list[tuple[Place, int]] = []
        for number, (_, parameter, position) in enumerate(signature.provided):
            if parameter.kind is Parameter.KEYWORD_ONLY:
                by_name.append((parameter.name, number))
            else:
                by_position.append((position, number))
        return cls(tuple(signature.streams), (*by_position, *by_name))

    def open_streams(
        self, arguments: Arguments, context: CallContext, images: ImageDecoder, releases: list[Callable[[], object]]
    ) -> Arguments:
        """The arguments that came, with an iterator for each stream.

        Args:
            arguments: as bound from params.
            context: of the call.
            images: decodes images that come as items.
            releases: gets what closes the streams, to be called when the handler is done.

        Raises:
            InvalidParams: a stream of that name is open already.
        """
        opened, named = list(arguments[0]), dict(arguments[1])
        for place, bind in self.streams:
            where: Any = named if isinstance(place, str) else opened
            if where is opened or place in named:  # else the parameter's default is the function's own
                where[place] = stream_params.opened(where[place], bind, context, images, releases)
        return tuple(opened), named

    def insert(self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Arguments:
        """The arguments for the function, with the provided values in their places."""
        given, named = list(args), kwargs
        for place, number in self.inserted:
            if isinstance(place, int):
                given.insert(place, values[number])
            else:
                named = {**named, place: values[number]}
        return tuple(given), named


#: Runs the handler of a `Call` with these arguments.
Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Method:
    """A remote method: its function, and all that a call of it needs.

    Attributes:
        bind: gives the arguments for the function (`Signature.bind`).
        returns: a result of this very class needs no `check_result`.
        inline: it is a plain sync function, which is called while its message is read.
        is_plain: it is awaited, and a call needs nothing but its arguments.
        begins_now: it is a sync function in the event loop that is called at once, be it a generator or with a Context.
        injection: what the handler gets beside the arguments on the wire; None for nothing.
        run: runs a `Call`: its handler, with its dependencies and the middleware around.
        is_generator: its function is a generator function.
        stream: the same method for callers that take the items one by one; None unless it is a generator function.
        check_item: checks and converts an item of a generator; None where there is nothing to check.
        allow: who may call it; None: every caller.
        docs: what its options say of it, as members of a Method Object of OpenRPC.

    The other attributes are those of `MethodOptions`.
    """

    name: str
    function: Callable[..., Any]
    signature: Signature
    bind: Bind
    is_async: bool
    offload: Offload | None
    timeout: float | None
    check_result: Callable[[Any], Any] | None
    returns: type | None
    inline: bool
    is_plain: bool
    begins_now: bool
    injection: Injection | None
    run: Run
    is_generator: bool
    stream: Method | None
    check_item: Callable[[Any], Any] | None
    ordered: bool
    detached: bool
    idempotent: bool
    allow: CallerRule | None
    mcp: bool
    docs: dict[str, Any]
