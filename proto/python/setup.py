"""Builds foxserve_client: makes its message classes from the .proto files of this folder's parent.

The modules that protoc writes import each other as fox.v1. Here they become a part of the package,
so that they cannot be mistaken for another package `fox`.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import shutil

from grpc_tools import protoc
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
# The .proto files of the repository, or their copy in a source archive.
PROTOS = next(root for root in (HERE.parent, HERE) if (root / "fox" / "v1").is_dir())
CMAKE = HERE.parents[1] / "CMakeLists.txt"

# Adds Completion.finish_reason, as in OpenAI's API, to the module that protoc writes and its types.
FINISH_REASON = {
    ".py": ("# @@protoc_insertion_point(module_scope)",
            "Completion.finish_reason = property(\n"
            "    lambda completion: FinishReason.Name(completion.finish.reason).lower())"),
    ".pyi": ("class Completion(_message.Message):",
             "class Completion(_message.Message):\n"
             "    @property\n"
             "    def finish_reason(self) -> str: ..."),
}


def version() -> str:
    """The server's version; in a source archive, the version of the archive."""
    if (HERE / "PKG-INFO").is_file():
        return re.findall(r"(?m)^Version: (\S+)$", (HERE / "PKG-INFO").read_text())[0]
    return re.findall(r"\bVERSION (\d+\.\d+\.\d+)", CMAKE.read_text())[0]


def protobuf() -> str:
    """The required protobuf: modules that protoc writes refuse an older runtime."""
    return next(line for line in importlib.metadata.requires("grpcio-tools") or ()
                if line.startswith("protobuf"))


class BuildWithMessages(build_py):
    """Writes foxserve_client/fox/v1/*_pb2.py into the build, or for `pip install -e` into the
    checkout."""

    def run(self) -> None:
        super().run()
        root = HERE if self.editable_mode else pathlib.Path(self.build_lib)
        package = root / "foxserve_client"
        package.mkdir(parents=True, exist_ok=True)
        files = sorted(str(path) for path in (PROTOS / "fox" / "v1").glob("*.proto"))
        if protoc.main(["protoc", f"-I{PROTOS}", f"--python_out={package}",
                        f"--pyi_out={package}", *files]) != 0:
            raise RuntimeError("protoc failed")
        for module in (package / "fox" / "v1").glob("*_pb2.py*"):
            text = module.read_text()
            module.write_text(
                text.replace("from fox.v1 import", "from foxserve_client.fox.v1 import"))
        for suffix, (place, text) in FINISH_REASON.items():
            module = package / "fox" / "v1" / f"inference_pb2{suffix}"
            assert place in module.read_text(), place
            module.write_text(module.read_text().replace(place, text))
        for folder in (package / "fox", package / "fox" / "v1"):
            (folder / "__init__.py").touch()


class SdistWithProtos(sdist):
    """Copies the .proto files: a source archive has no repository around it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree(PROTOS / "fox", pathlib.Path(base_dir) / "fox", dirs_exist_ok=True)


setup(version=version(), install_requires=["grpcio>=1.60,<2", protobuf()],
      cmdclass={"build_py": BuildWithMessages, "sdist": SdistWithProtos})
