#!/usr/bin/env python3
"""Other clients of OpenAI's API, and those of Anthropic's, with a fox-server on the demo model.
Each has a small conversation: a structured answer, a tool call, and a next turn with the history
that the client makes.

    clients_test.py BIN     the folder of fox-server and fox-cli

The clients are installed once from PyPI into a Python environment of the build. If PyPI cannot be
reached, the test says so and is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import sys
from typing import Any, Literal

import fox_server
import pypi_packages

# All versions are fixed: the clients need different versions of `openai`, and pip would search for
# hours.
CLIENTS = ("openai==1.109.1", "instructor==1.12.0", "pydantic-ai-slim[openai]==1.30.1",
           "openai-agents==0.3.3", "langchain-openai==1.1.9", "litellm==1.80.0",
           "opentelemetry-api==1.37.0", "anthropic==0.79.0", "langchain-anthropic==1.3.3")
PROMPT = "Once upon a time"
LIMITS: dict[str, Any] = {"max_tokens": 150, "temperature": 1, "seed": 3}


def openai_error(name: str) -> type[Exception]:
    """The client's exception of a name, without `Error` behind it."""
    import openai  # noqa: PLC0415
    error = getattr(openai, name + "Error")
    assert issubclass(error, Exception)
    return error


class ClientsTest(fox_server.Case):
    """One server for all cases. The model's answers make no sense, but have the right form."""

    flags = ("--http-port", "0", "--max-model-len", "4096")
    chats = True

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        import openai  # noqa: PLC0415
        import pydantic  # noqa: PLC0415
        cls.url = cls.server.http_url + "/v1"
        cls.address = {"base_url": cls.url, "api_key": "none", "max_retries": 0, "timeout": 60}
        cls.client = cls.enterClassContext(openai.OpenAI(**cls.address))

        class Light(pydantic.BaseModel):
            """Where a light is, and how bright."""

            room: Literal["hall", "attic"]
            level: int = pydantic.Field(ge=0, le=9, description="0 is off")

        cls.light = Light

    def test_openai(self) -> None:
        turns = [{"role": "user", "content": PROMPT}]
        parsed = self.client.chat.completions.parse(
            model="demo", messages=turns, response_format=self.light, **LIMITS)
        message = parsed.choices[0].message
        self.assertIsInstance(message.parsed, self.light)
        turns += [message, {"role": "user", "content": PROMPT}]
        again = self.client.chat.completions.create(model="demo", messages=turns, **LIMITS)
        self.assertTrue(again.choices[0].message.content)

    def test_events_are_lines_for_clients_that_split_decoded_text(self) -> None:
        import httpx  # noqa: PLC0415
        import requests  # noqa: PLC0415
        said = "\u8fdb\u5165 \u2705 a\x85b\u2028c\u2029d\u00e9"
        body = {"messages": [{"role": "user", "content": PROMPT}], "stream": True,
                "structured_outputs": {"choice": [said]}}
        url = self.url + "/chat/completions"
        with requests.post(url, json=body, stream=True, timeout=60) as reply:
            by_requests = list(reply.iter_lines(decode_unicode=True))
            self.assertEqual(reply.headers["X-Accel-Buffering"], "no")  # nginx
        with httpx.stream("POST", url, json=body, timeout=60) as reply:
            by_httpx = list(reply.iter_lines())
        for lines in (by_requests, by_httpx):
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            self.assertEqual(
                "".join(event["choices"][0]["delta"]["content"] for event in events), said,
                lines)

    def test_huggingface_hub(self) -> None:
        import huggingface_hub  # noqa: PLC0415
        client = huggingface_hub.InferenceClient(base_url=self.url, api_key="none")
        schema = {"type": "json_schema",
                  "json_schema": {"name": "light", "schema": self.light.model_json_schema()}}
        turns: list[Any] = [{"role": "user", "content": PROMPT}]
        made = client.chat_completion(turns, model="demo", response_format=schema, max_tokens=100)
        light = self.light.model_validate_json(made.choices[0].message.content)
        self.assertIsInstance(light, self.light)
        told = client.chat_completion(turns, model="demo", max_tokens=5, stream=True)
        self.assertTrue("".join(chunk.choices[0].delta.content or "" for chunk in told))

    def test_instructor(self) -> None:
        import instructor  # noqa: PLC0415
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
            client = instructor.from_openai(self.client, mode=mode)
            if mode == instructor.Mode.JSON:  # any object: by chance it fits, or is cut
                with self.assertRaises(Exception) as raised:
                    client.chat.completions.create(
                        model="demo", messages=[{"role": "user", "content": PROMPT}],
                        response_model=self.light, max_retries=1, **LIMITS)
                self.assertRegex(str(raised.exception), "validation|length limit", mode)
                continue
            light = client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": PROMPT}],
                response_model=self.light, max_retries=1, **LIMITS)
            self.assertIsInstance(light, self.light, mode)

    def test_pydantic_ai(self) -> None:
        import pydantic_ai  # noqa: PLC0415
        from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
        from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415
        model = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=self.url, api_key="none"))
        for output in (self.light, pydantic_ai.NativeOutput(self.light)):
            agent = pydantic_ai.Agent(model, output_type=output, instructions="Be brief.",
                                      model_settings=LIMITS)
            first = agent.run_sync(PROMPT)
            self.assertIsInstance(first.output, self.light, output)
            second = agent.run_sync(PROMPT, message_history=first.all_messages())
            self.assertIsInstance(second.output, self.light, output)

    def test_openai_agents(self) -> None:
        import agents  # noqa: PLC0415
        import openai  # noqa: PLC0415
        agents.set_tracing_disabled(True)
        seen: list[tuple[str, int]] = []

        @agents.function_tool
        def set_light(room: Literal["hall", "attic"], level: bool) -> str:
            """Sets a light."""
            seen.append((room, level))
            return "done"

        settings = agents.ModelSettings(tool_choice="required", max_tokens=100, temperature=1,
                                        parallel_tool_calls=False)
        for api in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            model = api(model="demo", openai_client=openai.AsyncOpenAI(**self.address))
            agent = agents.Agent(name="light", instructions="Be brief.", model=model,
                                 tools=[set_light], model_settings=settings)
            # The second turn is free, with the tool's answer in the history.
            result = agents.Runner.run_sync(agent, PROMPT, max_turns=4)
            self.assertIn(seen[-1][0], ("hall", "attic"), api)
            self.assertIsInstance(result.final_output, str, api)

    def call_a_tool(self, model: Any, choice: str) -> None:
        """Two turns of a chat model of langchain: a call, and what it says to the result."""
        from langchain_core.messages import HumanMessage, ToolMessage  # noqa: PLC0415
        tools = model.bind_tools([self.light], tool_choice=choice, parallel_tool_calls=False)
        answer = tools.invoke(PROMPT)
        [call] = answer.tool_calls
        history = [HumanMessage(PROMPT), answer, ToolMessage("done", tool_call_id=call["id"])]
        self.assertTrue(model.invoke(history).content)
        self.assertTrue("".join(piece.text for piece in model.stream(history)))

    def test_langchain(self) -> None:
        import langchain_openai  # noqa: PLC0415
        model = langchain_openai.ChatOpenAI(model="demo", base_url=self.url, api_key="none",
                                            max_retries=0, **LIMITS)
        for method in ("function_calling", "json_schema"):
            made = model.with_structured_output(self.light, method=method).invoke(PROMPT)
            self.assertIsInstance(made, self.light, method)
        self.call_a_tool(model, "required")

    def test_litellm(self) -> None:
        import litellm  # noqa: PLC0415
        litellm.suppress_debug_info = True
        tool = {"type": "function", "function": {"name": "light",
                                                 "parameters": self.light.model_json_schema()}}
        fields = {"model": "openai/demo", "api_base": self.url, "api_key": "none",
                  "num_retries": 0, **LIMITS}
        turns: list[Any] = [{"role": "user", "content": PROMPT}]
        message = litellm.completion(messages=turns, tools=[tool], tool_choice="required",
                                     parallel_tool_calls=False, **fields).choices[0].message
        arguments = message.tool_calls[0].function.arguments
        self.assertIsInstance(self.light(**json.loads(arguments)), self.light)
        turns += [message.model_dump(),
                  {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}]
        again = litellm.completion(messages=turns, tools=[tool], stream=True, **fields)
        self.assertTrue("".join(chunk.choices[0].delta.content or "" for chunk in again))
        made = litellm.responses(input=PROMPT, max_output_tokens=20, **{
            name: value for name, value in fields.items() if name not in LIMITS})
        self.assertTrue(made.output)
        # An error of this class makes litellm ask another model or cut the conversation.
        for long in ({"messages": [{"role": "user", "content": "word " * 5000}]},
                     {"messages": turns[:1], "max_tokens": 5000}):
            with self.assertRaises(litellm.ContextWindowExceededError):
                litellm.completion(**{**fields, **long})

    def test_openai_responses(self) -> None:
        """Three turns with tools; each event of a stream by the client's own types."""
        import pydantic  # noqa: PLC0415
        from openai.types import responses  # noqa: PLC0415
        events = pydantic.TypeAdapter(responses.ResponseStreamEvent)
        whole = pydantic.TypeAdapter(responses.Response)
        tool = {"type": "function", "name": "light", "strict": True,
                "parameters": {**self.light.model_json_schema(), "additionalProperties": False}}
        fields: dict[str, Any] = {"model": "demo", "max_output_tokens": 150, "temperature": 1,
                                  "extra_body": {"seed": 3}, "instructions": "Be brief."}
        forced = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
        items: list[Any] = [{"role": "user", "content": PROMPT}]
        for _ in range(3):
            answer = self.client.responses.create(input=items, **forced, **fields)
            whole.validate_python(answer.model_dump(), strict=True)
            names = []
            for event in self.client.responses.create(input=items, stream=True, **forced,
                                                      **fields):
                events.validate_python(event.model_dump(), strict=True)
                if not names or names[-1] != event.type:
                    names.append(event.type)
            self.assertEqual([name.removeprefix("response.") for name in names], [
                "created", "in_progress", "output_item.added", "function_call_arguments.delta",
                "function_call_arguments.done", "output_item.done", "completed"], items)
            self.assertEqual(event.response.output[0].arguments, answer.output[0].arguments, items)
            [call] = answer.output
            self.assertIsInstance(self.light(**json.loads(call.arguments)), self.light, items)
            items += [call, {"type": "function_call_output", "call_id": call.call_id,
                             "output": "done"}]
        self.assertGreater(answer.usage.input_tokens_details.cached_tokens, 0)
        free = self.client.responses.create(input=items, tools=[tool], **fields)
        self.assertTrue(free.output)
        parsed = self.client.responses.parse(input=PROMPT, text_format=self.light, **fields)
        self.assertIsInstance(parsed.output_parsed, self.light)
        for wrong, error in (({"previous_response_id": "resp_1"}, openai_error("BadRequest")),
                             ({"model": "other"}, openai_error("NotFound"))):
            with self.assertRaises(error, msg=wrong) as refused:
                self.client.responses.create(**{**fields, "input": PROMPT, **wrong})
            self.assertRegex(refused.exception.request_id, "^[0-9a-f-]{36}$", wrong)
        # As newer versions of the client do in responses.input_tokens.count().
        counted = self.client.post("/responses/input_tokens", cast_to=object, body={
            "model": "demo", "instructions": "Be brief.", "input": PROMPT})
        self.assertEqual(counted, {"object": "response.input_tokens",
                                   "input_tokens": parsed.usage.input_tokens})

    def test_openai_allowed_tools(self) -> None:
        functions = [{"name": name, "strict": True, "parameters": {
            **self.light.model_json_schema(), "additionalProperties": False}}
            for name in ("dim", "light")]
        tools: list[Any] = [{"type": "function", "function": f} for f in functions]
        allowed: Any = {"mode": "required",
                        "tools": [{"type": "function", "function": {"name": "light"}}]}
        chat = self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": PROMPT}], tools=tools,
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, **LIMITS)
        names = {call.function.name for call in chat.choices[0].message.tool_calls}
        tools = [{"type": "function", **f} for f in functions]
        answer = self.client.responses.create(
            model="demo", input=PROMPT, tools=tools, max_output_tokens=150, tool_choice={
                "type": "allowed_tools", "mode": "required",
                "tools": [{"type": "function", "name": "light"}]})
        names |= {call.name for call in answer.output}
        self.assertEqual(names, {"light"})

    def test_openai_responses_async(self) -> None:
        import openai  # noqa: PLC0415

        async def talk() -> None:
            async with openai.AsyncOpenAI(**self.address) as client:
                one, other = await asyncio.gather(*(client.responses.create(
                    model="demo", input=PROMPT, max_output_tokens=20, extra_body={"seed": 3})
                    for _ in range(2)))
                self.assertEqual(one.output_text, other.output_text)
                stream = await client.responses.create(model="demo", input=PROMPT, stream=True,
                                                       max_output_tokens=3000)
                async for event in stream:
                    if event.type == "response.output_text.delta":
                        break
                await stream.close()
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(talk())
        self.assertTrue(fox_server.wait_until(lambda: self.running() == 0))

    def anthropic_tool(self) -> dict[str, Any]:
        return {"name": "light", "description": "Sets a light.",
                "input_schema": self.light.model_json_schema()}

    def test_anthropic(self) -> None:
        """Three turns with tools; each event of a stream by the client's own types."""
        import anthropic  # noqa: PLC0415
        import pydantic  # noqa: PLC0415
        client = self.enterContext(anthropic.Anthropic(**self.anthropic_address()))
        events = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent)
        fields: dict[str, Any] = {"model": "demo", "max_tokens": 120, "system": "Be brief.",
                                  "tools": [self.anthropic_tool()], "extra_body": {"seed": 3}}
        turns: list[Any] = [{"role": "user", "content": PROMPT}]
        one = {"type": "any", "disable_parallel_tool_use": True}
        for _ in range(3):
            counted = client.messages.count_tokens(
                model="demo", messages=turns, system="Be brief.", tools=fields["tools"])
            with client.messages.stream(messages=turns, tool_choice=one, **fields) as stream:
                streamed = stream.get_final_message()
            raw = client.messages.create(messages=turns, tool_choice=one, stream=True, **fields)
            names = []
            for event in raw:
                events.validate_python(event.model_dump(exclude={"fox"}), strict=True)
                if not names or names[-1] != event.type:
                    names.append(event.type)
            self.assertEqual(names, ["message_start", "content_block_start", "content_block_delta",
                                     "content_block_stop", "message_delta", "message_stop"],
                             turns)
            answer = client.messages.create(messages=turns, tool_choice=one, **fields)
            self.assertEqual(answer.stop_reason, "tool_use", turns)
            [call] = answer.content
            self.assertIsInstance(self.light(**call.input), self.light, turns)
            self.assertEqual(streamed.content[0].input, call.input, turns)
            usage = answer.usage
            self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens,
                             counted.input_tokens, turns)
            self.assertEqual(usage.output_tokens, streamed.usage.output_tokens, turns)
            turns += [{"role": "assistant", "content": answer.content},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                    "content": "done"}]}]
        self.assertGreater(usage.cache_read_input_tokens, 0)
        free = client.messages.create(messages=turns, **fields)
        self.assertIn(free.stop_reason, ("end_turn", "tool_use", "max_tokens"))
        with self.assertRaises(anthropic.BadRequestError) as raised:
            client.messages.create(model="demo", max_tokens=5, messages=[
                {"role": "user", "content": "word " * 5000}])
        # So Claude Code reads how much it has to leave out.
        self.assertRegex(raised.exception.body["error"]["message"],
                         r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*4095")
        with self.assertRaises(anthropic.NotFoundError) as unknown:
            client.messages.create(model="other", max_tokens=5, messages=turns)
        for request_id in (answer._request_id, unknown.exception.request_id):
            self.assertRegex(request_id, "^[0-9a-f-]{36}$")
        info = pydantic.TypeAdapter(anthropic.types.ModelInfo)
        for model in (*client.models.list(), client.models.retrieve("demo")):
            info.validate_python(model.model_dump(), strict=True)
            self.assertEqual(model.id, "demo", model)

    def anthropic_address(self) -> dict[str, Any]:
        return {**self.address, "base_url": self.server.http_url}

    def test_anthropic_async(self) -> None:
        import anthropic  # noqa: PLC0415

        async def talk() -> None:
            turns = [{"role": "user", "content": PROMPT}]
            async with anthropic.AsyncAnthropic(**self.anthropic_address()) as client:
                whole, other = await asyncio.gather(*(client.messages.create(
                    model="demo", max_tokens=20, messages=turns, extra_body={"seed": 3})
                    for _ in range(2)))
                self.assertEqual(whole.content, other.content)
                async with client.messages.stream(
                        model="demo", max_tokens=3000, messages=turns) as stream:
                    async for _ in stream.text_stream:
                        break  # the end of the context cancels it
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(talk())
        self.assertTrue(fox_server.wait_until(lambda: self.running() == 0))

    def test_langchain_anthropic(self) -> None:
        import langchain_anthropic  # noqa: PLC0415
        model = langchain_anthropic.ChatAnthropic(
            model="demo", base_url=self.server.http_url, api_key="none", max_retries=0,
            max_tokens=150, temperature=1, model_kwargs={"extra_body": {"seed": 3}})
        made = model.with_structured_output(self.light).invoke(PROMPT)
        self.assertIsInstance(made, self.light)
        self.call_a_tool(model, "any")

    def test_litellm_anthropic(self) -> None:
        import litellm  # noqa: PLC0415
        tool = {"type": "function", "function": {"name": "light",
                                                 "parameters": self.light.model_json_schema()}}
        fields = {"model": "anthropic/demo", "api_base": self.server.http_url, "api_key": "none",
                  "num_retries": 0, "max_tokens": 150}
        turns: list[Any] = [{"role": "user", "content": PROMPT}]
        message = litellm.completion(messages=turns, tools=[tool], tool_choice="required",
                                     parallel_tool_calls=False, **fields).choices[0].message
        [call] = message.tool_calls
        self.assertIsInstance(self.light(**json.loads(call.function.arguments)), self.light)
        turns += [message.model_dump(),
                  {"role": "tool", "tool_call_id": call.id, "content": "done"}]
        again = litellm.completion(messages=turns, tools=[tool], stream=True, **fields)
        self.assertTrue("".join(chunk.choices[0].delta.content or "" for chunk in again))


if __name__ == "__main__":
    pypi_packages.enter(pathlib.Path(sys.argv[1]), "clients_packages", CLIENTS)
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1",
                      OPENAI_API_KEY="none", ANONYMIZED_TELEMETRY="False")
    fox_server.main()
