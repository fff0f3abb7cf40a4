"""Tests models/convert/fox_convert.py end to end on the golden checkpoints: every variant, every
container, every option; values are compared bit by bit with an independent reader.
"""

from __future__ import annotations

import json
import struct
from typing import Any
from unittest import mock

import numpy as np
import yaml
from chat_format_test import CHATML
from checkpoint_case import GOLDEN, Bits, CheckpointCase, save
from torch_archive import Archive, Call, Global, New

from models.convert import output_directory

VARIANTS = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
FLA = [name for name in VARIANTS if "fla" in name]
KEYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "hidden_act", "norm_eps",
        "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "use_output_gate",
        "qk_norm", "num_kv_heads")
OFFICIAL_KEYS = KEYS + ("fgate_type", "use_output_norm", "qk_norm_share_param_across_head",
                        "use_k_shift", "use_v_shift", "ogate_act", "log_pruning_tolerance",
                        "use_rope", "rope_base", "max_position_embeddings")
# Settings of every FLA model.
FLA_VALUES = {"model_type": "forgetting_transformer-project_fox", "use_rope": False,
              "use_k_shift": False, "use_v_shift": False, "use_output_norm": False,
              "ogate_act": "sigmoid", "fgate_type": "full",
              "qk_norm_share_param_across_head": False, "log_pruning_tolerance": -10.0}


def widened(bits: Bits) -> Bits:
    """Widens a bfloat16 tensor to float32."""
    wide = np.frombuffer(bits.data, "<u2").astype("<u4") << 16
    return Bits("F32", bits.shape, wide.astype("<u4").tobytes())


def canonical(tensors: dict[str, Bits]) -> dict[str, Bits]:
    """The tensors that an FLA checkpoint becomes."""
    result = {}
    for name, bits in tensors.items():
        if ".up_proj." in name:
            continue
        if ".mlp.gate_proj." in name:
            up = tensors[name.replace("gate_proj", "up_proj")]
            rows, columns = bits.shape
            bits = Bits(bits.dtype, (2 * rows, columns), bits.data + up.data)
        name = name.replace(".f_proj.", ".fgate_proj.").replace(".g_proj.", ".ogate_proj.")
        result[name] = bits
    return result


