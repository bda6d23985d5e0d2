"""The signature of a batched handler: one item for callers, lists or stacked arrays for the handler.

Owns what the hints of such a handler mean: `list[T]` is T for a caller, an array is one row of it. They are read once,
at registration. Does not know when a handler is run.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Hashable, Sequence
from inspect import Parameter
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from ..codec import Shape
from ..codec.constraints import is_constraint
from ..codec.fields import expanded
from ..errors import RegistrationError
from .arguments import Arguments
from .dependencies import dependency_of
from .introspect import hints_of, signature_of

#: The arguments of one call, in the order of the parameters.
ItemValues = tuple[Any, ...]


class WrongResults(ValueError):
    """A handler did not return one result for each item."""


class ItemParameter(NamedTuple):
    """One parameter of the handler, which gets a value from each item.

    Attributes:
        by_name: it is keyword-only.
        stacked: the values are stacked to an array, not put in a list.
        default: of one item.
    """

    name: str
    by_name: bool
    stacked: bool
    default: Any


class ItemSignature:
    """The signature of a handler of many items, and the way between one item and many.

    Args:
        function: takes lists (`list[T]`, `Sequence[T]`) and arrays of equal length, returns one result for each item.
        method: its remote name, for the errors.
        namespace: names for string hints that are not in the function's module.

    Raises:
        RegistrationError: a hint or a default does not fit many items; the text names the parameter.
    """

    def __init__(self, function: Callable[..., Any], *, method: str, namespace: dict[str, Any] | None = None) -> None:
        hints = hints_of(function, method, namespace or {})
        listed = signature_of(function, method)
        self._columns: list[ItemParameter] = []
        seen = []
        for parameter in listed.parameters.values():
            try:
                if dependency_of(parameter, hints.get(parameter.name, Any)) is not None:
                    raise TypeError("a batched handler runs for several calls at once, and can have no dependencies")
                hint, column = _item_parameter(parameter, hints.get(parameter.name, Parameter.empty))
            except (TypeError, ValueError) as error:
                raise RegistrationError(f"{method}: parameter {parameter.name!r}: {error}") from error
            self._columns.append(column)
            seen.append(parameter.replace(annotation=hint, default=column.default))
        if not seen:
            raise RegistrationError(f"{method}: a batched handler needs a parameter: the list of the items")
        try:
            result = _result_hint(hints.get("return", Any))
        except (TypeError, ValueError) as error:
            raise RegistrationError(f"{method}: the return value: {error}") from error
        #: Of one item, as callers see it.
        self.signature = inspect.Signature(seen, return_annotation=result)
        self._by_position = [column for column in self._columns if not column.by_name]
        self._by_keyword = [column for column in self._columns if column.by_name]
        self._stacked = [place for place, column in enumerate(self._columns) if column.stacked]

    def of_one(self, call: Callable[[ItemValues], typing.Awaitable[Any]], function: Callable[..., Any]) -> Any:
        """An async function of one item that awaits `call(values)`, with the name and docstring of the handler."""

        async def single(*args: Any, **kwargs: Any) -> Any:
            return await call(self._values(args, kwargs))

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(single, name, getattr(function, name, getattr(single, name)))
        single.__annotations__ = {name: each.annotation for name, each in self.signature.parameters.items()}
        single.__annotations__["return"] = self.signature.return_annotation
        single.__signature__ = self.signature  # type: ignore[attr-defined]
        return single

    def _values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ItemValues:
        """The arguments of one call, with defaults."""
        missing = (column.default for column in self._by_position[len(args) :])
        return (*args, *missing, *(kwargs.get(column.name, column.default) for column in self._by_keyword))

    def kind(self, values: ItemValues) -> Hashable:
        """Shapes and dtypes of the stacked values; items for which they are equal can be in one run."""
        return tuple((values[place].shape, values[place].dtype) for place in self._stacked)

    def copied(self, values: ItemValues) -> int:
        """Bytes of one item that are copied for a run: those of its arrays."""
        return sum(values[place].nbytes for place in self._stacked)

    def together(self, items: Sequence[ItemValues]) -> Arguments:
        """The handler's arguments for one or more items, all of one kind. Copies what is stacked."""
        arguments = [
            _stack(column) if place in self._stacked else list(column)
            for place, column in enumerate(zip(*items, strict=True))
        ]
        count = len(self._by_position)
        named = {column.name: argument for column, argument in zip(self._by_keyword, arguments[count:], strict=True)}
        return tuple(arguments[:count]), named

    @staticmethod
    def results(returned: Any, count: int) -> list[Any]:
        """The result of each of `count` items: of a list, a tuple, or the rows of an array.

        Raises:
            WrongResults: it is something else, or there are more or fewer.
        """
        if not isinstance(returned, list | tuple):
            cls = type(returned)
            if not hasattr(cls, "__array__") and not hasattr(cls, "__dlpack__"):
                raise WrongResults(f"it returned {cls.__name__}, not a list, tuple or array of {count} results")
            from ..codec.ndarray import to_array

            returned = to_array(returned)  # once for all rows: they may have to come from another device
            if not returned.ndim:
                raise WrongResults(f"it returned an array without dimensions, not one of {count} rows")
        if len(returned) != count:
            raise WrongResults(f"it returned {len(returned)} results, not {count}")
        return list(returned)


