"""Prompts by seed, and answers of a server that fails now and then, as one token file."""

from __future__ import annotations

import http.server
import json
import lzma
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from toy_llama import END, START, write_tokenizer  # first: it skips without torch

import numpy as np

from models.finetune.text_tokens import TextError, TextTokenizer, open_tokens
from models.foxify import chats
from models.foxify.recall import Asking


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the request's seed; the first request to each seed fails."""

    seen: set[int] = set()
    always_fails = False

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fails = self.always_fails or request["seed"] not in self.seen
        self.seen.add(request["seed"])
        answer = json.dumps({"choices": [{"finish_reason": "stop", "message": {
            "content": f"answer {request['seed']}"}}]}).encode()
        self.send_response(503 if fails else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


class ChatsTest(unittest.TestCase):
    """Against a server in this process."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_tokenizer(self.folder)
        self.text = self.folder / "a.txt"
        self.text.write_text("\n".join(f"Paragraph {i} " + "x" * 200 for i in range(400)))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.enterContext(mock.patch.object(chats.time, "sleep"))

    def test_what_the_assistant_said_in_other_formats(self) -> None:
        """A format with only the user's end before an answer, no end of the answer, a date, and an
        empty system message; the tokens are bytes."""
        plain = {"prefix": "", "suffix": ""}
        tokenizer = TextTokenizer(self.folder)
        for form, text, said, system in (
                ({"user": {"prefix": "[I] ", "suffix": " [/I]"},
                  "assistant": {**plain, "suffix": END}},
                 f"[I] q [/I]one{END}[I] r [/I]two{END}", f"one{END}two{END}", ""),
                ({"user": {"prefix": START, "suffix": "\n"}, "assistant": plain},
                 f"{START}q\none{START}r\ntwo", f"one{START}two", ""),
                ({"user": plain, "assistant": {**plain, "suffix": END}, "system": {
                    "prefix": '<{{strftime_now("%Y")}}>', "suffix": "|"}}, "", "",
                 time.strftime("<%Y>|"))):
            with self.subTest(text=text):
                (self.folder / "chat_format.json").write_text(json.dumps(
                    {"bos": "", "default_system": "" if system else None, "generation_prompt": "",
                     "roles": form}))
                asking = Asking(self.folder)
                self.assertEqual(asking.system(), system)
                if text:
                    ids = np.asarray(tokenizer.encode(text))
                    found = ids[asking.said(ids, tokenizer)].tolist()
                    self.assertEqual(found, tokenizer.encode(said))

    def test_chats_are_written_in_the_order_of_the_prompts(self) -> None:
        prompts = list(chats.make_prompts([self.text], 6, 1))
        self.assertEqual(prompts, list(chats.make_prompts([self.text], 6, 1)))
        self.assertNotEqual(prompts, list(chats.make_prompts([self.text], 6, 2)))
        lengths = [len(p["messages"][0]["content"]) for p in prompts]
        self.assertTrue(min(lengths) > 400 and max(lengths) < 25_000)
        path, out = self.folder / "p.jsonl.xz", self.folder / "chats.tokens"
        with lzma.open(path, "wt") as file:
            file.write("".join(json.dumps(p) + "\n" for p in prompts))
        server = f"127.0.0.1:{self.server.server_port}"
        chats.write_answers(path, self.folder, server, 3, out)
        ids, info = open_tokens(out)
        self.assertEqual(info.documents, 6)
        tokenizer = TextTokenizer(self.folder)
        self.assertEqual(info.tokenizer, tokenizer.fingerprint())
        marks = Asking(self.folder).said(np.asarray(ids), tokenizer)
        said = tokenizer._decode(np.asarray(ids)[marks].tolist())
        self.assertEqual(said, "".join(f"answer {1000 + i}" for i in range(6)))
        talk = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")]
        path = self.folder / "own.jsonl"  # ends with an empty line
        path.write_text(json.dumps({"seed": 5, "messages": [
            {"role": role, "content": content} for role, content in talk]}) + "\n\n")
        chats.write_answers(path, self.folder, server, 3, out)
        told = "".join(f"{START}{role}\n{content}{END}\n"
                       for role, content in (*talk, ("assistant", "answer 5")))
        self.assertEqual(open_tokens(out)[0].tolist(), tokenizer.encode(told))
        with self.assertRaisesRegex(TextError, "no answer in 0 s"):
            chats.write_answers(path, self.folder, server, 3, out, seconds=0)
        with mock.patch.object(_Handler, "always_fails", True), self.assertRaisesRegex(
                TextError, "status 503"):
            chats.write_answers(path, self.folder, server, 3, out)


if __name__ == "__main__":
    unittest.main()
