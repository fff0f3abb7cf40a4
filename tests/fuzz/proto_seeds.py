"""Protobuf messages by hand, and the seeds of the targets that read them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

Seeds = Iterator[tuple[str, bytes]]


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
    yield "tag_of_35_bits", b"\xf8\xff\xff\xff\x7f\x00"
    yield "varint_cut", b"\x08\x80"
    yield "varint_of_64_bits", number(1, (1 << 64) - 1)
    yield "length_of_six_bytes", b"\x12\x80\x80\x80\x80\x80\x00"
    yield "length_huge", b"\x12" + varint(1 << 63)
    yield "length_past_the_end", b"\x12\x05abc"
    yield "length_of_ten_bytes", b"\x12" + b"\x80" * 9 + b"\x01"
    yield "wire_type", b"\x0e\x00"


def generate_request_seeds() -> Seeds:
    """First byte: 1 bytes as they come, 2 a ScoreRequest, 4 without a tokenizer, 8 a stream."""
    sampling = message(5, float32(1, 0.5) + float32(2, 0.9) + number(3, 5) + number(6, 7)
                       + number(7, 2) + message(11, number(1, 97) + float32(2, 1)) + number(12, 98))
    stopping = message(6, number(1, 10) + number(2, 1) + message(3, "stop") + number(4, 99))
    output = message(7, number(1, 1) + number(2, 1) + number(3, 2) + number(6, 1) + number(8, 4))
    text = message(3, "some text")
    yield "valid", b"\x01" + text + sampling + stopping + output
    # Found by fuzzing: the mask and the stop token exclude every token.
    yield "min_tokens_without_a_token", b"\x01" + text + sampling + message(
        6, number(1, 10) + number(2, 1) + message(3, "stop") + number(4, 98)) + output
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


def generate_field_seeds() -> Seeds:
    """Each field of a request at the ends of its range and beyond, the others valid."""
    text, ids = message(3, "some text"), message(4, message(1, bytes((97, 98, 99))))
    fields = {
        "field_unknown": text + number(1000, 1), "id_long": text + message(1, "i" * 257),
        "field_other_type": text + message(9, "x"), "id_delete": text + message(1, "a\x7f"),
        "valid_model": text + message(2, "model"),
        "id_space": text + message(1, "a b"), "id_not_ascii": text + message(1, "\u00e9"),
        "prompt_missing": message(1, "id"), "truncate_zero": ids + number(13, 0),
        "valid_truncate": ids + number(13, 2), "valid_truncate_more": ids + number(13, 9),
        "valid_plain": text + number(12, 0), "valid_special": text + number(12, 1),
        "valid_timeout": text + number(10, 5),
        "prompt_fills_context": message(4, message(1, b"a" * 64)),
        "prompt_beyond_context": message(4, message(1, b"a" * 65)),
        "valid_minus_zero": text + message(5, float32(1, -0.0)),
        "n_zero": text + message(5, number(7, 0)), "n_many": text + message(5, number(7, 17)),
        "reserved_sampling": text + message(5, message(13, "x")),
        "sampling_unknown": text + message(5, number(99, 1)),
        "allowed_outside": text + message(5, number(12, 259)),
        "bias_large": text + message(5, message(11, number(1, 97) + float32(2, 101))),
        "bias_outside": text + message(5, message(11, number(1, 259) + float32(2, 1))),
        "penalty_zero": text + message(5, float32(10, 0)),
        "max_tokens_zero": text + message(6, number(1, 0)),
        "min_above_max": text + message(6, number(1, 2) + number(2, 3)),
        "valid_min_alone": text + message(6, number(2, 300)),
        "valid_ignore_eos": text + message(6, number(5, 1) + number(2, 1)),
        "all_stop": text + message(6, number(2, 1) + number(4, 97)) + message(5, number(12, 97)),
        "stop_ids_many": text + message(6, number(4, 97) * 257),
        "stop_id_outside": text + message(6, number(4, 259)),
        "stop_long": text + message(6, message(3, "x" * 257)),
        "stop_nul": text + message(6, message(3, "a\0")),
        "logprobs_negative": text + message(7, number(3, -1)),
        "logprobs_many": text + message(7, number(3, 21)),
        "prompt_logprobs_many": text + message(7, number(4, 21)),
        "logprob_ids_alone": text + message(7, number(5, 97)),
        "logprob_ids_many": text + message(7, number(3, 1) + number(5, 97) * 129),
        "valid_logprob_ids": text + message(7, number(4, 1) + number(5, 97)),
        "logprob_id_outside": text + message(7, number(3, 1) + number(5, 259)),
        "valid_token_ids": text + message(7, number(1, 0) + number(2, 1) + number(6, 1)),
        "interval_zero": text + message(7, number(8, 0)),
        "interval_long": text + message(7, number(8, 1025)),
        "windows": text + message(7, number(11, 1)),
        "valid_echo": text + message(7, number(6, 1)),
        "valid_echo_ids": ids + message(7, number(6, 1) + number(7, 0)),
        "valid_echo_special": ids + message(7, number(6, 1) + number(7, 1)),
        "acp_nan": text + message(11, float32(2, float("nan"))),
        "acp_looser": text + message(11, float32(2, -9)),
        "acp_paper": text + message(11, number(1, 2)),
        "valid_acp_same": text + message(11, number(1, 3)),
        "valid_acp_unspecified": text + message(11, number(1, 0))}
    for name, request in fields.items():
        yield name, b"\x01" + request
    yield "score_negative", b"\x03" + text + number(5, -1)
    yield "score_model_other", b"\x03" + text + message(2, "other")
    yield "score_nothing", b"\x03"
    yield "no_tokenizer_text", b"\x05" + text
    yield "no_tokenizer_stop", b"\x05" + ids + message(6, message(3, "x"))
    yield "no_tokenizer_output", b"\x05" + ids + message(7, number(1, 1))
    yield "no_tokenizer_priority", b"\x05" + ids + number(9, 1)
    yield "acp_off_tolerance", b"\x05" + ids + message(11, float32(2, -12))
    yield "acp_off_certified", b"\x05" + ids + message(11, number(1, 3))
    yield "not_a_message", b"\x01\xff"


PROTO_SEEDS: dict[str, Seeds] = {
    "proto_wire": proto_wire_seeds(),
    "generate_request": itertools.chain(generate_request_seeds(), generate_field_seeds())}
