"""Tests models/convert/restricted_pickle.py: it reads the files that torch writes, and refuses an
attacker's globals by name, without running them.
"""

from __future__ import annotations

import pickle
import struct
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch_archive import Archive, Call, Global, New, Persistent, Raw, encode

from models.convert.refusal import Refusal
from models.convert.restricted_pickle import Inert, TorchArchive
from models.convert.source_tensor import SourceTensor


def floats(*values: float) -> bytes:
    """Little-endian float32."""
    return struct.pack(f"<{len(values)}f", *values)


def elements(tensor: SourceTensor) -> list[float]:
    return np.concatenate([*tensor.blocks()]).tolist()


class PickleCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = Path(scratch.name) / "weights.bin"
        self.mark = Path(scratch.name) / "mark"
        self.archive = Archive()

    def opened(self, content: Any, keep_unknown: bool = False) -> TorchArchive:
        self.archive.save(self.path, content)
        return TorchArchive(self.path, keep_unknown)

    def assert_refused(self, content: Any, reason: str, keep_unknown: bool = False) -> None:
        with self.assertRaisesRegex(Refusal, reason):
            self.opened(content, keep_unknown)
        self.assertFalse(self.mark.exists())


class TensorTest(PickleCase):
    def one(self, value: Any) -> SourceTensor:
        archive = self.opened({"w": value})
        return archive.tensor("w", archive.content["w"])

    def test_contiguous(self) -> None:
        tensor = self.one(self.archive.tensor("F32", (2, 3), floats(1, 2, 3, 4, 5, 6)))
        self.assertEqual((tensor.dtype, tensor.shape), ("F32", (2, 3)))
        self.assertEqual(elements(tensor), [1, 2, 3, 4, 5, 6])

    def test_strides_and_offset(self) -> None:
        storage = self.archive.storage("F32", floats(*range(12)))
        for offset, shape, strides, want in ((1, (2, 3), (1, 4), [1, 5, 9, 2, 6, 10]),
                                             (8, (3,), (0,), [8] * 3), (7, (), (), [7])):
            with self.subTest(offset=offset, shape=shape, strides=strides, want=want):
                view = self.archive.view(storage, offset, shape, strides)
                self.assertEqual(elements(self.one(view)), want)

    def test_shared_storage_parameters_and_state(self) -> None:
        """nn.Parameter, torch.Size, OrderedDict with its _metadata, two views of one storage."""
        storage = self.archive.storage("F32", floats(1, 2, 3, 4))
        rebuild = Global("torch._utils", "_rebuild_parameter")
        size = Call(Global("torch", "Size"), ([2],))
        low = Call(Global("torch._utils", "_rebuild_tensor_v2"),
                   (storage, 0, size, (1,), False, None))
        high = Call(rebuild, (self.archive.view(storage, 2, (2,), (1,)), True, None))
        pairs = [["low", low], ["high", high]]
        state = Call(Global("collections", "OrderedDict"), (pairs,), {"_metadata": {}, "items": 1})
        archive = self.opened(state)
        for name, want in (("low", [1, 2]), ("high", [3, 4])):
            with self.subTest(name=name, want=want):
                self.assertEqual(elements(archive.tensor(name, archive.content[name])), want)

    def test_beyond_the_storage(self) -> None:
        storage = self.archive.storage("F32", floats(1, 2, 3, 4))
        for offset, shape, strides in ((1, (4,), (1,)), (0, (2,), (4,)), (0, (2, 3), (3, 1)),
                                       (0, (1 << 62, 4), (1 << 62, 1))):
            with self.subTest(offset=offset, shape=shape, strides=strides):
                with self.assertRaisesRegex(Refusal, "tensor w: reaches beyond its storage"):
                    self.one(self.archive.view(storage, offset, shape, strides))
        for offset, shape, strides in ((-1, (1,), (1,)), (0, (-1,), (1,)), (0, (2,), (-1,)),
                                       (0, (2,), (1, 1)), (0, (True,), (1,)), (0, ("2",), (1,)),
                                       (0, (1,) * 9, (1,) * 9)):
            with self.subTest(offset=offset, shape=shape, strides=strides):
                with self.assertRaisesRegex(Refusal, "tensor w: .*malformed"):
                    self.one(self.archive.view(storage, offset, shape, strides))

    def test_bad_storages(self) -> None:
        kind = Global("torch", "FloatStorage")
        self.archive.storage("F32", floats(1, 2))
        for key, count, reason in (("9", 2, "data/9 is missing"), ("0", 3, "wrong size"),
                                   ("../data.pkl", 2, "missing")):
            with self.subTest(key=key, count=count, reason=reason):
                pid = Persistent(("storage", kind, key, "cpu", count))
                with self.assertRaisesRegex(Refusal, f"tensor w: .*{reason}"):
                    self.one(self.archive.view(pid, 0, (1,), (1,)))
        for pid in (("module", kind, "0", "cpu", 2), "0",
                    ("storage", "FloatStorage", "0", "cpu", 2)):
            with self.subTest(pid=pid):
                self.assert_refused({"w": Persistent(pid)}, "persistent id|malformed storage")

    def test_not_a_tensor(self) -> None:
        with self.assertRaisesRegex(Refusal, "tensor w: holds a int"):
            self.one(5)

    def test_compressed_member(self) -> None:
        value = self.archive.tensor("F32", (64,), floats(*[0.0] * 64))
        self.archive.save(self.path, {"w": value}, compression=zipfile.ZIP_DEFLATED)
        with self.assertRaisesRegex(Refusal, "compressed"):
            TorchArchive(self.path)