def _stack(arrays: Sequence[Any]) -> Any:
    import numpy as np

    return np.stack(arrays)


# -- from the hint of many to that of one ------------------------------------------------------------------------------


def _item_parameter(parameter: Parameter, hint: Any) -> tuple[Any, ItemParameter]:
    """The hint of one item, and how the handler gets all of them."""
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        raise TypeError("a batched handler takes no further arguments (*args, **kwargs)")
    if hint is Parameter.empty:
        raise TypeError("it needs a hint: list[T] for a list of items, or an array for a stack of them")
    item, stacked = _item_hint(hint)
    default = parameter.default
    if default is not Parameter.empty:
        default = _item_default(default, stacked)
    return item, ItemParameter(parameter.name, parameter.kind is Parameter.KEYWORD_ONLY, stacked, default)


def _item_default(default: Any, stacked: bool) -> Any:
    """The default of one item: the handler's own default is for a batch of one, so that it can be called directly."""
    if not (getattr(default, "shape", ()) if stacked else isinstance(default, list | tuple)):
        kind = "an array" if stacked else "a list or tuple"
        raise TypeError(f"its default must be that of a batch of one: {kind} of one item, not {default!r}")
    if len(default) != 1:
        raise TypeError(f"its default must be that of a batch of one: it has {len(default)} items")
    return default[0]


def _item_hint(hint: Any) -> tuple[Any, bool]:
    """The hint of one item, and whether the items are to be stacked.

    Raises:
        TypeError: it is the hint of neither a list nor an array.
    """
    hint = expanded(hint)
    plain, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    origin = get_origin(plain) or plain
    if any(map(is_constraint, metadata)):
        raise TypeError("a constraint on all items means nothing for one; put it there: list[Annotated[T, …]]")
    if origin in (list, Sequence):
        item = (get_args(plain) or (Any,))[0]
        return (Annotated[(item, *metadata)] if metadata else item), False
    if _is_array(origin):
        return _row_hint(plain, metadata), True
    raise TypeError(f"it must be list[T], Sequence[T] or an array, one entry for each item, not {hint!r}")


def _result_hint(hint: Any) -> Any:
    """The hint of one result. Exceptions that may stand in the place of results are no results."""
    hint = expanded(hint)
    if hint is Any or hint is object:
        return Any
    arguments = get_args(hint)
    if get_origin(hint) is tuple and arguments[1:] == (Ellipsis,):
        hint = list[arguments[0]]  # type: ignore[valid-type]
    item, is_array = _item_hint(hint)
    if is_array and item == hint and get_origin(hint) is not Annotated:
        # Nothing is said of its dimensions: if there is one, the rows are numbers.
        return Union[_scalar_hint(hint), item]  # noqa: UP007
    if get_origin(item) in (Union, types.UnionType):
        members = tuple(each for each in get_args(item) if not _is_exception(each))
        return Union.__getitem__(members) if members else Any
    return item


def _is_exception(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseException)


def _is_array(cls: Any) -> bool:
    # By name, so that lists need no numpy; a program with such a hint has it.
    return isinstance(cls, type) and (cls.__module__, cls.__name__) == ("numpy", "ndarray")


def _row_hint(array: Any, metadata: list[Any]) -> Any:
    """The hint of one row: what is said of the first dimension is taken off; without any other it is a number."""
    row = array
    dtypes = get_args(array)[1:]
    shape = (get_args(array) or (Any,))[0]
    if get_origin(shape) is tuple and Ellipsis not in get_args(shape):
        dims = _without_batch(get_args(shape), shape)
        row = get_origin(array)[(types.GenericAlias(tuple, dims), *dtypes)] if dims else _scalar_hint(array)
    kept = []
    for each in metadata:
        if isinstance(each, Shape):
            if not (rest := _without_batch(each.dims, each)):
                row = _scalar_hint(array)
                continue
            kept.append(Shape(*rest))
        else:
            kept.append(each)
    return Annotated[(row, *kept)] if kept else row


def _without_batch(dims: tuple[Any, ...], shape: Any) -> tuple[Any, ...]:
    """The dimensions of one item."""
    if not dims:
        raise TypeError(f"{shape!r} has no dimension for the batch")
    if dims[0] is Ellipsis:
        return dims
    if isinstance(dims[0], int) or get_origin(dims[0]) is Literal:
        raise TypeError(f"{shape!r}: the first dimension is the batch, and no batch has a fixed size: None")
    return dims[1:]


def _scalar_hint(array: Any) -> Any:
    """The hint of one element."""
    import numpy as np

    def scalar(dtype: Any) -> Any:
        if get_origin(dtype) is np.dtype:
            (kind,) = get_args(dtype)
            return np.generic if kind is Any else kind
        if get_origin(dtype) in (Union, types.UnionType):
            return Union.__getitem__(tuple(map(scalar, get_args(dtype))))
        return np.generic

    arguments = get_args(array)
    return scalar(arguments[1]) if len(arguments) > 1 else np.generic
