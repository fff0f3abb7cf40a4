#!/usr/bin/env python3
"""Whether proto/vllm is a subset of what the released package smg-grpc-proto describes: names,
numbers, types, labels, presence. Skipped, and it says so, where the package cannot be had.

    vllm_proto_test.py BIN     the folder of fox-server
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import unittest
from typing import Any

import gateway_process
from fox_server import ROOT

if __name__ == "__main__":
    gateway_process.enter_packages(pathlib.Path(sys.argv[1]))

from google.protobuf import descriptor_pb2  # noqa: E402
from grpc_tools import protoc  # noqa: E402
from smg_grpc_proto import vllm_engine_pb2  # noqa: E402
from smg_grpc_proto.generated import common_pb2  # noqa: E402

Files = list[descriptor_pb2.FileDescriptorProto]
FIELD = ("number", "type", "label", "type_name", "proto3_optional")
METHOD = ("input_type", "output_type", "client_streaming", "server_streaming")


def own_files() -> Files:
    """Ours, compiled."""
    with tempfile.NamedTemporaryFile() as out:
        sources = sorted(str(path.relative_to(ROOT / "proto"))
                         for path in (ROOT / "proto" / "vllm").rglob("*.proto"))
        assert protoc.main(["protoc", f"-I{ROOT / 'proto'}", "-o", out.name, *sources]) == 0
        return list(descriptor_pb2.FileDescriptorSet.FromString(out.read()).file)


def released_files() -> Files:
    """The package's."""
    files = []
    for module in (vllm_engine_pb2, common_pb2):
        files.append(descriptor_pb2.FileDescriptorProto())
        module.DESCRIPTOR.CopyToProto(files[-1])
    return files


def described(files: Files) -> dict[str, tuple[Any, ...]]:
    """All fields and methods by their full name."""
    out: dict[str, tuple[Any, ...]] = {}

    def add_message(scope: str, message: descriptor_pb2.DescriptorProto) -> None:
        name = f"{scope}.{message.name}"
        for field in message.field:
            oneof = (message.oneof_decl[field.oneof_index].name
                     if field.HasField("oneof_index") else "")
            out[f"{name}.{field.name}"] = (oneof, *(getattr(field, key) for key in FIELD))
        for nested in message.nested_type:  # a map's entries
            add_message(name, nested)

    for file in files:
        for message in file.message_type:
            add_message(file.package, message)
        for service in file.service:
            for method in service.method:
                out[f"{file.package}.{service.name}.{method.name}"] = tuple(
                    getattr(method, key) for key in METHOD)
    return out


def differences(own: Files, released: Files) -> list[str]:
    """Names of ours that are not there, or are something else."""
    theirs = described(released)
    return [name for name, what in described(own).items() if what != theirs.get(name)]


class VllmProtoTest(unittest.TestCase):
    def test_it_is_a_subset(self) -> None:
        self.assertGreater(len(described(own_files())), 90)
        self.assertEqual(differences(own_files(), released_files()), [])

    def test_a_difference_would_be_found(self) -> None:
        for key, value in (("number", 99), ("type", 9), ("label", 3), ("proto3_optional", True)):
            files = own_files()
            (file,) = (file for file in files if file.package == "vllm.grpc.engine")
            (message,) = (m for m in file.message_type if m.name == "SamplingParams")
            (field,) = (f for f in message.field if f.name == "top_k")
            setattr(field, key, value)
            self.assertEqual(differences(files, released_files()),
                             ["vllm.grpc.engine.SamplingParams.top_k"])


if __name__ == "__main__":
    sys.argv.pop(1)
    unittest.main()