class HostileTest(PickleCase):
    """Payloads that would create `mark` if they ran."""

    def payloads(self) -> dict[str, Any]:
        """Name of the refused global -> a call that creates the mark."""
        shell, python = f"touch {self.mark}", f"open({str(self.mark)!r}, 'w')"
        arguments: dict[str, tuple[Any, ...]] = {
            "os.system": (shell,), "posix.system": (shell,),
            "subprocess.Popen": (["touch", str(self.mark)],), "builtins.eval": (python,),
            "builtins.exec": (python,), "__builtin__.eval": (python,),
            "builtins.open": (str(self.mark), "w")}
        return {name: Call(Global(*name.split(".")), given) for name, given in arguments.items()}

    def test_refused_by_name_in_weights_and_in_training_files(self) -> None:
        for name, payload in self.payloads().items():
            pattern = name.replace(".", r"\.") + ", which is not allowed"
            for keep_unknown in (False, True):
                for content in (payload, {"w": payload}, {"model": {"w": ((payload,),)}}):
                    self.assert_refused(content, pattern, keep_unknown)

    def test_nested_in_allowed_calls(self) -> None:
        payload = self.payloads()["os.system"]
        storage = self.archive.storage("F32", floats(1))
        for content in (
            Call(Global("collections", "OrderedDict"), ([["w", payload]],)),
            self.archive.view(storage, payload, (1,), (1,)),
            Persistent(("storage", Global("torch", "FloatStorage"), payload, "cpu", 1)),
            Call(Global("torch._utils", "_rebuild_parameter"), (None, True, payload)),
            Call(Global("collections", "OrderedDict"), (), payload),
        ):
            with self.subTest(content=content):
                self.assert_refused(content, r"os\.system", keep_unknown=True)

    def test_other_opcodes(self) -> None:
        """INST, OBJ, STACK_GLOBAL and a global with dots reach the same gate."""
        shell = f"touch {self.mark}".encode()
        text = b"X" + struct.pack("<I", len(shell)) + shell
        stack_global = b"\x8c\x02os\x8c\x06system\x93"
        for opcodes in (
            b"(" + text + b"ios\nsystem\n",
            b"(cos\nsystem\n" + text + b"o",
            stack_global + b"(" + text + b"tR",
        ):
            with self.subTest(opcodes=opcodes):
                self.assert_refused(Raw(opcodes), r"os\.system", keep_unknown=True)
        dotted = b"\x8c\x0bcollections\x8c\x17OrderedDict.fromkeys.im\x93"
        self.assert_refused(Raw(dotted), r"collections\.OrderedDict\.fromkeys")

    def test_unknown_global_in_weights(self) -> None:
        content = {"w": Call(Global("numpy.core.multiarray", "scalar"), (1,))}
        self.assert_refused(content, r"numpy\.core\.multiarray\.scalar, which is not allowed")

    def test_unknown_globals_of_training_files_are_inert(self) -> None:
        """No operation of a pickle on a placeholder imports, calls or keeps anything."""
        kind = Global("evil_module", "Config")
        runner = Call(Call(Global("builtins", "getattr"), (Global("evil", "x"), "system")), ("ls",))
        content = {
            "config": New(kind, (1, 2), {"a": 1, "__class__": 2, "append": 3}),
            "call": Call(kind, ("x",), (None, {"__setstate__": 1})),
            "list": Raw(b"cevil_module\nConfig\n)R(K\x01K\x02e"),
            "items": Raw(b"cevil_module\nConfig\n)R(K\x01K\x02u"),
        }
        archive = self.opened(content, keep_unknown=True)
        self.assertTrue(all(isinstance(value, Inert) for value in archive.content.values()))
        self.assertEqual(archive.unknown_globals, ["evil_module.Config"])
        self.assertNotIn("evil_module", sys.modules)
        self.assertFalse(hasattr(archive.content["config"], "a"))
        with self.assertRaisesRegex(Refusal, r"tensor w: holds evil_module\.Config"):
            archive.tensor("w", archive.content["config"])
        self.assert_refused(runner, "not readable", keep_unknown=True)

    def test_our_replacements_cannot_be_altered(self) -> None:
        """BUILD with attributes on the functions and classes that stand for torch's."""
        for target in (Global("torch._utils", "_rebuild_tensor_v2"),
                       Global("torch", "FloatStorage"), Global("collections", "OrderedDict")):
            with self.subTest(target=target):
                build = Raw(encode(target) + encode((None, {"__call__": None})) + b"b")
                self.assert_refused(build, "not readable")

    def test_malformed_streams(self) -> None:
        for opcodes in (b"", b"X\xff\xff\xff\x7fabc", b"(" * 10, b"K", b"\xff"):
            with self.subTest(opcodes=opcodes):
                self.assert_refused(Raw(opcodes), "not a valid pickle|not readable")

    def test_memory_bombs(self) -> None:
        """A memo number makes the unpickler allocate a table of that size."""
        self.assert_refused(Raw(b"}r\xff\xff\xff\x7f"), "memo number beyond the pickle's size")
        with mock.patch("models.convert.restricted_pickle.MAX_PICKLE_BYTES", 10):
            self.assert_refused({"w": "x" * 20}, "data.pkl is larger than 10 B")


class ContainerTest(PickleCase):
    def refuses_file(self, data: bytes, reason: str) -> None:
        self.path.write_bytes(data)
        with self.assertRaisesRegex(Refusal, reason):
            TorchArchive(self.path)

    def test_legacy_and_foreign_files(self) -> None:
        legacy = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
        self.refuses_file(legacy + b"more", "legacy format")
        self.refuses_file(b"\0" * 257 + b"ustar" + b"\0" * 300, "legacy format")
        self.refuses_file(b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer")
        self.refuses_file(b"hello", "not a torch.save archive")
        self.refuses_file(b"PK\x03\x04hello", "damaged zip")

        self.archive.save(self.path, {"w": self.archive.tensor("F32", (4,), floats(1, 2, 3, 4))})
        self.refuses_file(self.path.read_bytes()[:-40], "damaged zip")
        self.archive.save(self.path, {}, byteorder=b"big")
        with self.assertRaisesRegex(Refusal, "byteorder"):
            TorchArchive(self.path)
        with zipfile.ZipFile(self.path, "w") as file:
            file.writestr("readme", b"")
        with self.assertRaisesRegex(Refusal, "no data.pkl"):
            TorchArchive(self.path)
