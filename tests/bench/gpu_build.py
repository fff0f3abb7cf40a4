"""Where the CUDA build lies and what its programs need to run: shared by gpu_pack, gpu_test and
gpu_bench.

A build is a folder with bin/: either build/cuda, made on this machine, or build/gpu, unpacked from
an archive that gpu_pack.py made elsewhere; the latter brings lib/ and a list of its tests. Of the
portable build, which holds code for compute capability 8.0 alone, they are build/cuda-portable and
build/gpu-portable.
"""

from __future__ import annotations

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tidy"))
from source_tree import code_checksum  # noqa: E402

PACKS = ROOT / ".gpu-pack"
MODEL = ROOT / "models" / "demo"
MODEL_PACK = PACKS / "demo-model.tar.xz"
TESTS_FILE = "gpu_tests.json"
SOURCE_FILE = "source.json"


def cublas_folders() -> list[str]:
    """Folders with cuBLASLt: of a CUDA toolkit, or of Python packages that contain it."""
    patterns = [os.path.join(home, "lib64") for home in
                (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if home]
    packages = {sysconfig.get_paths()["purelib"], *sys.path}
    for folder in sorted(filter(None, packages)):
        patterns += [os.path.join(folder, "nvidia", name, "lib") for name in ("cu1[0-9]", "cublas")]
    found = [folder for pattern in patterns for folder in sorted(glob.glob(pattern))
             if glob.glob(os.path.join(folder, "libcublasLt.so.*"))]
    return list(dict.fromkeys(found))


def environment(build: pathlib.Path) -> dict[str, str]:
    """The environment variables for programs of `build`."""
    folders = [str(build / "lib")] if (build / "lib").is_dir() else []
    folders += cublas_folders()
    folders += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    return dict(os.environ, LD_LIBRARY_PATH=":".join(folders))


def ctest_list(build: pathlib.Path) -> list[dict]:
    """Tests of `build` with the label gpu: name, command (empty: not built), timeout in seconds,
    and the number of shards.

    Tests with the label torch are left out: they are Python programs that need PyTorch.
    """
    listing = json.loads(subprocess.run(
        ["ctest", "--test-dir", str(build), "-L", "^gpu$", "-LE", "^torch$", "--show-only=json-v1"],
        check=True, capture_output=True, text=True).stdout)
    tests = []
    for test in listing["tests"]:
        properties = {item["name"]: item["value"] for item in test.get("properties", [])}
        tests.append({"name": test["name"], "command": test.get("command", []),
                      "timeout": properties.get("TIMEOUT", 300),
                      "shards": properties.get("PROCESSORS", 1)})
    return tests


def tests_of(build: pathlib.Path) -> list[dict]:
    """Tests with the label gpu of a build that was made here or unpacked."""
    packed = build / TESTS_FILE
    if packed.is_file():
        return json.loads(packed.read_text(encoding="utf-8"))
    return ctest_list(build)


def source(build: pathlib.Path) -> dict:
    """The commit of `build`, and a checksum of the code of each source of the CUDA kernels, which
    tests/tidy compares with the current sources. An archive has its own."""
    packed = build / SOURCE_FILE
    if packed.is_file():
        return json.loads(packed.read_text(encoding="utf-8"))
    ran = subprocess.run(["git", "-c", "safe.directory=*", "rev-parse", "HEAD"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    files = sorted(path for path in (ROOT / "kernels" / "cuda").rglob("*")
                   if path.suffix in (".cc", ".h", ".cu", ".cuh"))
    return {"commit": ran.stdout.strip(),
            "files": {str(path.relative_to(ROOT)): code_checksum(path.read_text(encoding="utf-8"))
                      for path in files}}


def restore_model(pack: pathlib.Path = MODEL_PACK, folder: pathlib.Path = MODEL) -> None:
    """Unpacks the demo model's weights if the folder has none."""
    if any(folder.glob("*.safetensors")) or not pack.is_file():
        return
    with tarfile.open(pack) as archive:
        archive.extractall(folder)


def device() -> dict[str, str]:
    try:
        line = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                               "--format=csv,noheader"], check=True, capture_output=True,
                              text=True).stdout.splitlines()[0]
        return dict(zip(("name", "driver", "memory"), (x.strip() for x in line.split(","))))
    except (OSError, subprocess.CalledProcessError, IndexError):
        return {}


def unpack(name: str) -> None:
    """Unpacks the archive of a build (gpu or gpu-portable) into build/ if it is newer than the last
    unpacking."""
    restore_model()
    pack, folder = PACKS / f"foxserve-{name}.tar.xz", ROOT / "build" / name
    mark = folder / TESTS_FILE
    if mark.is_file() and mark.stat().st_mtime >= pack.stat().st_mtime:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(pack) as archive:
        archive.extractall(folder)
    mark.touch()


if __name__ == "__main__":
    unpack(sys.argv[1])
