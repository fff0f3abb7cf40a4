"""Tests models/convert/gguf_source.py and gguf_tokenizer.py on GGUF files of every architecture,
quantisation and tokenizer, written by the gguf package.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import gguf
import numpy as np
from chat_format_test import CHATML, IM, QWEN25, form
from checkpoint_case import Bits, CheckpointCase, save

from models.convert.gguf_source import ARCHITECTURES, QUANTISATIONS

WIDE, HEADS, KV_HEADS, DIM, INNER, LAYERS = 256, 4, 2, 64, 512, 2
BYTES = [chr(n + 256 if n < 33 or 126 < n < 161 or n == 173 else n) for n in range(256)]
TOKENS = [*BYTES, "ab", "<|im_start|>", "<|im_end|>", "<tool>"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", "<0x00>", "a"]
MATRICES = {"attn_q": (HEADS * DIM, WIDE), "attn_k": (KV_HEADS * DIM, WIDE),
            "attn_v": (KV_HEADS * DIM, WIDE), "attn_output": (WIDE, HEADS * DIM),
            "ffn_gate": (INNER, WIDE), "ffn_up": (INNER, WIDE), "ffn_down": (WIDE, INNER)}
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "attn_q_norm":
         "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm":
         "post_attention_layernorm"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}


def llama3_factors(factor: float) -> np.ndarray:
    """RoPE factors, computed as in llama.cpp's converter, for a base of 10,000."""
    factors = []
    for frequency in 10000.0 ** (-np.arange(0, DIM, 2) / DIM):
        length = 2 * math.pi / frequency
        if length < 8192 / 4:
            factors.append(1.0)
        elif length > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / length - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


