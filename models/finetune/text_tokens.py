"""Text files to tokens: documents are read as a stream, encoded by several processes, and written
to one flat file that training maps into memory.

A document is a whole file, or the text between two lines with one zero byte each (as in fox-eval),
or an entry of a .jsonl or .json file (json_documents.py). It becomes bos, its tokens and eos, if
the tokenizer has bos and eos; a chat is as its format says. A token file NAME holds uint16
(uint32 for vocabularies above 65,536); NAME.json lists its sources.

    python -m models.finetune.text_tokens --model models/demo --out corpus.tokens books/*.txt
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import gzip
import json
import lzma
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from models.finetune.json_documents import json_documents
from models.finetune.text_tokenizer import TextError, TextTokenizer

SEPARATOR = b"\n\0\n"
READ_BYTES = 1 << 20
LONGEST_PIECE = 16 << 20  # bytes that are encoded at once; longer documents are cut

# First bytes of files that people take for texts.
_NO_TEXT = {b"PAR1": "Parquet; make .jsonl of it, for example by "
                     "pandas.read_parquet(FILE).to_json(OUT, orient='records', lines=True)",
            b"\x28\xb5\x2f\xfd": "packed; unpack it with zstd -d"}


@dataclass(frozen=True)
class Piece:
    """A document, or one of the pieces of a very long one."""

    text: bytes
    source: str
    first: bool
    last: bool
    chat: bool = False  # its format has the tokens around it


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file for reading, unpacked if it is .xz or .gz. TextError if it cannot be unpacked."""
    packed = {".xz": lzma.open, ".gz": gzip.open}
    try:
        with packed.get(path.suffix, open)(path, "rb") as file:
            yield file
    except (lzma.LZMAError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TextError(f"{path.name}: no whole {path.suffix} file ({error})") from None


def _blocks(path: Path) -> Iterator[bytes]:
    """Yields the bytes of a file without a byte order mark, then b""."""
    with _opened(path) as file:
        block = file.read(READ_BYTES)
        for magic, advice in _NO_TEXT.items():
            if block.startswith(magic):
                raise TextError(f"{path.name}: {advice}")
        yield block.removeprefix(codecs.BOM_UTF8)
        while block := file.read(READ_BYTES):
            yield block
    yield b""


def _place_to_cut(text: bytes) -> int:
    """The last line end of a long piece, or else its last space, or else character."""
    limit = LONGEST_PIECE - len(SEPARATOR)
    cut = text.rfind(b"\n", 0, limit) + 1 or max(0, text.rfind(b" ", 0, limit)) or limit
    for _ in range(3):  # bytes of a character behind its first
        cut -= text[cut] & 0xC0 == 0x80
    return cut


def read_pieces(path: Path, model: Path | None = None) -> Iterator[Piece]:
    """The documents of one file, without empty ones. `model`: whose format chats have."""
    if Path(path.name.removesuffix(".xz").removesuffix(".gz")).suffix in (".jsonl", ".json"):
        with _opened(path) as file:
            for text, chat in json_documents(file, path.name, model):
                if text:
                    yield Piece(text, path.name, first=True, last=True, chat=chat)
        return
    buffer, first = b"", True
    for block in _blocks(path):
        buffer += block
        *documents, buffer = buffer.split(SEPARATOR)
        for document in documents:
            if document or not first:
                yield Piece(document, path.name, first, last=True)
            first = True
        while len(buffer) > LONGEST_PIECE:
            cut = _place_to_cut(buffer)
            yield Piece(buffer[:cut], path.name, first, last=False)
            buffer, first = buffer[cut:], False
    if buffer or not first:
        yield Piece(buffer, path.name, first, last=True)


_worker_tokenizer: TextTokenizer | None = None


def _start_worker(directory: Path) -> None:
    global _worker_tokenizer
    _worker_tokenizer = TextTokenizer(directory)


def _encode_piece(piece: Piece) -> tuple[np.ndarray, Piece]:
    """The ids of a piece, and the piece without its text."""
    tokenizer = _worker_tokenizer
    assert tokenizer is not None
    try:
        text = piece.text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{piece.source}: not UTF-8 (byte {error.start} of a document, "
                        f"0x{piece.text[error.start]:02x}); convert it, for example with iconv"
                        ) from None
    ids = tokenizer.encode(text)
    if piece.first and not piece.chat and tokenizer.bos is not None:
        ids = [tokenizer.bos, *ids]
    if piece.last and not piece.chat and tokenizer.eos is not None:
        ids = [*ids, tokenizer.eos]
    return np.asarray(ids, dtype=np.uint32), Piece(b"", piece.source, piece.first, piece.last)


@dataclass(frozen=True)
class TokenFileInfo:
    """The content of a token file's NAME.json."""

    tokens: int
    documents: int
    text_bytes: int
    dtype: str
    tokenizer: str
    sources: list[list[Any]]  # name, size, modification time of each text


def _sources(texts: list[Path]) -> list[list[Any]]:
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in texts]


def info_path(path: Path) -> Path:
    """The path of a token file's description."""
    return path.with_name(path.name + ".json")


