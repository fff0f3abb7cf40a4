"""Seeds of what clients and operators send, and of targets whose input is no text."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

Seeds = Iterator[tuple[str, bytes]]


# ---- protobuf, by hand --------------------------------------------------------------------------

def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(data)) + data


def float32(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def proto_wire_seeds() -> Seeds:
    yield "valid", number(1, 300) + message(2, b"ab" + number(1, 1)) + float32(3, 1.5)
    yield "valid_fixed64", varint(1 << 3 | 1) + bytes(8) + number(1 << 28, 1)
    yield "group", varint(1 << 3 | 3) + number(2, 1) + varint(1 << 3 | 4)
    yield "field_zero", number(0, 1)
    yield "varint_long", b"\x08" + b"\xff" * 10 + b"\x01"
    yield "varint_eleven", b"\x08" + b"\x80" * 10 + b"\x00"
    yield "tag_of_seven_bytes", b"\x88\x80\x80\x80\x80\x80\x00\x01"
    yield "length_of_six_bytes", b"\x12\x80\x80\x80\x80\x80\x00"
    yield "length_huge", b"\x12" + varint(1 << 63)
    yield "length_past_the_end", b"\x12\x05abc"
    yield "length_of_ten_bytes", b"\x12" + b"\x80" * 9 + b"\x01"
    yield "wire_type", b"\x0e\x00"


# ---- sentencepiece ------------------------------------------------------------------------------

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def piece(text: bytes | str, kind: int = NORMAL, score: float = 0) -> bytes:
    return message(1, message(1, text) + float32(2, score) + number(3, kind))


START = piece("<unk>", UNKNOWN) + piece("<s>", CONTROL) + piece("</s>", CONTROL)
LETTERS = (piece("a", score=-3) + piece("b", score=-4) + piece("ab", score=-1)
           + piece("\u2581", score=-2) + piece("\u2581ab", score=-0.5))
BPE = message(2, number(3, 2))


def sentencepiece_seeds() -> Seeds:
    """Whole models behind an odd first byte; then models that the target puts together."""

    def raw(model: bytes, text: str = "ab  abba \u00e9\u2581 <s>x", window: int = 8) -> bytes:
        said = text.encode()
        return bytes((1, window, 2, len(said))) + said + model

    right = START + LETTERS + BPE
    byte_pieces = b"".join(piece(f"<0x{value:02X}>", BYTE) for value in range(256))
    yield "valid_bpe", raw(right)
    yield "valid_unigram", raw(START + LETTERS + message(2, number(3, 1)))
    yield "valid_bytes", raw(right + byte_pieces + message(2, number(35, 1)))
    yield "valid_settings", raw(right + message(3, number(3, 0) + number(4, 0) + number(5, 1)))
    yield "valid_suffix", raw(right + message(2, number(24, 1)) + message(3, number(4, 0)))
    yield "valid_user", raw(right + piece("<sep>", USER) + piece("<se", USER) + piece("x", UNUSED),
                            "a<sep>b<se xab", 3)
    yield "valid_surface", raw(right + message(2, message(44, " ?")))
    yield "valid_word", raw(START + LETTERS + message(2, number(3, 3)))
    yield "valid_char", raw(START + LETTERS + message(2, number(3, 4)))
    yield "not_a_message", raw(b"\xff" * 20)
    yield "piece_empty", raw(right + piece(""))
    yield "piece_twice", raw(right + piece("a"))
    yield "piece_nul", raw(right + piece(b"a\0b"))
    yield "piece_bad_utf8", raw(right + piece(b"\xc3("))
    yield "piece_long", raw(right + piece("x" * 4097))
    yield "piece_score_nan", raw(right + piece("z", score=float("nan")))
    yield "piece_score_huge", raw(right + piece("z", score=3e38) + piece("zz", score=-3e38))
    yield "unknown_missing", raw(LETTERS + BPE)
    yield "unknown_twice", raw(right + piece("<unk2>", UNKNOWN))
    yield "unknown_only", raw(piece("<unk>", UNKNOWN))
    yield "bytes_few", raw(right + piece("<0x00>", BYTE) + message(2, number(35, 1)))
    yield "bytes_unasked", raw(right + byte_pieces)
    yield "byte_wrong", raw(right + piece("<0xG0>", BYTE))
    yield "surface_bad_utf8", raw(right + message(2, message(44, b"\xff")))
    yield "denormalizer", raw(right + message(5, message(2, b"x")))
    yield "charsmap_short", raw(right + message(3, message(2, b"abc")))
    yield "type_unknown", raw(right + message(2, number(3, 9)))
    yield "composed", bytes(range(0, 250, 2))
    yield "composed_bytes", bytes((0, 30, 1, 9)) + b"a ab\xe2\x96\x81 " + bytes(range(1, 200))


def charsmap_seeds() -> Seeds:
    kept, leaf = 1 << 31, 1 << 8

    def packed(units: dict[int, int], texts: bytes, blocks: int = 2, text: bytes = b"aab") -> bytes:
        values = [units.get(i, kept) for i in range(256 * blocks)]
        return (bytes((1, len(text))) + text + struct.pack("<I", 1024 * blocks)
                + struct.pack(f"<{len(values)}I", *values) + texts)

    a = 256 ^ ord("a")
    valid = {0: 256 << 10, a: (a ^ 0) << 10 | leaf | ord("a"), 256: kept}
    yield "valid", packed({0: 256 << 10, a: (a ^ 512) << 10 | leaf | ord("a"), 512: kept | 0},
                          b"x\0", 3)
    yield "cycle", packed(valid, b"x\0")
    yield "root_outside", packed({0: 4000 << 10}, b"x\0")
    yield "state_outside", packed({0: 256 << 10, a: (1 << 20) << 10 | ord("a")}, b"x\0")
    yield "unterminated", packed(valid, b"x")
    yield "replacement_outside", packed(
        {0: 256 << 10, a: (a ^ 512) << 10 | leaf | ord("a"), 512: kept | 77}, b"x\0", 3)
    yield "replacement_long", packed(valid, b"x" * 2000 + b"\0")
    yield "size_odd", bytes((1, 0)) + struct.pack("<I", 1000) + bytes(1002)
    yield "size_zero", bytes((1, 0)) + bytes(8)
    yield "size_past_the_end", bytes((1, 0)) + struct.pack("<I", 1024) + bytes(100)
    yield "composed", bytes((0, 3)) + b"abc" + bytes((1, 1, 0, 1, 20)) + bytes(range(120))
    yield "composed_deep", bytes((0, 5)) + b"aaaaa" + bytes((3, 1, 0, 0, 63)) + bytes(
        (0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 2, 1, 1, 0, 2, 0) * 12)


# ---- requests -----------------------------------------------------------------------------------

def generate_request_seeds() -> Seeds:
    """First byte: 1 bytes as they come, 2 a ScoreRequest, 4 without a tokenizer, 8 a stream."""
    sampling = message(5, float32(1, 0.5) + float32(2, 0.9) + number(3, 5) + number(6, 7)
                       + number(7, 2) + message(11, number(1, 97) + float32(2, 1)) + number(12, 98))
    stopping = message(6, number(1, 10) + number(2, 1) + message(3, "stop") + number(4, 99))
    output = message(7, number(1, 1) + number(2, 1) + number(3, 2) + number(6, 1) + number(8, 4))
    text = message(3, "some text")
    yield "valid", b"\x01" + text + sampling + stopping + output
    yield "valid_stream", b"\x09" + message(1, "id-1") + text + message(7, number(11, 1))
    yield "valid_ids", b"\x05" + message(4, message(1, bytes((1, 2, 3)))) + number(13, 2)
    yield "valid_acp", b"\x01" + text + message(11, number(1, 1) + float32(2, -12.0))
    yield "valid_score", b"\x03" + text + number(5, 3) + number(6, 4) + number(14, 1)
    yield "reserved", b"\x01" + text + message(14, "lora") + message(5, message(21, ".*"))
    yield "id_outside", b"\x01" + message(4, message(1, varint(259)))
    yield "stop_empty", b"\x01" + text + message(6, message(3, ""))
    yield "stop_many", b"\x01" + text + message(6, message(3, "x") * 17)
    yield "nan", b"\x01" + text + message(5, float32(1, float("nan")))
    yield "empty_text", b"\x01" + message(3, "")
    yield "long_text", b"\x01" + message(3, "word " * 40) + number(13, 8)
    yield "text_too_long", b"\x01" + message(3, "x" * 5000)
    yield "text_nul", b"\x01" + message(3, "a\0b")
    yield "model_other", b"\x01" + message(2, "other") + text
    yield "timeout_zero", b"\x01" + text + number(10, 0)
    yield "priority", b"\x01" + text + number(9, 3)
    for first in range(0, 16, 2):
        yield f"composed_{first}", bytes((first, 6)) + bytes(
            (i * 37 + first) % 251 for i in range(160))


def vllm_request_seeds() -> Seeds:
    """First byte: 1 bytes as they come; 0, 2 or 4 more: which tokenizer."""
    params = message(4, float32(1, 0.5) + float32(2, 0.9) + number(3, 5) + number(8, 10)
                     + message(10, "stop") + number(11, 97) + number(12, 1) + number(22, 1)
                     + number(24, 7) + message(26, number(1, 97) + float32(2, 1.5)))
    text = message(3, "some text")
    ids = message(2, message(2, bytes((97, 98, 99))))
    for world in (1, 3, 5):
        yield f"valid_{world}", bytes((world,)) + message(1, "id") + text + params + number(5, 1)
        yield f"valid_ids_{world}", bytes((world,)) + ids + message(4, number(8, 3))
        yield f"composed_{world}", bytes((world - 1, 7)) + bytes(
            (i * 41) % 253 for i in range(150))
    yield "prefix_there", b"\x01" + message(2, message(2, varint(258) + b"\x61"))
    yield "regex", b"\x01" + text + message(4, message(17, ".*"))
    yield "prompt_logprobs", b"\x01" + text + message(4, number(23, 1))
    yield "bias_negative", b"\x01" + text + message(4, message(26, number(1, -1) + float32(2, 1)))
    yield "truncate_negative", b"\x01" + text + message(4, number(27, -5))
    yield "id_outside", b"\x03" + message(2, message(2, varint(259)))
    yield "half_characters", b"\x03" + message(2, message(2, varint(0xC3) + varint(0x28)))


def completion_request_seeds() -> Seeds:
    right = {"model": "model", "prompt": "some text", "max_tokens": 10, "temperature": 0.5,
             "top_p": 0.9, "n": 2, "best_of": 2, "stop": ["x", "yy"], "seed": -7, "logprobs": 2,
             "logit_bias": {"97": 1.5}, "stream": True, "stream_options": {"include_usage": True},
             "echo": True, "presence_penalty": 0.1, "frequency_penalty": -2, "top_k": -1,
             "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 1, "stop_token_ids": [98],
             "ignore_eos": True, "skip_special_tokens": False, "add_special_tokens": False,
             "truncate_prompt_tokens": 4, "allowed_token_ids": [97, 98], "user": "u",
             "include_stop_str_in_output": True, "response_format": {"type": "text"}, "suffix": ""}
    yield "valid", json.dumps(right).encode()
    for name, prompt in (("texts", ["a", "b c"]), ("ids", [97, 98]),
                         ("id_lists", [[97], [98, 99]])):
        yield f"valid_{name}", json.dumps({"prompt": prompt}).encode()
    yield "valid_score", json.dumps(
        {"prompt": [97, 258, 98], "max_tokens": 0, "echo": True, "logprobs": 1}).encode()
    yield "key_twice", b'{"prompt": "a", "prompt": "b"}'
    yield "not_object", b'["prompt"]'
    yield "bad_utf8", b'{"prompt": "\xff"}'
    bad = {"prompt": ("", [], [""], [[]], [1, "a"], ["a", 1], [[1], "a"], {}, None, [-1], [1e9],
                      [259], ["x"] * 129, "x" * 300, "a\0b", [4294967296]),
           "model": ("other", 1, ""), "max_tokens": (0, -1, 1 << 40, 1.0), "n": (0, 17, 1.5),
           "best_of": (3, 0), "temperature": (-1, 1e300, "1", 101), "top_p": (0, 2), "top_k": (-2,),
           "seed": (1 << 63, 0.5), "stop": ("", ["a"] * 17, [1], {}, "x" * 257),
           "logit_bias": ([], {"x": 1}, {"1": "2"}, {"99999999999": 1}, {"1": 1e39}, {"259": 1}),
           "logprobs": (-1, 21, True), "stream_options": ([], {"include_usage": 1}),
           "stream": (1, False), "suffix": ("x", 1),
           "response_format": ({"type": "json_object"}, 1),
           "priority": (1, -(1 << 31)), "acp_windows": (True, 1),
           "stop_token_ids": ([-1], ["1"]),
           "truncate_prompt_tokens": (0, 100), "min_tokens": (11,)}
    for key, values in bad.items():
        for index, value in enumerate(values):
            request = dict({"prompt": "some text", "stream": True}, **{key: value})
            yield f"{key}_{index}", json.dumps(request).encode()


def http_parser_seeds() -> Seeds:
    """Odd first byte: bytes as they come, in steps; else a request that the target writes."""
    head = b"POST /v1/completions?x=%41 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"

    def raw(data: bytes) -> bytes:
        return bytes((1, 2, 6, 0, 40, 1, 0, 0)) + data

    def stretched(data: bytes, place: int) -> bytes:
        return bytes((1, 0, 63, 0, 160, min(place, 255), max(0, place - 255))) + data

    yield "valid", raw(head + b"Content-Length: 4\r\n\r\nbody" + head
                       + b"Content-Length: 0\r\n\r\n")
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    yield "valid_chunks", raw(chunked + b"4\r\nbody\r\n3;ext=1\r\nabc\r\n0\r\n\r\n")
    yield "valid_trailer", raw(chunked + b"1\r\nx\r\n0\r\nX-T: 1\r\n\r\n")
    yield "valid_old", raw(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    yield "valid_absolute", raw(b"GET http://h/health HTTP/1.1\r\nHost: h\r\n\r\n")
    yield "host_missing", raw(b"GET / HTTP/1.1\r\n\r\n")
    yield "host_twice", raw(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    yield "length_twice", raw(head + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody!")
    yield "length_and_chunks", raw(
        head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    for name, length in (("negative", b"-1"), ("huge", b"99999999999999999999"), ("hex", b"0x4"),
                         ("plus", b"+4"), ("too_long", b"513"), ("list", b"4, 4"), ("empty", b"")):
        yield f"length_{name}", raw(head + b"Content-Length: " + length + b"\r\n\r\nbody")
    for name, size in (("huge", b"ffffffffffffffffff"), ("negative", b"-1"), ("empty", b""),
                       ("too_long", b"201"), ("not_hex", b"xyz")):
        yield f"chunk_{name}", raw(chunked + size + b"\r\nbody\r\n0\r\n\r\n")
    yield "chunk_without_end", raw(chunked + b"4\r\nbodyX\r\n0\r\n\r\n")
    yield "encoding_unknown", raw(head + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
    yield "encoding_space", raw(head + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n")
    yield "folded", raw(head + b"X-A: 1\r\n 2\r\n\r\n")
    yield "line_feeds", raw(b"GET / HTTP/1.1\nHost: a\n\n")
    yield "nul", raw(b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n")
    yield "head_long", stretched(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\n\r\n", 30)
    yield "target_long", stretched(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 4)
    with_extension = chunked + b"1;a=b\r\nx\r\n0\r\nX-T: 1\r\n\r\n"
    yield "extension_long", stretched(with_extension, with_extension.index(b"b\r\nx"))
    yield "trailer_long", stretched(with_extension, with_extension.index(b"1\r\n\r\n"))
    yield "chunk_zeros", stretched(chunked + b"04\r\nbody\r\n0\r\n\r\n", len(chunked))
    yield "version", raw(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n")
    yield "tls", raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    yield "http2", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    yield "empty_lines", raw(b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
    yield "written", (b"\x00\x00\x01\x05hello\x03q=1\x02\x02ab\x03val\x01\x41\x04\x03\x07\x09"
                      + b"the body of it" * 9)
    yield "written_chunks", bytes((0, 1, 0, 4)) + b"path" + bytes(range(60)) + b"b" * 300


def server_flags_seeds() -> Seeds:
    for name, lines in {
            "valid": ["--model", "/m", "--grpc-port=0", "--http-port", "80", "--no-enforce-eager"],
            "valid_many": ["--model=/m", "--acp=paper", "--log-tolerance=-12", "--max-num-seqs",
                           "8", "--scheduling-policy=priority", "--min-priority=-5",
                           "--kv-cache-mb=64", "--trace=t.json"],
            "valid_remote": ["--model=/m", "--host=0.0.0.0", "--allow-insecure-remote",
                             "--admin-address=127.0.0.1:7", "--metrics-port=0"],
            "valid_tls": ["--model=/m", "--ssl-certfile=c", "--ssl-keyfile=k", "--ssl-ca-certs=a",
                          "--ssl-cert-reqs=optional", "--api-key-file=t", "--admin-key-file=u"],
            "remote": ["--model=/m", "--host=0.0.0.0"], "port": ["--model=/m", "--grpc-port=65536"],
            "services": ["--model=/m", "--grpc-services=inference, info"],
            "services_none": ["--model=/m", "--grpc-services=,"], "no_model": ["--grpc-port=1"],
            "nearest": ["--modle=/m"], "value_missing": ["--model"],
            "rest": ["--model=/m", "--", "x"],
            "number": ["--model=/m", "--step-timeout=nan"], "dash": ["-x"],
            "admin_bad": ["--model=/m", "--admin-address=7"],
            "main": ["--model=/m", "--admin-address", "main", "--api-key-file=t"],
            "name": ["--model=/m", "--served-model-name=\x01"],
            "length": ["--model=/m", "--max-model-len=1"],
            "bool": ["--model=/m", "--enforce-eager=maybe"]}.items():
        yield name, "\n".join(lines).encode()


def token_set_seeds() -> Seeds:
    yield "valid", b"# tokens\n\nabcdefgh\n  ijklmnop-qrst  \r\nabcdefgh\n"
    yield "short", b"abcdefgh\nabc\n"
    yield "long", b"a" * 1025
    yield "longest", b"a" * 1024
    yield "space_inside", b"abcd efgh\n"
    yield "control", b"abcdefgh\x01\n"
    yield "not_ascii", "abcdefgh\u00e9\n".encode()
    yield "nul", b"abcdefgh\0ijklmnop\n"
    yield "nothing", b"# nothing\n\n"


def trace_context_seeds() -> Seeds:
    right = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    yield "valid", right
    yield "valid_later_version", b"01" + right[2:] + b"-more"
    yield "version_ff", b"ff" + right[2:]
    yield "longer", right + b"-x"
    yield "later_without_dash", b"01" + right[2:] + b"x"
    yield "zero_trace", b"00-" + b"0" * 32 + right[35:]
    yield "zero_parent", right[:36] + b"0" * 16 + right[52:]
    yield "upper_case", right.upper()
    yield "short", right[:-1]


# ---- text ---------------------------------------------------------------------------------------

def text_seeds(target: str) -> Seeds:
    if target == "stop_matcher":
        yield "overlapping", b"\x04\x02ab\x03abc\x02bc\x01c" + b"aabcababcbc"
        yield "repeated", b"\x03\x02aa\x04aaaa\x02aa" + b"a" * 12
        yield "zeros", b"\x02\x02\0\0\x03\0\0\1" + bytes(9) + b"\1"
    elif target == "text_assembler":
        tokens = b"\x00\x03\x00\x01\xc3\x00\x01\xa9\x00\x02ab\x00\x01b\x00\x02\x02ab\x03bab"
        yield "bytes", tokens + bytes((0, 1, 2, 3, 2, 0, 2, 1))
        tokens = b"\x01\x02\x01\x03 ab\x02\x02 c\x00\x01\xe2\x01\x01\x03b c"
        yield "whole", tokens + bytes((0, 1, 2, 0, 2))
    elif target == "bpe":
        rules = bytes((2, 6, 0, 1, 3, 2, 3, 3, 1, 0, 4, 0, 5, 4, 0, 9, 3))
        yield "trained", rules + b"abcabbcaab" * 3
        rules = bytes((1, 8, 0, 1, 2, 0, 2, 2, 1, 2, 3, 3, 4, 1, 1, 5, 0, 6, 1, 20, 30))
        yield "reversed", rules + b"ab"
        yield "period", bytes((0, 3, 0, 0, 1, 1, 2, 1, 0, 7, 39)) + b"a" * 100
    elif target == "utf8":
        yield "valid", "\x02a\u00e9\u65e5\U0001f600 \\u00e9\\ud83d\\ude00\\n\\\\".encode()
        yield "overlong", b"\x01\xc0\x80\xe0\x80\x80\xf0\x80\x80\x80\xc1\xbf"
        yield "surrogates", b"\x03\xed\xa0\x80\xed\xbf\xbf\\ud800\\udc00\\ud800x\\u12"
        yield "incomplete", b"\x00\xe2\x96\xf0\x9f\x98\xc3"
        yield "beyond", b"\x05\xf4\x90\x80\x80\xf5\xff\xfe\x7f"


REQUEST_SEEDS: dict[str, Seeds] = {
    "proto_wire": proto_wire_seeds(), "sentencepiece": sentencepiece_seeds(),
    "charsmap": charsmap_seeds(), "generate_request": generate_request_seeds(),
    "vllm_request": vllm_request_seeds(), "completion_request": completion_request_seeds(),
    "http_parser": http_parser_seeds(), "server_flags": server_flags_seeds(),
    "token_set": token_set_seeds(), "trace_context": trace_context_seeds(),
    **{name: text_seeds(name) for name in ("stop_matcher", "text_assembler", "bpe", "utf8")}}
