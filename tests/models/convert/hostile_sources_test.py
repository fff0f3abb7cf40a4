"""Tests that no source takes all memory, hangs, ends in a traceback or has foreign files copied:
hostile files, and random mutations of good files. Time and memory of each case are bounded.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fox_convert_conversion_test
import gguf_source_test
from checkpoint_case import CheckpointCase
from torch_archive import Archive, Raw, encode

from models.convert import bounded_reading

SECONDS, MIB = 1, 500  # seconds of a reading
MUTATIONS = 300 if "FOX_NIGHTLY" in os.environ else 20  # mutations of each kind of source
DOUBLED = b"(K\1t" + b"2\x86" * 60  # a tuple of itself twice, 60 times: 2^60 steps to hash
NESTED = b")" + b"\x85" * 500_000  # as deep a tuple
BOMBS = {
    "doubled": b"}" + DOUBLED + b"K\1s",
    "doubled in a set": b"\x8f(" + DOUBLED + b"\x90",
    "nested": b"}" + NESTED + b"K\1s",
    "marks": b"(" * 20_000_000,
    "memo": b"}r\xff\xff\xff\x7f",
    "long": b"}\x8b\0\0\0\x10" + b"\xff" * 100,
    "frames": b"}\x95" + b"\xff" * 7 + b"\x7f",
    "lists": b"]" * 8_000_000,
}


def endless_gguf(kind: int, inner: int = 0) -> bytes:
    """One key, an array of 2^60 elements of `kind`, of which none is there."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    return head + struct.pack("<IIQ", 9, kind, 1 << 60) + struct.pack("<I", inner) * (kind == 9)


class HostileCase(CheckpointCase):
    """Sets bounds that a test can afford; checks the promises that hold for every input."""

    def setUp(self) -> None:
        super().setUp()
        for name, value in (("CPU_SECONDS", SECONDS), ("MEMORY_BYTES", MIB << 20)):
            patch = mock.patch.object(bounded_reading, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def assert_bounded(self) -> tuple[int, str]:
        """Converts; expects success or one line of refusal, within the bounds. Returns both."""
        began, before = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        status, _, err = self.run_convert("--force")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = time.process_time() - began + sum(after[:2]) - sum(before[:2])
        self.assertIn(status, (0, 1), err)
        self.assertNotIn("Traceback", err)
        self.assertTrue(err.replace("\n", "").isprintable(), err)
        refusals = [line for line in err.splitlines() if line.startswith("fox_convert: ")]
        self.assertEqual(len(refusals), status, err)
        self.assertLess(spent, 2 * SECONDS + 6)  # a reading and a template
        self.assertLess(after.ru_maxrss, (MIB + 400) << 10)  # the interpreter with its packages
        self.assertEqual([p.name for p in self.scratch.glob(".*")], [])
        return status, err


class BombTest(HostileCase):
    def test_pickles(self) -> None:
        (self.src / "config.json").write_text('{"model_type": "llama"}')
        for name, opcodes in BOMBS.items():
            with self.subTest(name):
                Archive().save(self.src / "pytorch_model.bin", Raw(opcodes))
                self.assertEqual(self.assert_bounded()[0], 1)

    def test_members_of_zeros(self) -> None:
        (self.src / "config.json").write_text('{"model_type": "llama"}')
        path = self.src / "pytorch_model.bin"
        for member in ("byteorder", "data.pkl"):
            for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_STORED):
                with self.subTest(member=member, method=method):
                    with zipfile.ZipFile(path, "w") as file:
                        texts = {"data.pkl": b"\x80\2" + encode({}) + b".", member: bytes(1 << 26)}
                        for name, text in texts.items():
                            of = method if name == member else zipfile.ZIP_STORED
                            file.writestr(f"a/{name}", text, of)
                    self.assertEqual(self.assert_bounded()[0], 1)

    def test_ggufs(self) -> None:
        self.src.rmdir()
        for kind in (0, 7, 8, 9, 12):
            for inner in (0, 8, 9):
                with self.subTest(kind=kind, inner=inner):
                    self.src.write_bytes(endless_gguf(kind, inner))
                    self.assertIn("ends too early", self.assert_bounded()[1])
        self.src.write_bytes(endless_gguf(0) + bytes(1 << 26))  # most of it is there
        self.assertEqual(self.assert_bounded()[0], 1)

    def test_texts(self) -> None:
        aliases = "a: &a [x]\n" + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
            for old, new in zip("abcdefghi", "bcdefghij"))
        merges = "a: &a {x: 1}\nb: {<<: *a}\n"
        wide = {"a": {"dtype": "F32", "shape": [1 << 62] * 300_000, "data_offsets": [0, 0]}}
        header = json.dumps(wide).encode()
        for name, text in (
            ("config.yaml", aliases), ("config.yaml", merges), ("config.yaml", "[" * 100_000),
            ("config.yaml", "a: " + "9" * 1_000_000), ("config.yaml", "? " * 20_000),
            ("config.json", '{"a":' * 100_000), ("config.json", '{"a": ' + "9" * 100_000 + "}"),
            ("config.json", '{"model_type": "' + "\\u001b[2J" * 9999 + '"}'),
            ("config.json", "[" + "[]," * 6_000_000 + "[]]"),
            ("model.safetensors", struct.pack("<Q", len(header)) + header),
        ):
            with self.subTest(name=name, text=text[:20]):
                for path in self.src.iterdir():
                    path.unlink()
                if name == "model.safetensors":
                    (self.src / "config.json").write_text('{"model_type": "llama"}')
                blob = text if isinstance(text, bytes) else text.encode()
                (self.src / name).write_bytes(blob)
                self.assertEqual(self.assert_bounded()[0], 1)


