#!/usr/bin/env python3
"""The HTTP port as its users meet it: the `openai` client, on the demo.

    openai_test.py BIN     the folder of fox-server and fox-cli
"""

from __future__ import annotations

from typing import Any

import fox_server
from fox_server import wait_until

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

    def test_leaving_a_stream_ends_its_request(self) -> None:
        stream = self.complete(prompt=PROMPT, max_tokens=100000, stream=True,
                               extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertTrue(wait_until(lambda: self.running() == 0))


if __name__ == "__main__":
    fox_server.main("openai")