class GgufCase(CheckpointCase):
    """Writes a small model to `src`; sets `expected` to the tensors it must become."""

    rows = len(TOKENS)

    def setUp(self) -> None:
        super().setUp()
        self.src = self.scratch / "model.gguf"
        self.random = np.random.default_rng(0)
        self.kinds = itertools.cycle(QUANTISATIONS)

    def keys(self, arch: str) -> dict[str, Any]:
        numbers = {"block_count": LAYERS, "context_length": 512, "embedding_length": WIDE,
                   "feed_forward_length": INNER, "attention.head_count": HEADS,
                   "attention.head_count_kv": KV_HEADS, "rope.dimension_count": DIM,
                   "attention.layer_norm_rms_epsilon": 1e-5}
        tokenizer = {"model": "gpt2", "pre": "smollm", "tokens": TOKENS, "merges": ["a b"],
                     "token_type": [1] * 257 + [3, 3, 4], "bos_token_id": 257, "eos_token_id": 258,
                     "chat_template": CHATML}
        return {**{f"{arch}.{key}": value for key, value in numbers.items()},
                **{f"tokenizer.ggml.{key}".replace("ggml.chat", "chat"): value
                   for key, value in tokenizer.items()}}

    def tensors(self, arch: str, tied: bool = False) -> dict[str, tuple[np.ndarray, str]]:
        """Tensors with the row order of the transformers library; the quantisations take turns."""
        tensors = {name: (self.random.normal(size=(self.rows, WIDE)).astype("f"), "F32")
                   for name in ("token_embd.weight", *([] if tied else ["output.weight"]))}
        vectors = {"attn_norm.weight": WIDE, "ffn_norm.weight": WIDE}
        if arch == "qwen3":
            vectors |= {"attn_q_norm.weight": DIM, "attn_k_norm.weight": DIM}
        if arch == "qwen2":
            vectors |= {f"attn_{x}.bias": MATRICES[f"attn_{x}"][0] for x in "qkv"}
        vectors = {f"blk.{i}.{k}": n for i in range(LAYERS) for k, n in vectors.items()}
        for name, size in {**vectors, "output_norm.weight": WIDE}.items():
            tensors[name] = (self.random.normal(size=size).astype("f"), "F32")
        for layer in range(LAYERS):
            for name, shape in MATRICES.items():
                tensors[f"blk.{layer}.{name}.weight"] = self.quantised(shape, next(self.kinds))
        return tensors

    def quantised(self, shape: tuple[int, int], kind: str) -> tuple[np.ndarray, str]:
        values = self.random.normal(size=shape).astype("f")
        if kind in ("F32", "F16"):
            return values.astype({"F32": "f", "F16": "e"}[kind]), kind
        if not kind.startswith("IQ") and not kind.endswith("_K"):
            return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]), kind
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        rows = (shape[0], shape[1] // block * size)
        return self.random.integers(0, 64, rows, np.uint8), kind  # small bytes: finite scales

    def write(self, arch: str, keys: dict[str, Any],
              tensors: dict[str, tuple[np.ndarray, str]]) -> None:
        writer = gguf.GGUFWriter(self.src, arch)
        for key, value in keys.items():
            if isinstance(value, list):
                writer.add_array(key, value)
            else:
                kinds = {bool: "bool", int: "uint32", float: "float32", str: "string"}
                getattr(writer, f"add_{kinds[type(value)]}")(key, value)
        for name, (data, kind) in tensors.items():
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
            if arch == "llama" and heads:  # llama.cpp's permutation
                rows = data.reshape(heads, 2, DIM // 2, -1).swapaxes(1, 2)
                data = np.ascontiguousarray(rows.reshape(data.shape))
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def adapter(self, arch: str = "llama", **changes: np.ndarray) -> dict[str, np.ndarray]:
        """Writes an adapter to `changed`, which changes o_proj of layer 1 by `changes`."""
        stem = "model.layers.1.self_attn."
        tensors = {f"{stem}o_proj.lora_{letter}.weight": self.random.normal(size=shape).astype("f")
                   for letter, shape in (("A", (3, HEADS * DIM)), ("B", (WIDE, 3)))}
        tensors |= {f"model.layers.{n}.self_attn.sinks": np.arange(n, n + HEADS, dtype="f")
                    for n in range(2)}
        tensors["model.norm.weight"] = np.ones(WIDE, "f")
        tensors |= {f"{stem}o_proj.{key}.weight": value for key, value in changes.items()}
        folder = self.scratch / "changed"
        folder.mkdir(exist_ok=True)
        save(folder / "adapter.safetensors",
             {n: Bits("F32", t.shape, t.tobytes()) for n, t in tensors.items()})
        (folder / "adapter_config.json").write_text(json.dumps(
            {"base_model_type": arch, "config": {"use_attention_sink": True}}))
        return tensors

    def expected(self, tensors: dict[str, tuple[np.ndarray, str]]) -> dict[str, bytes]:
        result = {}
        for name, (data, kind) in tensors.items():
            _, layer, stem, end = (name.split(".") * 2)[:4]
            renamed = TOP.get(name) or f"model.layers.{layer}.{NAMES[stem]}.{end}"
            wide = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
            result[renamed] = wide.astype("<f4").tobytes()
        return result


class ConversionTest(GgufCase):
    def test_every_architecture_and_quantisation(self) -> None:
        for arch, name in ARCHITECTURES.items():
            with self.subTest(arch):
                tensors = self.tensors(arch, tied=arch == "qwen2")
                self.write(arch, self.keys(arch), tensors)
                config, got = self.convert("--dtype", "f32", "--force")
                want = self.expected(tensors)
                self.assertEqual({k: t.data for k, t in got.items()}, want)
                shown = {"architectures": [name], "model_type": arch, "vocab_size": len(TOKENS),
                         "hidden_size": WIDE, "intermediate_size": INNER, "num_hidden_layers": 2,
                         "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
                         "head_dim": DIM, "hidden_act": "silu", "rms_norm_eps": 1e-5,
                         "rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "float32",
                         "max_position_embeddings": 512, "bos_token_id": 257,
                         "tie_word_embeddings": arch == "qwen2", "eos_token_id": [258]}
                self.assertEqual(config, shown)

    def test_an_adapter(self) -> None:
        stem, tensors, change = "model.layers.1.self_attn.", self.tensors("llama"), self.adapter()
        self.write("llama", self.keys("llama"), tensors)
        config, got = self.convert("--dtype", "f32", "--adapter", self.scratch / "changed")
        self.assertIs(config["use_attention_sink"], True)
        want = self.expected(tensors)
        whole = np.frombuffer(want[f"{stem}o_proj.weight"], "f").reshape(WIDE, HEADS * DIM)
        a, b = (change[f"{stem}o_proj.lora_{letter}.weight"] for letter in "AB")
        want[f"{stem}o_proj.weight"] = (whole + b @ a).tobytes()
        want |= {n: t.tobytes() for n, t in change.items() if ".lora_" not in n}
        self.assertEqual({k: t.data for k, t in got.items()}, want)
        config, got = self.convert("--adapter", self.scratch / "changed", "--force")
        self.assertEqual({t.dtype for n, t in got.items() if n in change}, {"F32"})
        self.assertEqual(got[f"{stem}o_proj.weight"].dtype, "BF16")

    def test_rope_scaling_and_bf16(self) -> None:
        linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32768}
        betas = {"llama.rope.scaling.yarn_beta_fast": 16.0,
                 "llama.rope.scaling.yarn_beta_slow": 0.7}
        unread = {"llama.rope.scaling.yarn_attn_factor": 0.5, "llama.rope.scaling.finetuned": True,
                  "llama.rope.scaling.yarn_ext_factor": 0.5}
        log = {"llama.rope.scaling.yarn_log_multiplier": 0.707}
        read = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
        for keys, factor, want in ((linear, None, {"rope_type": "linear", "factor": 4.0}),
                                   (yarn | unread, None, read),
                                   (yarn | betas, None, read | {"beta_fast": 16.0,
                                                                "beta_slow": 0.7}),
                                   (yarn | log, None, read | {"mscale": 1.0,
                                                              "mscale_all_dim": 0.707}),
                                   ({"llama.rope.scaling.type": "yarn"}, None,
                                    {"rope_type": "yarn", "factor": 1.0}),
                                   (yarn | {"llama.rope.scaling.type": "none"}, None, None),
                                   ({}, 8.0, llama3), ({}, 1.0, None)):
            with self.subTest(want=want):
                tensors = self.tensors("llama")
                if factor:
                    tensors["rope_freqs.weight"] = (llama3_factors(factor), "F32")
                self.write("llama", self.keys("llama") | keys, tensors)
                config, got = self.convert("--force")
                self.assertEqual(config["rope_scaling"], want)
                self.assertEqual({t.dtype for t in got.values()}, {"BF16"})

    def test_tokenizer_and_chat(self) -> None:
        keys = self.keys("llama") | {"tokenizer.ggml.add_bos_token": True,
                                     "tokenizer.ggml.add_eos_token": True,
                                     "tokenizer.ggml.eot_token_id": 256}
        self.write("llama", keys, self.tensors("llama"))
        self.convert()
        read = {p.name: json.loads(p.read_text()) for p in self.dst.glob("*.json")}
        self.assertEqual(read["chat_format.json"], form(prompt="<|im_start|>assistant\n", **IM))
        self.assertEqual(read["generation_config.json"],
                         {"bos_token_id": 257, "eos_token_id": [258, 256]})
        self.assertEqual(read["tokenizer_config.json"]["eos_token"], "<|im_end|>")
        tokenizer = read["tokenizer.json"]
        self.assertEqual([(t["id"], t["special"]) for t in tokenizer["added_tokens"]],
                         [(257, True), (258, True), (259, False)])
        self.assertEqual(tokenizer["model"]["vocab"], {t: i for i, t in enumerate(TOKENS)})
        self.assertEqual(tokenizer["model"]["merges"], ["a b"])
        self.assertEqual([s["type"] for s in tokenizer["pre_tokenizer"]["pretokenizers"]],
                         ["Digits", "ByteLevel"])
        single = tokenizer["post_processor"]["processors"][1]["single"]
        self.assertEqual([next(iter(step.values()))["id"] for step in single],
                         ["<|im_start|>", "A", "<|im_end|>"])

    def test_a_template_for_tools(self) -> None:
        key = gguf.Keys.Tokenizer.CHAT_TEMPLATE_N.format(name="tool_use")
        self.write("llama", self.keys("llama") | {key: QWEN25}, self.tensors("llama"))
        self.convert()
        read = json.loads((self.dst / "tokenizer_config.json").read_text())
        self.assertEqual(read["chat_template"], [{"name": "default", "template": CHATML},
                                                 {"name": "tool_use", "template": QWEN25}])

    def test_sentencepiece(self) -> None:
        keys = {k: v for k, v in self.keys("llama").items() if "ggml" not in k}
        values = {"model": "llama", "tokens": SPM_TOKENS, "token_type": [2, 3, 3, 6, 1],
                  "scores": [0.0, 0.0, 0.0, 0.0, -1.5], "bos_token_id": 1, "eos_token_id": 2,
                  "unknown_token_id": 0}
        keys |= {f"tokenizer.ggml.{key}": value for key, value in values.items()}
        self.write("llama", keys, self.tensors("llama"))
        self.convert()
        pieces = [b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\2", b"\n\x0c\n\3<s>\x15\0\0\0\0\x18\3",
                  b"\n\x0d\n\4</s>\x15\0\0\0\0\x18\3", b"\n\x0f\n\6<0x00>\x15\0\0\0\0\x18\6",
                  b"\n\x0a\n\1a\x15\0\0\xc0\xbf\x18\1"]
        trainer = b"\x12\x0e\x18\2\x98\2\1\xc0\2\0\xc8\2\1\xd0\2\2"
        normalizer = b"\x1a\x10\n\x08identity\x18\1 \0(\1"
        self.assertEqual((self.dst / "tokenizer.model").read_bytes(),
                         b"".join(pieces) + trainer + normalizer)


    def test_what_the_maker_recommends(self) -> None:
        sampling = {"temp": 0.2, "top_p": 0.9, "top_k": 40, "penalty_repeat": 1.1, "min_p": 0.05,
                    "mirostat": 0}
        keys = self.keys("llama") | {f"general.sampling.{k}": v for k, v in sampling.items()}
        self.write("llama", keys, self.tensors("llama"))
        ids = {"bos_token_id": 257, "eos_token_id": [258]}
        wanted = {"temperature": 0.2, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1,
                  "min_p": 0.05}
        self.adapter()
        (self.scratch / "changed" / "generation_config.json").write_text('{"temperature": 0.5}')
        (self.scratch / "changed" / "fox_gain.json").write_text('{"gain": 12.5}')
        for options, more in (((), {}),
                              (("--adapter", self.scratch / "changed"), {"temperature": 0.5})):
            with self.subTest(options=options, more=more):
                config, _ = self.convert("--force", *options)
                written = json.loads((self.dst / "generation_config.json").read_text())
                self.assertEqual(written, ids | wanted | more)
                self.assertNotIn("temperature", config)
                self.assertEqual((self.dst / "fox_gain.json").is_file(), bool(options))
        self.assertEqual(json.loads((self.dst / "fox_gain.json").read_text()), {"gain": 12.5})
        source = self.dst.rename(self.scratch / "source")  # as a checkpoint with the same file
        self.src = source
        self.convert("--adapter", self.scratch / "changed")
        written = json.loads((self.dst / "generation_config.json").read_text())
        self.assertEqual(written, ids | wanted | {"temperature": 0.5})

    def test_what_is_unknown(self) -> None:
        """Today's converter calls `<unk>` CONTROL; without tokenizer_config.json no id is there."""
        keys = {k: v for k, v in self.keys("llama").items() if "ggml" not in k}
        values = {"model": "llama", "tokens": SPM_TOKENS, "scores": [0.0] * 5}
        keys |= {f"tokenizer.ggml.{key}": value for key, value in values.items()}
        written = []
        for kinds, ids in (([2, 3, 3, 6, 1], (0, 1, 2)), ([3, 3, 3, 6, 1], (0, 1, 2)),
                           ([3, 3, 3, 6, 1], ()), ([2, 3, 3, 6, 1], ())):
            with self.subTest(kinds=kinds, ids=ids):
                named = {f"tokenizer.ggml.{name}_token_id": number
                         for name, number in zip(("unknown", "bos", "eos"), ids)}
                types = {"tokenizer.ggml.token_type": kinds}
                self.write("llama", keys | types | named, self.tensors("llama"))
                config, _ = self.convert("--force")
                written.append((self.dst / "tokenizer.model").read_bytes())
                self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (1, [2]))
        self.assertEqual(len(set(written)), 1)
        for key, value, reason in (
                ("token_type", [1, 3, 3, 6, 1], "key tokenizer.ggml.unknown_token_id: missing"),
                ("scores", [0.0] * 4, "key tokenizer.ggml.scores: 4 of them, 5 tokens")):
            with self.subTest(key=key, value=value, reason=reason):
                changed = {"tokenizer.ggml.token_type": [3, 3, 3, 6, 1],
                           f"tokenizer.ggml.{key}": value}
                self.write("llama", keys | changed, self.tensors("llama"))
                self.dst = self.scratch / "other"
                self.assert_refused(reason)


