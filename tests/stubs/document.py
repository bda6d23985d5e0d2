"""A document with all that types are written for, as a server has it."""

from __future__ import annotations

from typing import Any


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def param(name: str, schema: Any, *, required: bool = True, **more: Any) -> dict[str, Any]:
    return {"name": name, "required": required, "schema": schema, **more}


def method(name: str, *params: dict[str, Any], result: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "paramStructure": "either",
        "params": list(params),
        "result": {"name": "result", "schema": {"type": "null"} if result is None else result},
        **more,
    }


def document(*methods: dict[str, Any], **schemas: Any) -> dict[str, Any]:
    return {"openrpc": "1.4.1", "info": {"title": "x", "version": "1"}, "methods": list(methods)} | {
        "components": {"schemas": schemas}
    }


_INT, _STR, _NUMBER = {"type": "integer"}, {"type": "string"}, {"type": "number"}

DOCUMENT = document(
    method(
        "add",
        param("a", _INT, description="the first"),
        param("b", {**_INT, "default": 2}, required=False),
        result=_INT,
        summary="Add two numbers.",
        description="Add two numbers.\n\nIt takes any.",
    ),
    method(
        "arrays",
        param("a", ref("NdArray_f4_Nx3")),
        param("b", ref("NdArray")),
        result={"type": "array", "items": ref("NdArray_f4_Nx3")},
    ),
    method("bytes", param("data", ref("Bytes")), result=ref("Bytes")),
    method("call", param("a", _INT), result=_INT),
    method("class", param("self", _INT), result=_INT),
    method(
        "dates",
        param("day", {"type": "string", "format": "date"}),
        param("at", {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": None}),
        result={"type": "string", "format": "date-time"},
    ),
    method("image", param("photo", ref("Image")), result=ref("Image")),
    method("int", param("a", _INT), result=_INT),
    method(
        "named",
        param("a", _INT),
        param("flag", {"type": "boolean"}, **{"x-keyword": True}),
        param("deep", {"anyOf": [_STR, {"type": "null"}], "default": None}, required=False, **{"x-keyword": True}),
        paramStructure="by-name",
    ),
    method("old", deprecated=True),
    method("options", param("timeout", _NUMBER), param("a-b", {"type": "boolean"}, required=False), result=_INT),
    method(
        "pets",
        param("pets", {"type": "array", "items": {"anyOf": [ref("Cat"), ref("Dog")]}}),
        result={"anyOf": [ref("Cat"), ref("Dog"), {"type": "null"}]},
    ),
    method("point", param("p", ref("Point")), param("color", ref("Color")), result=ref("Point")),
    method(
        "rest",
        param("a", _INT),
        param("more", _NUMBER, required=False, **{"x-rest": "positional"}),
        param("named", _STR, required=False, **{"x-rest": "named"}),
        result={"type": "object", "additionalProperties": {"type": "array", "items": _INT}},
    ),
    method("rpc.ping", result=_STR),
    method(
        "settings",
        param("given", {"type": "object", "properties": {"a-b": _INT, "c": _STR}, "required": ["a-b"]}),
        result={
            "type": "object",
            "properties": {"a": {"type": "object", "properties": {"b": _INT}, "required": ["b"]}},
        },
    ),
    method("ticks", param("n", _INT), result={"type": "array", "items": _INT}, **{"x-stream": True, "x-item": _INT}),
    method("tree", param("tree", ref("Tree")), result=ref("Tree")),
    method(
        "tuple",
        param("pair", {"type": "array", "prefixItems": [_INT, _STR], "minItems": 2, "maxItems": 2}),
        result={"type": "array", "prefixItems": [_INT, _STR], "minItems": 2, "maxItems": 2},
    ),
    method("untyped", param("a", {}), result={}),
    method("upload", param("items", {"type": "array", "items": _NUMBER, "x-stream": True}), result=_NUMBER),
    method("vision.detect", param("photo", ref("Image")), result={"type": "array", "items": ref("Point")}),
    method("vision.detect.faces", param("photo", ref("Image")), result=_INT),
    method("weird name!", param("a-b", _INT), result=_INT),
    Bytes={"title": "Bytes", "x-bytes": True, "anyOf": [_STR]},
    Cat={"type": "object", "properties": {"type": {"enum": ["Cat"]}, "lives": _INT}, "required": ["type", "lives"]},
    Color={"enum": ["blue", "red", 'it\'s "grey"\n']},
    Dog={"type": "object", "properties": {"type": {"enum": ["Dog"]}, "name": _STR}, "required": ["type", "name"]},
    Image={"title": "Image", "x-image": {"formats": ["png"], "modes": ["RGB"]}, "anyOf": [_STR]},
    NdArray={"title": "NdArray", "x-ndarray": {"dtype": None, "shape": None}, "anyOf": [_STR]},
    NdArray_f4_Nx3={"title": "NdArray_f4_Nx3", "x-ndarray": {"dtype": ["<f4"], "shape": [None, 3]}, "anyOf": [_STR]},
    Point={
        "type": "object",
        "description": "A point.",
        "properties": {"x": {**_NUMBER, "description": "in mm"}, "y": {**_NUMBER, "default": 0.0}},
        "required": ["x"],
    },
    Tree={
        "type": "object",
        "properties": {"value": _INT, "children": {"type": "array", "items": ref("Tree")}, "up": {"anyOf": [_INT]}},
        "required": ["value"],
    },
)
