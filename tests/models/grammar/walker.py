"""The program grammar_walker: random answers that grammars allow, for one vocabulary."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any


class Walker:
    """Runs `program` until close(). Texts of its answers have a character for each byte."""

    def __init__(self, program: str, tokens: list[bytes]) -> None:
        tokens = [b"", *(b"" if b"\0" in token else token for token in tokens)]
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(b"".join(struct.pack("<I", len(token)) + token for token in tokens))
        self.file.flush()
        self.process = subprocess.Popen([program, self.file.name], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, kind: str, source: str, walks: int, steps: int = 200, relax: bool = False,
            seed: int = 1, tries: Sequence[str] = ()) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"kind": kind, "source": source, "relax": relax,
                                             "walks": walks, "steps": steps, "seed": seed,
                                             "tries": list(tries)}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise AssertionError(f"the program ended at {source}")
        return dict(json.loads(answer))

    def close(self) -> None:
        self.process.communicate()
        self.file.close()
