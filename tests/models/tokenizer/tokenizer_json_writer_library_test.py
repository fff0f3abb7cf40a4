#!/usr/bin/env python3
"""The tokenizer.json that we write, read by the library that gateways use (`tokenizers`): the same
ids and texts as our own tokenizers give. Skipped, and it says so, where the package cannot be had.

    tokenizer_json_writer_library_test.py BIN     the folder of print_tokenizer_json
"""

from __future__ import annotations

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import gateway_process  # noqa: E402

if __name__ == "__main__":
    gateway_process.enter_packages(pathlib.Path(sys.argv[1]))

import tokenizers  # noqa: E402

ALPHABET = list("abc  \n\t.,'\"019é—“”日本語🦊\u00a0\u200b▁=") + ["the ", "'s", " fox", "aaaa", "  "]
GPT2 = ROOT / "tests" / "models" / "tokenizer" / "gpt2"


def texts() -> list[str]:
    """Parts of a book, and noise; the same in every run."""
    book, rng = (ROOT / "models" / "demo" / "prompt_long.txt").read_text(), random.Random(1)
    starts = [rng.randrange(len(book)) for _ in range(1500)]
    parts = [book[start:start + rng.randrange(1, 400)] for start in starts]
    noise = ["".join(rng.choices(ALPHABET, k=rng.randrange(40))) for _ in range(1500)]
    return [*parts, *noise, "", " ", "\n", book]


class TokenizerJsonWriterLibraryTest(unittest.TestCase):
    programs = pathlib.Path()

    def ask(self, model: pathlib.Path, vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
        """The library's tokenizer, and (text, what ours says of it)."""
        asked = texts()
        lines = "".join(json.dumps(text) + "\n" for text in asked)
        done = subprocess.run(
            [str(self.programs / "print_tokenizer_json"), str(model), str(vocab_size)],
            input=lines, capture_output=True, text=True, timeout=60, check=True)
        written, *answers = done.stdout.split("\n")[:-1]
        return (tokenizers.Tokenizer.from_str(written),
                zip(asked, map(json.loads, answers), strict=True))

    def compare(self, model: pathlib.Path, vocab_size: int) -> tokenizers.Tokenizer:
        library, answers = self.ask(model, vocab_size)
        for text, own in answers:
            ids = library.encode(text).ids
            self.assertEqual(ids, own["ids"], repr(text))
            self.assertEqual(library.decode(ids), own["text"], repr(text))
        self.assertEqual(library.get_vocab_size(), vocab_size)
        return library

    def test_the_demos_sentencepiece_model(self) -> None:
        library = self.compare(ROOT / "models" / "demo", 8192)
        self.assertEqual(library.decode([1, 2]), "")  # special ones
        self.assertEqual(library.encode("<s>").ids[:1], [1])  # a chat template may write them

    def test_gpt2(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("vocab.json", "merges.txt"):
                shutil.copy(GPT2 / name, folder)
            library = self.compare(pathlib.Path(folder), 50257)
            reference = tokenizers.ByteLevelBPETokenizer.from_file(
                str(GPT2 / "vocab.json"), str(GPT2 / "merges.txt"))
        for text in texts():
            self.assertEqual(library.encode(text).ids, reference.encode(text).ids)
        self.assertEqual(library.encode("a<|endoftext|>").ids, [64, 50256])
        self.assertEqual(library.decode([64, 50256]), "a")


if __name__ == "__main__":
    TokenizerJsonWriterLibraryTest.programs = pathlib.Path(sys.argv.pop(1))
    unittest.main()
