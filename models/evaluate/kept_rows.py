"""Rows of a run that has not ended, in OUT/rows.jsonl: the same command goes on behind them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def digest(path: Path) -> str:
    """A checksum of a file, or of all files of a directory with their names."""
    found = hashlib.blake2b(digest_size=16)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            found.update(f"{file.relative_to(path)} {file.stat().st_size}\n".encode())
            with open(file, "rb") as content:
                while part := content.read(1 << 24):
                    found.update(part)
    return found.hexdigest()


class KeptRows:
    """The rows that a file has so far, by everything that they depend on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows.jsonl"
        self._rows: dict[str, Row] = {}
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    self._rows[entry["of"]] = entry["row"]
                except (ValueError, KeyError, TypeError):
                    continue  # the end of a run that was killed while it wrote
        self.reused = 0

    def row(self, of: Row | None, measure: Callable[[], Row]) -> Row:
        """The row of `of`: from the file, or measured and added. None: never kept."""
        if of is None:
            return measure()
        key = json.dumps(of, sort_keys=True)
        if key in self._rows:
            self.reused += 1
            return self._rows[key]
        row = self._rows[key] = measure()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"of": key, "row": row}) + "\n")
        return row

    def forget(self) -> None:
        """Removes the file, because the report has its rows."""
        self.path.unlink(missing_ok=True)
