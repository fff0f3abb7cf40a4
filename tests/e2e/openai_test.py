#!/usr/bin/env python3
"""The HTTP port as its users meet it: the `openai` client, on the demo.

    openai_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

import asyncio
import json
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

    def test_chat_is_told_what_there_is(self) -> None:
        with self.assertRaisesRegex(self.openai.BadRequestError, "use /v1/completions"):
            self.client.chat.completions.create(
                model=self.model, messages=[{"role": "user", "content": PROMPT}])
        told = self.cli("chat", said=PROMPT)
        self.assertEqual((told.returncode, told.stdout), (1, ""))
        self.assertEqual(told.stderr,
                         "fox-cli: the model has no chat format; use fox-cli generate\n")

    def test_a_stream_joins_to_the_answer(self) -> None:
        for fields in ({"temperature": 0.0}, {"seed": 7, "temperature": 1.0, "top_p": 0.9}):
            whole = self.complete(prompt=PROMPT, max_tokens=40, **fields)
            chunks = list(self.complete(prompt=PROMPT, max_tokens=40, stream=True,
                                        stream_options={"include_usage": True}, **fields))
            text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
            self.assertEqual(text, whole.choices[0].text)
            self.assertEqual(chunks[-1].usage, whole.usage)
            self.assertEqual(whole.usage.completion_tokens, 40)

    def test_errors_have_their_classes(self) -> None:
        with self.assertRaises(self.openai.BadRequestError) as raised:
            self.complete(prompt=PROMPT, top_p=2)
        self.assertEqual(raised.exception.param, "top_p")
        with self.assertRaisesRegex(self.openai.BadRequestError, "max_tokens") as raised:
            self.complete(prompt=PROMPT, extra_body={"max_new_tokens": 1})
        self.assertEqual(raised.exception.param, "max_new_tokens")
        with self.assertRaises(self.openai.NotFoundError):
            self.client.completions.create(model="other", prompt=PROMPT)
        with self.assertRaises(self.openai.BadRequestError) as raised:
            self.complete(prompt=PROMPT, max_tokens=200000)
        self.assertEqual(raised.exception.code, "context_length_exceeded")

    def test_an_answer_is_what_its_schema_says(self) -> None:
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
            self.assertEqual(list(book), ["title", "tags", "year"])
            self.assertTrue(1800 <= book["year"] <= 2030 and set(book["tags"]) <= {"a", "b"})
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


class ChatTest(fox_server.Case):
    """The demo with a chat format; what it answers makes no sense."""

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

    def test_sync_stream_and_async_say_the_same(self) -> None:
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
            self.assertEqual(whole.message.content, None)
            if whole.finish_reason == "length":  # calls without end
                self.assertTrue(choice == "required" and parallel and len(calls) > 1)
                continue
            self.assertTrue(len(calls) == 1 or parallel)
            for call in calls:
                want = ["seconds"] if call.name == "wait" else ["room", "on"]
                self.assertEqual(list(json.loads(call.arguments)), want)
            with self.client.chat.completions.stream(
                    **self.fields(PROMPT, **fields)) as stream:
                streamed = stream.get_final_completion().choices[0]
            self.assertEqual([(call.function.name, call.function.arguments)
                              for call in streamed.message.tool_calls],
                             [(call.name, call.arguments) for call in calls])
            self.assertEqual(streamed.finish_reason, "tool_calls")
        answers = [{"role": "tool", "tool_call_id": call.id, "content": "done"}
                   for call in whole.message.tool_calls]
        turns = [{"role": "user", "content": PROMPT}, whole.message.model_dump(), *answers]
        self.assertTrue(self.chat(messages=turns, tools=tools).choices[0].message.content)
        with self.assertRaisesRegex(self.openai.BadRequestError, "uniqueItems") as raised:
            self.chat(PROMPT, tools=[tool("f", a={"type": "array", "uniqueItems": True})])
        self.assertEqual(raised.exception.param, "tools[0].function.parameters")

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

    def test_the_terminal_is_cooler_where_the_model_recommends_nothing(self) -> None:
        for flags, sampling in (((), {"temperature": 0.7, "top_p": 0.9}),
                                (("--temperature", "2"), {"temperature": 2, "top_p": 0.9})):
            told = self.cli("chat", "--max-tokens", "12", "--seed", "5", *flags, said=PROMPT)
            wanted = self.chat(PROMPT, seed=5, **sampling).choices[0].message.content
            self.assertEqual((told.stdout, told.stderr), (wanted + "\n", ""))


if __name__ == "__main__":
    fox_server.main("openai")
