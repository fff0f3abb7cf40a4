#!/usr/bin/env python3
"""Texts that grammars of JSON schemas allow, validated by `jsonschema`: random walks through random
schemas and through schemas that pydantic, zod and MCP servers write. `python3 json_schema_test.py
GRAMMAR_WALKER`; for minutes with FOX_NIGHTLY, else for seconds."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import sys
import time
import unittest
from typing import Any

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
for _package in ("jsonschema", "pydantic"):
    if importlib.util.find_spec(_package) is None:
        print(f"SKIPPED: {sys.executable} lacks {_package}, which ./run test installs")
        sys.exit(SKIPPED)

import generated_schemas  # noqa: E402
import jsonschema  # noqa: E402
from random_schemas import Schemas  # noqa: E402
from walker import Walker  # noqa: E402

# By day every run has the same schemas, on any machine; at night there are others, for some time.
SECONDS = 300 if "FOX_NIGHTLY" in os.environ else 0
COUNT = 1200
SEED = int(time.time()) if "FOX_NIGHTLY" in os.environ else 1


TOKENS = [*(bytes([code]) for code in range(1, 256)), *(piece.encode() for piece in (
    "\u00e9", "\u65e5", "\U0001f600", '{"', '": ', '", "', '{"a"', ', "a"', '""', '"}', "}}",
    " ,", " ]", " 1", ",,", "1,", "1]", "],", "[[", " {", "null", 'ab"', 'a": 1, "', '"b": [',
    '], "', "name", '\\"', "\\u00"))]


def without(schema: Any, pointers: list[str]) -> Any:
    """The schema without the keywords at these places."""
    schema = copy.deepcopy(schema)
    for pointer in pointers:
        *path, keyword = [part.replace("~1", "/").replace("~0", "~")
                          for part in pointer.split("/")[1:]]
        at = schema
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if keyword == "oneOf" or keyword not in at:
            raise LookupError("an alternative would be lost, or allOf has the keyword")
        at.pop(keyword)
    return schema


def problem(schema: Any, text: str) -> str:
    """The problem of a text; empty: none. Clients cannot use a duplicate name (RFC 8259, 4) or half
    of a surrogate pair (RFC 7493, 2.1)."""
    twice: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=members)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        for error in validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(value):
            return str(error.message)[:200]
    except RecursionError:
        return "no validator comes to an end"
    if twice:
        return f"{twice[0]!r} twice"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return ""


class JsonSchemaTest(unittest.TestCase):
    walker: Walker

    @classmethod
    def setUpClass(cls) -> None:
        cls.walker = Walker(PROGRAM, TOKENS)
        cls.addClassCleanup(cls.walker.close)

    def walks(self, schema: Any, relax: bool = False, walks: int = 20, steps: int = 120,
              seed: int = 1) -> dict[str, Any]:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        answer = self.walker.ask("schema", text, walks, steps, relax, seed)
        answer["texts"] = [one.encode("latin-1").decode() for one in answer.get("texts", [])]
        # Masks have no token that cannot follow.
        self.assertNotIn("does not allow", answer.get("stopped", ""), text)
        return answer

    def expect_valid(self, schema: Any, answer: dict[str, Any]) -> int:
        """Validates the texts of an answer and returns their number. Keywords that the answer lists
        as relaxed are not checked; even a strict schema may have some, as `format` beside a length.
        """
        try:
            schema = without(schema, answer.get("relaxed", []))
        except LookupError:
            return 0
        for text in answer["texts"]:
            self.assertEqual(problem(schema, text), "", f"{json.dumps(schema)} gave {text}")
        return len(answer["texts"])

    def test_random_schemas(self) -> None:
        schemas, end = Schemas(SEED), time.monotonic() + SECONDS
        count, accepted, texts = 0, 0, 0
        while count < COUNT or time.monotonic() < end:
            schema = schemas.root()
            answer = self.walks(schema, seed=count)
            count += 1
            if "error" not in answer:
                accepted += 1
                texts += self.expect_valid(schema, answer)
        print(f"seed {SEED}: {accepted} of {count} schemas accepted, {texts} texts valid")
        # The other schemas have no value, or have keywords that no grammar can express.
        self.assertGreater(accepted, 0.75 * count)
        self.assertGreater(texts, 5 * accepted)

    def test_random_schemas_that_are_relaxed(self) -> None:
        schemas, end = Schemas(SEED + 1), time.monotonic() + SECONDS / 4
        count, accepted = 0, 0
        while count < COUNT / 4 or time.monotonic() < end:
            schema = schemas.root()
            answer = self.walks(schema, relax=True, walks=6, seed=count)
            count += 1
            accepted += "error" not in answer
            self.expect_valid(schema, answer)
        self.assertGreater(accepted, 0.8 * count)

    def test_generated_schemas(self) -> None:
        expected = {  # the schemas with relaxed places, and these places
            "set": ["uniqueItems"], "even": ["multipleOf"],
            "url": ["format"], "email": ["pattern"], "old set": ["uniqueItems"],
            "raw": [], "file": [], "lost": ["$ref"]}
        cases = {**generated_schemas.ZOD, **generated_schemas.NAMED, **generated_schemas.MCP,
                 **generated_schemas.PUBLISHED, **generated_schemas.of_pydantic()}
        for name, schema in cases.items():
            with self.subTest(name, schema=schema):
                answer = self.walks(schema, relax=True, walks=40)
                self.assertNotIn("error", answer)
                if "+" not in name:
                    words = sorted(place.split("/")[-1] for place in answer["relaxed"])
                    if name != "url" or words:  # zod's is not bounded
                        self.assertEqual(words, sorted(expected.get(name, [])))
                self.assertGreater(
                    self.expect_valid(schema, answer), 0)

    def test_additional_properties_have_other_names(self) -> None:
        integer = {"type": "integer"}
        for schema in (
                {"properties": {"a": integer}, "additionalProperties": {"type": "null"}},
                {"properties": {"a": integer, "ab": integer, "": integer},
                 "additionalProperties": {"type": "boolean"}},
                {"properties": {"a": integer, "\u00e9": integer, 'q"': integer, "\n": integer},
                 "required": ["a"], "additionalProperties": {"type": "string", "maxLength": 2}},
                {"properties": {"a": False, "b": integer}, "additionalProperties": True},
                {"additionalProperties": {"type": "object", "additionalProperties": integer}},
                {"properties": {f"name{i}": integer for i in range(200)},
                 "additionalProperties": {"type": "null"}}):
            schema = {"type": "object", **schema}
            with self.subTest(schema=schema):
                answer = self.walks(schema, walks=300, steps=60)
                self.assertNotIn("error", answer)
                self.assertGreater(self.expect_valid(schema, answer), 100)

    def test_no_object_has_a_name_in_two_spellings(self) -> None:
        twice = [f'{{"{a}": 1, "{b}": 1}}' for a, b in (
            ("a", "a"), ("a", "\\u0061"), ("\u00e9", "\\u00e9"), ("/", "\\/"), ("\\n", "\\u000a"),
            ("\\u001f", "\\u001F"), ("\U0001f600", "\\ud83d\\ude00"))]
        for words in ({"propertyNames": {"maxLength": 3}}, {"propertyNames": {"minLength": 1}},
                      {"propertyNames": {"pattern": "[^b]"}}, {"patternProperties": {"": True}},
                      {"patternProperties": {r"^[\s\S]$": True}}, {"propertyNames": True}):
            schema = json.dumps({"type": "object", **words})
            said = self.walker.ask("schema", schema, 0, tries=[*twice, '{"a": 1, "\u00e9": 1}'])
            self.assertEqual([count == -1 for count in said["taken"]],
                             [False] * len(twice) + [True], schema)

    def test_literals_are_written_as_they_are(self) -> None:
        for text in ("9223372036854775808", "12345678901234567890", "18446744073709551616",
                     "25000000000000000001", "0.1", "1.50", "1e2", '{"a": [0.30, 1E40]}'):
            for form in ('{"const": %s}', '{"enum": [%s]}', '{"type": ["number", "object"], '
                         '"enum": [%s]}'):
                answer = self.walks(form % text, walks=1, steps=99)
                self.assertEqual(answer["texts"], [text], form)

    def test_null_is_no_keyword(self) -> None:
        """Programs with typed structures write null where a keyword is not set."""
        text = {"type": "string", "maxLength": 3}
        null = dict.fromkeys(("enum", "format", "minLength", "pattern", "items", "anyOf", "$ref",
                              "not", "required", "additionalProperties", "minimum"))
        for schema in (text, {"const": "a"}, {"type": "array", "items": text, "maxItems": 2},
                       {"type": "object", "properties": {"x": text}, "required": ["x"]}):
            with self.subTest(schema=schema):
                self.assertEqual(self.walks({**null, **schema})["texts"],
                                 self.walks(schema)["texts"])
        self.assertEqual(self.walks({"const": None})["texts"][0], "null")

    def test_what_names_nothing_is_open(self) -> None:
        for beside in ({}, {"properties": {}}, {"required": []},
                       {"properties": {}, "required": []}, {"minProperties": 1},
                       {"patternProperties": {}}, {"propertyNames": {}}, {"description": "x"}):
            answer = self.walks({"type": "object", **beside}, walks=60)
            self.assertTrue(any(len(json.loads(text)) > 1 for text in answer["texts"]), beside)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
