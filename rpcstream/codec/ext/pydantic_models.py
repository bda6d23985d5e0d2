"""Models of pydantic, and its dataclasses, as hints: pydantic validates them, writes them and describes them.

Values go in and out of pydantic as JSON: what a model says of JSON holds, and there are no rich values inside of one.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec
import pydantic
from pydantic.json_schema import models_json_schema

from ...errors import EncodeError
from ..codec import Encoding
from ..rich_hint import Components, shortened, type_name

#: Of a value with more faults than this only their number is said.
_COUNTED = 1000
#: How pydantic's references begin here, before they lead to components of the document.
_LOCAL = "#/$local/"


class ModelHint:
    """A hint for a model or a dataclass of pydantic's.

    Raises:
        TypeError: it cannot be sent: a field has a type that JSON has no words for, or a name that is not known.
    """

    #: It reads what was sent, so integers must be exact.
    takes_json = True
    component = None

    def __init__(self, cls: Any) -> None:
        if cls is pydantic.BaseModel:
            raise TypeError("pydantic.BaseModel has no fields: use your own model as the hint")
        self._cls = cls
        self.name = type_name(cls)
        try:
            refs, document = models_json_schema([(cls, "validation")], ref_template=_LOCAL + "{model}")
        except (RuntimeError, TypeError, ValueError, NameError) as error:
            reason = str(error).partition("\n")[0]
            raise TypeError(
                f"{self.name} cannot be sent as JSON: {reason}. Pass arrays and images outside the model, as "
                "parameters or in a dataclass"
            ) from error
        self._ref: dict[str, Any] = refs[cls, "validation"]
        self._parts: dict[str, Any] = document.get("$defs", {})

    def decode(self, value: object, _: object = None) -> object:
        """The model for JSON data; a model as it is."""
        if isinstance(value, self._cls):
            return value
        try:
            text = msgspec.json.encode(value)
            if b"null" in text:
                text = json.dumps(value).encode()  # as Python writes NaN and the infinities, which pydantic reads
        except (TypeError, ValueError, RecursionError):  # payloads, and what was decoded already
            raise ValueError(f"Expected `{self.name}` as JSON alone, with no arrays, images or bytes in it") from None
        return self._validated("json", text)

    def accept(self, value: object) -> object:
        """The model that a handler returned, or one made of what it returned."""
        return value if isinstance(value, self._cls) else self._validated("python", value)

    def _validated(self, form: str, given: object) -> object:
        try:
            return getattr(self._cls.__pydantic_validator__, f"validate_{form}")(given)
        except pydantic.ValidationError as error:
            raise ValueError(_told(error)) from None

    def schema(self) -> dict[str, Any]:
        """The JSON schema by itself."""
        components = Components()
        return {**self.schema_in(components), "components": {"schemas": dict(components)}}

    def schema_in(self, components: Components) -> dict[str, Any]:
        """The JSON schema, with the models that it refers to among the components of the document."""
        schema: dict[str, Any] = self._placed(self._ref, components)
        return schema

    def _placed(self, schema: Any, components: Components) -> Any:
        """A schema of pydantic in which each reference leads to a component of the document."""
        if isinstance(schema, list):
            return [self._placed(each, components) for each in schema]
        if isinstance(schema, str) and schema.startswith(_LOCAL):
            name = schema.removeprefix(_LOCAL)
            part = self._parts[name]
            make = partial(self._placed, part, components)
            return components.refer(name, str(part), make)["$ref"]
        if not isinstance(schema, dict):
            return schema
        return {key: self._placed(each, components) for key, each in schema.items()}


def encode_model(value: Any, _: Encoding) -> object:
    """Plain data, as `model_dump(mode="json", by_alias=True)` gives it."""
    try:
        return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    except (RuntimeError, ValueError, TypeError) as error:
        raise EncodeError(f"a {type_name(type(value))} could not be encoded by pydantic: {error}") from error


def _told(error: pydantic.ValidationError) -> str:
    """The first fault, with its path as msgspec writes it, and how many others there are."""
    count = error.error_count()
    if count > _COUNTED:
        return f"{count} parts of it are wrong"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    steps = [f"[{step}]" if type(step) is int else f".{step}" for step in first["loc"]]
    path = shortened("".join(steps).replace("`", "_"), 90)
    text = f"{first['msg']}; and {count - 1} more" if count > 1 else first["msg"]
    return f"{text} - at `${path}`" if path else text
