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

    def test_the_limit_of_the_server_costs_nothing(self) -> None:
        def under(limit: int, seconds: float) -> dict:
            return {"bench": "decode_under_limit", "graphs": True, "batch_size": 1,
                    "context": 16384, "acp": "off", "seconds": {"median": seconds},
                    "max_model_len": limit}

        name = "decode_16k_long_context: step B=1 16k, 1048576 tokens allowed over 20480"
        for seconds, ok in ((0.00148, False), (0.00095, True)):
            row = rows([under(20480, 0.00092), under(1048576, seconds)])[name]
            self.assertEqual((row["value"], row["ok"]), (seconds / 0.00092, ok))

    def test_one_answer_that_differs_is_a_miss(self) -> None:
        def ways(differ: int, count: int = 8, requests: int = 64) -> bool | None:
            way = {"bench": "invariance", "requests": requests, "bits_differ": 0}
            found = rows([way] * (count - 1) + [{**way, "bits_differ": differ}])
            return next(row["ok"] for name, row in found.items() if name.startswith("64 requests"))

        # The third ended early, the fourth is another run than the row's.
        self.assertEqual((ways(0), ways(1), ways(1, 5), ways(0, requests=24)),
                         (True, False, None, None))

    def test_what_failed_is_missed(self) -> None:
        found = rows([{"bench": "gradients", "impl": "ours", "case": "65", "error": "nan"},
                      {"bench": "determinism", "acp": "off", "equal": False}], "training")
        for name in ("gradient cases that failed", "deterministic: equal bits in three runs"):
            self.assertIs(found[name]["ok"], False, name)
        served = dict.fromkeys(("refused", "missing_tokens", "repeated_tokens"), 0)
        lost = rows([{"bench": "serve", "lost": 1, **served}], "memory")
        self.assertIs(lost["requests lost in all these loads"]["ok"], False)
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
    """What errors are measured against, and peers that are absent, wrong or right."""

    def test_the_float64_gradients_are_those_of_autograd(self) -> None:
        import torch
        import float64_attention
        torch.manual_seed(0)
        tokens, starts = 37, [0, 11]
        q, d_out = (torch.randn(2, 4, tokens, 8, dtype=torch.float64) for _ in range(2))
        k, v = (torch.randn(2, 2, tokens, 8, dtype=torch.float64) for _ in range(2))
        log_gates = -torch.rand(2, 4, tokens, dtype=torch.float64)
        inputs = [x.requires_grad_() for x in (q, k, v, log_gates)]
        outs = []
        for b, start in enumerate(starts):
            part = [x[b, ..., start:] if x.dim() == 3 else x[b, :, start:] for x in inputs]
            c = part[3].cumsum(-1)
            keys, values = (x.repeat_interleave(2, 0) for x in part[1:3])
            s = part[0] @ keys.mT / 8**0.5 + c[:, :, None] - c[:, None, :]
            dead = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
            out = s.masked_fill(dead, -torch.inf).softmax(-1) @ values
            outs.append(torch.nn.functional.pad(out, (0, 0, start, 0)))
        out = torch.stack(outs)
        wanted = [out, *torch.autograd.grad(out, inputs, d_out)]
        with torch.no_grad():
            sampled = torch.tensor([0, 3, 36])
            given = float64_attention.output_rows(
                q[:1], *(x[:1].repeat_interleave(2, 1) for x in (k, v)), log_gates[:1], sampled)
            torch.testing.assert_close(given, out[:1, :, sampled])
            float64_attention.ROWS = 16  # several blocks of rows
            given = float64_attention.attention_gradients(q, k, v, log_gates, d_out, starts)
        for name, value in zip(float64_attention.NAMES, wanted):
            torch.testing.assert_close(given[name], value, msg=name)
        errors = float64_attention.relative_errors(
            {name: 1.001 * value for name, value in given.items()}, given)
        for given_errors in float64_attention.worst_and_mean(errors).values():
            for error in given_errors.values():
                self.assertAlmostEqual(error, 1e-3)

    def test_a_library_that_is_absent_or_wrong_has_a_row_that_says_so(self) -> None:
        import torch
        import attention_libraries
        import inputs
        q, k, v = (torch.randn(2, 3, 50, 8) for _ in range(3))
        given = (q, k, v, -torch.rand(2, 3, 50))
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        results, measured = inputs.Results(None), []
        results.row = lambda **values: measured.append(values)

        def absent(*_: torch.Tensor) -> None:
            raise ModuleNotFoundError("no_such_module")

        with unittest.mock.patch.object(inputs, "gpu_seconds", lambda call: 1.5):
            for name, acp, make in (("absent", "off", absent),
                                    ("wrong", "off", lambda *_: lambda: exact),
                                    ("right", "no gate", lambda *_: lambda: exact)):
                attention_libraries.measure(results, name, acp, make, given)
        self.assertEqual([(row["bench"], row["peer"]) for row in measured], [
            ("peer_attention", "absent"), ("peer_check", "wrong"), ("peer_attention", "wrong"),
            ("peer_check", "right"), ("peer_attention", "right")])
        self.assertIn("no_such_module", measured[0]["error"])
        self.assertIn("differs from float64", measured[2]["error"])
        self.assertLess(measured[3]["against_float64"], 1e-5)
        self.assertEqual(measured[4]["seconds"], 1.5)


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
