#!/usr/bin/env python3
"""The HTTP port of a fox-server on the demo model with the `openai` client.

    openai_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import gzip
import json
import re
import time
import urllib.error
import urllib.request
from typing import Any

import fox_server

PROMPT = "Once upon a time"


class OpenAiTest(fox_server.Case):
    """One server for all cases."""

    flags = ("--http-port", "0")

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        import openai  # noqa: PLC0415
        cls.openai = openai
        cls.client = cls.enterClassContext(
            openai.OpenAI(base_url=cls.server.http_url + "/v1", api_key="none", max_retries=0,
                          timeout=60))
        cls.model = cls.client.models.list().data[0].id

    def complete(self, **fields: Any) -> Any:
        return self.client.completions.create(model=self.model, **fields)

    def test_models(self) -> None:
        self.assertEqual(self.model, "demo")
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")
        with self.assertRaises(self.openai.NotFoundError) as raised:
            self.client.models.retrieve("other")
        self.assertEqual(raised.exception.code, "model_not_found")

    def test_without_a_chat_format_fox_cli_names_the_other_command(self) -> None:
        told = self.cli("chat", said=PROMPT)
        self.assertEqual((told.returncode, told.stdout), (1, ""))
        self.assertEqual(told.stderr,
                         "fox-cli: the model has no chat format; use fox-cli generate\n")

    def test_an_answer_matches_its_schema(self) -> None:
        schema = {"type": "object", "additionalProperties": False,
                  "properties": {"title": {"type": "string", "maxLength": 20},
                                 "tags": {"type": "array", "items": {"enum": ["a", "b"]},
                                          "maxItems": 3},
                                 "year": {"type": "integer", "minimum": 1800, "maximum": 2030}},
                  "required": ["title", "tags", "year"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "book", "schema": schema}}
        fields = {"prompt": PROMPT, "max_tokens": 200, "n": 2, "seed": 3,
                  "extra_body": {"response_format": wanted}}
        whole = self.complete(**fields)
        for choice in whole.choices:
            self.assertEqual(choice.finish_reason, "stop", choice.text)
            book = json.loads(choice.text)
            self.assertEqual(list(book), ["title", "tags", "year"], choice.text)
            self.assertTrue(1800 <= book["year"] <= 2030 and set(book["tags"]) <= {"a", "b"}, book)
        texts = ["", ""]
        for chunk in self.complete(stream=True, **fields):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual(texts, [choice.text for choice in whole.choices])
        for wanted, pattern in (({"regex": r"\d{4}-\d\d"}, r"\d{4}-\d\d"),
                                ({"choice": ["yes", "no"]}, "yes|no"),
                                ({"grammar": 'root ::= "a" x "b" | "c"\nx ::= "c" | "acb"'},
                                 "c|acb|aacbb")):
            text = self.complete(prompt=PROMPT, max_tokens=200,
                                 extra_body={"structured_outputs": wanted}).choices[0].text
            self.assertRegex(text, f"^({pattern})$")
        with self.assertRaisesRegex(self.openai.BadRequestError, "uniqueItems"):
            self.complete(prompt=PROMPT, extra_body={"structured_outputs": {
                "json": {"type": "array", "uniqueItems": True}}})

    def test_headers_follow_the_rfc(self) -> None:
        """RFC 9110: a date (6.6.1), and the refusal of a content coding (15.5.16)."""
        with urllib.request.urlopen(self.server.http_url + "/health", timeout=60) as answer:
            date = email.utils.parsedate_to_datetime(answer.headers["Date"])
        self.assertLess(abs(date.timestamp() - time.time()), 60)
        packed = gzip.compress(json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode())
        with self.assertRaises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(urllib.request.Request(
                self.server.http_url + "/v1/completions", packed,
                {"Content-Type": "application/json", "Content-Encoding": "gzip"}), timeout=60)
        self.assertEqual(raised.exception.code, 415)
        self.assertEqual(raised.exception.headers["Accept-Encoding"], "identity")

    def test_least_values(self) -> None:
        likeliest, greedy = (self.complete(prompt=PROMPT, max_tokens=8, **fields).choices[0].text
                             for fields in ({"top_p": 0, "seed": 1}, {"temperature": 0}))
        self.assertEqual(likeliest, greedy)
        self.complete(prompt="a\0b", max_tokens=1)


class ChatTest(fox_server.Case):
    """The demo model with a chat format; its answers make no sense."""

    flags = ("--http-port", "0")
    chats = True

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        import openai  # noqa: PLC0415
        cls.openai = openai
        cls.address = {"base_url": cls.server.http_url + "/v1", "api_key": "none",
                       "max_retries": 0, "timeout": 60}
        cls.client = cls.enterClassContext(openai.OpenAI(**cls.address))

    @staticmethod
    def fields(*contents: str, tokens: int = 12, **more: Any) -> dict[str, Any]:
        """A greedy request; user and assistant take turns."""
        roles = ("user", "assistant")
        return {"model": "demo", "max_completion_tokens": tokens, "temperature": 0,
                "messages": [{"role": roles[i % 2], "content": content}
                             for i, content in enumerate(contents)], **more}

    def chat(self, *contents: str, **more: Any) -> Any:
        return self.client.chat.completions.create(**self.fields(*contents, **more))

    def test_sync_stream_and_async_answers_are_equal(self) -> None:
        whole = self.chat(PROMPT, logprobs=True, top_logprobs=2)
        message = whole.choices[0].message
        self.assertEqual((message.role, whole.choices[0].finish_reason), ("assistant", "length"))
        entries = whole.choices[0].logprobs.content
        self.assertEqual(len(entries), whole.usage.completion_tokens)
        self.assertEqual({len(entry.top_logprobs) for entry in entries}, {2})
        self.assertEqual(entries[0].token, entries[0].top_logprobs[0].token)  # it is greedy
        self.assertEqual(bytes(entries[0].bytes).decode(), entries[0].token)
        chunks = list(self.chat(PROMPT, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        self.assertEqual([delta.role for delta in deltas],
                         ["assistant"] + [None] * (len(deltas) - 1))
        self.assertEqual("".join(delta.content for delta in deltas), message.content)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)

        async def together() -> list[Any]:
            async with self.openai.AsyncOpenAI(**self.address) as client:
                return await asyncio.gather(*(
                    client.chat.completions.create(**self.fields(PROMPT)) for _ in range(64)))

        contents = {one.choices[0].message.content for one in asyncio.run(together())}
        self.assertEqual(contents, {message.content})

    def test_tools_are_called(self) -> None:
        def tool(name: str, **properties: Any) -> dict[str, Any]:
            schema = {"type": "object", "properties": properties, "required": list(properties)}
            return {"type": "function", "function": {"name": name, "parameters": schema}}

        tools = [tool("set_light", room={"enum": ["hall", "attic"]}, on={"type": "boolean"}),
                 tool("wait", seconds={"type": "integer", "minimum": 1, "maximum": 60})]
        named = {"type": "function", "function": {"name": "wait"}}
        for choice, parallel in (("required", True), ("required", False), (named, True)):
            fields = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel,
                      "tokens": 150, "seed": 5, "temperature": 1}
            whole = self.chat(PROMPT, **fields).choices[0]
            calls = [call.function for call in whole.message.tool_calls]
            self.assertEqual(whole.message.content, None, (choice, parallel))
            if whole.finish_reason == "length":  # calls without end
                self.assertTrue(choice == "required" and parallel and len(calls) > 1, calls)
                continue
            self.assertTrue(len(calls) == 1 or parallel, calls)
            for call in calls:
                want = ["seconds"] if call.name == "wait" else ["room", "on"]
                self.assertEqual(list(json.loads(call.arguments)), want, call)
            with self.client.chat.completions.stream(
                    **self.fields(PROMPT, **fields)) as stream:
                streamed = stream.get_final_completion().choices[0]
            self.assertEqual([(call.function.name, call.function.arguments)
                              for call in streamed.message.tool_calls],
                             [(call.name, call.arguments) for call in calls], (choice, parallel))
            self.assertEqual(streamed.finish_reason, "tool_calls", (choice, parallel))
        answers = [{"role": "tool", "tool_call_id": call.id, "content": "done"}
                   for call in whole.message.tool_calls]
        turns = [{"role": "user", "content": PROMPT}, whole.message.model_dump(), *answers]
        self.assertTrue(self.chat(messages=turns, tools=tools).choices[0].message.content)
        with self.assertRaisesRegex(self.openai.BadRequestError, "uniqueItems") as raised:
            strict = tool("f", a={"type": "array", "uniqueItems": True})
            strict["function"]["strict"] = True
            self.chat(PROMPT, tools=[strict])
        self.assertEqual(raised.exception.param, "tools[0].function.parameters")

    def test_requests_of_frameworks_are_served(self) -> None:
        """Bodies as the frameworks send them, with fields beyond OpenAI's documentation."""
        schema = {"type": "object", "title": "Light", "description": "A light.",
                  "required": ["room", "level"], "additionalProperties": False, "properties": {
                      "room": {"enum": ["hall", "attic"], "title": "Room", "type": "string"},
                      "level": {"description": "0 is off", "maximum": 9, "minimum": 0,
                                "title": "Level", "type": "integer"}}}
        tools = [{"type": "function", "function": {"name": "Light", "description": "A light.",
                                                   "parameters": schema, "strict": True}}]
        light = '{"room": "hall", "level": 6}'
        call = {"id": "call_1", "type": "function",
                "function": {"name": "Light", "arguments": light}}
        user = {"role": "user", "content": PROMPT}
        done = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
        named = {"type": "function", "function": {"name": "Light"}}
        for name, answer, fields in (
                ("instructor", "call", {"tools": tools, "tool_choice": named}),
                ("pydantic-ai", "call", {"tools": tools, "tool_choice": "required"}),
                ("pydantic-ai, native", "json", {"response_format": {
                    "type": "json_schema", "json_schema": {
                        "name": "Light", "schema": schema, "description": "A light.",
                        "strict": True}}}),
                ("instructor, JSON", "", {"response_format": {"type": "json_object"}}),
                ("openai, parsed", "", {"messages": [user, {
                    "role": "assistant", "content": light, "tool_calls": None,
                    "parsed": {"room": "hall"}}, user]}),
                ("agents", "", {"tools": tools, "messages": [
                    user, {"role": "assistant", "tool_calls": [call]}, done]}),
                ("langchain", "", {"messages": [
                    user, {"role": "assistant", "content": None, "tool_calls": [call]}, done]}),
                ("litellm", "", {"tools": tools, "messages": [
                    user, {"role": "assistant", "tool_calls": [{"index": 0, **call}],
                           "provider_specific_fields": {"refusal": None}}, done]})):
            with self.subTest(name):
                said = json.loads(self.post("/v1/chat/completions", **{
                    "model": "demo", "messages": [user], "max_tokens": 100, "seed": 3,
                    "temperature": 1, "stream": False, "parallel_tool_calls": False, **fields}))
                message = said["choices"][0]["message"]
                if answer:
                    text = (message["content"] if answer == "json" else
                            message["tool_calls"][0]["function"]["arguments"])
                    self.assertEqual(set(json.loads(text)), {"room", "level"})

    def test_requests_of_claude_code_are_served(self) -> None:
        """Bodies as Claude Code 2.1 sends them: beside the fields of its documentation a line for
        billing that differs each time, and fields of its betas. The second turn's prompt begins
        with the first's, which the prefix cache has."""
        words = " ".join(f"word{i}" for i in range(60))
        tool = {"name": "Bash", "description": words, "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"command": {"type": "string", "description": words},
                           "timeout": {"type": "number"}},
            "required": ["command"], "additionalProperties": False}}
        short = {"type": "ephemeral"}

        def send(number: int, messages: list[dict[str, Any]]) -> Any:
            billing = f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cch={number:05x};"
            return json.loads(self.post(
                "/v1/messages?beta=true", model="demo", max_tokens=40, stream=False,
                messages=messages, tools=[tool], temperature=1, seed=3,
                system=[{"type": "text", "text": billing},
                        {"type": "text", "text": "You are Claude Code.", "cache_control": short},
                        {"type": "text", "text": "\n" + words, "cache_control": short}],
                thinking={"type": "adaptive"}, output_config={"effort": "high"},
                metadata={"user_id": "user_x"}, context_management={"edits": [
                    {"type": "clear_thinking_20251015", "keep": "all"}]}))

        first = [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nx\n</system-reminder>\n"},
            {"type": "text", "text": PROMPT, "cache_control": short}]}]
        prompt = send(1, first)["usage"]["input_tokens"]
        self.assertGreater(prompt, 500)
        call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
        answers = [{"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"}, call]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False,
                 "content": [{"type": "text", "text": "README.md"}], "cache_control": short}]}]
        usage = send(2, first + answers)["usage"]
        self.assertGreaterEqual(usage["cache_read_input_tokens"], prompt // 64 * 64)

    def test_requests_of_codex_are_served(self) -> None:
        """Bodies as Codex CLI 0.15 sends them, with tools that are not functions. The thought comes
        back sealed, and the second turn's prompt begins with the first's."""
        words = " ".join(f"word{i}" for i in range(60))
        tools = [{"type": "function", "name": "shell_command", "description": words,
                  "strict": False, "parameters": {
                      "type": "object", "properties": {"command": {"type": "string"}},
                      "required": ["command"], "additionalProperties": False}},
                 {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
                 {"type": "web_search", "external_web_access": False},
                 {"type": "namespace", "name": "mcp__x", "description": "", "tools": []}]

        def send(items: list[dict[str, Any]]) -> Any:
            sent = self.post(
                "/v1/responses", model="demo", instructions=words, input=items, tools=tools,
                tool_choice="auto", parallel_tool_calls=False, reasoning=None, store=False,
                stream=True, include=["reasoning.encrypted_content"], prompt_cache_key="x",
                client_metadata={"x-codex-installation-id": "x"}, max_output_tokens=30, seed=3)
            last = sent.decode().strip().rsplit("data: ", 1)[1]
            return json.loads(last)["response"]

        def said(role: str, text: str) -> dict[str, Any]:
            return {"type": "message", "role": role,
                    "content": [{"type": "input_text", "text": text}]}

        first = [said("developer", "<permissions instructions>"),
                 said("user", "<environment_context>"), said("user", PROMPT)]
        prompt = send(first)["usage"]["input_tokens"]
        self.assertGreater(prompt, 300)
        seal = "fox1:" + base64.b64encode(b"Hm.").decode()
        call = {"type": "function_call", "name": "shell_command", "call_id": "call_1",
                "arguments": "{\"command\":\"ls\"}"}
        usage = send([*first, {"type": "reasoning", "summary": [], "encrypted_content": seal}, call,
                      {"type": "function_call_output", "call_id": "call_1",
                       "output": "README.md"}])["usage"]
        self.assertGreaterEqual(usage["input_tokens_details"]["cached_tokens"],
                                prompt // 64 * 64)

    def test_every_answer_is_history(self) -> None:
        schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 80}},
                  "required": ["text"]}
        tools = [{"type": "function", "function": {"name": "note", "parameters": schema}}]
        cut = 0
        for tokens in (*range(2, 32, 5), 60):  # ends in a tag, a name, arguments, after a call
            for choice in ("auto", "required"):
                fields = {"tools": tools, "tool_choice": choice, "tokens": tokens, "seed": tokens,
                          "temperature": 1, "parallel_tool_calls": tokens % 2 == 0}
                answer = self.chat(PROMPT, **fields).choices[0]
                calls = answer.message.tool_calls or []
                for call in calls:
                    cut += not call.function.arguments.endswith("}")
                if choice == "required":
                    self.assertFalse(answer.message.content, tokens)
                turns = [{"role": "user", "content": PROMPT}, answer.message.model_dump(),
                         *({"role": "tool", "tool_call_id": call.id, "content": "no"}
                           for call in calls), {"role": "system", "content": "Go on."}]
                again = self.chat(messages=turns, tools=tools).choices[0].message
                self.assertEqual(again.role, "assistant", turns)
        self.assertGreater(cut, 0)

    def test_numbers_keep_their_digits(self) -> None:
        """Compares with Python's json, whose integers are exact."""
        numbers = [9007199254740993, 18446744073709551615, -25000000000000000001, 0.1, 1.0]
        tool = {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"n": {"enum": numbers}, "\u00e9": {}}}}}
        call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {
            "name": "f", "arguments": json.dumps({"n": numbers})}}]}
        messages = [{"role": "user", "content": PROMPT}, call]
        tokens = json.loads(self.post("/tokenize", messages=messages, tools=[tool]))
        text = json.loads(self.post("/detokenize", tokens=tokens["tokens"]))["prompt"]
        for value in (tool, {"n": numbers}):
            self.assertIn(json.dumps(value, ensure_ascii=False), text, value)
        usage = self.chat(messages=messages, tools=[tool]).usage
        self.assertEqual(usage.prompt_tokens, tokens["count"])

    def test_each_documented_parameter_is_read_or_refused(self) -> None:
        """Sends each parameter of the client's own types with a value that has an effect."""
        from openai.types.chat import completion_create_params  # noqa: PLC0415
        names = set(completion_create_params.CompletionCreateParamsBase.__annotations__)
        readme = (fox_server.ROOT / "server" / "README.md").read_text()
        ignored = set(re.findall(r"`(\w+)`", re.search(r"Ignored are ([^;]*);", readme).group(1)))
        read = set(re.findall(r"`(\w+)", " ".join(
            line.split("|")[1] for line in readme.splitlines() if line.startswith("| `"))))
        self.assertGreater(len(names), 25)
        for name in sorted(names):
            loud = {"x": 1}
            try:
                self.post("/v1/chat/completions", **{**self.fields(PROMPT, tokens=1), name: loud})
                self.assertIn(name, ignored)
            except urllib.error.HTTPError as error:
                said = json.load(error)["error"]
                self.assertIn(error.code, (400, 404), name)  # a model of that name
                self.assertTrue(said["param"].startswith(name), said)
                self.assertNotIn(name, ignored)
                known = "must be" in said["message"] or "not served" in said["message"]
                self.assertEqual(known, name in read, said)

    def test_each_documented_parameter_of_responses_is_read_or_refused(self) -> None:
        from openai.types.responses import response_create_params  # noqa: PLC0415
        names = set(response_create_params.ResponseCreateParamsBase.__annotations__)
        readme = (fox_server.ROOT / "server" / "README.md").read_text()
        ignored = set(re.findall(r"`(\w+)`", re.search(
            r"Taken and ignored are ([^.]*)\.", readme).group(1)))
        self.assertGreater(len(names), 25)
        for name in sorted(names):
            try:
                self.post("/v1/responses", **{"input": PROMPT, "max_output_tokens": 1,
                                              name: {"x": 1}})
                self.assertTrue(name in ignored or name.startswith("prompt_cache_"), name)
            except urllib.error.HTTPError as error:
                said = json.load(error)["error"]
                self.assertIn(error.code, (400, 404), name)
                self.assertTrue(said["param"].startswith(name), said)
                self.assertNotIn(name, ignored)

    def test_the_terminal_talks(self) -> None:
        told = self.cli("chat", "--max-tokens", "12", "--temperature", "0", "--system", "Be.",
                        said=f"{PROMPT}\n\n/reset\n{PROMPT}\nGo on\n/exit\nnever said\n")
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        system = {"role": "system", "content": "Be."}
        turns = [system, {"role": "user", "content": PROMPT}]
        answers = []
        for _ in range(2):
            answers.append(self.chat(messages=turns).choices[0].message.content)
            turns += [{"role": "assistant", "content": answers[-1]},
                      {"role": "user", "content": "Go on"}]
        self.assertEqual(told.stdout, "".join(
            text + "\n" for text in (answers[0], answers[0], answers[1])))
        failed = self.cli("chat", "--stop", "", said="hi\nhi\n")
        self.assertEqual((failed.returncode, failed.stderr.count("\n")), (1, 1), failed.stderr)
        self.assertIn("stopping.stop", failed.stderr)

    def test_fox_cli_has_its_own_default_sampling_for_chats(self) -> None:
        for flags, sampling in (((), {"temperature": 0.7, "top_p": 0.9}),
                                (("--temperature", "2"), {"temperature": 2, "top_p": 0.9})):
            told = self.cli("chat", "--max-tokens", "12", "--seed", "5", *flags, said=PROMPT)
            wanted = self.chat(PROMPT, seed=5, **sampling).choices[0].message.content
            self.assertEqual((told.stdout, told.stderr), (wanted + "\n", ""), flags)


if __name__ == "__main__":
    fox_server.main("openai")
