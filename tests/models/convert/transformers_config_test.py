"""Tests models/convert/transformers_config.py, and conversions of LLaMA, Mistral and Qwen. It reads
the values that transformers reads (tests/golden/make_transformers_configs.py), as the server does,
which tests/models/checkpoint/model_config_test.cc holds to the same cases.
"""

from __future__ import annotations

import json
import shutil
import struct
from typing import Any

from checkpoint_case import GOLDEN, Bits, CheckpointCase, save

from models.convert.refusal import Refusal
from models.convert.transformers_config import parse_transformers_config

LAYER = "model.layers.0."
TWO = Bits("BF16", (2,), bytes(4))
LLAMA, TIED = "transformers/llama_kv3_default", "transformers/llama_kv1_linear_tied"
FORGETS = "transformers/llama_kv1_default_tied_forgetting"


def cases() -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    golden = json.loads((GOLDEN / "transformers_configs.json").read_text())
    return golden["cases"], golden["readings"], golden["shapes"]


class ReadingTest(CheckpointCase):
    def test_as_transformers_reads_it(self) -> None:
        listed, readings, shapes = cases()
        served = 0
        for case in listed:
            raw = json.loads(case["config"])
            raw.pop("unread", None)
            with self.subTest(config=case["config"]):
                self.assertEqual("model" in case, "source" in case)
                if "reading" not in case:
                    at_fault = rf"config key (\w+\.)?{case.get('refused', '.*')}: "
                    with self.assertRaisesRegex(Refusal, at_fault):
                        parse_transformers_config(raw)
                    continue
                served += 1
                config, reading = parse_transformers_config(raw), readings[case["reading"]]
                self.assertEqual(
                    (config.num_heads, config.num_kv_heads, config.head_dim, config.norm_eps,
                     config.tied),
                    tuple(reading[key] for key in ("heads", "kv_heads", "head_dim", "norm_eps",
                                                   "tied")))
                self.assertEqual(config.sliding_window or 0, reading["window"])
                for ours, theirs in zip(config.rope.frequencies(config.head_dim),
                                        reading["inv_freq"], strict=True):
                    self.assertAlmostEqual(ours / theirs, 1, delta=1e-13)
                self.assertAlmostEqual(config.rope.attention_factor, reading["rope_factor"],
                                       delta=1e-15)
                if "shapes" not in case:  # a published model
                    continue
                tensors = shapes[case["shapes"]]
                self.assertEqual(
                    {name: list(shape) for name, shape in config.shapes().items()
                     if ".layers.1." not in name},
                    {name: shape for name, shape in tensors.items()
                     if name != "lm_head.weight" or not config.tied})
        self.assertGreater(served, 200)

    def test_the_length_is_after_scaling(self) -> None:
        config = self.golden(LLAMA)[0] | {"max_position_embeddings": 40960}
        yarn = {"rope_type": "yarn", "factor": 4.0}
        for scaling, length in (({"rope_type": "linear", "factor": 2.5}, 102400), (yarn, 163840),
                                (yarn | {"original_max_position_embeddings": 32768}, 131072)):
            with self.subTest(scaling=scaling):
                self.assertEqual(
                    parse_transformers_config(config | {"rope_scaling": scaling}).context, length)

    def test_unknown_keys(self) -> None:
        config, tensors = self.golden(LLAMA)
        for key, value in (("attention_multiplier", 0.5), ("logits_scaling", 8),
                           ("embedding_multiplier", 12.0), ("novel", "x")):
            with self.subTest(key=key):
                self.put(config | {key: value}, tensors)
                self.assert_refused(f"config key {key}: unknown; --ignore-key {key}")
                self.assertNotIn(key, self.convert("--force", "--ignore-key", key)[0])
                shutil.rmtree(self.dst)
        self.put(config | {"rope_interleaved": False, "novel": None}, tensors)
        self.assertIn("novel", self.convert()[0])

    def test_tolerance(self) -> None:
        self.put(*self.golden(FORGETS))
        self.assertEqual(self.convert("--log-pruning-tolerance", "-7")[0]["log_pruning_tolerance"],
                         -7)


