#!/usr/bin/env python3
"""The tools around GPU measurements, without a GPU: judged rows, README tables, packs."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import gpu_bench
import gpu_build
import gpu_pack
import judge
import judge_memory
import judge_training
import plot_results
import training_report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def step(acp: str, seconds: float, batch: int = 32, context: int = 16384) -> dict:
    """A row of fox-bench decode."""
    return {"bench": "decode", "graphs": True, "batch_size": batch, "context": context,
            "acp": acp, "seconds": {"median": seconds, "min": seconds, "max": seconds}}


class JudgeTest(unittest.TestCase):
    """Rows from measurements."""

    def rows(self, measured: list[dict], tests: dict[str, str]) -> dict[str, judge.Row]:
        """Judged rows by name."""
        parts = {"decode": {"rows": measured}, "broken": {"error": "exit code 1"}}
        return {row["row"]: row for row in judge.judged_rows(parts, tests)}

    def test_limits_hold_on_their_side(self) -> None:
        rows = self.rows([step("off", 0.017), step("paper", 0.0085), step("certified", 0.0058)],
                         {"golden_error": "0.03", "graphs_equal": "1"})
        self.assertTrue(rows["decode step B=32 16k, paper or certified"]["ok"])
        gain = rows["tokens/s B=32 16k, ACP over none"]
        self.assertAlmostEqual(gain["value"], 17 / 5.8)
        self.assertTrue(gain["ok"])
        self.assertFalse(judge.aim_reached(gain))
        self.assertFalse(rows["golden logits against float64, worst"]["ok"])
        self.assertTrue(rows["tokens equal with and without graphs"]["ok"])

    def test_the_limit_of_the_server_costs_nothing(self) -> None:
        def under(limit: int, seconds: float) -> dict:
            return {**step("off", seconds), "bench": "decode_under_limit", "batch_size": 1,
                    "max_model_len": limit}

        name = "decode_16k_long_context: step B=1 16k, 1048576 tokens allowed over 20480"
        slow = self.rows([under(20480, 0.00092), under(1048576, 0.00148)], {})[name]
        self.assertAlmostEqual(slow["value"], 148 / 92)
        self.assertFalse(slow["ok"])
        self.assertTrue(self.rows([under(20480, 0.00092), under(1048576, 0.00095)], {})[name]["ok"])

    def test_a_million_tokens_are_judged_and_shown(self) -> None:
        served = {"bench": "serve", "prompt_tokens": 1048576, "output_tokens": 128, "completed": 1,
                  "time_to_first_token": {"p50": 12.5}, "end_to_end": {"p50": 12.754},
                  "most_kept_bytes": 5_300_000_000}
        rows = self.rows([served], {})
        prompt = rows["one prompt of 1048576 tokens, to its first token"]
        self.assertEqual((prompt["value"], prompt["ok"]), (12.5, True))
        self.assertAlmostEqual(rows["a token behind it"]["value"], 2)
        table = plot_results.table({"parts": {"million": {"rows": [served]}}})
        self.assertIn("1,048,576 tokens, a token behind it | - | - | 2 |", table)
        self.assertIsNone(self.rows([{**served, "completed": 0}], {})["a token behind it"]["ok"])

    def test_one_answer_that_differs_is_a_miss(self) -> None:
        def ways(differ: int, count: int = 8, requests: int = 64) -> judge.Row:
            way = {"bench": "invariance", "requests": requests, "bits_differ": 0}
            rows = self.rows([way] * (count - 1) + [{**way, "bits_differ": differ}], {})
            return next(row for name, row in rows.items() if name.startswith("64 requests"))

        self.assertTrue(ways(0)["ok"])
        self.assertFalse(ways(1)["ok"])
        self.assertIsNone(ways(1, 5)["ok"])  # it ended early
        self.assertIsNone(ways(0, requests=24)["ok"])  # another run than the row's

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        rows = self.rows([step("off", 0.019)], {})
        self.assertTrue(all(row["ok"] is None for row in rows.values()))
        self.assertNotIn("MISSED", judge.as_table(list(rows.values())))


def training_rows() -> list[dict]:
    """What gpu_bench.py --training measures, with made-up values."""
    def attention(impl: str, kind: str, acp: str, seconds: float, **more: object) -> dict:
        return {"bench": "training_attention", "impl": impl, "kind": kind, "acp": acp, "heads": 24,
                "head_dim": 64, "tokens": 16384, "deterministic": False, "flops": 8.25e12,
                "seconds": seconds, **more}

    def gradients(impl: str, case: str, error: float) -> dict:
        return {"bench": "gradients", "impl": impl, "case": case, "acp": "off",
                **{key: dict.fromkeys(("out", *judge_training.GRADIENTS), error)
                   for key in ("errors", "mean_errors")}}

    return [attention("ours", "forward", "paper", 0.0021),
            attention("ours", "backward", "off", 0.020),
            attention("ours", "backward", "off", 0.024, deterministic=True),
            attention("ours", "backward", "paper", 0.0063),
            attention("ours", "backward", "paper", 0.0081, deterministic=True),
            attention("official", "backward", "off", 0.050),
            attention("cudnn", "backward", "no gate", 0.0196),
            gradients("official", "random", 4e-3), gradients("ours", "random", 4.4e-3),
            gradients("official", "tiny", 1e-4), gradients("ours", "tiny", 2e-4),
            gradients("ours", "ragged", 6e-3),
            {"bench": "determinism", "acp": "off", "equal": True},
            {"bench": "training_step", "impl": "ours", "acp": "paper", "seconds": 0.3,
             "loss": 10.8},
            {"bench": "training_step", "impl": "official", "acp": "paper", "seconds": 0.36,
             "loss": 10.81},
            {"bench": "packed", "acp": "paper", "differences": {"out": 0.0, "dq": 1e-3},
             "seconds": 0.001, "seconds_of_calls": 0.004},
            {"bench": "compile", "acp": "off", "differences": {"out": 0.0}, "graph_breaks": 0}]


class JudgeTrainingTest(unittest.TestCase):
    """Rows of the training side."""

    def rows(self, measured: list[dict]) -> dict[str, judge.Row]:
        """Judged rows by name."""
        return {row["row"]: row for row in
                judge_training.judged_rows({"training": {"rows": measured}}, {})}

    def test_every_limit_of_the_table(self) -> None:
        rows = self.rows(training_rows())
        for name, value, ok in (
                ("training forward d64 16k, paper", 2.1, True),
                ("backward d64 16k, off, over the official kernel", 2.5, True),
                ("backward d64 16k, off", 412.5, None),
                ("backward d64 16k, off, over cuDNN without gate", 0.98, None),
                ("backward d64 16k, paper", 6.3, True),
                ("backward d64 16k, off, speed of deterministic over fast", 20 / 24, True),
                ("backward d64 16k, paper, speed of deterministic over fast", 63 / 81, False),
                ("deterministic: equal bits in three runs", 1, True),
                ("error of dq against float64, worst case and head", 6e-3, True),
                ("error of dq over the official kernel's, all cases", 1.1008, True),
                ("error of dq over the official kernel's, worst case", 2, None),
                ("gradient cases that failed", 0, True),
                ("training step 760M Pro, 16k, our op, paper", 0.3, True),
                ("training step 760M Pro, 16k, over official with ACP", 1.2, True),
                ("training step 760M Pro, 16k, over official without ACP", None, None),
                ("16 packed sequences against 16 calls, outputs and gradients", 1e-3, True),
                ("graph breaks under torch.compile", 0, True),
                ("packed or compiled cases that failed", 0, True),
                ("two GPUs by torchrun against one, losses", None, None)):
            with self.subTest(row=name):
                if value is None:
                    self.assertIsNone(rows[name]["value"])
                else:
                    self.assertAlmostEqual(rows[name]["value"], value, 4)
                self.assertEqual(rows[name]["ok"], ok)

    def test_what_failed_is_missed(self) -> None:
        rows = self.rows([*training_rows(),
                          {"bench": "gradients", "impl": "ours", "case": "65", "error": "nan"},
                          {"bench": "compile", "acp": "paper", "error": "Unsupported"}])
        for name in ("gradient cases that failed", "packed or compiled cases that failed",
                     "graph breaks under torch.compile"):
            self.assertIs(rows[name]["ok"], False, name)

    def test_without_measurements_nothing_is_met_or_missed(self) -> None:
        rows = list(self.rows([]).values())
        self.assertTrue(all(row["ok"] is None and row["value"] is None for row in rows))
        self.assertEqual(json.loads(json.dumps(rows)), rows)
        self.assertEqual(judge.as_table(rows).count("absent"), len(rows))

    def test_a_run_without_a_gpu_keeps_what_was_measured(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out, rows = pathlib.Path(folder, "out.json"), pathlib.Path(folder, "rows")
            out.write_text(json.dumps({"parts": {"training-d64": {"rows": training_rows()}}}),
                           encoding="utf-8")
            rows.write_text('{"bench": "two_gpus", "loss_gap": 0.001}\n', encoding="utf-8")
            subprocess.run([sys.executable, "-B", str(HERE / "gpu_bench.py"), "--training",
                            "--judge", "--out", str(out), "--rows", str(rows)], check=True,
                           stdout=subprocess.DEVNULL)
            report = json.loads(out.read_text(encoding="utf-8"))
        judged = {row["row"]: row["value"] for row in report["judged"]}
        self.assertEqual(judged["two GPUs by torchrun against one, losses"], 0.001)
        self.assertEqual(judged["backward d64 16k, paper"], 6.3)
        self.assertEqual(report["parts"]["training-d64"]["rows"], training_rows())

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch here")
    def test_the_float64_gradients_are_those_of_autograd(self) -> None:
        import torch
        sys.path.insert(0, str(HERE / "peers"))
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
            rows = torch.tensor([0, 3, 36])
            sampled = float64_attention.output_rows(
                q[:1], *(x[:1].repeat_interleave(2, 1) for x in (k, v)), log_gates[:1], rows)
            torch.testing.assert_close(sampled, out[:1, :, rows])
            float64_attention.ROWS = 16  # several blocks of rows
            given = float64_attention.attention_gradients(q, k, v, log_gates, d_out, starts)
        for name, value in zip(float64_attention.NAMES, wanted):
            torch.testing.assert_close(given[name], value, msg=name)
        errors = float64_attention.relative_errors(
            {name: 1.001 * value for name, value in given.items()}, given)
        for given_errors in float64_attention.worst_and_mean(errors).values():
            for error in given_errors.values():
                self.assertAlmostEqual(error, 1e-3)


def memory_rows() -> list[dict]:
    """What gpu_bench.py --memory measures, with made-up values."""
    def serve(acp: str, load: str, **more: object) -> dict:
        return {"bench": "serve", "acp": acp, "load": load, "completed": 200, "preempted": 0,
                "refused": 0, "lost": 0, "missing_tokens": 0, "repeated_tokens": 0,
                "most_kept": 8, "most_running": 9, "output_tokens_per_second": 2000, **more}

    def cache(on: bool, load: str, seconds: float, **more: object) -> dict:
        same = dict.fromkeys(("median", "min", "max"), 1.0)
        return {"bench": "cache", "load": load, "cache": on, "sooner": same, "device": "cuda",
                "tokens_per_second_over_off": {**same, "median": 0.99},
                "first_token_seconds": {"median": seconds}, **more}

    median = {"median": 0.1}
    return [serve("off", "16k at once"), serve("certified", "16k at once", most_kept=28),
            serve("off", "arrivals", kv_admission="expected",
                  engine={"prefill_seconds": 9, "decode_seconds": 48}),
            serve("certified", "arrivals", kv_admission="expected", preempted=5, lost=1,
                  output_tokens_per_second=7100,
                  engine={"prefill_seconds": 8, "decode_seconds": 12}),
            cache(False, "questions", 0.024, prefix="8k"),
            cache(True, "questions", 0.003, prefix="8k"), cache(True, "strangers", 0.1),
            {"bench": "snapshots", "share_of_unpruned": 0.015},
            {"bench": "snapshots", "share_of_unpruned": 0.045},
            {"bench": "salts", "while": "has it", "device": "cpu", "found_tokens": 0, "p": 0.002,
             "other_seconds": median, "fresh_seconds": median, "own_seconds": median},
            {"bench": "start", "name": "256 seats", "listening_seconds": 5.0, "device_mib": 300,
             "plan_mib": {"KV_tables": 1400.0}},
            {"bench": "start", "name": "256 seats, no graphs", "device_mib": 200}]


class JudgeMemoryTest(unittest.TestCase):
    """Rows of memory."""

    def test_every_limit_of_the_table(self) -> None:
        rows = {row["row"]: row for row in judge_memory.judged_rows(
            {"memory": {"rows": memory_rows()}}, {})}
        arrivals = "4k to 12k at 100/s, 20 GB"
        for name, value, ok in (
                ("sequences of 16k at once in 20 GB, certified over off", 3.5, True),
                (f"tokens/s, {arrivals}, expected admission, certified over off", 3.55, True),
                ("the engine's time in steps without prompts under that load, off over certified",
                 4, None),
                (f"tokens/s, {arrivals}, worst-case admission, certified over off", None, None),
                (f"requests preempted, {arrivals}, expected admission, certified", 2.5, False),
                ("requests lost in all these loads", 1, False),
                ("tokens missing or repeated in all these loads", 0, True),
                ("first token of a question of 100 tokens behind a cached 8k prefix, over "
                 "computing it", 8, True),
                ("first token behind a cached 8k prefix", 3, None),
                ("tokens/s that the cache costs a load that shares nothing, 760M", 1, True),
                ("bytes of a further snapshot at 8k, demo model, worst distance", 4.5, True),
                ("tokens found that another salt has cached", 0, True),
                ("two salts (cpu), one has it: chance that alike times differ so much", 0.002,
                 False),
                ("start of a server with 256 seats", 5, None),
                ("graphs of 256 seats", 100, None)):
            with self.subTest(row=name):
                self.assertEqual(rows[name]["ok"], ok)
                if value is None:
                    self.assertIsNone(rows[name]["value"])
                else:
                    self.assertAlmostEqual(rows[name]["value"], value)

    def test_without_measurements_nothing_is_met_or_missed(self) -> None:
        rows = judge_memory.judged_rows({}, {})
        self.assertTrue(all(row["ok"] is None and row["value"] is None for row in rows))


class CardTest(unittest.TestCase):
    """Results of each card have a file of their own; limits are those of one."""

    def test_results_are_named_after_the_card(self) -> None:
        for name, card in (("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"),
                           ("NVIDIA GeForce RTX 4090", "rtx4090"), ("", "h200")):
            self.assertEqual(gpu_bench.card(name), card)

    def test_only_the_card_of_the_limits_is_judged(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, judged in (("NVIDIA H100 80GB HBM3", False), ("NVIDIA H200", True)):
                out = pathlib.Path(folder, "out.json")
                out.write_text(json.dumps({"device": {"name": name}, "parts": {}}),
                               encoding="utf-8")
                subprocess.run([sys.executable, "-B", str(HERE / "gpu_bench.py"), "--judge",
                                "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
                self.assertEqual("judged" in json.loads(out.read_text(encoding="utf-8")), judged)


class TableTest(unittest.TestCase):
    """The tables in tests/bench/README.md."""

    def test_each_is_that_of_the_committed_measurements(self) -> None:
        text = plot_results.README.read_text(encoding="utf-8")
        for begin, end, path, table in (
                (plot_results.BEGIN, plot_results.END, plot_results.RESULTS, plot_results.table),
                (plot_results.TRAINING_BEGIN, plot_results.TRAINING_END,
                 plot_results.TRAINING_RESULTS, training_report.table),
                (plot_results.MEMORY_BEGIN, plot_results.MEMORY_END, plot_results.MEMORY_RESULTS,
                 judge_memory.table)):
            with self.subTest(path.name):
                shown = text.split(begin)[1].split(end)[0].strip()
                measured = path.is_file() and json.loads(path.read_text(encoding="utf-8"))
                self.assertEqual(shown, table(measured) if measured else "")

    def test_that_of_training_has_a_line_for_what_was_measured(self) -> None:
        text = training_report.table({"parts": {"training": {"rows": training_rows()}}})
        self.assertIn("| backward, 24 heads of 64 | 20 | 6.3 | - | official 50; cuDNN without gate "
                      "19.6 |", text)
        self.assertIn("| backward, deterministic, 24 heads of 64 | 24 | 8.1 | - |  |", text)
        self.assertIn("| training step of the official 760M Pro | - | 300 | - | official -, with "
                      "ACP 360 |", text)
        self.assertNotIn("heads of 128", text)

    def test_it_replaces_what_stands_between_the_marks(self) -> None:
        report = {"parts": {"decode": {"rows": [step(acp, 0.01) for acp in plot_results.MODES]}}}
        with tempfile.TemporaryDirectory() as folder:
            readme = pathlib.Path(folder, "README.md")
            readme.write_text(f"a\n{plot_results.BEGIN}\nold\n{plot_results.END}\nb\n",
                              encoding="utf-8")
            for _ in range(2):
                plot_results.rewrite_readme(readme, plot_results.table(report))
            text = readme.read_text(encoding="utf-8")
        self.assertTrue(text.startswith(f"a\n{plot_results.BEGIN}\n| what"))
        self.assertTrue(text.endswith(f"|\n{plot_results.END}\nb\n"))
        self.assertIn("| decode step B=32, 16k | 10 | 10 | 10 |", text)
        self.assertNotIn("old", text)


class ModelPackTest(unittest.TestCase):
    """The demo model's way to a tree without it."""

    def test_weights_come_back_where_none_are(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            there, here = root / "there", root / "here"
            there.mkdir()
            here.mkdir()
            pack = root / "model.tar.xz"
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, here)
            self.assertFalse(pack.exists())  # no weights, no archive

            weights = {f"model-{i}.safetensors": bytes(range(256)) * (i + 1) for i in range(3)}
            for file, content in weights.items():
                (there / file).write_bytes(content)
            (there / "config.json").write_text("{}", encoding="utf-8")
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, here)
            self.assertEqual({file.name: file.read_bytes() for file in here.iterdir()}, weights)

            (here / "model-0.safetensors").write_bytes(b"mine")
            gpu_build.restore_model(pack, here)
            self.assertEqual((here / "model-0.safetensors").read_bytes(), b"mine")
            os.utime(pack, (0, 0))  # older than the weights
            (there / "model-0.safetensors").write_bytes(b"newer")
            gpu_pack.pack_model(there, pack)
            gpu_build.restore_model(pack, root / "third")
            self.assertEqual((root / "third/model-0.safetensors").read_bytes(), b"newer")


if __name__ == "__main__":
    unittest.main()
