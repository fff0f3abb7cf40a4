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
    from safetensors.torch import load_file, save_file
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
    "the embeddings": {"target_modules": [*Q, "embed_tokens"]},
}
# On a tied matrix: each may change one of the two, or both.
HEAD, EMBEDDINGS = "lm_head", "embed_tokens"
TIED: list[dict[str, Any]] = [
    {"target_modules": "all-linear"}, {"target_modules": [*Q, HEAD]},
    {"target_modules": [EMBEDDINGS]}, {"target_modules": [EMBEDDINGS, HEAD]},
    *({"target_modules": Q, "modules_to_save": saved}
      for saved in ([HEAD], [EMBEDDINGS], [HEAD, EMBEDDINGS]))]
REFUSED: dict[str, dict[str, Any]] = {
    "use_dora True is not supported": {"target_modules": Q, "use_dora": True},
    "bias 'lora_only' is not supported": {"target_modules": Q, "bias": "lora_only"},
    "init_lora_weights 'pissa' is not supported": {"target_modules": Q,
                                                   "init_lora_weights": "pissa"},
}


IDS = torch.tensor([[(7 * n * n + 3 * n) % SIZES["vocab_size"] for n in range(60)]])


class PeftTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def save(self, settings: dict[str, Any], **changes: Any) -> torch.Tensor:
        """Saves a base, an adapter with random weights, and what peft makes of both; returns the
        logits of both."""
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
        with torch.no_grad():
            logits = adapted.eval()(IDS).logits
        adapted.merge_and_unload().save_pretrained(self.folder / "expected")
        return logits

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

    def test_a_tied_matrix_under_each_name(self) -> None:
        """By logits: a tied matrix that peft merges and saves is changed under both names."""
        names = "model.embed_tokens.weight", "lm_head.weight"
        settings = [*TIED, *({**tied, "ensure_weight_tying": True} for tied in TIED[1:])]
        for stored in (names[:1], names[1:], names):
            for lora in settings:
                with self.subTest(stored=stored, **lora), tempfile.TemporaryDirectory() as folder:
                    self.folder = Path(folder)
                    logits = self.save(lora, tie_word_embeddings=True)
                    path = self.folder / "base" / "model.safetensors"
                    tensors = load_file(path)
                    matrix = tensors.pop(names[0])
                    save_file({**tensors, **{name: matrix.clone() for name in stored}}, path)
                    self.assertEqual(self.convert()[0], 0)
                    merged = transformers.LlamaForCausalLM.from_pretrained(self.folder / "merged")
                    with torch.no_grad():
                        torch.testing.assert_close(merged(IDS).logits, logits, rtol=0, atol=1e-5)
                    same = lora.get("ensure_weight_tying") or lora == TIED[0]
                    self.assertEqual(merged.config.tie_word_embeddings, same)

    def test_a_file_of_earlier_versions(self) -> None:
        self.save(ADAPTERS["all linear layers"])
        path = self.folder / "adapter" / "adapter_model.safetensors"
        torch.save(load_file(path), path.with_suffix(".bin"))
        path.unlink()
        self.assertEqual(self.convert()[0], 0)
        torch.testing.assert_close(*(load_file(self.folder / model / "model.safetensors")
                                     for model in ("merged", "expected")), rtol=1e-6, atol=1e-7)

    def test_other_adapters_and_other_bases(self) -> None:
        self.save({"target_modules": [*Q, EMBEDDINGS]})
        path = self.folder / "adapter" / "adapter_config.json"
        config = json.loads(path.read_text())
        for found, reason in (
            ({"peft_type": "LOHA", "alpha": 8}, "peft_type 'LOHA' is not supported; merge"),
            ({"fine_tune_type": "lora", "num_layers": 2}, "mlx_lm.fuse"),
        ):
            with self.subTest(reason):
                path.write_text(json.dumps(found))
                self.assertIn(reason, self.convert()[1])
        path.write_text(json.dumps(config))
        for sizes, reason in (
            ({"hidden_size": 16}, "shape [40, 16] in the base, [40, 32] in the adapter"),
            ({"vocab_size": 39}, "save the base after resize_token_embeddings(40)"),
            ({"num_hidden_layers": 1}, "the base has no model.layers.1.self_attn.q_proj.weight"),
        ):
            with self.subTest(reason):
                transformers.LlamaForCausalLM(transformers.LlamaConfig(
                    **{**SIZES, **sizes})).save_pretrained(self.folder / "base")
                self.assertIn(reason, self.convert()[1])


if __name__ == "__main__":
    unittest.main()
