"""Seeds of requests of clients, and of targets whose input is text."""

from __future__ import annotations

from seed_forms import Seeds, encoded, hostile, proto, table


def completion_request_seeds() -> Seeds:
    """The first byte: 1 without a tokenizer, 2 a chat, 4 Anthropic's Messages, 6
    OpenAI's Responses."""
    prompt = {"prompt": "some text"}
    score = dict(prompt, max_tokens=0, echo=True, logprobs=1)
    full = {"model": "model", **prompt, "max_tokens": 10, "temperature": 0.5, "top_p": 0.9, "n": 2,
            "best_of": 2, "stop": ["x", "yy"], "seed": -7, "logprobs": 2, "stream": True,
            "logit_bias": {"97": 1.5}, "stream_options": {"include_usage": True}, "echo": True,
            "presence_penalty": 0.1, "frequency_penalty": -2, "top_k": -1, "min_p": 0.1,
            "repetition_penalty": 1.2, "min_tokens": 1, "stop_token_ids": [98], "ignore_eos": True,
            "skip_special_tokens": False, "add_special_tokens": False, "truncate_prompt_tokens": 4,
            "allowed_token_ids": [97, 98], "user": "u", "include_stop_str_in_output": True,
            "response_format": {"type": "text"}, "suffix": "", "priority": 1, "acp_windows": True,
            "acp": "off"}
    valid = {"valid": full, "valid_texts": {"prompt": ["a", "b c"]},
             "valid_ids": {"prompt": [97, 98]}, "valid_id_lists": {"prompt": [[97], [98, 99]]},
             "valid_score": score,
             "valid_score_ids": dict(score, prompt=[97, 258, 98], skip_special_tokens=False),
             "valid_score_cut": dict(score, logprobs=0, truncate_prompt_tokens=2)}
    for first in (b"\0", b"\1"):
        yield from ((f"{name}_{first[0]}", first + encoded(value)) for name, value in valid.items())
    yield from hostile(
        full, b"\0", prompt=([""], [1, "a"], ["a", 1], [[1], "a"], [259], ["x"] * 129, "x" * 300,
                             [4294967296]),
        n=(17,), best_of=(3,), temperature=(101,), top_p=(2,), top_k=(5, -2), seed=(1 << 63,),
        stop=(["a"] * 17, "x" * 257), logprobs=(21,), min_tokens=(11,), log_tolerance=(-20,),
        logit_bias=({"1": "2"}, {"99999999999": 1}, {"259": 1}), acp=("paper", "on"),
        stream_options=({"include_usage": 1}, {"include_usage": None}), max_new_tokens=(),
        response_format=({"type": "json_object"},), guided_json=({"type": "object"},),
        allowed_token_ids=([259],))
    said = {"role": "user", "content": "hi"}
    chat = {"messages": [said, {"role": "assistant", "content": " a\n"}]}
    yield from table({
        "valid_chat": dict(chat, max_completion_tokens=3, logprobs=True, top_logprobs=2, n=2,
                           stream=True, seed=1, tool_choice="none"),
        "valid_chat_open": dict(chat, continue_final_message=True),
        "valid_chat_parts": {"messages": [dict(said, content=[{"type": "text", "text": "x"}])]}},
        b"\2")
    yield from hostile(
        chat, b"\2", messages=([{}], [dict(said, role="tool")],
                                [dict(said, content=None)], [dict(said, tool_calls=[1])],
                                [dict(said, content=[{"type": "image_url"}])],
                                [dict(said, role="system")] * 2),
        max_completion_tokens=(), top_logprobs=(21,), tools=(), add_generation_prompt=())
    function = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}}}}
    called = {"id": "call_1", "type": "function",
              "function": {"name": "f", "arguments": "{\"a\": 1}"}}
    with_tools = {"tools": [function], "tool_choice": "auto", "parallel_tool_calls": False,
                  "messages": [said, {"role": "assistant", "content": None, "tool_calls": [called]},
                               {"role": "tool", "tool_call_id": "call_1", "content": "2"}, said]}
    yield "valid_tools", b"\2" + encoded(with_tools)
    for name, body in hostile(
            with_tools, b"\2", tool_choice=("required", {"type": "function", "function":
                                                         {"name": "f"}}, {"type": "function"}),
            tools=([function] * 2, [dict(function, type="x")], [{}], [function["function"]])):
        yield f"tools_{name}", body
    for name, body in hostile(called, b"", function=({"name": "f"}, {"arguments": "{"})):
        call = {"role": "assistant", "tool_calls": [called]}
        yield f"call_{name}", b"\2" + encoded(dict(with_tools, messages=[said, call])).replace(
            encoded(called), body)
    yield "no_tokenizer_chat", b"\3" + encoded(chat)
    yield from messages_seeds()
    yield from responses_seeds()


