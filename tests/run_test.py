#!/usr/bin/env python3
"""Tests of ./run on stand-ins for the card, nvcc, CMake and Ninja: which build demo and serve take.

Nothing is built: `ninja` writes the fox-server that it was asked for, a script that says so.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

RUN = pathlib.Path(__file__).resolve().parents[1] / "run"
# All that ./run may find beside the stand-ins: no apt-get, no card of this machine.
TOOLS = ("awk", "bash", "cat", "chmod", "cksum", "cp", "dirname", "env", "find", "grep", "head",
         "mkdir", "nproc", "python3", "sed", "sort", "tail", "tee", "tr", "xargs")

NVIDIA_SMI = """#!/bin/bash
[[ "$1" == -L ]] && for ((i = 0; i < ${FAKE_CARDS:-1}; i++)); do echo "GPU $i: NVIDIA Test"; done
case "$*" in
  *compute_cap,name*) echo "${FAKE_CAPABILITY:-9.0}, NVIDIA Test" ;;
  *compute_cap*) echo "${FAKE_CAPABILITY:-9.0}" ;;
esac
"""
NVCC = """#!/bin/bash
echo "Cuda compilation tools, release ${FAKE_CUDA:-13.0}, V0"
"""
CMAKE = """#!/bin/bash
while [[ $# -gt 0 ]]; do [[ "$1" == -B ]] && folder="$2"; settings+=" $1"; shift; done
mkdir -p "$folder/bin"
echo "$settings" >"$folder/settings"
echo >"$folder/build.ninja"
"""
NINJA = """#!/bin/bash
printf '#!/bin/bash\\necho "server of %s: $*"\\n' "${2##*/}" >"$2/bin/fox-server"
chmod +x "$2/bin/fox-server"
"""


def write_program(path: pathlib.Path, text: str) -> None:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class RunTest(unittest.TestCase):
    """A tree of its own, with ./run and what it calls."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        toolkit = str(self.root / "toolkit")
        text = RUN.read_text()
        self.assertIn("/usr/local/cuda;", text)
        write_program(self.root / "run", text.replace("/usr/local/cuda;", toolkit + ";"))
        (self.root / "CMakePresets.json").write_text("{}")
        (self.root / "models" / "demo").mkdir(parents=True)
        self.programs = self.root / "programs"
        self.programs.mkdir()
        for tool in TOOLS:
            os.symlink(shutil.which(tool) or tool, self.programs / tool)
        write_program(self.programs / "cmake", CMAKE)
        write_program(self.programs / "ninja", NINJA)
        self.environment = {"PATH": str(self.programs), "FOX_NO_INSTALL": "1"}

    def add_card(self) -> None:
        """nvidia-smi, with one card."""
        write_program(self.programs / "nvidia-smi", NVIDIA_SMI)

    def add_nvcc(self) -> None:
        """Where NVIDIA's packages put it."""
        write_program(self.root / "toolkit" / "bin" / "nvcc", NVCC)

    def serve(self, *flags: str, **environment: str) -> tuple[str, str]:
        """What `./run serve models/demo FLAGS` started, and what it said."""
        result = subprocess.run([str(self.root / "run"), "serve", "models/demo", *flags],
                                cwd=self.root, env={**self.environment, **environment},
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip(), result.stderr

    def expect_cpu(self, reason: str, **environment: str) -> None:
        """The CPU's build, for that reason."""
        started, said = self.serve(**environment)
        self.assertEqual(started, "server of cpu: --model models/demo")
        self.assertIn("Computing on the CPU", said)
        self.assertIn(reason, said)

    def test_no_card(self) -> None:
        self.add_nvcc()
        self.expect_cpu("no NVIDIA card is visible")

    def test_card_without_a_compiler(self) -> None:
        self.add_card()
        self.expect_cpu("no nvcc 12.4")

    def test_card_and_compiler(self) -> None:
        self.add_card()
        self.add_nvcc()
        started, said = self.serve("--grpc-port", "0")
        self.assertEqual(started, "server of cuda: --model models/demo --grpc-port 0")
        self.assertIn("Computing on NVIDIA Test", said)
        settings = (self.root / "build" / "cuda" / "settings").read_text()
        self.assertIn("-DFOX_CUDA_ARCHITECTURES=90a-real;80-virtual", settings)

    def test_card_that_cannot(self) -> None:
        self.add_card()
        self.add_nvcc()
        for capability, takes_it in (("7.5", False), ("8.0", True), ("12.0", True)):
            with self.subTest(capability=capability):
                started, said = self.serve(FAKE_CAPABILITY=capability)
                self.assertEqual("server of cuda" in started, takes_it, said)
        self.expect_cpu("compute capability 7.5, and 8.0 is needed", FAKE_CAPABILITY="7.5")
        self.expect_cpu("no nvcc 12.4", FAKE_CUDA="11.8")

    def test_cards_that_are_hidden(self) -> None:
        self.add_card()
        self.add_nvcc()
        self.expect_cpu("no NVIDIA card is visible", FAKE_CARDS="0")
        self.expect_cpu("no NVIDIA card is visible", CUDA_VISIBLE_DEVICES="")
        self.expect_cpu("no NVIDIA card is visible", CUDA_VISIBLE_DEVICES="-1")
        started, _ = self.serve(CUDA_VISIBLE_DEVICES="0")
        self.assertIn("server of cuda", started)

    def test_what_the_flags_say(self) -> None:
        self.add_card()
        self.add_nvcc()
        for flags in (("--device", "cpu"), ("--device=cpu",)):
            started, said = self.serve(*flags)
            self.assertIn("server of cpu: --model models/demo " + " ".join(flags), started)
            self.assertNotIn("Computing on", said)
        started, _ = self.serve(FOX_DEVICE="cpu")
        self.assertIn("server of cpu", started)
        started, _ = self.serve("--device", "auto", FOX_DEVICE="cpu")
        self.assertIn("server of cuda", started)
        _, said = self.serve(FOX_CUDA_ARCHITECTURES="80-real")
        settings = (self.root / "build" / "cuda" / "settings").read_text()
        self.assertIn("-DFOX_CUDA_ARCHITECTURES=80-real\n", settings)


if __name__ == "__main__":
    unittest.main()