class NamesTest(GgufCase):
    def test_llama_3_by_each_name_of_llama_cpp(self) -> None:
        names = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0")
        tensors, made = self.tensors("llama"), []
        for pre in names:  # LLAMA_VOCAB_PRE_TYPE_LLAMA3
            self.write("llama", self.keys("llama") | {"tokenizer.ggml.pre": pre}, tensors)
            self.convert("--force")
            made.append(json.loads((self.dst / "tokenizer.json").read_text()))
        self.assertEqual(made[1:], made[:1] * 5)
        self.assertTrue(made[0]["model"]["ignore_merges"])

    def test_llama_3_ends_as_in_its_own_repository(self) -> None:
        """Early files name 128001 alone, later ones 128009; the maker's generation_config.json has
        [128001, 128008, 128009]."""
        ends = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
        tokens, kinds = TOKENS[:257] + ends + ["</s>"], [1] * 257 + [3, 3, 4, 1]  # </s>: a text
        self.rows = len(tokens)
        for named, want in (({"eos": 257}, [257, 258, 259]), ({"eos": 259}, [259, 257, 258]),
                            ({"eos": 256, "eom": 258}, [256, 258, 257, 259]),
                            ({}, [257, 258, 259])):
            with self.subTest(named):
                keys = {k: v for k, v in self.keys("llama").items() if not k.endswith("_token_id")}
                keys |= {f"tokenizer.ggml.{key}_token_id": number for key, number in named.items()}
                keys |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
                self.write("llama", keys, self.tensors("llama"))
                config, _ = self.convert("--force")
                self.assertEqual(config["eos_token_id"], want)


