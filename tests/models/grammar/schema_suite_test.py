"""Grammars of schemas against JSON Schema's official tests, which the source package of jsonschema
holds: a grammar writes the valid values and no invalid one. Skipped, with a message, without that
package. `python3 schema_suite_test.py GRAMMAR_WALKER`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from walker import Walker

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
PACKAGE = "jsonschema==4.26.0"
TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
# Valid values that a grammar need not write (server/README.md and string_format.cc say so), by the
# file and a part of the test's description; "": all of the file.
NOT_WRITTEN = (
    # Properties and items that the schema does not name; values of other types where `properties`
    # speaks of objects.
    ("additionalProperties", "additional properties are allowed"), ("anyOf", "both anyOf valid"),
    ("not", "property absent"), ("prefixItems", "additional items"), ("uniqueItems", "extended"),
    ("prefixItems", "only the first item"), ("properties", "doesn't invalidate other"),
    ("ref", "match"), ("ref", "valid under the URN"), ("vocabulary", "no validation"),
    ("unevaluated", "with nested unevaluated"), ("unevaluated", "in case if"),
    ("unevaluatedProperties", "when two match"), ("unevaluatedItems", "with additional items"),
    # Other spellings of the number of const or enum, or of an integer; numbers of over 16 digits.
    ("const", "float"), ("const", "integer -2"), ("enum", "is valid"), ("type", "float"),
    ("optional/bignum", ""),
    # `\\s` has the spaces of ASCII.
    ("optional/ecmascript-regex", "matches"),
    # Formats are asserted; some of their texts are left out.
    ("format", "is only an annotation"), ("optional/format/", "leap"), ("optional/format/", "case"),
    ("optional/format/email", "quoted string"), ("optional/format/email", "literal after the @"),
    ("optional/format/hostname", ""), ("optional/format/ipv6", "mixed"),
    ("optional/format/ipv6", "a long valid ipv6"), ("optional/format/uri", "a valid URL"),
)
# Values that are written although they are invalid: labels of more than 63 letters, which masks of
# 100,000 tokens cannot count in time (string_format.cc).
WRITTEN = (("optional/format/hostname", "component too long"),
           ("optional/format/hostname", "exceeds maximum label length"))


class Literal(str):
    """A number as it is spelled."""


def tests() -> dict[str, Any]:
    """The groups of tests by the name of their file."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
             "--retries", "1", "--timeout", "10", "--no-deps", "--no-binary", ":all:", "-d",
             folder, PACKAGE], capture_output=True, text=True, check=False)
        found = list(Path(folder).glob("*.tar.gz"))
        if not found:
            print(f"SKIPPED: pip cannot fetch {PACKAGE}: {done.stderr.strip()[-200:]}")
            sys.exit(SKIPPED)
        out = {}
        with tarfile.open(found[0]) as archive:
            for member in archive:
                path = member.name.partition("/json/tests/draft2020-12/")[2]
                file = archive.extractfile(member) if path.endswith(".json") else None
                if file is not None:
                    out[path[:-5]] = json.loads(file.read(), parse_int=Literal, parse_float=Literal)
        return out


def spellings(value: Any) -> Iterator[str]:
    """The texts of a value on one line; objects have all orders of their members."""
    if isinstance(value, Literal):
        yield value
    elif isinstance(value, dict):
        for members in itertools.permutations(value.items()):
            for texts in itertools.product(*(spellings(one) for _, one in members)):
                yield "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {text}"
                                      for (name, _), text in zip(members, texts)) + "}"
    elif isinstance(value, list):
        for texts in itertools.product(*map(spellings, value)):
            yield "[" + ", ".join(texts) + "]"
    else:
        text = json.dumps(value, ensure_ascii=False)
        yield text if text.isascii() or text.encode(errors="ignore") else json.dumps(value)


class SuiteTest(unittest.TestCase):
    def test_grammars_write_the_valid_values_alone(self) -> None:
        walker = Walker(PROGRAM, [bytes([byte]) for byte in range(1, 256)])
        self.addCleanup(walker.close)
        checked, left_out = 0, set()
        for file, groups in TESTS.items():
            for group, test in ((group, test) for group in groups for test in group["tests"]):
                kind = TYPES.get(type(test["data"]), "number")
                # With its type beside it the schema means the same for this value.
                schema: dict[str, Any] = {"allOf": [group["schema"], {"type": kind}]}
                if isinstance(group["schema"], dict):
                    schema = {"type": kind, **group["schema"]}
                said = walker.ask("schema", next(spellings(schema)), 0,
                                  tries=list(itertools.islice(spellings(test["data"]), 200)))
                if "error" in said or said["relaxed"]:
                    continue
                checked += 1
                excuse = [row for row in NOT_WRITTEN if test["valid"] and file.startswith(row[0])
                          and row[1] in test["description"]]
                is_written = -1 in said["taken"]
                too_long = any(file == row[0] and row[1] in test["description"] for row in WRITTEN)
                if excuse and not is_written:
                    left_out.update(excuse)
                    continue
                with self.subTest(file, of=group["description"], test=test["description"]):
                    self.assertEqual(is_written, test["valid"] or too_long, schema)
        self.assertEqual(set(NOT_WRITTEN) - left_out, set())
        self.assertGreater(checked, 1000)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    TESTS = tests()
    unittest.main()