class LayoutTest(CheckpointCase):
    def test_every_variant_from_both_containers(self) -> None:
        self.assertGreaterEqual(len(VARIANTS), 10, f"golden checkpoints are missing in {GOLDEN}")
        self.assertGreaterEqual(len(FLA), 2)
        for name in VARIANTS:
            for put in (self.put, self.put_bin):
                with self.subTest(name=name, put=put.__name__):
                    config, tensors = self.golden(name)
                    for path in self.src.iterdir():
                        path.unlink()
                    put(config, tensors)
                    self.check(name in FLA, config, tensors)

    def check(self, fla: bool, config: dict[str, Any], tensors: dict[str, Bits]) -> None:
        options = ("--log-pruning-tolerance", "-10") if fla else ()
        got_config, got = self.convert("--force", *options)
        self.assertEqual(got, canonical(tensors) if fla else tensors)
        for key in KEYS if fla else OFFICIAL_KEYS:
            self.assertEqual(got_config[key], config[key], key)
        gate = got["model.layers.0.mlp.gate_proj.weight"]
        self.assertEqual(got_config["intermediate_size"] * 2, gate.shape[0])
        if fla:
            self.assertEqual(got_config.get("qkv_bias", False), config["qkv_bias"])
            self.assertEqual({key: got_config[key] for key in FLA_VALUES}, FLA_VALUES)

    def test_converting_again_changes_nothing(self) -> None:
        for name in ("tiny_fla", "tiny_rope"):
            with self.subTest(name=name):
                self.put(*self.golden(name))
                first = self.convert("--force")
                self.src, self.dst = self.dst, self.scratch / "again"
                self.assertEqual(self.convert("--force"), first)
                self.src, self.dst = self.scratch / "src", self.src

    def test_wrapped_names_tied_head_and_buffers(self) -> None:
        config, tensors = self.golden("tiny_norm_no_gate_tied")
        wrapped = {f"module._orig_mod.{name}": bits for name, bits in tensors.items()}
        wrapped["module._orig_mod.lm_head.weight"] = tensors["model.embeddings.weight"]
        wrapped["model.layers.0.attn.rotary.inv_freq"] = Bits("F32", (1,), bytes(4))
        self.put_bin(config, wrapped)
        self.assertEqual(self.convert()[1], tensors)

    def test_token_ids_and_gate_act(self) -> None:
        """Lists and null are kept; the activation of a missing gate is not read."""
        config, tensors = self.golden("tiny_no_gate")
        del config["bos_token_id"]
        ids = {"eos_token_id": [2, 5], "pad_token_id": -1, "ogate_act": "relu"}
        self.put(config | ids, tensors)
        written = self.convert()[0]
        keys = ("bos_token_id", "eos_token_id", "pad_token_id", "ogate_act")
        self.assertEqual([written[key] for key in keys], [1, [2, 5], -1, "sigmoid"])

    def test_side_files_are_copied(self) -> None:
        self.put(*self.golden("tiny_rope"))
        copied = ["generation_config.json", "merges.txt", "vocab.json"]
        for name in (*copied, "training_args.bin"):
            (self.src / name).write_text(name)
        self.convert()
        self.assertEqual({path.name for path in self.dst.iterdir()},
                         {*copied, "config.json", "model.safetensors"})
        self.assertEqual((self.dst / "merges.txt").read_text(), "merges.txt")

    def test_early_forms_of_fla(self) -> None:
        """The forget gate was once called g_proj, and QK-norm was shared by all heads."""
        config, tensors = self.golden("tiny_fla_plain")
        self.put(config, {name.replace(".f_proj.", ".g_proj."): bits
                          for name, bits in tensors.items()})
        self.assertEqual(self.convert()[1], canonical(tensors))
        config, tensors = self.golden("tiny_fla")
        for name in [n for n in tensors if "_norm.weight" in n and ".attn." in n]:
            tensors[name] = Bits("BF16", (16,), tensors[name].data[:32])
        self.put(config, tensors)
        self.assertTrue(self.convert("--force")[0]["qk_norm_share_param_across_head"])


