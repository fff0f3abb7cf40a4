"""LoRA adapters that peft saves: the merged tensors of `convert --adapter` equal peft's own.

Ends with SKIPPED (77) if the interpreter lacks peft.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

from models.convert import fox_convert

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
Q = ["q_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "all linear layers": {"target_modules": "all-linear", "lora_alpha": 16},
    "a regular expression": {"target_modules": r".*\.1\.mlp\.(up|down)_proj"},
    "scale by the root of the rank": {"target_modules": Q, "use_rslora": True},
    "ranks and scales of some layers": {
        "target_modules": [*Q, "down_proj"], "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"down_proj": 16, r"layers\.1\.self_attn\.q_proj": 3}},
    "whole matrices": {"target_modules": Q, "modules_to_save": ["lm_head", "embed_tokens"]},
    "the output layer": {"target_modules": [*Q, "lm_head"]},
}
REFUSED: dict[str, dict[str, Any]] = {
    "use_dora True is not supported": {"target_modules": Q, "use_dora": True},
    "bias 'lora_only' is not supported": {"target_modules": Q, "bias": "lora_only"},
    "init_lora_weights 'pissa' is not supported": {"target_modules": Q,
                                                   "init_lora_weights": "pissa"},
    "lora_embedding_A: does not fit": {"target_modules": [*Q, "embed_tokens"]},
}


class PeftTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def save(self, settings: dict[str, Any], **changes: Any) -> None:
        """Saves a base, an adapter with random weights, and what peft makes of both."""
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes}))
        model.save_pretrained(self.folder / "base")
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4,
                                                             **settings))
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.1)
        adapted.save_pretrained(self.folder / "adapter")
        adapted.merge_and_unload().save_pretrained(self.folder / "expected")

    def convert(self, *flags: str) -> tuple[int, str]:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = fox_convert.main([
                str(self.folder / "base"), str(self.folder / "merged"), "--verify", "--adapter",
                str(self.folder / "adapter"), *flags])
        return status, said.getvalue()

    def test_merged_tensors_are_pefts(self) -> None:
        for name, settings in ADAPTERS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.folder = Path(folder)
                self.save(settings)
                self.assertEqual(self.convert()[0], 0)
                merged, expected, base = (load_file(self.folder / model / "model.safetensors")
                                          for model in ("merged", "expected", "base"))
                torch.testing.assert_close(merged, expected, rtol=1e-6, atol=1e-7)
                self.assertFalse(all(torch.equal(merged[key], base[key]) for key in base))

    def test_all_tensors_have_the_type_of_the_model(self) -> None:
        self.save(ADAPTERS["whole matrices"])
        self.assertEqual(self.convert("--dtype", "bf16")[0], 0)
        expected = load_file(self.folder / "expected" / "model.safetensors")
        for name, tensor in load_file(self.folder / "merged" / "model.safetensors").items():
            self.assertEqual(tensor.dtype, torch.bfloat16, name)
            if "lm_head" in name or "embed_tokens" in name:
                self.assertTrue(torch.equal(tensor, expected[name].bfloat16()), name)

    def test_what_is_no_sum_is_refused(self) -> None:
        for reason, settings in REFUSED.items():
            with self.subTest(reason), tempfile.TemporaryDirectory() as folder:
                self.folder = Path(folder)
                self.save(settings)
                status, said = self.convert()
                self.assertEqual(status, 1)
                self.assertIn(reason, said)

    def test_wrong_scales(self) -> None:
        self.save({"target_modules": Q})
        path = self.folder / "adapter" / "adapter_config.json"
        config = json.loads(path.read_text())
        for changes in ({"lora_alpha": "8"}, {"lora_alpha": math.nan}, {"lora_alpha": None},
                        {"alpha_pattern": {"(": 3}}, {"alpha_pattern": [3]}):
            with self.subTest(**changes):
                path.write_text(json.dumps({**config, **changes}))
                self.assertIn("lora_alpha must be a number", self.convert()[1])

    def test_a_tied_output_layer(self) -> None:
        self.save({"target_modules": Q, "modules_to_save": ["embed_tokens"]},
                  tie_word_embeddings=True)
        self.assertIn("embed_tokens.weight: would untie", self.convert()[1])


if __name__ == "__main__":
    unittest.main()
