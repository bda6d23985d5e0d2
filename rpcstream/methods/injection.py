"""Injects what a handler gets beside the arguments on the wire: the Context of the call, streams, and dependencies.

Owns where these stand among the arguments, which is found once, at registration.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from ..errors import RegistrationError
from ..peer.context import CallContext
from ..peer.state import ConversationState
from . import stream_params
from .arguments import Arguments
from .image_decoding import ImageDecoder
from .signature import Signature
from .stream_params import BindItem


@dataclass(frozen=True, slots=True)
class _ArgumentSlot:
    """Where an argument stands: at a position, or under its name if `position` is None."""

    name: str
    position: int | None


@dataclass(frozen=True, slots=True)
class Injection:
    """The injected parameters of one handler.

    Attributes:
        context: where the context goes, counted among all parameters.
        streams: where streams stand, counted among the arguments that came, each with what checks its items.
    """

    context: _ArgumentSlot | None
    streams: tuple[tuple[_ArgumentSlot, BindItem], ...]

    @classmethod
    def of(cls, signature: Signature, *, is_async: bool, offload: str | None) -> Injection | None:
        """Find the injected parameters of a handler; None if it has none.

        Raises:
            RegistrationError: the handler runs in another process, where there is no connection; or it is a sync
                function in the event loop, which could not wait for the items of a stream.
        """
        if signature.context is None and not signature.streams and not signature.dependencies:
            return None
        if offload == "process":
            raise RegistrationError(
                f"{signature.method}: a handler in another process can have neither a Context nor streams nor "
                "dependencies; use offload='thread'"
            )
        if signature.streams and not is_async and offload is None:
            raise RegistrationError(
                f"{signature.method}: a sync function in the event loop cannot wait for the items of a stream; "
                "make it async, or use offload='thread'"
            )
        places = signature.places(list(signature.streams))
        streams = tuple((_ArgumentSlot(name, places[name]), bind) for name, bind in signature.streams.items())
        if signature.dependencies:
            return _WithDependencies.of_provided(signature, streams)
        return cls(_context_slot(signature), streams)

    def fill(
        self, arguments: Arguments, context: CallContext, session: ConversationState, images: ImageDecoder
    ) -> tuple[Arguments, list[str]]:
        """Complete the arguments of a call.

        Args:
            arguments: as bound from params.
            context: of the call.
            session: on which streams are opened.
            images: decodes images that come as items.

        Returns:
            The arguments for the function, and the tokens of the streams to be closed when it is done.

        Raises:
            InvalidParams: a stream of that name is open already.
        """
        args, kwargs = list(arguments[0]), dict(arguments[1])
        tokens: list[str] = []
        try:
            for place, bind in self.streams:
                where: Any = kwargs if place.position is None else args
                key: Any = place.name if place.position is None else place.position
                if where is kwargs and key not in kwargs:  # the parameter's default is the function's own
                    continue
                where[key], token = stream_params.opened(where[key], bind, session, context.bridge, images)
                if token is not None:
                    tokens.append(token)
        except BaseException:
            stream_params.close(session, tokens)
            raise
        if self.context is not None:
            if self.context.position is None:
                kwargs[self.context.name] = context
            else:
                args.insert(self.context.position, context)
        return (tuple(args), kwargs), tokens

    def with_provided(self, args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]) -> Arguments:
        """The arguments with the values of the dependencies, in the order of the parameters."""
        return args, kwargs


@dataclass(frozen=True, slots=True)
class _WithDependencies(Injection):
    """The injected parameters of a handler with dependencies, whose places are kept until these are provided.

    Attributes:
        inserted: where the context (True) and the dependencies go, in order of position.
        provided: where the dependencies go.
    """

    inserted: tuple[tuple[_ArgumentSlot, bool], ...]
    provided: tuple[_ArgumentSlot, ...]

    @classmethod
    def of_provided(cls, signature: Signature, streams: tuple[tuple[_ArgumentSlot, BindItem], ...]) -> Injection:
        slots = [_slot(each.parameter, each.position) for each in signature.dependencies.values()]
        inserted = [(slot, False) for slot in slots]
        if (context := _context_slot(signature)) is not None:
            inserted.append((context, True))
        inserted.sort(key=lambda each: each[0].position or 0)
        return cls(None, streams, tuple(inserted), tuple(slots))

    def fill(
        self, arguments: Arguments, context: CallContext, session: ConversationState, images: ImageDecoder
    ) -> tuple[Arguments, list[str]]:
        """As `Injection.fill`; None stands for each dependency."""
        # Not by super(), which means another class in one that has slots.
        (filled, kwargs), tokens = Injection.fill(self, arguments, context, session, images)
        args = list(filled)
        for slot, is_context in self.inserted:
            value = context if is_context else None
            if slot.position is None:
                kwargs[slot.name] = value
            else:
                args.insert(slot.position, value)
        return (tuple(args), kwargs), tokens

    def with_provided(self, args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]) -> Arguments:
        """As `Injection.with_provided`."""
        given = list(args)
        for slot, value in zip(self.provided, values, strict=True):
            if slot.position is None:
                kwargs[slot.name] = value
            else:
                given[slot.position] = value
        return tuple(given), kwargs


def _context_slot(signature: Signature) -> _ArgumentSlot | None:
    parameter = signature.context
    if parameter is None:
        return None
    return _slot(parameter, signature.context_position)


def _slot(parameter: Parameter, position: int | None) -> _ArgumentSlot:
    by_position = parameter.kind is not Parameter.KEYWORD_ONLY
    return _ArgumentSlot(parameter.name, position if by_position else None)
