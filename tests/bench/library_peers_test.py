#!/usr/bin/env python3
"""Peers of attention_libraries.py, without a GPU: one that is absent, wrong or right, and what
becomes of its rows."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
import unittest
import unittest.mock

import gpu_bench
import judge
import plot_results

PEERS = pathlib.Path(__file__).resolve().parent / "peers"


class LibrariesTest(unittest.TestCase):
    """Libraries that may be absent."""

    def test_a_library_has_a_row_once_it_was_tried(self) -> None:
        def attention(bench: str, acp: str, **more: object) -> dict:
            return {"bench": bench, "kind": "prefill", "heads": 24, "head_dim": 64,
                    "tokens": 16384, "acp": acp, **more}

        measured = [attention("attention", "off", seconds={"median": 0.007}),
                    attention("attention", "paper", seconds={"median": 0.002}),
                    attention("peer_attention", "no gate", peer="cudnn-native", seconds=0.0063),
                    attention("peer_attention", "off", peer="fla-triton", seconds=0.021),
                    attention("peer_attention", "paper", peer="flag", error="no TLE")]
        parts = {"peers": {"rows": measured}}
        rows = {row["row"]: row for row in judge.judged_rows(parts, {})}
        name = "attention d64 16k over "
        self.assertAlmostEqual(rows[name + "FLA"]["value"], 3)
        self.assertAlmostEqual(
            rows[name + "the Hopper kernel of cuDNN's frontend without gate"]["value"], 0.9)
        absent = rows[name + "FlagAttention with ACP"]
        self.assertEqual((absent["value"], absent["peer"]), (None, "no TLE"))
        self.assertNotIn(name + "FLA with TileLang", rows)
        table = plot_results.table({"parts": parts})
        self.assertIn("; the Hopper kernel of cuDNN's frontend without gate 6.3; FLA 21 |", table)

    def test_each_way_to_call_a_library_is_judged(self) -> None:
        text = (PEERS / "attention_libraries.py").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r'^    "([\w-]+)": ', text, re.MULTILINE)),
                         set(gpu_bench.LIBRARIES))
        self.assertEqual(set(re.findall(r'Peer\("([\w-]+)"', text)),
                         {peer for peer, _, _ in judge.LIBRARIES})

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch here")
    def test_a_library_that_is_absent_or_wrong_has_a_row_that_says_so(self) -> None:
        import torch
        sys.path.insert(0, str(PEERS))
        import attention_libraries
        import inputs
        q, k, v = (torch.randn(2, 3, 50, 8) for _ in range(3))
        given = attention_libraries.Tensors(q, k, v, -torch.rand(2, 3, 50), -10)
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        results, rows = inputs.Results(None), []
        results.row = lambda **values: rows.append(values)
        with unittest.mock.patch.object(inputs, "gpu_seconds", lambda call: 1.5):
            for name, acp, needs in (("absent", "off", ("no_such_module",)),
                                     ("wrong", "off", ()), ("right", "no gate", ("json",))):
                attention_libraries.measure(results, attention_libraries.Peer(
                    name, acp, needs, lambda _: lambda: exact), given)
        self.assertEqual([(row["bench"], row["peer"]) for row in rows], [
            ("peer_attention", "absent"), ("peer_check", "wrong"), ("peer_attention", "wrong"),
            ("peer_check", "right"), ("peer_attention", "right")])
        self.assertIn("no_such_module", rows[0]["error"])
        self.assertIn("differs from float64", rows[2]["error"])
        self.assertLess(rows[3]["against_float64"], 1e-5)
        self.assertEqual(rows[4]["seconds"], 1.5)


if __name__ == "__main__":
    unittest.main()
