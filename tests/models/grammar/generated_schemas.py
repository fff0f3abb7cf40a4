"""Schemas as generators write them: pydantic's for many kinds of fields, the examples in the
documentation of zod and zod-to-json-schema, and tools of MCP servers."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import pathlib
import typing
import uuid

import pydantic

DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
TEXT, NUMBER, INTEGER, NULL = ({"type": name} for name in ("string", "number", "integer", "null"))


class Color(enum.Enum):
    RED, GREEN = "red", "green"


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


class Node(pydantic.BaseModel):
    value: int
    children: list[Node] = []
    parent: typing.Optional[Node] = None


class Cat(pydantic.BaseModel):
    kind: typing.Literal["cat"] = "cat"
    lives: pydantic.conint(ge=1, le=9)  # type: ignore[valid-type]


class Dog(pydantic.BaseModel):
    kind: typing.Literal["dog"]
    good: bool = True


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    x: int


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: int
    note: typing.Optional[str] = None


FIELDS: dict[str, typing.Any] = {
    "integer": int, "number": float, "text": str, "flag": bool, "nothing": None,
    "anything": typing.Any, "choice": typing.Literal["a", 1, None], "color": Color, "level": Level,
    "optional": typing.Optional[int], "union": typing.Union[int, str, list[bool]],
    "texts": list[str], "pair": tuple[int, str], "many": tuple[int, ...], "table": dict[str, float],
    "by_number": dict[int, str], "by_color": dict[Color, int], "by_id": dict[uuid.UUID, bool],
    "set": set[int], "short": typing.Annotated[str, pydantic.Field(min_length=1, max_length=5)],
    "code": typing.Annotated[str, pydantic.Field(pattern="^[A-Z]{2}[0-9]{3}$")],
    "both": typing.Annotated[str, pydantic.Field(min_length=3, pattern="^[a-z]+$")],
    "positive": pydantic.PositiveInt, "share": typing.Annotated[float, pydantic.Field(ge=0, le=1)],
    "even": typing.Annotated[int, pydantic.Field(multiple_of=2)],
    "few": typing.Annotated[list[int], pydantic.Field(min_length=1, max_length=3)],
    "url": pydantic.HttpUrl, "any_url": pydantic.AnyUrl, "when": datetime.datetime,
    "day": datetime.date, "time": datetime.time, "duration": datetime.timedelta, "id": uuid.UUID,
    "price": decimal.Decimal, "path": pathlib.Path, "ip": ipaddress.IPv4Address, "raw": bytes,
    "json": pydantic.Json[typing.Any], "secret": pydantic.SecretStr, "node": Node,
    "pet": typing.Annotated[typing.Union[Cat, Dog], pydantic.Field(discriminator="kind")],
    "pets": list[typing.Union[Cat, Dog]], "closed": Closed, "open": Open,
    "deep": dict[str, list[typing.Optional[Closed]]],
}


def of_pydantic() -> dict[str, dict[str, typing.Any]]:
    """Schemas of models with one field of each kind, with several fields, and of unions."""
    models = {name: pydantic.create_model("M", **{name: (kind, ...)})
              for name, kind in FIELDS.items()}
    names = list(FIELDS)
    for first in range(0, len(names), 6):
        part = names[first:first + 6]
        models["+".join(part)] = pydantic.create_model(
            "M", **{name: (FIELDS[name], None) for name in part})
    out = {name: model.model_json_schema() for name, model in models.items()}
    out.update({model.__name__: model.model_json_schema() for model in (Node, Cat, Closed, Open)})
    return out


def _object(**properties: typing.Any) -> dict[str, typing.Any]:
    return {"type": "object", "properties": properties, "required": list(properties),
            "additionalProperties": False}


# zod 4's z.toJSONSchema (zod.dev/json-schema), and zod-to-json-schema's README.
ZOD: dict[str, dict[str, typing.Any]] = {
    "object": _object(name=TEXT, age=NUMBER),
    "record": {"type": "object", "propertyNames": TEXT, "additionalProperties": NUMBER},
    "record of enum": {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
                       "additionalProperties": NUMBER, "required": ["a", "b"]},
    "partial record": {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
                       "additionalProperties": NUMBER},
    "email": _object(x={"type": "string", "format": "email", "pattern":
                        "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@"
                        "([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"}),
    "url": _object(x={"type": "string", "format": "uri"}),
    "int": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
    "range": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
    "nullable": {"anyOf": [TEXT, NULL]}, "literals": {"enum": ["a", 1, None]},
    "literal": {"type": "string", "const": "tuna"},
    "never": {"type": "object", "properties": {"x": {"not": {}}, "y": TEXT}},
    "enum": {"type": "string", "enum": ["Salmon", "Tuna"]},
    "tuple": {"type": "array", "prefixItems": [TEXT, NUMBER], "items": {"type": "boolean"}},
    "pair": {"type": "array", "prefixItems": [TEXT, NUMBER]},
    "loose": {**_object(x=NUMBER), "additionalProperties": {}},
    "catchall": {**_object(x=NUMBER), "additionalProperties": TEXT},
    "file": {"type": "string", "format": "binary", "contentEncoding": "binary",
             "minLength": 1, "maxLength": 1024, "contentMediaType": "image/png"},
    "recursive": {**_object(name=TEXT, sub={"type": "array", "items": {"$ref": "#"}})},
    "union of kinds": {"oneOf": [_object(kind={"type": "string", "const": "a"}, x=NUMBER),
                                 _object(kind={"type": "string", "const": "b"})]},
    "union of shapes": {"oneOf": [
        {"type": "object", "properties": {"radius": NUMBER}, "required": ["radius"]},
        {"type": "object", "properties": {"w": NUMBER, "h": NUMBER}, "required": ["w", "h"]}]},
    "intersection": {"allOf": [{"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
                               {"type": "object", "properties": {"b": NUMBER}, "required": ["b"]}]},
    "closed intersection": {"allOf": [  # TypeBox's Type.Composite and Intersect
        {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
        {"type": "object", "properties": {"b": NUMBER}, "required": ["b"]}],
        "unevaluatedProperties": False},
    "old tuple": {**DRAFT7, "type": "array", "minItems": 2, "maxItems": 2,
                  "items": [TEXT, {"type": "boolean"}]},
    "old set": {**DRAFT7, "type": "array", "uniqueItems": True, "items": TEXT},
    "old map": {**DRAFT7, "type": "array", "maxItems": 125, "items": {
        "type": "array", "items": [TEXT, NUMBER], "minItems": 2, "maxItems": 2}},
    "old nullable": {**DRAFT7, **_object(x={"type": ["string", "null"]})},
    "old native enum": {**DRAFT7, "type": ["string", "number"], "enum": ["a", 1]},
    "old reference": {**DRAFT7, **_object(x=_object(y=TEXT), z={"$ref": "#/properties/x"})},
    "old strict union": {**DRAFT7, "anyOf": [TEXT, {"not": {}}]},
}

# Kinds of schemas that people have published; github.com/guidance-ai/jsonschemabench has dozens of
# each.
PUBLISHED: dict[str, dict[str, typing.Any]] = {
    "one of two names": {"type": "object", "properties": {"a": TEXT, "b": TEXT},
                         "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "one of three names": {"type": "object", "properties": {"a": TEXT, "b": TEXT, "c": TEXT},
                           "oneOf": [{"required": [name]} for name in "abc"]},
    "never in a branch": {"type": "object", "oneOf": [
        {"properties": {"a": TEXT, "b": False}, "required": ["a"]},
        {"properties": {"a": {"not": {}}, "b": TEXT}, "required": ["b"]}]},
    "a branch without a value": {
        "type": "object", "properties": {"k": {"enum": ["a", "b"]}}, "required": ["k"],
        "oneOf": [{"properties": {"k": {"const": "a"}}}, {"properties": {"k": {"const": "c"}}}]},
    "angle": {"type": "number", "minimum": -3.141592653589793, "maximum": 3.141592653589793},
    "above nearly zero": {"type": "number", "exclusiveMinimum": 2.220446049250313e-16},
    "integers of 32 bits as lengths": {
        "type": "object", "properties": {"a": {**TEXT, "maxLength": 2147483647}, "b": {
            "type": "array", "items": NUMBER, "maxItems": 9007199254740991}}},
    "a path's pattern": {"type": "string", "pattern": r"^\S{1,3}/an-organization/a-repository/x$"},
}

# TypeBox's Type.Recursive; and names instead of pointers.
_NODE = {"$id": "Node", **_object(value=NUMBER, nodes={"type": "array", "items": {"$ref": "Node"}})}
NAMED: dict[str, dict[str, typing.Any]] = {
    "recursive by $id": _NODE, "recursive inside": _object(tree=_NODE),
    "anchor": {**_object(x={"$ref": "#text"}), "$defs": {"T": {"$anchor": "text", **TEXT}}},
    "id": {"$schema": "http://json-schema.org/draft-04/schema#", **_object(x={"$ref": "#text"}),
           "definitions": {"T": {"id": "#text", **TEXT}}},
    "absolute": {"$id": "https://a.b/c", **_object(x={"$ref": "https://a.b/c#/$defs/T"}),
                 "$defs": {"T": TEXT}},
}

_PATH = {"path": {"type": "string"}}
# Schemas that public servers of the Model Context Protocol list.
MCP: dict[str, dict[str, typing.Any]] = {
    "fetch": {"description": "Parameters for fetching a URL.", "title": "Fetch", "type": "object",
              "required": ["url"], "properties": {
                  "url": {"description": "URL to fetch", "format": "uri", "minLength": 1,
                          "title": "Url", "type": "string"},
                  "max_length": {"default": 5000, "exclusiveMaximum": 1000000,
                                 "exclusiveMinimum": 0, "title": "Max Length", "type": "integer"},
                  "start_index": {"default": 0, "minimum": 0, "type": "integer"},
                  "raw": {"default": False, "title": "Raw", "type": "boolean"}}},
    "edit_file": {**DRAFT7, "type": "object", "additionalProperties": False,
                  "required": ["path", "edits"], "properties": {
                      **_PATH, "dryRun": {"type": "boolean", "default": False},
                      "edits": {"type": "array", "items": {
                          **_object(oldText=TEXT, newText=TEXT)}}}},
    "create_entities": {"type": "object", "required": ["entities"], "properties": {
        "entities": {"type": "array", "items": {
            "type": "object", "required": ["name", "entityType", "observations"], "properties": {
                "name": TEXT, "entityType": TEXT,
                "observations": {"type": "array", "items": TEXT}}}}}},
    "sequential_thinking": {"type": "object", "required": ["thought", "nextThoughtNeeded"],
                            "properties": {"thought": TEXT, "nextThoughtNeeded": {
                                "type": "boolean"}, "thoughtNumber": {
                                    "type": "integer", "minimum": 1}}},
    "arguments of any form": {"type": "object", "properties": {"args": {
        "type": "object", "properties": {}, "required": []}}, "required": ["args"]},
    "query": {"type": "object", "properties": {"params": {"type": "array", "items": {}},
                                               "options": {"type": "object"}, "sql": TEXT},
              "required": ["sql", "params", "options"]},
    "either": {"type": "object", "properties": {"id": INTEGER, "name": TEXT},
               "anyOf": [{"required": ["id"]}, {"required": ["name"]}]},
    "nullable choice": {"type": "object", "required": ["units"], "properties": {"units": {
        "type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]}}},
    "lost": {"type": "object", "properties": {"x": {"$ref": "#/$defs/Lost"}}, "required": ["x"]},
    "none": {"type": "object"}, "closed": {"type": "object", "additionalProperties": False},
}