class TensorsTest(CheckpointCase):
    def test_every_tensor_once_in_its_shape(self) -> None:
        for golden in (LLAMA, "transformers/mistral_kv1_default", "transformers/qwen2_kv1_linear",
                       "transformers/qwen3_kv3_llama3", FORGETS):
            config, tensors = self.golden(golden)
            for name, bits in tensors.items():
                for change, said in (
                        ({name: None}, "missing"),
                        ({name: Bits(bits.dtype, (len(bits.data) // 2, 1), bits.data)}, "shape ["),
                        ({name + "_copy": bits}, "left over, nothing uses it")):
                    if "sinks" in name or "_cap" in name:
                        change = {key: value and Bits("F32", value.shape if said != "shape ["
                                                      else (len(bits.data) // 4, 1), bits.data)
                                  for key, value in change.items()}
                    with self.subTest(golden=golden, name=name, said=said):
                        changed = {k: v for k, v in (tensors | change).items() if v is not None}
                        self.put(config, changed)
                        self.assert_refused(f"tensor {next(iter(change))}: {said}")

    def test_tied_heads(self) -> None:
        """As in transformers 5: one stored matrix serves as both, two different ones as two."""
        config, tensors = self.golden(TIED)
        stem = "model.embed_tokens.weight"
        embeddings = tensors[stem]
        alone = {k: v for k, v in tensors.items() if k != stem} | {"lm_head.weight": embeddings}
        other = Bits(embeddings.dtype, embeddings.shape, embeddings.data[2:] + bytes(2))
        for source, names, tied in ((tensors, {stem}, True), (alone, {"lm_head.weight"}, True),
                                    (tensors | {"lm_head.weight": embeddings}, {stem}, True),
                                    (tensors | {"lm_head.weight": other},
                                     {stem, "lm_head.weight"}, False)):
            with self.subTest(names=names, tied=tied):
                self.put(config, source)
                written, result = self.convert("--force")
                self.assertEqual(names, {stem, "lm_head.weight"} & set(result))
                self.assertEqual(written["tie_word_embeddings"], tied)
                shutil.rmtree(self.dst)

    def test_what_bounds_stand_on(self) -> None:
        config, tensors = self.golden(FORGETS)
        for name, value, said in (("input_layernorm.weight", 1e-20, True),
                                  ("input_layernorm.weight", 0, False),
                                  ("self_attn.q_cap", 1e-20, True), ("self_attn.q_cap", 0, True),
                                  ("self_attn.k_cap", float("nan"), True),
                                  ("self_attn.sinks", float("inf"), True),
                                  ("self_attn.sinks", -60, False)):
            with self.subTest(name=name, value=value):
                bits = tensors[LAYER + name]
                data = struct.pack("<f", value) * bits.shape[0]
                self.put(config, tensors | {LAYER + name: Bits("F32", bits.shape, data)})
                if said:
                    self.assert_refused(f"tensor {LAYER}{name}: holds ")
                else:
                    self.convert()
                    shutil.rmtree(self.dst)

    def test_an_index_is_a_list_of_files(self) -> None:
        config, tensors = self.golden(LLAMA)
        (self.src / "config.json").write_text(json.dumps(config))
        first = dict(list(tensors.items())[:5])
        rest = {name: bits for name, bits in tensors.items() if name not in first}
        weight_map = {"lm_head.weight": "a.safetensors", "none": "b.safetensors"}
        (self.src / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": weight_map}))
        twice = next(iter(first))
        save(self.src / "a.safetensors", first)
        save(self.src / "b.safetensors", rest | {twice: first[twice]})
        self.assertEqual(self.convert()[1], tensors)
        bits = first[twice]
        save(self.src / "b.safetensors", rest | {twice: bits._replace(data=bytes(len(bits.data)))})
        shutil.rmtree(self.dst)
        self.assert_refused(f"tensor {twice}: in b.safetensors, and another")
