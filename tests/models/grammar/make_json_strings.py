"""Writes json_strings.json: texts and schemas, and whether the text is valid by jsonschema.

    python3 make_json_strings.py > json_strings.json

A text is a string, or a list of bytes, and how often it is repeated between quotes; 0: it is the
whole text. Half of a surrogate pair is no character (RFC 7493, 2.1), and ill-formed
UTF-8 no text. Left out are texts that a grammar need not allow: numbers of more than 16 digits, and
escapes of letters, of which a pattern has the plain spelling alone.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema

CHARACTERS = ("a", "\u00e9", "\U0001f600", '\\"', "\\\\", "\\n", "\\t", "\\b", "\\f", "\\r",
              "\\u00e9", "\\u2026", "\\ud83d\\ude00", "\\uD83D\\uDE00", "\\u0001")
WRONG = ('"\\ud83d"', '"\\ude00"', '"\\ud83d\\ud83d"', '"\\ud83dx"', '"\\ude00\\ud83d"', '"\x01"',
         '"\n"', '"\\x"', '"\\u12"', '"a', '""a"', '"\\"')
BYTES = (b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe0\x80\x80", b"\xff",
         b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")
LENGTHS: tuple[dict[str, int], ...] = (
    {}, {"maxLength": 0}, {"minLength": 1}, {"maxLength": 1}, {"minLength": 1, "maxLength": 5},
    {"minLength": 30}, {"maxLength": 33}, {"minLength": 20, "maxLength": 20}, {"maxLength": 200},
    {"minLength": 17, "maxLength": 130})
PATTERNS = {
    "^.{1,100}$": ('""', '"a"', '"\\""', '"\\n"', '"\\u00e9\\ud83d\\ude00"', '"\\\\"'),
    r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$": ('"a.b@c.de"', '"a@b"', '"@b.cd"'),
    r"^\S+$": ('"a\\"b"', '"\u00e9"', '"a b"', '"\\n"', '"\u00a0"', '"\\t"'),
    r'^[^"]+$': ('"a\\\\b"', '"a\\"b"', '"\\u0022"', '"a\\nb"'),
    r'^"x"$': ('"\\"x\\""', '"x"'),
    r"^a\tb\\$": ('"a\\tb\\\\"', '"atb\\\\"'),
    r"^[\s\S]{1,3}$": ('"\\n\\n"', '"abc"', '"\\ud83d\\ude00\\u0001"', '""', '"abcd"',
                       '"\\n\\"\\\\"'),
    r"^(?:https?)://[^\s/$.?#].[^\s]*$": ('"http://a.b/c"', '"ftp://x.y"', '"https:// x"'),
    "^[\u00e0-\u00fc-]+$": ('"\u00e9-"', '"a"', '"\u00ff"'),
    r"^\u0041\x42$": ('"AB"', '"Ab"'),
    "^#[0-9A-Fa-f]{6}$": ('"#00ffAA"', '"#12345"', '"#1234567"'),
    r"^[\w\-. ]+$": ('"a-b.c d"', '"/"', '"a_b"'),
    "^/(?:[^/]+/)*[^/]*$": ('"/usr/bin"', '"/"', '"usr"', '"/a\\"/b"'),
    r"^[\]^\-]+$": ('"]^-"', '"a"', '"["'),
    "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$": ('"a"', '"a-b"', '"a-"', '"-a"', '"a' + 61 * "b" + '9"'),
    r"^\d{4}-\d{2}-\d{2}$": ('"2024-01-31"', '"2024-1-31"'),
    "^(a|bc)*$": ('""', '"abca"', '"b"'),
    "^$|^[a-z]+$": ('""', '"ab"', '"$"', '"^a"', '"a1"'),
    "^a|b$": ('"a"', '"axy"', '"b"', '"xb"', '"xa"', '"bx"', '"\\"b"'),
    "(^a$)": ('"a"', '"^a$"', '"ba"'),
    "^(ab|c$)": ('"ab"', '"abx"', '"c"', '"cx"', '"xab"'),
    "(^|,)x(,|$)": ('"x"', '"a,x"', '"x,"', '"a,x,b"', '"ax"', '"xb"', '"a,b"'),
    "^((a|b)$|c)?": ('""', '"a"', '"ax"', '"z"'),
    "a+": ('"xxaayy"', '"x"', '"\\na"', '"a\\u00e9"'),
    "": ('""', '"x\\n"', '"\\u0001"'),
    r"\.pdf$": ('"a.pdf"', '".pdf"', '"a.pdfx"', '"apdf"'),
    r"^https?://": ('"http://"', '"https://x/\\"y"', '"ftp://"', '"xhttp://"'),
    r"^(?:a|(b))(?P<name_1>c){2}$": ('"acc"', '"bcc"', '"ac"', '"accc"'),
    r"^{a}[$^][\b]\x00$": ('"{a}$\\b\\u0000"', '"{a}^\\b\\u0000"', '"a$\\b\\u0000"'),
    '^"*$': ('""', '"\\""', '"\\"\\""', '"a"'),
    r"^\x01{2,3}$": ('"\\u0001"', '"\\u0001\\u0001"', '"\\u0001\\u0001\\u0001"'),
    "^\U0001f600{2}$": ('"\U0001f600\U0001f600"', '"\U0001f600"', '"\\ud83d\\ude00"'),
}
# Patterns beside lengths, with texts.
BOTH: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4}, ("a", "ab", "abcd", "abcde", "a1")),
    ({"pattern": "^[A-Z][a-z]*$", "maxLength": 3}, ("A", "Abc", "Abcd", "abc")),
    ({"pattern": "^(ab|cd)x{0,5}[0-9]$", "minLength": 4}, ("ab1", "abx1", "cdxxxxx1", "abxxxxxx1")),
    ({"pattern": "^[A-Z]{2}$", "minLength": 1, "maxLength": 10}, ("AB", "A", "ABC")),
    ({"pattern": "^(a|bcd)$", "maxLength": 3}, ("a", "bcd", "ab")),
    ({"pattern": r"\S", "minLength": 1}, ("x", " x ", " ", "")),
    ({"pattern": "ab", "minLength": 2}, ("ab", "xaby", "a")),
    ({"pattern": "^.*$", "maxLength": 2}, ("", "\U0001f600\u00e9", "abc", '\\"\\\\')),
    ({"pattern": "^a*$", "maxLength": 0}, ("", "a")),
)
NUMBERS = ("0", "-0", "7", "-12", "01", "1.", ".5", "1.5", "-0.25", "1e5", "1E+5", "1e-300",
           "1e289", "1.25e-7", "+1", "1e", "0x1", "1234567890123456", "NaN", "Infinity", "-")
BOUNDS: tuple[dict[str, int], ...] = ({}, {"minimum": 5}, {"maximum": -5}, {"minimum": -3},
                                      {"minimum": 3, "maximum": 120})
DECIMALS = ("0", "0.5", "0.25", "0.125", "0.12", "0.10", "1", "1.0", "1.000000000001", "-0.5",
            "0.999999999999", "3", "3.25", "-3.25", "-3.2", "-3.30", "-4", "120", "120.5", "119.5",
            "7.5", "99.9", "1234567890123456", "-1234567890123456")
RANGES: tuple[dict[str, float], ...] = (
    {"minimum": 0, "maximum": 1}, {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"minimum": 0.125, "exclusiveMaximum": 0.5}, {"minimum": -3.25}, {"maximum": -3.25},
    {"exclusiveMaximum": 3.25, "minimum": -3.25}, {"exclusiveMinimum": -3.25, "maximum": 120},
    {"minimum": 1, "maximum": 1}, {"minimum": 3, "exclusiveMinimum": 3, "maximum": 1e300})


Text = tuple[str | bytes, int]


def written(text: str | bytes, count: int) -> bytes:
    plain = text if isinstance(text, bytes) else text.encode()
    return b'"' + plain * count + b'"' if count > 0 else plain


def is_valid(schema: dict[str, Any], text: bytes) -> bool:
    """True if the text is JSON that every reader accepts, and valid by the schema."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        value = json.loads(text.decode(), parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return False
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def main() -> None:
    rows: list[tuple[dict[str, Any], list[Text]]] = []
    for lengths in LENGTHS:
        texts: list[Text] = [(text, 0) for text in (*WRONG, '""')]
        texts += [(text, 1) for text in BYTES]
        least, most = lengths.get("minLength", 0), lengths.get("maxLength", 300)
        for i, character in enumerate(CHARACTERS):
            counts = {1, least - 1, least, least + 1 + i, most - 1, most, most + 1}
            texts += [(character, count) for count in sorted(counts) if count > 0]
        texts += [("".join(CHARACTERS), count) for count in (1, 2, 13)]
        rows.append(({"type": "string", **lengths}, texts))
    for pattern, spelled in PATTERNS.items():
        rows.append(({"type": "string", "pattern": pattern}, [(text, 0) for text in spelled]))
    for words, bare in BOTH:
        rows.append(({"type": "string", **words}, [(f'"{text}"', 0) for text in bare]))
    for kind in ("integer", "number"):
        for bounds in BOUNDS if kind == "integer" else BOUNDS[:1]:
            # A grammar writes an integer without a fraction, also where the schema has 1.0.
            spelled = [text for text in NUMBERS if kind == "number" or not set(text) & set(".eE")]
            rows.append(({"type": kind, **bounds},
                         [(text, 0) for text in spelled if kind == "number" or text != "-0"]))
    for bounds in RANGES:  # a number with a bound has no exponent
        rows.append(({"type": "number", **bounds}, [(text, 0) for text in DECIMALS]))
    print("[")
    for i, (schema, texts) in enumerate(rows):
        said = [[list(text) if isinstance(text, bytes) else text, count,
                 is_valid(schema, written(text, count))] for text, count in dict.fromkeys(texts)]
        end = "" if i + 1 == len(rows) else ","
        print(json.dumps([json.dumps(schema), said], separators=(",", ":")) + end)
    print("]")


if __name__ == "__main__":
    main()