def responses_seeds() -> Seeds:
    """Bodies of OpenAI's Responses."""
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "2"}
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "fox1:aA=="}
    full = {"instructions": "s", "input": [said, thought, call, output], "stream": True,
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}},
                      {"type": "web_search"}], "tool_choice": "auto", "store": False,
            "parallel_tool_calls": False, "max_output_tokens": 9, "temperature": 0.5,
            "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "none"}, "metadata": {"a": "b"}}
    yield "valid_responses", b"\6" + encoded(full)
    yield "valid_responses_text", b"\6" + encoded({"input": "x"})
    yield "no_tokenizer_responses", b"\7" + encoded(full)
    for name, body in hostile(
            full, b"\6", metadata=([{"type": 1}], [1]),
            input=([], [{}], [dict(said, role="tool")], [dict(thought, content=[7])],
                   [dict(thought, encrypted_content="fox1:*")], [dict(call, name="")],
                   [output] * 3, [{"type": "item_reference"}]),
            tools=([{}], [7], [{"type": "function"}]), tool_choice=({"type": "function"}, "x"),
            text=({"format": {"type": "json_schema", "schema": {"type": "null"}}},
                  {"format": {"type": "json_schema"}}, {"verbosity": "low"}),
            max_output_tokens=(0, 1 << 40), reasoning=({"effort": "x"},), truncation=("auto",)):
        yield f"responses_{name}", body


def messages_seeds() -> Seeds:
    """Bodies of Anthropic's API."""
    text = {"type": "text", "text": "x"}
    used = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text]}
    asked = {"role": "user", "content": [text]}
    thought = {"type": "thinking", "thinking": "h", "signature": "s"}
    messages = {"max_tokens": 9, "system": [text], "stop_sequences": ["x"], "temperature": 0.5,
                "top_k": 3, "stream": True, "thinking": {"type": "adaptive"},
                "metadata": {"user_id": "u"}, "tool_choice": {"type": "auto"},
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "messages": [asked, {"role": "assistant", "content": [thought, text, used]},
                             {"role": "user", "content": [result, text]}]}
    for name, body in {"valid_messages": messages, "valid_messages_open": {
            "max_tokens": 1, "messages": [asked, {"role": "assistant", "content": "a"}]}}.items():
        yield name, b"\4" + encoded(body)
    yield "no_tokenizer_messages", b"\5" + encoded(messages)
    for name, body in hostile(
            messages, b"\4", max_tokens=(0, 1 << 40), system=("s", [used], {}),
            messages=([], [{}], [dict(asked, content=[result] * 3)], [dict(asked, content=[[]])],
                      [dict(asked, role="tool")], [{"role": "assistant", "content": [used]}] * 2),
            tools=([{}], [{"type": "bash_20250124", "name": "bash"}]), thinking=("on",),
            tool_choice=({"type": "any"}, {"type": "tool", "name": "g"}, {"type": 1}),
            output_config=({"format": {"type": "json_schema", "schema": {"type": "null"}}},)):
        yield f"messages_{name}", body