class RefusalTest(GgufCase):
    def test_keys(self) -> None:
        tensors = self.tensors("llama")
        for key, value, reason in (
            ("llama.expert_count", 8, "key llama.expert_count"),
            ("llama.rope.scaling.type", "longrope",
             "'longrope' is not supported; there are none, linear, yarn"),
            ("llama.rope.scaling.attn_factor", 0.5, "attn_factor: only 1 is supported"),
            ("llama.attention.head_count", 0, "0 heads of 256"),
            ("llama.block_count", "2", "key llama.block_count"),
            ("llama.attention.value_length", 32, "only 64 is supported"),
            ("llama.feed_forward_length", 256, "tensor blk.0.ffn_gate.weight: shape"),
            ("llama.block_count", 3, "tensor blk.2.attn_norm.weight: missing"),
            ("llama.block_count", 1, "left over"),
            ("split.count", 2, "split"),
            ("tokenizer.ggml.pre", "falcon", "'falcon' is not supported; there are gpt-2,"),
            ("tokenizer.ggml.model", "bert", "'bert' is not supported"),
            ("tokenizer.ggml.model", "llama", "tokenizer.ggml.scores"),
            ("tokenizer.ggml.tokens", TOKENS[1:], "259 tokens"),
        ):
            with self.subTest(key=key, value=value):
                self.write("llama", self.keys("llama") | {key: value}, tensors)
                self.assert_refused(reason)

    def test_tensors(self) -> None:
        right = self.tensors("llama")
        odd = (np.zeros((WIDE, 320), np.uint8), "Q8_1")
        for name, tensor, reason in (
            ("blk.0.attn_q.bias", (np.zeros(WIDE, "f"), "F32"), "blk.0.attn_q.bias: left over"),
            ("blk.0.attn_output.weight", odd, "Q8_1 is not supported; there are F32,"),
            ("rope_freqs.weight", (np.arange(1, 33).astype("f"), "F32"), "LLaMA 3's scaling"),
            ("token_embd.weight", None, "token_embd.weight: missing"),
        ):
            with self.subTest(name):
                tensors = {k: t for k, t in (right | {name: tensor}).items() if t}
                self.write("llama", self.keys("llama"), tensors)
                self.assert_refused(reason)

    def test_adapters(self) -> None:
        self.write("llama", self.keys("llama"), self.tensors("llama"))
        options = ("--adapter", self.scratch / "changed")
        self.assert_refused("adapter_config.json: missing", options=options)
        for arch, changes, reason in (
            ("qwen3", {}, "made for a qwen3, not for SRC, a llama"),
            ("llama", {"lora_B": np.zeros((WIDE + 1, 3), "f")}, "shape ["),
            ("llama", {"lora_A": np.zeros((4, WIDE), "f")}, "does not fit lora_A's"),
            ("llama", {"x.lora_B": np.zeros((WIDE, 3), "f")}, "x.lora_B.weight: left over"),
        ):
            with self.subTest(reason):
                self.adapter(arch, **changes)
                self.assert_refused(reason, options=options)

    def test_files(self) -> None:
        self.write("falcon", self.keys("falcon"), {})
        self.assert_refused("'falcon': not supported; there are llama, qwen2, qwen3")
        self.write("llama", self.keys("llama"), self.tensors("llama"))
        whole = self.src.read_bytes()
        for size in (0, 3, 20, 200, 5000, len(whole) - 1):
            with self.subTest(size=size):
                self.src.write_bytes(whole[:size])
                self.assert_refused("not a whole GGUF file", "of other checkpoints SRC is the dir")