class OrdinaryTest(CheckpointCase):
    def test_a_llama_keeps_names_and_gets_a_chat_format(self) -> None:
        config, tensors = self.golden("transformers/llama_kv3_default")
        weight = Bits("F32", (48,), np.array([1, 1 + 2**-9] * 24, "<f4").tobytes())
        (self.src / "chat_template.jinja").write_text(CHATML)
        for wanted, data in (("keep", weight.data), ("bf16", bytes.fromhex("803f803f") * 24)):
            with self.subTest(wanted):
                self.put(config, tensors | {"model.norm.weight": weight,
                                            "m.rotary_emb.inv_freq": weight})
                got_config, got = self.convert("--dtype", wanted, "--force")
                self.assertEqual({k: t.data for k, t in got.items()},
                                 {k: t.data for k, t in tensors.items()}
                                 | {"model.norm.weight": data})
                self.assertEqual(got_config, config | {"dtype": "bfloat16"})
                chat = json.loads((self.dst / "chat_format.json").read_text())
                self.assertEqual(chat["generation_prompt"], "<|im_start|>assistant\n")

    def test_the_tokenizer_of_an_adapter(self) -> None:
        """All of its files are taken, and none of the base's."""
        config, tensors = self.golden("transformers/llama_kv3_default")
        self.put(config, tensors)
        adapter = self.scratch / "adapter"
        adapter.mkdir()
        save(adapter / "adapter.safetensors", {})
        (adapter / "adapter_config.json").write_text('{"base_model_type": "llama", "config": {}}')
        for name in ("tokenizer.model", "special_tokens_map.json", "generation_config.json"):
            (self.src / name).write_text("{}")
        base, weights = sorted(path.name for path in self.src.iterdir()), sorted(
            ["config.json", "generation_config.json", "model.safetensors"])
        tokenizer = {"added_tokens": [{"id": config["vocab_size"] - 1, "content": "<x>"}]}
        for files, written in (
            ({"chat_template.jinja": CHATML}, base),  # of no tokenizer
            ({"tokenizer.json": json.dumps(tokenizer)},
             ["chat_format.json", "chat_template.jinja", *weights, "tokenizer.json"]),
        ):
            with self.subTest(files=files.keys()):
                for name, text in files.items():
                    (adapter / name).write_text(text)
                self.convert("--adapter", adapter, "--force")
                self.assertEqual(sorted(path.name for path in self.dst.iterdir()), sorted(written))
        tokenizer["added_tokens"][0]["id"] += 1
        (adapter / "tokenizer.json").write_text(json.dumps(tokenizer))
        self.assertIn("its token '<x>' has the id 64, but the model has 64 tokens",
                      self.run_convert("--adapter", adapter, "--force")[2])

    def test_sinks_and_caps_stay_in_float32(self) -> None:
        config, tensors = self.golden("transformers/llama_kv1_default_tied_forgetting")
        self.put(config, tensors)
        for wanted in ("keep", "bf16"):
            with self.subTest(wanted=wanted):
                code = {"auto_map": {"AutoModelForCausalLM": "modeling_fox.FoxLlamaForCausalLM"}}
                self.assertEqual(self.convert("--dtype", wanted, "--force"),
                                 (config | code, tensors))

    def test_without_chat_it_says_why(self) -> None:
        self.put(*self.golden("transformers/qwen2_kv1_linear"))
        (self.src / "chat_template.jinja").write_text(CHATML + "{{ messages | length }}")
        status, _, err = self.run_convert()
        self.assertEqual(status, 0)
        self.assertIn("note: no chat: ", err)
        self.assertIn("note: SRC has no tokenizer", err)
        (self.src / "tekken.json").touch()
        self.assertIn("tekken.json, a tokenizer that is not supported; put tokenizer.json",
                      self.run_convert("--force")[2])
        self.assertFalse((self.dst / "chat_format.json").exists())


class DtypeTest(CheckpointCase):
    def test_widening_and_back_is_exact(self) -> None:
        config, tensors = self.golden("tiny_rope")
        self.put(config, tensors)
        wide = {name: widened(bits) for name, bits in tensors.items()}
        self.assertEqual(self.convert("--dtype", "f32")[1], wide)
        self.put_bin(config, wide)
        (self.src / "model.safetensors").unlink()
        self.assertEqual(self.convert("--dtype", "bf16", "--force")[1], tensors)

    def test_f16(self) -> None:
        config, tensors = self.golden("tiny_rope")
        self.put(config, tensors)
        got = self.convert("--dtype", "f16")[1]
        for name, bits in tensors.items():
            with self.subTest(name=name):
                want = np.frombuffer(widened(bits).data, "<f4").astype("<f2").tobytes()
                self.assertEqual(got[name], ("F16", bits.shape, want))

    def test_nonfinite_values_are_reported(self) -> None:
        config, tensors = self.golden("tiny_rope")
        data = struct.pack("<2H", 0x7FC0, 0x7F80) + tensors["model.norm.weight"].data[4:]
        tensors["model.norm.weight"] = Bits("BF16", (64,), data)
        self.put(config, tensors)
        err = self.run_convert("--verify", "--dtype", "f32")[2]
        self.assertIn("tensor model.norm.weight: 2 elements are NaN or infinite", err)
        self.assertIn("verified", err)


