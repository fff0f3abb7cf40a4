"""Seeds of what clients send over HTTP, of what operators write, and of the targets of text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

Seeds = Iterator[tuple[str, bytes]]


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
    yield "score_twice", json.dumps(
        {"prompt": "a", "max_tokens": 0, "echo": True, "n": 2}).encode()
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
           "acp": ("off", "paper", "on", 1), "log_tolerance": (-20, 0, "x"),
           "max_new_tokens": (1,), "maxTokens": (1,), "guided_json": ({}, {"type": "object"}),
           "stop_token_ids": ([-1], ["1"]),
           "truncate_prompt_tokens": (0, 100), "min_tokens": (11,),
           "allowed_token_ids": ([259], {}), "echo": (1,), "user": (1,)}
    for key, values in bad.items():
        for index, value in enumerate(values):
            request = dict({"prompt": "some text", "stream": True}, **{key: value})
            yield f"{key}_{index}", json.dumps(request).encode()
    score = {"prompt": "some text", "max_tokens": 0, "echo": True}
    together = {"score_without_echo": {"prompt": "a", "max_tokens": 0},
                "valid_score_text": dict(score, logprobs=0, truncate_prompt_tokens=2),
                "valid_score_ids": dict(score, prompt=[97, 258], skip_special_tokens=False),
                "valid_score_special": dict(score, prompt=[97, 258], skip_special_tokens=True,
                                            priority=1, add_special_tokens=False),
                "score_too_long": dict(score, prompt="x" * 70),
                "choices_many": {"prompt": ["a"] * 20, "n": 16},
                "windows_without_stream": {"prompt": "a", "acp_windows": True},
                "valid_windows": {"prompt": "a", "acp_windows": True, "stream": True},
                "options_without_stream": {"prompt": "a", "stream_options": {}},
                "valid_options_null": {"prompt": "a", "stream": True,
                                       "stream_options": {"include_usage": None}},
                "valid_options_empty": {"prompt": "a", "stream": True, "stream_options": {}},
                "valid_nulls": {"prompt": "a", "stop": None, "n": None, "logit_bias": None},
                "bias_many": {"prompt": "a", "logit_bias": {str(i): 1 for i in range(1025)}},
                "valid_top_k": {"prompt": "a", "top_k": 5},
                "fields_many": dict({"prompt": "a"}, **{f"field{i}": 1 for i in range(128)}),
                "prompt_missing": {"model": "model"}}
    for name, request in together.items():
        yield name, json.dumps(request).encode()


def completion_bodies() -> Seeds:
    """The first byte: whether the model has a tokenizer."""
    for name, body in completion_request_seeds():
        yield name, b"\0" + body
    yield "no_tokenizer", b'\1{"prompt": "some text"}'
    yield "no_tokenizer_ids", b'\1{"prompt": [97, 98]}'
    yield "no_tokenizer_score", b'\1{"prompt": [97, 98], "max_tokens": 0, "echo": true}'


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
    yield "old_chunks", raw(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    yield "length_same_twice", raw(head + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody")
    for name, target in (("codes", b"/%41%4g%g1%4"), ("code_cut", b"/a%"), ("star", b"*"),
                         ("absolute_alone", b"http://h")):
        yield f"target_{name}", raw(b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
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
            "bool": ["--model=/m", "--enforce-eager=maybe"],
            "valid_bools": ["--model=/m", "--enforce-eager=1", "--allow-nonfinite=off",
                            "--allow-insecure-remote=yes", "--no-allow-insecure-remote"],
            "valid_bools_again": ["--model=/m", "--enforce-eager=on", "--allow-nonfinite=0",
                                  "--allow-insecure-remote=no", "--help", "--version"],
            "negated_number": ["--model=/m", "--no-grpc-port"], "negated_unknown": ["--no-such"],
            "words": ["serve", "-", "--model=/m"], "valid_check": ["--check-model", "/m"],
            "environment": ["FOX_MODEL=/m", "FOX_HTTP_PORT=tcp://10.0.0.1:80", "FOX_GRPC_PORT=0"],
            "environment_bad": ["--model=/m", "FOX_MAX_NUM_SEQS=many"],
            "number_behind": ["--model=/m", "--grpc-port=8x"],
            "share_behind": ["--model=/m", "--step-timeout=1x"],
            "number_low": ["--model=/m", "--max-num-seqs=0"], "unknown_alone": ["--modle"],
            "service_unknown": ["--model=/m", "--grpc-services=other"],
            "valid_admin_main_open": ["--model=/m", "--admin-address=main"],
            "valid_admin_remote": ["--model=/m", "--ssl-certfile=c", "--ssl-keyfile=k",
                                   "--admin-address=0.0.0.0:7", "--admin-key-file=u"],
            "admin_port_missing": ["--model=/m", "--admin-address=127.0.0.1:"],
            "valid_name_of_here": ["--model=."], "valid_name_above": ["--model=../.."],
            "choice": ["--model=/m", "--device=tpu"], "enum": ["--model=/m", "--acp=some"],
            "tolerance": ["--model=/m", "--log-tolerance=1"],
            "tolerance_bad": ["--model=/m", "--log-tolerance=x"],
            "share": ["--model=/m", "--gpu-memory-utilization=2"],
            "share_low": ["--model=/m", "--gpu-memory-utilization=-1"],
            "priority_alone": ["--model=/m", "--min-priority=-5"]}.items():
        yield name, "\n".join(lines).encode()


def server_security_seeds() -> Seeds:
    """Allowed callers and addresses, and the server's name."""
    for name, lines in {
            "key_alone": ["--model=/m", "--ssl-keyfile=k"],
            "authorities_alone": ["--model=/m", "--ssl-ca-certs=a"],
            "reqs_alone": ["--model=/m", "--ssl-cert-reqs=required"],
            "valid_reqs_none": ["--model=/m", "--ssl-cert-reqs=none"],
            "valid_tls_none": ["--model=/m", "--ssl-certfile=c", "--ssl-keyfile=k",
                               "--ssl-ca-certs=a", "--ssl-cert-reqs=none"],
            "valid_tls_remote": ["--model=/m", "--ssl-certfile=c", "--ssl-keyfile=k",
                                 "--ssl-ca-certs=a", "--host=0.0.0.0",
                                 "--admin-address=0.0.0.0:7"],
            "tls_strangers": ["--model=/m", "--ssl-certfile=c", "--ssl-keyfile=k",
                              "--host=0.0.0.0"],
            "valid_tls_tokens": ["--model=/m", "--ssl-certfile=c", "--ssl-keyfile=k",
                                 "--host=0.0.0.0", "--api-key-file=t"],
            "admin_remote": ["--model=/m", "--admin-address=0.0.0.0:7"],
            "admin_strangers": ["--model=/m", "--ssl-certfile=c", "--ssl-keyfile=k",
                                "--admin-address=0.0.0.0:7"],
            "admin_port": ["--model=/m", "--admin-address=127.0.0.1:65536"],
            "admin_port_negative": ["--model=/m", "--admin-address=127.0.0.1:-1"],
            "admin_port_word": ["--model=/m", "--admin-address=127.0.0.1:x"],
            "valid_admin_main": ["--model=/m", "--admin-address=main", "--api-key-file=t",
                                 "--admin-key-file=u"],
            "valid_admin_ipv6": ["--model=/m", "--admin-address=[::1]:7"],
            "http_remote": ["--model=/m", "--http-port=0", "--http-host=0.0.0.0"],
            "http_strangers": ["--model=/m", "--http-port=0", "--http-host=0.0.0.0",
                               "--allow-insecure-remote"],
            "metrics_remote": ["--model=/m", "--metrics-port=0", "--metrics-host=0.0.0.0"],
            "name_of_root": ["--model=/"], "name_of_dots": ["--model=.."],
            "name_long": ["--model=/m", "--served-model-name=" + "n" * 257],
            "name_delete": ["--model=/m", "--served-model-name=a\x7f"]}.items():
        yield name, "\n".join(lines).encode()
    yield "name_bad_utf8", b"--model=/m\n--served-model-name=\xff"


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
    for name, place, letter in (("version", 1, b"g"), ("trace", 9, b"g"), ("trace_dash", 9, b"-"),
                                ("parent", 40, b"~"), ("flags", 54, b"G"), ("first_dash", 2, b"a"),
                                ("second_dash", 35, b"a"), ("third_dash", 52, b"a")):
        yield f"bad_{name}", right[:place] + letter + right[place + 1:]


