"""Models of pydantic, and its dataclasses, as hints: pydantic validates them, writes them and describes them.

Owns how values go in and out of pydantic, as JSON at both ends: what a model says of JSON holds, and there are no rich
values inside of one. Imported only where a class of pydantic's was given, so pydantic is loaded already.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pydantic
from pydantic.json_schema import models_json_schema

from ...errors import EncodeError
from ..encoding import Encoding, may_hide_floats
from ..rich_hint import shortened, type_name
from ..scalars import QUOTED_FLOAT_TAG, with_floats
from ..schema import LOCAL_REF, Components, holds_no_number, renamed, shortened_texts

#: Faults that are named in one error; of a value with more than so many in all only their number is said.
_NAMED, _COUNTED = 4, 1000
#: Characters of a step of a path.
_STEP = 40


class ModelHint:
    """A hint for a model or a dataclass of pydantic's.

    Raises:
        TypeError: it cannot be sent: a field has a type that JSON has no words for, or a name that is not known.
    """

    #: Integers come as they were sent, not as floats from 64 bits on.
    needs_exact_integers = True
    component = None

    def __init__(self, cls: Any) -> None:
        if cls is pydantic.BaseModel:
            raise TypeError("pydantic.BaseModel has no fields: the hint is a model of yours")
        self._cls = cls
        self.name = type_name(cls)
        try:
            refs, document = models_json_schema([(cls, "validation")], ref_template=LOCAL_REF.format(name="{model}"))
        except (RuntimeError, TypeError, ValueError, NameError) as error:
            reason = str(error).partition("\n")[0]
            raise TypeError(
                f"{self.name} cannot be sent as JSON: {reason}. Arrays and images stand beside a model, as "
                "parameters or in a dataclass"
            ) from error
        self._ref: dict[str, Any] = refs[cls, "validation"]
        self._parts: dict[str, Any] = {name: shortened_texts(part) for name, part in document.get("$defs", {}).items()}

    def decode(self, value: object) -> object:
        """The model for JSON data; a model as it is."""
        if isinstance(value, self._cls):
            return value
        try:
            text = msgspec.json.encode(value)
            if QUOTED_FLOAT_TAG in text or may_hide_floats(text):
                value = with_floats(value)
                if holds_no_number(value):  # the words for these are not JSON's, but pydantic reads them
                    text = json.dumps(value).encode()
        except (TypeError, ValueError, RecursionError):  # payloads, and what was decoded already
            raise ValueError(f"Expected `{self.name}` as JSON alone, with no arrays, images or bytes in it") from None
        try:
            return self._cls.__pydantic_validator__.validate_json(text)
        except pydantic.ValidationError as error:
            raise ValueError(_told(error, value)) from None

    def accept(self, value: object) -> object:
        """The model that a handler returned, or one made of what it returned."""
        if isinstance(value, self._cls):
            return value
        try:
            return self._cls.__pydantic_validator__.validate_python(value)
        except pydantic.ValidationError as error:
            raise ValueError(_told(error, value)) from None

    def schema(self) -> dict[str, Any]:
        """The JSON schema by itself."""
        components = Components()
        return {**self.schema_in(components), "components": {"schemas": dict(components)}}

    def schema_in(self, components: Components) -> dict[str, Any]:
        """The JSON schema, with the models that it refers to among the components of the document."""
        schema: dict[str, Any] = renamed(self._ref, components.place(self._parts))
        return schema


def encode_model(value: Any, _: Encoding) -> object:
    """Plain data, as `model_dump(mode="json", by_alias=True)` gives it."""
    try:
        return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    except (RuntimeError, ValueError, TypeError) as error:
        raise EncodeError(f"a {type_name(type(value))} could not be encoded by pydantic: {error}") from error


def _told(error: pydantic.ValidationError, value: object) -> str:
    """The faults in one text, with the path of the first as msgspec writes it."""
    count = error.error_count()
    if count > _COUNTED:
        return f"{count} parts of it are wrong"
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first, *others = [(_path(each["loc"], value), each["msg"]) for each in faults[: _NAMED + 1]]
    text = first[1]
    for path, reason in others[: _NAMED - 1]:
        text += f"; {path.lstrip('.') or 'the whole'}: {reason}"
    if count > _NAMED:
        text += f"; and {count - _NAMED} more"
    return f"{text} - at `${first[0]}`" if first[0] else text


def _path(steps: tuple[int | str, ...], value: Any) -> str:
    """The place of a fault in the value; names of pydantic's own for members of unions are left out."""
    path = ""
    for at, step in enumerate(steps):
        is_last = at == len(steps) - 1
        if type(value) is list and type(step) is int and step < len(value):
            path += f"[{step}]"
            value = value[step]
        elif type(value) is dict and (step in value or (is_last and type(step) is str)):
            path += f".{shortened(str(step), _STEP).replace('`', '_')}"
            value = value.get(step)
    return path