class TrainingTest(CheckpointCase):
    def put_run(self, steps: dict[int, bool], vocab: bool = True) -> dict[int, dict[str, Bits]]:
        """Makes `src` a training run; steps: number -> marked as complete. Returns the tensors."""
        config, tensors = self.golden("dev_pro_d64")
        model = {key: config[key] for key in OFFICIAL_KEYS + ("hidden_ratio", "rope_base")}
        model |= {"vocab_size": "???", "_target_": "a.b.ForgettingTransformerConfig"}
        (self.src / "config.yaml").write_text(yaml.safe_dump({"model": {"config": model}}))
        if vocab:
            info = self.src / "metrics" / "jsonlines" / "train_data_info.jsonl"
            info.parent.mkdir(parents=True, exist_ok=True)
            info.write_text(json.dumps({"train_data_info/vocab_size": config["vocab_size"]}) + "\n")
        (self.src / "checkpoints").mkdir(exist_ok=True)
        result = {}
        for step, done in steps.items():
            tensors = dict(tensors)
            tensors["model.norm.weight"] = Bits("BF16", (128,), struct.pack("<H", step) * 128)
            result[step] = tensors
            archive = Archive()
            model = {name: archive.tensor(*bits) for name, bits in tensors.items()}
            scalar = Call(Global("numpy.core.multiarray", "scalar"),
                          (Global("numpy", "dtype"), b"1"))
            state = {
                "model": Call(Global("collections", "OrderedDict"), ([*map(list, model.items())],)),
                "optimizer": {"state": {0: {"exp_avg": archive.tensor("F32", (1,), bytes(4))}}},
                "loader": New(Global("project.loader", "State"), (), {"epoch": scalar}),
                "step": step,
            }
            path = self.src / "checkpoints" / f"step-{step:015d}.pt"
            archive.save(path, state)
            if done:
                path.with_name(path.name + ".done").touch()
        return result

    def test_newest_step_named_step_and_unmarked_step(self) -> None:
        steps = self.put_run({16384: True, 32768 >> 4: True, 16640: False})
        config, got = self.convert()
        self.assertEqual(got, steps[16384])
        self.assertEqual((config["vocab_size"], config["max_position_embeddings"]), (512, None))
        self.assertEqual(self.convert("--step", 2048, "--force")[1], steps[2048])
        err = self.run_convert("--force")[2]
        self.assertIn("step 16640 is not marked as complete: taking step 16384", err)
        self.assertIn("not loaded, as not needed for the weights: numpy.core", err)

    def test_unmarked_run_without_metrics(self) -> None:
        steps = self.put_run({16384: False, 16400: False}, vocab=False)
        config, got = self.convert()
        self.assertEqual(got, steps[16400])
        self.assertEqual(config["vocab_size"], 512)

    def test_refusals(self) -> None:
        self.put_run({16384: True})
        self.assert_refused("no step 5 (there are 16384)", options=("--step", 5))
        info = self.src / "metrics" / "jsonlines" / "train_data_info.jsonl"
        info.write_text('{"train_data_info/vocab_size": 100}\n')
        self.assert_refused("tensor model.embeddings.weight: shape [512, 128], expected [100, 128]")
        text = (self.src / "config.yaml").read_text()
        (self.src / "config.yaml").write_text(text.replace("hidden_size: 128", "hidden_size: ???"))
        self.assert_refused("config key hidden_size: missing")
        (self.src / "config.yaml").write_text("!!python/object/apply:os.system ['true']")
        self.assert_refused("config.yaml: not valid YAML")


