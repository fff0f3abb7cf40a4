"""Makes a GGUF file servable: prints a model directory made of it, which later starts find again.

    python3 -m models.convert.gguf_cache MODEL.gguf

Directories lie in $XDG_CACHE_HOME/foxserve/gguf (~/.cache without it), one for each fingerprint of
a file and of this converter; the MOST that were used last stay. Invariant: a directory is there
whole or not at all, because fox_convert.py renames it into place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from models.convert import fox_convert
from models.convert.refusal import Refusal

MOST = 4  # models that stay
_HEAD, _BLOCK, _BLOCKS = 1 << 20, 1 << 16, 16  # bytes from the start; bytes and count of samples


def cache_folder() -> Path:
    """The folder of all models, as the XDG Base Directory Specification places it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "foxserve" / "gguf"


def fingerprint(path: Path) -> str:
    """A name for the content of `path` and for the converter. Refusal if it is no GGUF file.

    It depends on size, time of modification, the head and samples of the rest: to read all of a
    large file would take longer than to load it.
    """
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())
        head = file.read(_HEAD)
        if not head.startswith(b"GGUF"):
            raise Refusal(f"{path}: neither a model directory nor a GGUF file")
        digest.update(f"{info.st_size} {info.st_mtime_ns}".encode() + head)
        for index in range(1, _BLOCKS + 1):  # the last one is the end
            file.seek(max(0, info.st_size - _BLOCK) * index // _BLOCKS)
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock of the cache, which ends with the process: one conversion at a time."""
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("==> Waiting for another conversion", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_old(folder: Path) -> None:
    """Leaves the MOST models that were used last. REQUIRES: the lock."""
    models = [entry for entry in folder.iterdir() if entry.is_dir()]
    for old in sorted(models, key=lambda entry: entry.stat().st_mtime_ns)[:-MOST]:
        shutil.rmtree(old, ignore_errors=True)


def converted(path: Path) -> Path | None:
    """The model directory of a GGUF file, made if it is missing; None: fox_convert said why not."""
    place = cache_folder() / fingerprint(path)
    model = place / path.stem[:100]
    if not model.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.parent):
            if not model.is_dir():
                shutil.rmtree(place, ignore_errors=True)  # what an interruption left
                place.mkdir()
                print(f"==> Converting {path.name}, once, into {place.parent}, where the {MOST} "
                      "models used last stay", file=sys.stderr, flush=True)
                if fox_convert.main([str(path), str(model), "--keep-blocks"]) != 0:
                    shutil.rmtree(place, ignore_errors=True)
                    return None
                _remove_old(place.parent)
    os.utime(place)
    return model


def main() -> int:
    """Runs the command; returns the exit status."""
    try:
        model = converted(Path(sys.argv[1]))
    except Refusal as refusal:
        print(f"gguf: {refusal}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"gguf: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    if model is not None:
        print(model)
    return 1 if model is None else 0


if __name__ == "__main__":
    sys.exit(main())