SOME_TEXT = {3: "some text"}
SAMPLING = {1: 0.5, 2: 0.9, 3: 5, 6: 7, 7: 2, 11: {1: 97, 2: 1.0}, 12: 98}
OUTPUT = {1: 1, 2: 1, 3: 2, 6: 1, 8: 4}
IDS = {4: {1: b"abc"}}
def generate_request_seeds() -> Seeds:
    """First byte: 1 bytes as they come, 2 a ScoreRequest, 4 without a tokenizer, 8 a stream."""
    text, ids = SOME_TEXT, IDS
    requests = {
        "valid": {**text, 5: SAMPLING, 6: {1: 10, 2: 1, 3: "stop", 4: 99}, 7: OUTPUT},
        # Found by fuzzing: the mask and the stop token exclude every token.
        "min_tokens_without_a_token": {**text, 5: SAMPLING, 6: {1: 10, 2: 1, 3: "stop", 4: 98},
                                       7: OUTPUT},
        "valid_minus_zero": {**text, 5: {1: -0.0}}, "valid_acp": {**text, 11: {1: 1, 2: -12.0}},
        "valid_token_ids": {**text, 7: {1: 0, 2: 1, 6: 1}},
        "valid_truncate": {**ids, 13: 2},
        "valid_special": {**text, 12: 1},
        "valid_messages": {17: {1: [{1: "user", 2: "hi"}, {1: "assistant", 2: "a"}], 3: 1}},
        "valid_echo_ids": {**ids, 7: {6: 1, 7: 0}}, "valid_echo_special": {**ids, 7: {6: 1, 7: 1}}}
    for name, request in requests.items():
        yield name, b"\x01" + proto(request)
    yield "valid_score", b"\x03" + proto({**text, 5: 3, 6: 4, 14: 1})
    for name, request in {"valid_ids": {4: {1: b"\1\2\3"}, 13: 2}, "text": text,
                          "stop": {**ids, 6: {3: "x"}}, "output": {**ids, 7: {1: 1}}}.items():
        yield f"{name}_without_tokenizer", b"\x05" + proto(request)
    yield "valid_stream", b"\x09" + proto({1: "id-1", **text, 7: {11: 1}})
    yield "not_a_message", b"\x01\xff"
    for first in range(0, 16, 2):
        yield f"composed_{first}", bytes((first, 6)) + bytes(
            (i * 37 + first) % 251 for i in range(160))


