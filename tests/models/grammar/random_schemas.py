"""Random JSON schemas of all keywords that grammars support, and of some that they do not."""

from __future__ import annotations

import random
from typing import Any

Schema = Any  # an object, true or false

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.5, 2.0, 0.1, 10**15, 2**63, 2**64 + 1, "", "a", "\u00e9", '"',
    "\\", "\n", "/", "0", "null", [], {}, [1, [2]], {"a": 1, "b": [None]}, {"x y": "z"},
    "\U0001f600", "\u2028", "</script>", "a" * 20]
NUMBERS = [0, 1, -1, 3, 10, 99, 100, 101, -5, -10, 1000, 2.0, -3.0, 0.5, -2.25, 65535,
           2**31 - 1, 2**53]
NAMES = ["a", "b", "ab", "abc", "c d", "\u00e9", 'q"', "", "type", "$ref", "items", "x/y", "name"]
PATTERNS = ["^[a-z]{1,4}$", "a|b", "^\\d+$", "^x?y*z+$", "[^a]", "^(a|bc)+$", "-", "^.$",
            "\\w\\s\\w", "^[0-9]{3}-?[0-9]{2}$"]
FORMATS = ["date", "uuid", "ipv4", "ipv6", "time", "date-time", "hostname", "uri", "duration",
           "email", "uri-reference"]
REMARKS = [{"description": "x"}, {"title": "T"}, {"default": None}, {"examples": [1]},
           {"$comment": "c"}, {"x-a": 1}, {"readOnly": True}, {"markdownDescription": "x"},
           {"uniqueItems": False}, {"discriminator": {"propertyName": "a"}}]
TYPES = ["string", "integer", "null", "boolean", "number", "array", "object"]


class Schemas:
    """A sequence of schemas, determined by `seed`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def root(self) -> dict[str, Any]:
        names = self.random.sample(["A", "B", "C"], self.random.randrange(3))
        schema = self.schema(self.random.randrange(1, 4), names)
        while not isinstance(schema, dict):
            schema = self.schema(2, names)
        if names:
            schema = {**schema, "$defs": {name: self.schema(1, names) for name in names}}
        return schema

    def schema(self, depth: int, names: list[str]) -> Schema:
        r = self.random
        kinds = [self.number, self.text, self.values, self.types, self.any]
        if names:
            kinds.append(lambda: {"$ref": "#/$defs/" + r.choice(names)})
        if depth > 0:
            kinds += [lambda: self.object(depth - 1, names)] * 4
            kinds += [lambda: self.array(depth - 1, names)] * 2
            kinds += [lambda: self.union(depth - 1, names)] * 2
        schema = r.choice(kinds)()
        if isinstance(schema, dict) and r.random() < 0.3:
            remark = r.choice(REMARKS)
            schema = {**remark, **schema} if r.random() < 0.5 else {**schema, **remark}
        return schema

    def any(self) -> Schema:
        return self.random.choice([{}, True, {"title": "x"}, {"type": "string"}])

    def number(self) -> Schema:
        r = self.random
        schema: dict[str, Any] = {"type": r.choice(["integer", "number"])}
        for ends in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            for end in ends:
                if r.random() < 0.3:
                    schema[end] = r.choice(NUMBERS)
        return schema

    def text(self) -> Schema:
        r = self.random
        schema: dict[str, Any] = {"type": "string"}
        kind = r.randrange(6)
        if kind in (0, 5):
            schema["minLength"] = r.randrange(4)
        if kind in (0, 1):
            schema["maxLength"] = r.randrange(3, 40)
        if kind == 2:
            schema["pattern"] = r.choice(PATTERNS)
        if kind in (3, 5):
            schema["format"] = r.choice(FORMATS)
        return schema

    def values(self) -> Schema:
        r = self.random
        values = [r.choice(VALUES) for _ in range(r.randrange(1, 5))]
        schema: dict[str, Any] = {"enum": values} if r.random() < 0.6 else {"const": values[0]}
        if r.random() < 0.3:
            schema["type"] = r.sample(TYPES, r.randrange(2, 6))
        return schema

    def types(self) -> Schema:
        types = self.random.sample(TYPES, self.random.randrange(1, 4))
        return {"type": types if len(types) > 1 else types[0]}

    def object(self, depth: int, defs: list[str]) -> Schema:
        r = self.random
        names = r.sample(NAMES, r.randrange(5))
        schema: dict[str, Any] = {
            "type": "object", "properties": {name: self.schema(depth, defs) for name in names}}
        if r.random() < 0.7:
            schema["required"] = [name for name in names if r.random() < 0.6]
        if r.random() < 0.1:
            schema["required"] = r.sample(NAMES, 2)
        if r.random() < 0.5:
            schema["additionalProperties"] = r.choice(
                [False, True, {"type": "integer"}, self.schema(depth, defs)])
        if r.random() < 0.1:
            schema["unevaluatedProperties"] = r.choice([False, True, {"type": "integer"}])
        if r.random() < 0.1:
            schema["propertyNames"] = r.choice(
                [{"type": "string"}, {"enum": r.sample(NAMES, 3)}, {"pattern": "^[a-c]{1,2}$"}])
        if r.random() < 0.2:
            del schema["type"]
        if not names and r.random() < 0.5:
            del schema["properties"]
        if r.random() < 0.1 and not names:
            schema["patternProperties"] = {r.choice(PATTERNS): self.schema(depth, defs)}
        if r.random() < 0.2:
            schema["minProperties"] = r.randrange(3)
        if r.random() < 0.1:
            schema["maxProperties"] = r.randrange(2, 5)
        return schema

    def array(self, depth: int, defs: list[str]) -> Schema:
        r = self.random
        schema: dict[str, Any] = {"type": "array"}
        if r.random() < 0.8:
            schema["items"] = r.choice([self.schema(depth, defs), False])
        if r.random() < 0.3:
            schema["prefixItems"] = [self.schema(depth, defs) for _ in range(r.randrange(1, 3))]
        if r.random() < 0.4:
            schema["minItems"] = r.randrange(4)
        if r.random() < 0.4:
            schema["maxItems"] = r.randrange(2, 6)
        return schema

    def union(self, depth: int, defs: list[str]) -> Schema:
        r = self.random
        keyword = r.choice(["anyOf", "anyOf", "oneOf", "allOf"])
        count = r.randrange(1, 3 if keyword == "allOf" else 4)
        schema = {keyword: [self.schema(depth, defs) for _ in range(count)]}
        if r.random() < 0.2:
            schema[r.choice(["unevaluatedProperties", "unevaluatedItems"])] = r.choice(
                [False, {"type": "integer"}])
        if r.random() < 0.3:
            beside = self.schema(depth, defs)
            if isinstance(beside, dict) and not beside.keys() & schema.keys():
                schema.update(beside)
        return schema