class CallerTest(HostileCase):
    def test_what_the_caller_holds_does_not_count(self) -> None:
        self.put(*self.golden("tiny_rope"))
        with mmap.mmap(-1, 2 * MIB << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
            self.assertEqual(self.assert_bounded(), (0, mock.ANY))
            (self.src / "config.json").write_text("[" + "[]," * 6_000_000 + "[]]")
            self.assertEqual(self.assert_bounded()[0], 1)


class LinkTest(HostileCase):
    def setUp(self) -> None:
        super().setUp()
        self.secret = self.scratch / "id_ed25519"
        self.secret.write_text("PRIVATE KEY")

    def written(self) -> bytes:
        return b"".join(p.read_bytes() for p in self.dst.glob("*"))

    def test_a_file_that_is_elsewhere_is_not_copied(self) -> None:
        self.put(*self.golden("tiny_rope"))
        config = (self.src / "config.json").read_bytes()
        for name in ("tokenizer.json", "tokenizer_config.json", "merges.txt", "config.json",
                     "chat_template.jinja", "model.safetensors"):
            for target in (str(self.secret), "../id_ed25519", "link"):
                path = self.src / name
                kept = path.read_bytes() if path.exists() else None
                path.unlink(missing_ok=True)
                (self.src / "link").unlink(missing_ok=True)
                (self.src / "link").symlink_to(self.secret)
                path.symlink_to(target)
                with self.subTest(name=name, target=target):
                    status, line = self.assert_bounded()
                    self.assertEqual(status, 1)
                    self.assertIn(f"{name}: is a symbolic link that leaves src", line)
                    self.assertFalse(self.dst.exists())
                path.unlink()
                if kept is not None:
                    path.write_bytes(kept)
        self.assertEqual((self.src / "config.json").read_bytes(), config)

    def test_links_within_and_to_a_caches_blobs(self) -> None:
        repository = self.scratch / "models--a--b"
        (repository / "blobs").mkdir(parents=True)
        snapshot = repository / "snapshots" / "0"
        snapshot.mkdir(parents=True)
        self.put(*self.golden("tiny_rope"))
        (self.src / "merges.txt").write_text("within")
        for path in self.src.iterdir():
            blob = repository / "blobs" / f"{path.name}-hash"
            path.rename(blob)
            (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
        (snapshot / "vocab.json").symlink_to("merges.txt")
        self.src = snapshot
        self.assertEqual(self.assert_bounded(), (0, mock.ANY))
        self.assertEqual((self.dst / "vocab.json").read_text(), "within")
        (repository / "blobs" / "out").symlink_to(self.secret)
        (snapshot / "tokenizer.json").symlink_to("../../blobs/out")
        self.assertIn("leaves", self.assert_bounded()[1])

    def test_adapters_and_checkpoints(self) -> None:
        self.put(*self.golden("tiny_rope"))
        adapter = self.scratch / "adapter"
        adapter.mkdir()
        (adapter / "adapter_config.json").symlink_to(self.secret)
        self.assertIn("leaves adapter", self.run_convert("--adapter", adapter)[2])
        for path in self.src.iterdir():
            path.unlink()
        fox_convert_conversion_test.TrainingTest.put_run(self, {1: True})  # type: ignore[arg-type]
        (self.src / "checkpoints").rename(self.scratch / "elsewhere")
        (self.src / "checkpoints").symlink_to(self.scratch / "elsewhere")
        self.assertIn("leaves src", self.assert_bounded()[1])


def mutated(draw: random.Random, data: bytes) -> bytes:
    """One to four changes: of bits, numbers, pieces, or the end."""
    text = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if not text:
            break
        # Only headers are parsed, so most changes are among the first or the last bytes.
        reach = min(len(text), draw.choice((64, 600, 4000, len(text))))
        at = draw.randrange(reach) if draw.random() < 0.8 else len(text) - 1 - draw.randrange(reach)
        size = draw.choice((1, 2, 4, 8, 64, 1000))
        change = draw.randrange(6)
        if change == 0:
            text[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            text[at : at + size] = draw.choice((b"\0", b"\xff", b"\x7f", b"(", b"9", b"[")) * size
        elif change == 2:
            text[at:at] = text[at : at + size] * draw.choice((1, 1, 1, 500))
        elif change == 3:
            del text[at : at + size]
        elif change == 4:
            text[at:at] = draw.choice((*(b[:400] for b in BOMBS.values()), draw.randbytes(size)))
        elif draw.random() < 0.2:
            del text[at:]
    return bytes(text or b"x")


class MutationTest(HostileCase):
    def mutate(self, files: list[Path]) -> None:
        """Converts the source MUTATIONS times, each time with one changed file."""
        good = {path: path.read_bytes() for path in files}
        self.assertEqual(self.assert_bounded()[0], 0)
        for seed in range(MUTATIONS):
            draw = random.Random(seed)
            path = draw.choice(files)
            with self.subTest(seed=seed, file=path.name):
                path.write_bytes(mutated(draw, good[path]))
                self.assert_bounded()
            path.write_bytes(good[path])

    def listed(self) -> list[Path]:
        found = [path for path in self.src.rglob("*") if path.is_file()]
        return sorted(path for path in found if path.stat().st_size)

    def test_safetensors_and_texts(self) -> None:
        self.put(*self.golden("tiny_rope"))
        template = {"chat_template": gguf_source_test.CHATML, "eos_token": "</s>"}
        (self.src / "tokenizer_config.json").write_text(json.dumps(template))
        self.mutate(self.listed())

    def test_archives(self) -> None:
        self.put_bin(*self.golden("tiny_rope"))
        self.mutate(self.listed())

    def test_training_runs(self) -> None:
        fox_convert_conversion_test.TrainingTest.put_run(self, {1: True})  # type: ignore[arg-type]
        self.mutate(self.listed())

    def test_ggufs(self) -> None:
        case: Callable[..., gguf_source_test.GgufCase] = gguf_source_test.GgufCase
        writer = case()
        writer.setUp()
        self.addCleanup(writer.doCleanups)
        writer.src = self.src = self.scratch / "model.gguf"
        writer.write("qwen3", writer.keys("qwen3"), writer.tensors("qwen3"))
        self.mutate([self.src])