HEAD = b"POST /v1/completions?x=%41 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def http_parser_seeds() -> Seeds:
    """Odd first byte: bytes as they come, in steps; else a request that the target writes."""
    head, chunked = HEAD, CHUNKED
    yield from table({
        "valid": head + b"Content-Length: 4\r\n\r\nbody" + head + b"Content-Length: 0\r\n\r\n",
        "valid_chunks": chunked + b"4\r\nbody\r\n3;ext=1\r\nabc\r\n0\r\n\r\n",
        "valid_trailer": chunked + b"1\r\nx\r\n0\r\nX-T: 1\r\n\r\n",
        "valid_old": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "valid_absolute": b"GET http://h/health HTTP/1.1\r\nHost: h\r\n\r\n",
        "old_chunks": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "length_same_twice": head + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
        "host_missing": b"GET / HTTP/1.1\r\n\r\n",
        "host_twice": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "length_twice": head + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody!",
        "length_and_chunks": head + b"Content-Length: 4\r\n" + CHUNKED[len(HEAD):] + b"0\r\n\r\n",
        "chunk_without_end": chunked + b"4\r\nbodyX\r\n0\r\n\r\n",
        "encoding_unknown": head + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "encoding_space": head + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "folded": head + b"X-A: 1\r\n 2\r\n\r\n", "line_feeds": b"GET / HTTP/1.1\nHost: a\n\n",
        "nul": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        "version": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "empty_lines": b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        **{f"target_{i}": b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n"
           for i, target in enumerate((b"/%41%4g%g1%4", b"/a%", b"*", b"http://h"))},
        **{f"length_{i}": head + b"Content-Length: " + length + b"\r\n\r\nbody" for i, length in
           enumerate((b"-1", b"9" * 20, b"0x4", b"+4", b"513", b"4, 4", b""))},
        **{f"chunk_{i}": chunked + size + b"\r\nbody\r\n0\r\n\r\n"
           for i, size in enumerate((b"f" * 18, b"-1", b"", b"201", b"xyz"))},
    }, bytes((1, 2, 6, 0, 40, 1, 0, 0)))
    extended = chunked + b"1;a=b\r\nx\r\n0\r\nX-T: 1\r\n\r\n"
    for name, data, place in (  # one byte of it many times
            ("head", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\n\r\n", 30),
            ("target", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 4),
            ("extension", extended, extended.index(b"b\r\nx")),
            ("trailer", extended, extended.index(b"1\r\n\r\n")),
            ("chunk_zeros", chunked + b"04\r\nbody\r\n0\r\n\r\n", len(chunked))):
        yield f"long_{name}", bytes((1, 0, 63, 0, 160, min(place, 255), max(0, place - 255))) + data
    yield "written", (b"\x00\x00\x01\x05hello\x03q=1\x02\x02ab\x03val\x01\x41\x04\x03\x07\x09"
                      + b"the body of it" * 9)
    yield "written_chunks", bytes((0, 1, 0, 4)) + b"path" + bytes(range(60)) + b"b" * 300


def trace_context_seeds() -> Seeds:
    right = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    yield from table({
        "valid": right, "valid_later_version": f"01{right[2:]}-more",
        "version_ff": "ff" + right[2:], "longer": right + "-x",
        "later_without_dash": f"01{right[2:]}x",
        "zero_trace": "00-" + "0" * 32 + right[35:], "upper_case": right.upper(),
        "zero_parent": right[:36] + "0" * 16 + right[52:], "short": right[:-1]})
    for place, letter in ((1, "g"), (9, "g"), (9, "-"), (40, "~"), (54, "G"), (2, "a"), (35, "a"),
                          (52, "a")):
        yield f"bad_{place}_{letter}", (right[:place] + letter + right[place + 1:]).encode()


# Targets of text: choices, then the text.
LETTERS = b"\x00\x03\x00\x01\xe2\x00\x01a\x00\x01b\x00\x02ab"  # tokens of bytes
SIX_IDS = bytes((0, 1, 2, 3, 2, 0, 2, 1))
TEXT_SEEDS: dict[str, dict[str, object]] = {
    "text_assembler": {
        "bytes": b"\x00\x03\x00\x01\xc3\x00\x01\xa9\x00\x02ab\x00\x01b\x00\x00\x02\x02ab\x03bab"
                 + SIX_IDS,
        "whole": b"\x01\x02\x01\x03 ab\x02\x02 c\x00\x01\xe2\x01\x00\x01\x03b c" + b"\0\1\2\0\2",
        "no_stops": LETTERS + b"\x00\x00\x00" + SIX_IDS,
        "stop_begun": LETTERS + b"\x00\x00\x01\x03abx" + SIX_IDS,
        "stop_at_the_end": LETTERS + b"\x00\x00\x01\x03\xef\xbf\xbd\x00",
        "stop_too_early": LETTERS + b"\x00\x03\x01\x01a\x01\x02\x02\x01\x03"},
    "bpe": {"trained": bytes((2, 6, 0, 1, 3, 2, 3, 3, 1, 0, 4, 0, 5, 4, 0, 9, 3))
            + b"abcabbcaab" * 3,
            "reversed": bytes((1, 8, 0, 1, 2, 0, 2, 2, 1, 2, 3, 3, 4, 1, 1, 5, 0, 6, 1, 20, 30))
            + b"ab",
            "small_windows": bytes((1, 3, 0, 0, 2, 2, 3, 3, 0, 0, 3)) + b"a" * 60,
            "period": bytes((0, 3, 0, 0, 1, 1, 2, 1, 0, 7, 39)) + b"a" * 100},
    "utf8": {"valid": "\x02a\u00e9\u65e5\U0001f600 \\u00e9\\ud83d\\ude00\\n\\\\",
             "overlong": b"\x01\xc0\x80\xe0\x80\x80\xf0\x80\x80\x80\xc1\xbf",
             "surrogates": b"\x03\xed\xa0\x80\xed\xbf\xbf\\ud800\\udc00\\ud800x\\u12",
             "incomplete": b"\x00\xe2\x96\xf0\x9f\x98\xc3",
             "escapes": b"\x02\\b\\f\\n\\r\\t\\/\\\\\\\"\\u00Ef\\uABCD\\u12g4\\u-123\\x\\U",
             "escape_pairs": b"\x04\\uD83D\\uDE00\\ud83d\\u0041\\ud83d\\ue000\\ud83dx\\ud83d\\n"
                             b"\\udc00\\ue000\\u{12\\u:1",
             **{f"cut_{i}": "\0ab" + end for i, end in enumerate(
                 ("\\", "\\u12", "\\ud83d\\u12", "\\ud83d", "\\ud83d\\"))},
             "valid_control": b'\x01"\\\b\f\n\r\t\x01\x1f\x7f plain',
             "leads": "\x01\U00040000\U0010ffff\ue000\ud7ff\u0800\u00c0",
             "beyond": b"\x05\xf4\x90\x80\x80\xf5\xff\xfe\x7f"}}


def grammar_seeds() -> Seeds:
    """The first byte is the kind, the second how many choices of tokens follow."""
    walk = bytes((24, *range(1, 200, 9)[:24]))
    walk = bytes((len(walk) - 1,)) + walk[1:]
    node = {"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [
        {"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]}}, "$ref": "#/$defs/n"}
    schemas = {
        "open": {"type": "object", "additionalProperties": True}, "node": node,
        "text": {"type": "string", "minLength": 1, "maxLength": 40},
        "pattern": {"type": "string", "pattern": "^[a-c]+\\d{1,3}$"},
        "anywhere": {"type": "string", "pattern": "(^|,)[a\"]{2}|\\uD83D\\uDE00$", "minLength": 2},
        "names": {"patternProperties": {"^[^b]": {"type": "number", "exclusiveMinimum": -0.25,
                                                  "maximum": 1.5}}},
        "date": {"type": "string", "format": "date-time"},
        "union": {"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}, {"enum": [True]}]},
        "person": {"type": "object", "required": ["a"], "additionalProperties": False,
                   "properties": {"a": {"type": "string"}, "b": {"type": "integer", "minimum": 3,
                                                                 "maximum": 120}}},
        "list": {"type": "array", "prefixItems": [{"const": "x"}], "items": {"type": "number"},
                 "minItems": 2, "maxItems": 4},
        "map": {"additionalProperties": {"type": "boolean"}, "minProperties": 1}}
    for name, schema in schemas.items():
        yield f"valid_schema_{name}", b"\0" + walk + encoded(schema)
    yield from hostile(schemas["person"], b"\0" + walk)
    yield from table({"valid_words": "(ab|cd)+x?", "valid_dates": "\\d{4}-\\d\\d", "escape": "(",
                      "counts": "([a-z]{1,40}-?){2,9}", "steps": "(.?){999}", "any": ".*\\w[^a]",
                      "valid_anchors": "^a$|^b$|(^c$)?", "inside": "a^b", "bars": "|" * 30000,
                      "deep": "(" * 20000 + "a" + ")" * 20000, "deep_ways": "(a|" * 8000,
                      "huge": "((a{100}){100}){100}", "beyond": "[\u00e0-\u00fc]"}, b"\1" + walk)
    yield from table({
        "valid_sum": 'root ::= sum\nsum ::= num ("+" num)*\nnum ::= [0-9]+ | "(" sum ")"',
        "left": 'root ::= root root | [a-z] | ""', "nothing": "root ::= nothing",
        "deep_rules": "root ::= " + "(" * 20000, "loop": "root ::= a\na ::= root"}, b"\2" + walk)
    call = b'call ::= "f " [0-9] "</c>"\n'
    yield "valid_calls", b"\3" + walk + b'root ::= TagDispatch(("<c>", call))\n' + call
    yield "valid_calls_alone", b"\3" + walk + b'root ::= "<c>" call ("\\n<c>" call)*\n' + call


def answer_reader_seeds() -> Seeds:
    """The first byte is the form, the second the length of pieces."""
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "}\\"{"}}\n</tool_call>'
    yield from table({"valid_call": call, "valid_two": f"text {call}\n{call}", "open": call[:-3],
                      "nested": call[:9] + call, "almost": "<tool_cal" + call}, b"\0\2")
    yield from table({"valid_short": "<c>f:{}</c>", "separated": "<<c>f:{}</c><<c>g:{",
                      "no_arguments": "<c>f<c>:</c>"}, b"\1\1")
    yield from table({"valid_thought": f" <think>\n a\n</th</think>\n\nb{call}",
                      "no_end": "<think>a",
                      "none": "a <think>b</think>", "almost_a_thought": "\n<thin"}, b"\2\2")
    yield from table({"valid_inside": "a\n\n</think>\n\nb", "empty": "\n</think>"}, b"\4\1")


def token_set_seeds() -> Seeds:
    yield from table({"valid": "# ours\nalice-0123456789\n\nbobby-0123456789\n", "none": "",
                      "spaces": " \talice-0123456789\r\nx y zzzzzzzz\n", "short": "abc\n",
                      "open": "alice-0123456789\nbobby-01234", "nul": "alice-01234\0\n",
                      "twice": "alice-0123456789\n" * 2, "long": "x" * 1025 + "\n"})


REQUEST_SEEDS: dict[str, Seeds] = {
    "completion_request": completion_request_seeds(), "generate_request": generate_request_seeds(),
    "http_parser": http_parser_seeds(), "trace_context": trace_context_seeds(),
    "grammar": grammar_seeds(), "answer_reader": answer_reader_seeds(),
    "token_set": token_set_seeds(),
    **{name: table(entries) for name, entries in TEXT_SEEDS.items()}}