class ShardsTest(CheckpointCase):
    def test_sharded_output_and_input(self) -> None:
        config, tensors = self.golden("tiny_rope")
        self.put(config, tensors)
        self.assertEqual(self.convert("--max-shard-size", "20KB")[1], tensors)
        index = json.loads((self.dst / "model.safetensors.index.json").read_text())
        files = sorted(path.name for path in self.dst.glob("*.safetensors"))
        self.assertEqual(sorted(set(index["weight_map"].values())), files)
        self.assertGreater(len(files), 2)
        self.assertEqual(files[0], f"model-00001-of-{len(files):05d}.safetensors")
        total = sum(len(bits.data) for bits in tensors.values())
        self.assertEqual(index["metadata"]["total_size"], total)
        self.src, self.dst = self.dst, self.scratch / "joined"
        self.assertEqual(self.convert()[1], tensors)

    def test_sharded_bin(self) -> None:
        config, tensors = self.golden("tiny_rope")
        (self.src / "config.json").write_text(json.dumps(config))
        weight_map = {}
        for part in range(2):
            archive = Archive()
            names = sorted(tensors)[part::2]
            state = {name: archive.tensor(*tensors[name]) for name in names}
            archive.save(self.src / f"part{part}.bin", {"state_dict": state} if part else state)
            weight_map |= {name: f"part{part}.bin" for name in names}
        index = self.src / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        self.assertEqual(self.convert()[1], tensors)
        (self.src / "weights").mkdir()
        (self.src / "part0.bin").rename(self.src / "weights" / "part0.bin")
        weight_map |= {n: "weights/part0.bin" for n, p in weight_map.items() if p == "part0.bin"}
        index.write_text(json.dumps({"weight_map": weight_map}))
        self.assertEqual(self.convert("--force")[1], tensors)
        first = min(weight_map)
        for change, reason in (
            ({first: "../part0.bin"}, "not the name of a weights file"),
            ({"x": "part9.bin"}, "part9.bin: missing"),
        ):
            with self.subTest(change=change, reason=reason):
                index.write_text(json.dumps({"weight_map": weight_map | change}))
                self.dst = self.scratch / "refused"
                self.assert_refused(reason)


class VerifyTest(CheckpointCase):
    def test_small_blocks(self) -> None:
        """The borders of parts, rows and blocks may differ between source and destination."""
        config, tensors = self.golden("tiny_fla")
        self.put(config, tensors)
        with mock.patch("models.convert.source_tensor.BLOCK_BYTES", 300):
            narrow = self.convert("--dtype", "f32")
        self.assertEqual(narrow, self.convert("--dtype", "f32", "--force"))

    def test_flipped_byte(self) -> None:
        """One byte anywhere in the data of any tensor is found, and the tensor named."""
        self.put(*self.golden("tiny_fla"))
        self.convert("--dtype", "f32")
        self.assertEqual(self.run_convert("--dtype", "f32", "--verify-only")[0], 0)
        path = self.dst / "model.safetensors"
        blob = path.read_bytes()
        header = json.loads(blob[8 : 8 + struct.unpack("<Q", blob[:8])[0]])
        start = len(blob) - max(e["data_offsets"][1] for n, e in header.items() if n[0] != "_")
        for name in ("lm_head.weight", "model.layers.1.mlp.gate_proj.weight"):
            with self.subTest(name=name):
                flipped = bytearray(blob)
                flipped[start + header[name]["data_offsets"][1] - 3] ^= 0x40
                path.write_bytes(flipped)
                status, _, err = self.run_convert("--dtype", "f32", "--verify-only")
                self.assertEqual(status, 1)
                self.assertRegex(
                    err, f"tensor {name}: verify: 1 elements differ .*max abs difference")
        path.write_bytes(blob)
        status, _, err = self.run_convert("--dtype", "bf16", "--verify-only")
        self.assertIn("the destination holds F32", err)

    def test_changed_configuration(self) -> None:
        self.put(*self.golden("tiny_fla"))
        self.convert()
        config = json.loads((self.dst / "config.json").read_text())
        (self.dst / "config.json").write_text(json.dumps(config | {"norm_eps": 1e-5}))
        status, _, err = self.run_convert("--verify-only")
        self.assertEqual(status, 1)
        self.assertIn("config key norm_eps", err)

    def test_a_damaged_write_leaves_nothing(self) -> None:
        self.put(*self.golden("tiny_fla"))
        plain = output_directory.SafetensorsWriter.write

        def damaged(writer: output_directory.SafetensorsWriter, data: memoryview) -> None:
            changed = bytearray(data)
            changed[-1] ^= 1
            plain(writer, changed)

        with mock.patch.object(output_directory.SafetensorsWriter, "write", damaged):
            self.assert_refused("verify", "elements differ", options=("--verify",))
