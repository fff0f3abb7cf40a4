#!/usr/bin/env python3
"""Audits of answers: the distances that a fox-server reports are those between fox-eval's logits
with pruning and without; an audit without a result says why; a share of all answers is audited
unasked.

    audit_test.py BIN     the folder of fox-server and fox-eval
"""

from __future__ import annotations

import array
import json
import math
import pathlib
import struct
import subprocess
import tempfile
import urllib.error
from typing import Any

import fox_server
from fox_server import MODEL, wait_until

TEXT = (MODEL / "prompt_long.txt").read_text()
PROMPT = TEXT[:6000]  # some 1,800 tokens
LOOSE = ("--dtype", "f64", "--log-tolerance", "-1")
HTTP = ("--http-port", "0", "--metrics-port", "0")


def rows_of(path: pathlib.Path) -> list[array.array[float]]:
    """The rows of the only tensor of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    about = json.loads(data[8:begin])["logits"]
    values = array.array({"F64": "d", "F32": "f"}[about["dtype"]])
    first, last = about["data_offsets"]
    values.frombytes(data[begin + first:begin + last])
    columns = about["shape"][1]
    return [values[i:i + columns] for i in range(0, len(values), columns)]


def probabilities(row: array.array[float]) -> list[float]:
    largest = max(row)
    weights = [math.exp(x - largest) for x in row]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


class AuditTest(fox_server.Case):
    flags = None

    def ask(self, prompt: str = PROMPT, tokens: int = 12, path: str = "/v1/completions",
            **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.post(path, prompt=prompt, max_tokens=tokens,
                                                      temperature=0, **fields))
        return answer

    def refused(self, **fields: Any) -> str:
        with self.assertRaises(urllib.error.HTTPError) as refusal:
            self.ask(**fields)
        self.assertEqual(refusal.exception.code, 400)
        said: str = json.loads(refusal.exception.read())["error"]["message"]
        return said

    def ids(self, text: str) -> list[int]:
        found: list[int] = json.loads(self.post("/tokenize", prompt=text))["tokens"]
        return found

    def logits(self, ids: list[int], acp: str) -> list[array.array[float]]:
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "logits.safetensors"
            (out.parent / "ids.json").write_text(json.dumps(ids))
            subprocess.run([self.programs / "fox-eval", "logits", "--model", MODEL, "--acp", acp,
                            *LOOSE, "--ids", out.parent / "ids.json", "--out", out], check=True,
                           timeout=100, stdout=subprocess.DEVNULL)
            return rows_of(out)

    def test_it_is_the_distance_of_the_two_distributions(self) -> None:
        """A loose tolerance, so that the distance is far above the rounding of float32 logits."""
        self.serve_case(*HTTP, *LOOSE)
        answer = self.ask(tokens=32, audit=True)
        self.assertNotIn("audit", self.ask(tokens=1)["fox"])
        audit = answer["fox"]["audit"]
        ids = self.ids(PROMPT + answer["choices"][0]["text"])
        usage = answer["usage"]
        self.assertEqual(len(ids), usage["prompt_tokens"] + usage["completion_tokens"])
        rows = slice(usage["prompt_tokens"] - 1, len(ids) - 1)
        distances, divergence = [], 0.0
        for a, b in zip(self.logits(ids, "certified")[rows], self.logits(ids, "off")[rows]):
            p, q = probabilities(a), probabilities(b)
            distances.append(math.fsum(abs(x - y) for x, y in zip(p, q)) / 2)
            divergence += math.fsum(y * math.log(y / x) for x, y in zip(p, q) if x > 0 < y)
        self.assertEqual(audit["tokens"], len(distances))
        # The server's logits are rounded to float32: below 16, by 2^-24 of that.
        error = 16 * 2 ** -24
        self.assertGreater(max(distances), 20 * error)
        self.assertAlmostEqual(audit["max_tv"], max(distances), delta=error)
        self.assertAlmostEqual(audit["sum_tv"], sum(distances), delta=error * len(distances))
        self.assertAlmostEqual(audit["sum_kl"], divergence, delta=error * len(distances))

    def test_where_nothing_is_pruned_there_is_no_audit(self) -> None:
        self.serve_case(*HTTP)
        self.assertIn("nothing is pruned", self.refused(audit=True, acp="off"))
        short = self.ask(prompt=TEXT[:100], audit=True)["fox"]["audit"]
        self.assertEqual((short["tokens"], short["max_tv"], short["sum_kl"]), (12, 0, 0))
        self.serve_case(*HTTP, "--acp", "off")
        self.assertIn("nothing is pruned", self.refused(audit=True))

    def test_choices_and_streams(self) -> None:
        self.serve_case(*HTTP)
        both = self.ask(n=2, tokens=5, audit=True)["fox"]["audit"]
        self.assertEqual(both["tokens"], 10)
        events = self.post(prompt=PROMPT, max_tokens=5, temperature=0, stream=True,
                           stream_options={"include_usage": True}, audit=True).decode()
        last = [json.loads(line[6:]) for line in events.splitlines()
                if line.startswith("data: {") and '"fox"' in line][-1]
        self.assertEqual(last["fox"]["audit"]["tokens"], 5)

    def test_an_unpruned_cache_that_does_not_fit_is_said(self) -> None:
        """The pool holds the pruned prompt only."""
        self.serve_case(*HTTP, "--kv-cache-mb", "20", "--max-model-len", "4096",
                        "--max-num-seqs", "1")
        audit = self.ask(audit=True)["fox"]["audit"]
        self.assertEqual(list(audit), ["skipped"])
        self.assertEqual(self.metric("fox_audits_skipped_total"), 1)
        self.assertIn("choices", self.ask())  # the server goes on

    def test_the_pruned_reading_takes_the_prompt_from_the_prefix_cache(self) -> None:
        """The pruned reading finds the prompt that was stored under its request's salt; the
        unpruned reading finds nothing, because it bypasses the cache."""
        self.serve_case(*HTTP)
        for salts in (1, 2):  # the second request finds as much, under a salt of its own
            tokens = self.ask(tokens=8, audit=True, cache_salt=str(salts))["usage"]["prompt_tokens"]
            found = self.metric("fox_prefix_cache_found_tokens_total") / salts
            self.assertGreater(found, tokens - 128, salts)  # snapshots are at page ends
            self.assertLessEqual(found, tokens, salts)

    def test_a_share_of_the_answers_is_audited_unasked(self) -> None:
        self.serve_case(*HTTP, "--audit-share", "0.5", "--audit-limit", "0")
        for _ in range(4):
            self.assertNotIn("audit", self.ask()["fox"])
        self.assertTrue(wait_until(lambda: self.metric("fox_audit_max_tv_count") == 2))
        self.assertEqual(self.metric("fox_audits_beyond_limit_total"), 2)
        self.assertTrue(self.server.logged("audit beyond --audit-limit"))
        self.assertGreater(self.metric("fox_audit_max_tv_sum"), 0)


if __name__ == "__main__":
    fox_server.main()
