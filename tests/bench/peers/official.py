#!/usr/bin/env python3
"""The official implementation as a whole model: prefill of one prompt, with ACP.

Its code predates transformers 5, so it runs from a private copy with two edits: its cache is no
subclass of Cache, and it ties no weights.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import shutil
import sys
import tempfile

import torch

import inputs

PACKAGE = "forgetting_transformer.model.forgetting_transformer."
EDITS = {
    "fgate_cache.py": [("class FgateDynamicCache(Cache):", "class FgateDynamicCache:")],
    "modeling_forgetting_transformer.py": [('_tied_weights_keys = ["lm_head.weight"]',
                                            "_tied_weights_keys = {}")],
}

CONFIG = dict(  # of the 760M Pro
    vocab_size=inputs.VOCABULARY, hidden_size=inputs.HIDDEN, num_hidden_layers=inputs.LAYERS,
    num_heads=inputs.HEADS, use_output_gate=True, use_output_norm=True, qk_norm=True,
    use_k_shift=True, use_v_shift=True, hidden_ratio=3.5,
    log_pruning_tolerance=inputs.LOG_TOLERANCE, max_position_embeddings=None)


def edited_copy(repo: str, folder: str) -> str:
    """Copies the package's sources and edits them. Returns the folder to import from."""
    target = os.path.join(folder, "src")
    shutil.copytree(os.path.join(repo, "src"), target)
    model = pathlib.Path(target, "forgetting_transformer/model/forgetting_transformer")
    for name, edits in EDITS.items():
        text = (model / name).read_text(encoding="utf-8")
        for old, new in edits:
            if old not in text:
                raise ValueError(f"{name}: the line to edit is not there")
            text = text.replace(old, new)
        (model / name).write_text(text, encoding="utf-8")
    return target


def new_model() -> torch.nn.Module:
    """The 760M Pro as its code initialises it, float32, but for gate logits N(1, 1) and N(9, 1):
    the layer's input has unit RMS."""
    configuration = importlib.import_module(PACKAGE + "configuration_forgetting_transformer")
    modeling = importlib.import_module(PACKAGE + "modeling_forgetting_transformer")
    config = configuration.ForgettingTransformerConfig(**CONFIG)
    with torch.device("cuda"), torch.no_grad():
        model = modeling.ForgettingTransformerForCausalLM(config)
        for layer in model.model.layers:
            layer.attn.fgate_proj.weight.normal_(std=inputs.HIDDEN ** -0.5)
            layer.attn.fgate_proj.bias.copy_(inputs.gate_bias(inputs.HEADS))
    return model


def use_bound(model: torch.nn.Module, acp: str) -> None:
    """Switches the model's own pruning: paper or off."""
    for layer in model.model.layers:
        layer.attn.log_pruning_tolerance = inputs.LOG_TOLERANCE if acp == "paper" else None


def main() -> None:
    arguments, results = inputs.start()
    if not inputs.use_official(arguments.official_repo):
        return
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, edited_copy(arguments.official_repo, folder))
        model = new_model().to(torch.bfloat16).eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            use_bound(model, "paper")
            for length in (16384, 65536, 4096):
                ids = torch.randint(0, 50000, (1, length), device="cuda")

                def run(ids: torch.Tensor = ids) -> torch.Tensor:
                    hidden = model.model(ids, use_cache=True).last_hidden_state
                    return model.lm_head(hidden[:, -1])

                results.attempt(lambda call=run: inputs.wall_seconds(call, 3),
                                bench="peer_prefill", peer="official", acp="paper",
                                length=length)


if __name__ == "__main__":
    main()
