"""Checkpoints that transformers and safetensors save, in all forms that transformers loads: the
logits of fox-eval in float64, before and after conversion, and of foxify equal transformers'; and
models with gates load in transformers.

Ends with SKIPPED (77) if the interpreter lacks torch or transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp()  # for code of models; read at import
try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file, save_model
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

SOURCE = Path(os.environ["FOX_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "tests" / "golden"))
from make_transformers_models import CLASSES, SCALINGS, SIZES, randomize  # noqa: E402

from models.convert.modeling_fox import LIMBS, with_limbs  # noqa: E402
from models.foxify.base_model import BaseModel  # noqa: E402

EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
IDS = [(7 * n * n + 3 * n) % SIZES["vocab_size"] for n in range(150)]
Change = Callable[[Path, Any], None]


def keys(**changes: Any) -> Change:
    """Changes config.json; None deletes a key."""
    def apply(folder: Path, _: Any) -> None:
        config = json.loads((folder / "config.json").read_text())
        config |= {key: value for key, value in changes.items() if value is not ...}
        for key in [key for key, value in changes.items() if value is ...]:
            config.pop(key, None)
        (folder / "config.json").write_text(json.dumps(config))
    return apply


def head_alone(folder: Path, _: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[HEAD] = tensors.pop(EMBEDDINGS)
    save_file(tensors, folder / "model.safetensors")


def saved_by_safetensors(folder: Path, model: Any) -> None:
    """Keeps one of two shared tensors, whichever comes first by name: the head."""
    save_model(model, str(folder / "model.safetensors"))


def no_prefix(folder: Path, _: Any) -> None:
    """As the class without an output layer saves it: Qwen3-Embedding has such files."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()},
              folder / "model.safetensors")


