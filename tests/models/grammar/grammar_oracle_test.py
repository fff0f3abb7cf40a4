"""Grammars against other programs: random answers for vocabularies of Llama 3, Qwen and
Mistral, validated by jsonschema and Python's json; grammars in GBNF of others. Skipped, and said
so, where a package is missing.

    grammar_oracle_test.py WALKER [--schemas 60]
"""

from __future__ import annotations

import argparse
import ast
import base64
import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import mcp_tools
from make_json_strings import is_valid
from walker import Walker

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
MAX_STEPS = 500_000  # for one token: kMaskSteps of grammar.cc


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        print(f"SKIPPED: {sys.executable} lacks {name}, which ./run test all installs")
        sys.exit(SKIPPED)
    return Path(next(iter(spec.submodule_search_locations)))


def tiktoken(path: Path) -> list[bytes]:
    ranks = dict(line.split() for line in path.read_bytes().splitlines() if line.strip())
    by_id = {int(rank): base64.b64decode(token) for token, rank in ranks.items()}
    return [by_id.get(i, b"") for i in range(max(by_id) + 1)]


def vocabularies() -> dict[str, list[bytes]]:
    tekken = json.loads((package("mistral_common") / "data" / "tekken_240911.json").read_bytes())
    return {"llama3": tiktoken(package("llama_models") / "llama3" / "tokenizer.model"),
            "qwen": tiktoken(package("dashscope") / "resources" / "qwen.tiktoken"),
            "tekken": [base64.b64decode(row["token_bytes"]) for row in tekken["vocab"][:130072]],
            "bytes": [bytes([byte]) for byte in range(1, 256)]}


# Texts of each format as people have them.
TEXTS = {
    "email": ["john.doe@my-example.com", "a+b@sub-domain.some-host.co.uk"],
    "hostname": ["raw.githubusercontent.com", "my-very-long-hyphenated-name.example.com"],
    "uri": ["https://example.com/a/b?c=d#e", "http://localhost:8080/x%20y", "mailto:a@b.org"],
    "uri-reference": ["/a/b?c=d", "https://raw.githubusercontent.com/a/b/main/README.md"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"], "date": ["2026-11-30"],
    "date-time": ["2026-11-30T23:59:59.123Z"], "time": ["23:59:59+02:00"],
    "duration": ["P1DT2H3M"], "ipv4": ["192.168.100.1"], "ipv6": ["2001:db8::ff00:42:8329"]}


# Texts of patterns as people write them.
PATTERNS = {
    r"^\w+\s+\w+$": ["hello world"], r"^[a-z]+( +[a-z]+)*$": ["a b  c", "word"],
    r"^[a-z]+(-+[a-z]+)*$": ["a-long--slug"], r"^\d{3,}-\d+$": ["555-1234"],
    r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$": ["john.doe@example.com"]}


def check_texts(walker: Walker) -> list[str]:
    """The formats and patterns whose texts the grammar refuses, or spends too much for a token."""
    failed = []
    for word, cases in (("format", TEXTS), ("pattern", PATTERNS)):
        for name, texts in cases.items():
            said = walker.ask("schema", json.dumps({"type": "string", word: name}), walks=0,
                              tries=[json.dumps(text) for text in texts])
            if said.get("taken") != [-1] * len(texts):
                failed.append(f"{word} {name}: {said.get('error', said.get('taken'))}")
    return failed


def random_schema(chance: random.Random) -> dict[str, Any]:
    """A schema of a string or a number, or of an array of them."""
    kind = chance.randrange(6)
    if kind == 0:
        return {"type": chance.choice(["integer", "number"])}
    if kind == 1:
        return {"type": "array", "items": random_schema(chance), "maxItems": 3}
    if kind == 2:
        patterns = ["^[a-z]{1,4}$", r"^\S{1,30}$", "^.{0,40}$", '^[^"]+$', r"^\w+\s\w+$", r"^\\d$",
                    "^[\u00e0-\u00fc]{2,}$", r"^[\s\S]{3,9}$", r"^(\n|\t|\")+$", "^(ab|[c-e])*$"]
        return {"type": "string", "pattern": chance.choice(patterns)}
    least = chance.choice([0, 0, 1, 3, 15, 16, 17, 40])
    most = least + chance.choice([0, 1, 5, 16, 17, 33, 130, 400])
    words = {"minLength": least, "maxLength": most}
    return {"type": "string", **{w: v for w, v in words.items() if chance.random() < 0.7}}


def check_schema(walker: Walker, schema: dict[str, Any], walks: int) -> tuple[str, dict[str, Any]]:
    """The problems that were found, and the walker's answer."""
    said = walker.ask("schema", json.dumps(schema), walks)
    if "error" in said:
        return f"refused: {said['error']}", said
    if said["stopped"]:
        return f"stopped: {said['stopped']}", said
    for text in said["texts"]:
        if not is_valid(schema, text.encode("latin-1")):
            return f"gave {text!r}", said
    return "", said


def check_grammar_files(walker: Walker) -> list[str]:
    """Grammars that the package gbnf is tested with, llama.cpp's own among them."""
    text = (package("gbnf") / "rules_builder" / "rules_builder_test.py").read_text(encoding="utf-8")
    grammars = {node.value for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                and "::=" in node.value}
    malformed = {'root ::= "f"{3,2}', 'root ::= "'}
    failed = [f"only {len(grammars)} grammars found"] if len(grammars) < 30 else []
    for grammar in sorted(grammars):
        said = walker.ask("grammar", grammar, walks=3)
        if ("error" in said) != (grammar in malformed):
            failed.append(f"{grammar[:60]!r}: {said.get('error', 'is taken')}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("walker")
    parser.add_argument("--schemas", type=int, default=60, help="random ones, of each vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    package("jsonschema")
    failed = []
    for name, tokens in vocabularies().items():
        walker = Walker(options.walker, tokens)
        for server, tools in mcp_tools.SERVERS.items():
            schema = mcp_tools.call_schema(tools)
            wrong, said = check_schema(walker, schema, walks=10)
            if said.get("worst_steps", 0) > MAX_STEPS or wrong:
                failed.append(f"{name}, {server}: {wrong} {said.get('worst_steps')}")
            print(f"{name}: {server}, {len(tools)} tools, {len(json.dumps(schema))} bytes: "
                  f"{said.get('seconds', 0):.2f} s, {said.get('bytes', 0)} bytes compiled, at "
                  f"most {said.get('worst_steps', 0)} steps a token, "
                  f"{len(said.get('texts', []))} answers ended", flush=True)
        failed += [f"{name}: {problem}" for problem in check_texts(walker)]
        ended = 0
        for _ in range(options.schemas * (5 if name == "bytes" else 1)):
            schema = random_schema(chance)
            wrong, said = check_schema(walker, schema, walks=20)
            ended += len(said.get("texts", []))
            if wrong:
                failed.append(f"{name}: {json.dumps(schema)} {wrong}")
        print(f"{name}: {ended} answers of random schemas validated", flush=True)
        if name == "bytes":
            failed += check_grammar_files(walker)
        walker.close()
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
