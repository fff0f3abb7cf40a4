#!/usr/bin/env python3
"""The tools around GPU measurements, without a GPU: judged rows, README tables, peers, packs."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import gpu_bench
import gpu_build
import gpu_pack
import judge
import tables

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
NO_TORCH = "" if importlib.util.find_spec("torch") else "no PyTorch here"


def rows(measured: list[dict], suite: str = "serving", **tests: str) -> dict[str, judge.Row]:
    """Judged rows by name."""
    report = {"parts": {"some": {"rows": measured}, "broken": {"error": "exit code 1"}},
              "tests": tests}
    return {row["row"]: row
            for row in gpu_bench.SUITES[suite].judged_rows(judge.Measurements(report))}


class JudgeTest(unittest.TestCase):
    """Rows from measurements."""

    def test_the_committed_measurements_give_the_committed_rows(self) -> None:
        for suite in gpu_bench.SUITES.values():
            path = gpu_bench.RESULTS / suite.results.format(gpu_bench.JUDGED_CARD)
            report = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual(suite.judged_rows(judge.Measurements(report)), report["judged"])
            self.assertTrue(all(row["value"] is not None for row in report["judged"]))

    def test_limits_hold_on_their_side(self) -> None:
        self.assertEqual([judge.row("", value, "", at, 2)["ok"] for at in ("most", "least", "is")
                          for value in (1, 2, 3, None)],
                         [True, True, False, None, False, True, True, None,
                          False, True, False, None])
        shown = judge.as_table([judge.row("", value, "", "most", 3, 2) for value in (2, 3, 4)])
        self.assertEqual([line.split()[0] for line in shown.splitlines()[1:]],
                         ["aim", "ok", "MISSED"])

    def test_one_answer_that_differs_is_a_miss(self) -> None:
        def ways(differ: int, count: int = 8, requests: int = 64) -> bool | None:
            way = {"bench": "invariance", "requests": requests, "bits_differ": 0}
            found = rows([way] * (count - 1) + [{**way, "bits_differ": differ}])
            return next(row["ok"] for name, row in found.items() if name.startswith("64 requests"))

        # The third ended early, the fourth is another run than the row's.
        self.assertEqual((ways(0), ways(1), ways(1, 5), ways(0, requests=24)),
                         (True, False, None, None))

    def test_what_failed_is_missed(self) -> None:
        found = rows([{"bench": "gradients", "impl": "ours", "case": "65", "error": "nan"}],
                     "training")
        self.assertIs(found["gradient cases that failed"]["ok"], False)
        kinds = ("lost", "refused", "missing_tokens", "repeated_tokens")
        for kind in kinds:
            lost = rows([{"bench": "serve", **dict.fromkeys(kinds, 0), kind: 1}], "memory")
            self.assertEqual([row["ok"] for row in lost.values()].count(False), 1, kind)
        self.assertIs(rows([], golden_error="0.03")["golden logits against float64, worst"]["ok"],
                      False)

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        for suite in gpu_bench.SUITES:
            found = list(rows([], suite).values())
            self.assertEqual(judge.as_table(found).count("absent"), len(found))
            self.assertTrue(all(row["ok"] is None for row in found))

    def test_only_the_card_of_the_limits_is_judged(self) -> None:
        for name, card in (("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"),
                           ("NVIDIA GeForce RTX 4090", "rtx4090"), ("", "h200")):
            self.assertEqual(gpu_bench.card(name), card)
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
                report = {"device": {"name": name}, "parts": {"prefill": {"rows": [{"a": 1}]}}}
                out.write_text(json.dumps(report), encoding="utf-8")
                subprocess.run([sys.executable, "-B", str(HERE / "gpu_bench.py"), "--judge",
                                "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
                kept = json.loads(out.read_text(encoding="utf-8"))
                self.assertEqual("judged" in kept, name == "NVIDIA H200")
                self.assertEqual(kept["parts"], report["parts"])

    def test_the_tables_are_those_of_the_committed_measurements(self) -> None:
        text = tables.README.read_text(encoding="utf-8")
        self.assertEqual(tables.rewritten(text), text)


@unittest.skipIf(NO_TORCH, NO_TORCH)
class PeersTest(unittest.TestCase):
    """What errors are measured against, and peers that are wrong or right."""

    def test_the_float64_gradients_are_those_of_autograd(self) -> None:
        import torch
        import float64_attention
        torch.manual_seed(0)
        q, k, v, d_out = (torch.randn(2, 3, 37, 8, dtype=torch.float64) for _ in range(4))
        inputs = [x.requires_grad_() for x in (q, k, v, -torch.rand(2, 3, 37).double())]
        c = inputs[3].cumsum(-1)
        s = q @ k.mT / 8**0.5 + c[..., :, None] - c[..., None, :]
        dead = torch.ones(37, 37, dtype=torch.bool).triu(1)
        out = s.masked_fill(dead, -torch.inf).softmax(-1) @ v
        wanted = [out, *torch.autograd.grad(out, inputs, d_out)]
        float64_attention.ROWS = 16  # several blocks of rows
        with torch.no_grad():
            given = float64_attention.attention_gradients(*inputs, d_out)
        for name, value in zip(float64_attention.NAMES, wanted):
            torch.testing.assert_close(given[name], value, msg=name)
        errors = float64_attention.relative_errors(
            {name: 1.001 * value for name, value in given.items()}, given)
        for error in errors.values():
            torch.testing.assert_close(error, torch.full_like(error, 1e-3))

    def test_a_peer_that_is_wrong_has_no_time(self) -> None:
        import torch
        import attention
        exact = torch.ones(8)
        with unittest.mock.patch.object(attention.inputs, "gpu_seconds", lambda call: 1.5):
            self.assertEqual(attention.checked_seconds(lambda: 1.01 * exact, exact), 1.5)
            for wrong in (1.03 * exact, torch.nan * exact):
                with self.assertRaisesRegex(ValueError, "differs from the official"):
                    attention.checked_seconds(lambda wrong=wrong: wrong, exact)


class ModelPackTest(unittest.TestCase):
    """The demo model's way to a tree without it."""

    def test_weights_come_back_where_none_are(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            there, here, pack = (pathlib.Path(name, part) for part in ("there", "here", "model.xz"))
            there.mkdir()
            here.mkdir()
            gpu_pack.pack_model(there, pack)
            self.assertFalse(pack.exists())  # no weights, no archive

            weights = {f"model-{i}.safetensors": bytes(range(256)) * (i + 1) for i in range(3)}
            for file, content in weights.items():
                (there / file).write_bytes(content)
            (there / "config.json").write_text("{}", encoding="utf-8")
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, here)
            self.assertEqual({file.name: file.read_bytes() for file in here.iterdir()}, weights)

            (here / "model-0.safetensors").write_bytes(b"mine")
            os.utime(pack, (0, 0))  # older than the weights
            (there / "model-0.safetensors").write_bytes(b"newer")
            gpu_pack.pack_model(there, pack)
            for folder, found in ((here, b"mine"), (pathlib.Path(name, "third"), b"newer")):
                gpu_build.restore_model(pack, folder)
                self.assertEqual((folder / "model-0.safetensors").read_bytes(), found)


if __name__ == "__main__":
    unittest.main()