def two_matrices(folder: Path, _: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[HEAD] = tensors[EMBEDDINGS].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors")


def shards(folder: Path, _: Any) -> None:
    """Two files with one tensor in both, and an index with a head that is in neither."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[: len(names) // 2 + 1],
             "model-00002-of-00002.safetensors": names[len(names) // 2:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file, {"format": "pt"})
    places = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {**places, HEAD: min(parts)}}))


LINEAR, LLAMA3, YARN = (SCALINGS[name] for name in ("linear", "llama3", "yarn"))
# Class, sizes that differ, tied, change of the directory.
FORMS: list[tuple[str, dict[str, Any], bool, Change]] = [
    ("Llama", {}, True, head_alone), ("Qwen2", {}, True, saved_by_safetensors),
    ("Mistral", {}, True, two_matrices), ("Qwen3", {}, True, shards),
    ("Qwen3", {}, True, no_prefix), ("Llama", {}, False, no_prefix),
    ("Mistral", {}, True, keys(_attn_implementation="eager", attn_implementation="sdpa",
                               gradient_checkpointing=True, use_flash_attn=True,
                               _flash_attn_2_enabled=True, _commit_hash="0")),
    ("Llama", {}, False, keys(rope_parameters={}, rope_theta=3e4)),
    ("Qwen2", {}, False, keys(rope_parameters={"rope_theta": 5e5})),
    ("Mistral", {}, False, keys(rope_scaling=LLAMA3, rope_parameters={**LINEAR, "rope_theta": 5})),
    ("Llama", {}, False, keys(rope_scaling={}, rope_parameters={**LINEAR, "rope_theta": 2e4})),
    ("Qwen3", {}, False, keys(rope_parameters=LLAMA3, rope_theta=7e3)),
    ("Qwen2", {}, False, keys(rope_parameters={}, rope_theta=1e6, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40})),
    ("Llama", {}, True, keys(rope_parameters={**YARN, "rope_theta": 1e4, "truncate": False,
                                              "mscale": 1.0, "mscale_all_dim": 0.5})),
    ("Qwen3", {}, False, keys(rope_parameters={
        **YARN, "rope_theta": 1e4, "attention_factor": 1.5, "beta_fast": 4, "beta_slow": 0.5})),
    ("Qwen3", {"head_dim": 128}, False, keys(head_dim=...)),
    ("Mistral", {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 4}, False,
     keys(num_key_value_heads=...)),
    ("Qwen2", {}, False, keys(use_sliding_window=True, sliding_window=8, max_window_layers=2,
                              layer_types=...)),
    ("Mistral", {}, False, keys(sliding_window=len(IDS))),
    ("Qwen3", {}, True, keys(use_sliding_window=True, sliding_window=len(IDS),
                             layer_types=["full_attention", "sliding_attention"])),
    ("Llama", {}, False, keys(hidden_act="swish", bos_token_id=-1, eos_token_id=9999,
                              length_penalty=float("inf"), top_p=float("nan"))),
]


class OracleCase(unittest.TestCase):
    def fox_eval(self, folder: Path, out: Path, ids: list[int], dtype: str = "f64"
                 ) -> torch.Tensor:
        """The served model's logits [tokens, V]."""
        out.with_suffix(".json").write_text(json.dumps(ids))
        done = subprocess.run(
            [os.environ["FOX_EVAL"], "logits", "--model", folder, "--ids", out.with_suffix(".json"),
             "--out", out, "--dtype", dtype, "--device", "cpu", "--threads", "1"],
            capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return load_file(out)["logits"]

    def convert(self, folder: Path, converted: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "models.convert.fox_convert", folder, converted,
             "--verify"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class FormsTest(OracleCase):
    def check(self, folder: Path) -> None:
        """Against transformers in float32, whose norms and RoPE are float32 in any type."""
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            want = model(torch.tensor([IDS])).logits[0].double()
        ours = {"served": self.fox_eval(folder, folder.parent / "served.safetensors", IDS)}
        converted = folder.parent / "converted"
        self.convert(folder, converted)
        ours["converted"] = self.fox_eval(converted, folder.parent / "again.safetensors", IDS)
        base = BaseModel(folder, torch.device("cpu"), torch.float64)
        with torch.no_grad():
            ours["foxify"] = base.logits(base.hidden(torch.tensor([IDS])))[0]
        # Float32 steps of 2^-24 through 2 layers with logits of size 100 at most.
        for name, logits in ours.items():
            self.assertLess((logits - want).abs().max() / want.abs().max(), 1e-4, name)
        self.assertTrue(torch.equal(ours["served"], ours["converted"]))

    def test_forms(self) -> None:
        for number, (name, sizes, tied, change) in enumerate(FORMS):
            with self.subTest(number=number, name=name), tempfile.TemporaryDirectory() as scratch:
                config = getattr(transformers, name + "Config")(
                    **{**SIZES, **CLASSES[name], "num_key_value_heads": 1, **sizes},
                    tie_word_embeddings=tied)
                model = getattr(transformers, name + "ForCausalLM")(config)
                randomize(model, number)
                folder = Path(scratch) / "model"
                model.save_pretrained(folder)
                change(folder, model)
                self.check(folder)


class ForgettingTest(OracleCase):
    """Models with gates, sinks and norm caps, whose answers code of tests/golden computed."""

    def test_transformers_computes_the_golden_logits_and_generates_the_servers_tokens(self) -> None:
        folders = sorted((SOURCE / "tests/golden/transformers").glob("*_forgetting"))
        self.assertEqual(len(folders), 4)
        for golden in folders:
            with self.subTest(golden.name), tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "model"
                self.convert(golden, folder)
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, trust_remote_code=True, dtype=torch.float32)
                self.assertTrue(type(model).__name__.startswith("Fox"))
                expected = json.loads((golden / "expected.json").read_text())
                with torch.no_grad():
                    logits = model(torch.tensor([expected["input_ids"]])).logits[0]
                (want,) = load_file(golden / "expected.safetensors").values()
                # Float32 steps of 2^-24 through 2 layers with logits of size 100 at most.
                error = (logits[-len(want):] - want).abs().max() / want.abs().max()
                self.assertLess(error, 1e-4)
                self.check_generation(folder, model)
                self.check_saved(model, Path(scratch) / "saved", expected["input_ids"], logits)

    def test_a_cache_in_bf16_keeps_log_gates_exactly(self) -> None:
        log_f = -torch.rand(1, 2, 99, generator=torch.Generator().manual_seed(0)) ** 4
        stored = with_limbs(torch.ones(1, 2, 99, 16, dtype=torch.bfloat16), log_f)
        self.assertTrue(torch.equal(stored[..., -LIMBS:].float().sum(-1), log_f))

    def check_saved(self, model: Any, folder: Path, ids: list[int], logits: torch.Tensor) -> None:
        """What transformers saves of the class, as after training, is served and converted."""
        model.save_pretrained(folder)
        self.convert(folder, folder.parent / "again")
        for place in (folder, folder.parent / "again"):
            served = self.fox_eval(place, folder.parent / "saved.safetensors", ids, "f32")
            self.assertLess((served - logits).abs().max() / logits.abs().max(), 1e-4, place.name)

    def check_generation(self, folder: Path, model: Any) -> None:
        """20 prompts of 1 to 115 tokens, together and so padded on the left, with both caches."""
        g = torch.Generator().manual_seed(0)
        prompts = [torch.randint(1, SIZES["vocab_size"], (1 + 6 * n,), generator=g)
                   for n in range(20)]
        longest = len(prompts[-1])
        ids, mask = (torch.stack([torch.nn.functional.pad(x, (longest - len(x), 0))
                                  for x in rows]) for rows in (
            prompts, [torch.ones_like(prompt) for prompt in prompts]))
        said, static = (model.generate(
            ids, attention_mask=mask, max_new_tokens=16, min_new_tokens=16, do_sample=False,
            pad_token_id=0, cache_implementation=kind)[:, longest:] for kind in (None, "static"))
        self.assertEqual(static.tolist(), said.tolist())
        for number, (prompt, tokens) in enumerate(zip(prompts, said)):
            whole = torch.cat([prompt, tokens]).tolist()
            logits = self.fox_eval(folder, folder.parent / "served.safetensors", whole, "f32")
            greedy = logits[len(prompt) - 1 : -1].argmax(-1)
            self.assertEqual(tokens.tolist(), greedy.tolist(), number)


if __name__ == "__main__":
    unittest.main()