# ---- text ---------------------------------------------------------------------------------------

def text_seeds(target: str) -> Seeds:
    if target == "stop_matcher":
        yield "overlapping", b"\x04\x02ab\x03abc\x02bc\x01c" + b"aabcababcbc"
        yield "repeated", b"\x03\x02aa\x04aaaa\x02aa" + b"a" * 12
        yield "zeros", b"\x02\x02\0\0\x03\0\0\1" + bytes(9) + b"\1"
    elif target == "text_assembler":
        tokens = b"\x00\x03\x00\x01\xc3\x00\x01\xa9\x00\x02ab\x00\x01b\x00\x00\x02\x02ab\x03bab"
        ids = bytes((0, 1, 2, 3, 2, 0, 2, 1))
        yield "bytes", tokens + ids
        tokens = b"\x01\x02\x01\x03 ab\x02\x02 c\x00\x01\xe2\x01\x00\x01\x03b c"
        yield "whole", tokens + bytes((0, 1, 2, 0, 2))
        letters = b"\x00\x03\x00\x01\xe2\x00\x01a\x00\x01b\x00\x02ab"  # of bytes
        yield "no_stops", letters + b"\x00\x00\x00" + ids
        yield "stop_begun", letters + b"\x00\x00\x01\x03abx" + ids
        yield "stop_at_the_end", letters + b"\x00\x00\x01\x03\xef\xbf\xbd\x00"
        yield "stop_too_early", letters + b"\x00\x03\x01\x01a\x01\x02\x02\x01\x03"
    elif target == "bpe":
        rules = bytes((2, 6, 0, 1, 3, 2, 3, 3, 1, 0, 4, 0, 5, 4, 0, 9, 3))
        yield "trained", rules + b"abcabbcaab" * 3
        rules = bytes((1, 8, 0, 1, 2, 0, 2, 2, 1, 2, 3, 3, 4, 1, 1, 5, 0, 6, 1, 20, 30))
        yield "reversed", rules + b"ab"
        yield "small_windows", bytes((1, 3, 0, 0, 2, 2, 3, 3, 0, 0, 3)) + b"a" * 60
        yield "period", bytes((0, 3, 0, 0, 1, 1, 2, 1, 0, 7, 39)) + b"a" * 100
    elif target == "utf8":
        yield "valid", "\x02a\u00e9\u65e5\U0001f600 \\u00e9\\ud83d\\ude00\\n\\\\".encode()
        yield "overlong", b"\x01\xc0\x80\xe0\x80\x80\xf0\x80\x80\x80\xc1\xbf"
        yield "surrogates", b"\x03\xed\xa0\x80\xed\xbf\xbf\\ud800\\udc00\\ud800x\\u12"
        yield "incomplete", b"\x00\xe2\x96\xf0\x9f\x98\xc3"
        yield "escapes", b"\x02\\b\\f\\n\\r\\t\\/\\\\\\\"\\u00Ef\\uABCD\\u12g4\\u-123\\x\\U"
        yield "escape_pairs", (b"\x04\\uD83D\\uDE00\\ud83d\\u0041\\ud83d\\ue000\\ud83dx\\ud83d\\n"
                               b"\\udc00\\ue000\\u{12\\u:1")
        for name, end in (("escape", b"\\"), ("unit", b"\\u12"), ("pair", b"\\ud83d\\u12"),
                          ("high", b"\\ud83d"), ("half", b"\\ud83d\\")):
            yield f"cut_{name}", b"\x00ab" + end
        yield "valid_control", b'\x01"\\\b\f\n\r\t\x01\x1f\x7f plain'
        yield "leads", "\x01\U00040000\U0010ffff\ue000\ud7ff\u0800\u00c0".encode()
        yield "beyond", b"\x05\xf4\x90\x80\x80\xf5\xff\xfe\x7f"


REQUEST_SEEDS: dict[str, Seeds] = {
    "completion_request": completion_bodies(),
    "http_parser": http_parser_seeds(),
    "server_flags": itertools.chain(server_flags_seeds(), server_security_seeds()),
    "trace_context": trace_context_seeds(),
    **{name: text_seeds(name) for name in ("stop_matcher", "text_assembler", "bpe", "utf8")}}