def write_tokens(texts: list[Path], model: Path, out: Path, workers: int) -> TokenFileInfo:
    """Makes a token file of `texts`; does nothing if it exists already for the same texts."""
    for path in texts:
        if not path.is_file():
            raise TextError(f"{path}: no such file")
    tokenizer = TextTokenizer(model)
    fingerprint, sources = tokenizer.fingerprint(), _sources(texts)
    if out.is_file() and info_path(out).is_file():
        info = TokenFileInfo(**json.loads(info_path(out).read_text()))
        if (info.tokenizer, info.sources) == (fingerprint, sources):
            return info
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    partial = out.with_name(out.name + ".partial")
    try:
        counts = _encode_all(texts, model, partial, dtype, workers)
        if counts["tokens"] == 0:
            raise TextError("no text in " + ", ".join(path.name for path in texts))
    except BaseException:
        partial.unlink()
        raise
    info = TokenFileInfo(dtype=np.dtype(dtype).name, tokenizer=fingerprint, sources=sources,
                         **counts)
    info_path(out).unlink(missing_ok=True)
    os.replace(partial, out)
    info_partial = out.with_name(out.name + ".json.partial")
    info_partial.write_text(json.dumps(asdict(info)))
    os.replace(info_partial, info_path(out))
    return info


def _encode_all(texts: list[Path], model: Path, out: Path, dtype: type,
                workers: int) -> dict[str, int]:
    """Encodes in worker processes, and writes in order."""
    counts = {"tokens": 0, "documents": 0, "text_bytes": 0}

    def pieces() -> Iterator[Piece]:
        for path in texts:
            for piece in read_pieces(path, model):
                counts["documents"] += piece.first
                counts["text_bytes"] += len(piece.text)
                yield piece

    start = shown = time.monotonic()
    # Fork, as PyTorch's own loaders do: spawned processes would each import the main program.
    context = multiprocessing.get_context("fork")
    with open(out, "wb") as file, context.Pool(workers, _start_worker, (model,)) as pool:
        for ids, _ in pool.imap(_encode_piece, pieces()):
            file.write(ids.astype(dtype).tobytes())
            counts["tokens"] += len(ids)
            now = time.monotonic()
            if now - shown > 2:
                shown = now
                print(f"encoding: {counts['tokens'] / 1e6:.1f}M tokens, "
                      f"{counts['text_bytes'] / 1e6 / (now - start):.1f} MB/s",
                      file=sys.stderr, flush=True)
        file.flush()
        os.fsync(file.fileno())
    return counts


def open_tokens(path: Path) -> tuple[np.ndarray, TokenFileInfo]:
    """Maps a token file; returns it with its description."""
    if not path.is_file() or not info_path(path).is_file():
        raise TextError(f"{path}: no token file (or no {info_path(path).name} beside it)")
    info = TokenFileInfo(**json.loads(info_path(path).read_text()))
    tokens = np.memmap(path, dtype=info.dtype, mode="r")
    if len(tokens) != info.tokens:
        raise TextError(f"{path}: {len(tokens)} tokens, but {info.tokens} are described")
    return tokens, info


class Windows:
    """Windows of `length` + 1 tokens in a random order, each epoch cut and ordered anew.

    A step's windows depend on (seed, index) alone, so training can resume anywhere.
    """

    def __init__(self, tokens: np.ndarray, length: int, seed: int) -> None:
        # An epoch starts anywhere in the first window, so the last may be missing.
        self.per_epoch = (len(tokens) - 1) // length - 1
        if self.per_epoch < 1:
            raise TextError(f"{len(tokens)} tokens of text are too few for windows of {length}: "
                            "add text, or lower --window")
        self.tokens, self._length, self._seed = tokens, length, seed
        self._epoch, self._order, self._offset = -1, np.empty(0, dtype=np.int64), 0

    def window(self, index: int) -> np.ndarray:
        """The index-th window of the whole training, int64 [length + 1]."""
        epoch, place = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._offset = int(generator.integers(self._length))
            self._order = generator.permutation(self.per_epoch)
            self._epoch = epoch
        first = self._offset + int(self._order[place]) * self._length
        assert first + self._length < len(self.tokens)
        return self.tokens[first : first + self._length + 1].astype(np.int64)

    def batch(self, indices: range) -> np.ndarray:
        """Windows one below the other: int64 [len(indices), length + 1]."""
        return np.stack([self.window(index) for index in indices])


def main() -> int:
    """Makes a token file from the command line."""
    parser = argparse.ArgumentParser(prog="text_tokens", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", metavar="TEXT", type=Path, nargs="+",
                        help="UTF-8, .jsonl or .json, also .xz and .gz")
    parser.add_argument("--model", type=Path, required=True, help="directory of the tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="token file to write")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    args = parser.parse_args()
    try:
        info = write_tokens(args.texts, args.model, args.out, args.workers)
    except (TextError, OSError) as error:
        print(f"text_tokens: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {info.tokens} tokens of {info.documents} documents, "
          f"{info.text_bytes / info.tokens:.4f} bytes per token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
