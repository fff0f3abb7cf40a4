"""The tokenizer of a model directory, for training texts. It is chosen by the same files as in the
server (models/tokenizer/load_tokenizer.cc), and gives the same ids."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "config.json",
                   "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SPACE = "\u2581"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


class TextError(Exception):
    """A text or tokenizer that cannot be used; the message names the file."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is cut out of a text before the tokenizer sees it."""

    content: str
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @staticmethod
    def read(value: Any, special: bool = False) -> AddedToken:
        """Reads a token from its text, or from an object with its options."""
        if isinstance(value, str):
            return AddedToken(value, special)
        known = {key: value[key] for key in AddedToken.__dataclass_fields__ if key in value}
        return AddedToken(**{**known, "special": special or known.get("special", False)})

    def pattern(self) -> str:
        """A regular expression that finds the token."""
        text = re.escape(self.content)
        if self.single_word:
            text = rf"(?<!\w){text}(?!\w)"
        return (r"\s*" if self.lstrip else "") + text + (r"\s*" if self.rstrip else "")


class SmallFiles:
    """The added tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json.

    As in transformers, the first file alone counts if it has added_tokens_decoder; otherwise the
    second one has precedence.
    """

    def __init__(self, directory: Path) -> None:
        def content(name: str) -> dict[str, Any]:
            path = directory / name
            return json.loads(path.read_text("utf-8")) if path.is_file() else {}

        self.config, self.model = content("tokenizer_config.json"), content("config.json")
        special = content("special_tokens_map.json")
        decoder = self.config.get("added_tokens_decoder")
        if decoder is not None:
            contents = {entry["content"] for entry in decoder.values()}
            known = {key: value for key, value in special.items() if key in ROLES
                     and (value is None or AddedToken.read(value).content in contents)}
            merged = {**known, **self.config}
        else:
            merged = {**self.config, **special}
        self.roles = {role: None if merged[role] is None else AddedToken.read(merged[role], True)
                      for role in ROLES if role in merged}
        self.named = [AddedToken.read(entry, True)
                      for source in (self.config, {} if decoder is not None else special)
                      for key in ("model_specific_special_tokens", "additional_special_tokens",
                                  "extra_special_tokens")
                      for entry in _values(source.get(key))]
        names = {token.content for token in (*self.roles.values(), *self.named) if token}
        if decoder is not None:
            added = [AddedToken.read(decoder[key]) for key in sorted(decoder, key=int)]
            self.added = [replace(token, special=token.special or token.content in names)
                          for token in added]
        else:
            ids = content("added_tokens.json")
            self.added = [AddedToken(token, token in names, token not in names)
                          for token in sorted(ids, key=lambda token: ids[token])]

    def tokens(self, known: set[str]) -> list[AddedToken]:
        """The added tokens in the order of their ids, without the `known` ones."""
        known = known | {token.content for token in self.added}
        tokens = list(self.added)
        for token in (*(self.roles.get(role) for role in ROLES), *self.named):
            if token is not None and token.content not in known:
                known.add(token.content)
                tokens.append(token)
        return [token for token in tokens if token.content]


def _values(entry: Any) -> list[Any]:
    return list(entry.values()) if isinstance(entry, dict) else list(entry or [])


class _SentencePiece:
    """A tokenizer.model with its added tokens, as in sentencepiece_tokenizer.cc."""

    def __init__(self, path: Path, files: SmallFiles) -> None:
        import sentencepiece

        self._whole = sentencepiece.SentencePieceProcessor(model_file=str(path))
        # Appends normalizer_spec { add_dummy_prefix: false }: the last value of a field counts.
        self._inner = sentencepiece.SentencePieceProcessor(
            model_proto=path.read_bytes() + b"\x1a\x02\x18\x00")
        pieces = self._whole.vocab_size()
        self._prefix = self._whole.normalize("a").startswith(SPACE)
        if files.config.get("add_prefix_space") is False:
            self._whole, self._prefix = self._inner, False
        marked = f"{SPACE}a{SPACE * 2}\ufb01{SPACE}"
        self._marks_only = self._inner.normalize(" a  \ufb01 ") == marked
        self._each = files.config.get("legacy") is not False
        tokens = {}
        for piece in range(pieces):
            if self._whole.is_control(piece) or self._whole.is_unknown(piece):
                content = self._whole.id_to_piece(piece)
                tokens[content] = AddedToken(content, self._whole.is_control(piece))
        ids = {content: self._whole.piece_to_id(content) for content in tokens}
        for token in files.tokens({t for t in tokens if not self._whole.is_unknown(ids[t])}):
            piece = self._whole.piece_to_id(token.content)
            is_piece = self._whole.id_to_piece(piece) == token.content
            behind = max(pieces, *(i + 1 for i in ids.values()))
            ids.setdefault(token.content, piece if is_piece else behind)
            tokens[token.content] = token
        self.ids, self._tokens = ids, {ids[content]: token for content, token in tokens.items()}
        self.vocab_size = max(pieces, *(i + 1 for i in ids.values()))
        words = {t for t in tokens.values() if t.normalized and self._each and self._marks_only}
        self._plain = _pattern([t.pattern() for t in tokens.values() if t not in words])
        self._word_ids = {self._marked(t.content, True): ids[t.content] for t in words}
        self._words = _pattern([re.escape(text) for text in self._word_ids])
        self.bos = self._whole.bos_id() if self._whole.bos_id() >= 0 else None
        self.eos = self._whole.eos_id() if self._whole.eos_id() >= 0 else None

    def _marked(self, text: str, prefix: bool) -> str:
        return (SPACE if prefix and self._prefix else "") + text.replace(" ", SPACE)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part, is_token in _parts(self._plain, text):
            first = not ids and not part.startswith((" ", SPACE))
            if is_token:
                ids.append(self.ids.get(part) or self.ids[part.strip()])
            elif not self._marks_only:
                model = self._whole if self._each or first else self._inner
                ids += model.encode(part)
            else:
                for inner, is_word in _parts(self._words, self._marked(part, self._each or first)):
                    ids += [self._word_ids[inner]] if is_word else self._inner.encode(inner)
        return ids

    def decode(self, ids: list[int]) -> str:
        text, run = "", []
        for token_id in (*ids, None):
            token = self._tokens.get(token_id) if token_id is not None else None
            if token_id is not None and token is None:
                run.append(token_id)
                continue
            if run:
                word = bool(text) and self._whole.id_to_piece(run[0]).startswith(SPACE)
                text += (" " if word and self._prefix else "") + self._whole.decode(run)
                run = []
            if token is not None and not token.special:
                text += token.content
        return text


def _pattern(alternatives: list[str]) -> re.Pattern[str] | None:
    """A regular expression that finds the leftmost token, of several the longest."""
    alternatives = sorted(alternatives, key=len, reverse=True)
    return re.compile("(" + "|".join(alternatives) + ")") if alternatives else None


def _parts(pattern: re.Pattern[str] | None, text: str) -> Iterator[tuple[str, bool]]:
    """Splits a text into matches (True) and the text between them (False)."""
    for i, part in enumerate(pattern.split(text) if pattern else [text]):
        if part:
            yield part, i % 2 == 1


class TextTokenizer:
    """The tokenizer of a model directory, chosen as models/tokenizer/load_tokenizer.cc does."""

    def __init__(self, directory: Path) -> None:
        """Raises TextError if the directory has no tokenizer."""
        self._directory = directory
        files = SmallFiles(directory)
        self._wraps_json = files.config.get("tokenizer_class") == "JSONGPT2Tokenizer"
        has_json = (directory / "tokenizer.json").is_file()
        if (directory / "tokenizer.model").is_file() and not has_json:
            model = _SentencePiece(directory / "tokenizer.model", files)
            self.vocab_size, ids = model.vocab_size, model.ids
            self._encode, self._decode = model.encode, model.decode
            self.bos, self.eos = model.bos, model.eos
        else:
            bpe = self._open_bpe(files)
            ids = {token.content: number for number, token in
                   bpe.get_added_tokens_decoder().items()}
            self.vocab_size = max(bpe.get_vocab().values()) + 1  # ids may have holes
            self._encode = lambda text: bpe.encode(text, add_special_tokens=False).ids
            self._decode = lambda ids: bpe.decode(ids)
            self.bos = self.eos = None
        for name in ("bos", "eos"):
            if f"{name}_token" in files.roles:
                role = files.roles[f"{name}_token"]
                setattr(self, name, None if role is None else ids.get(role.content))

    def _open_bpe(self, files: SmallFiles) -> Any:
        import tokenizers

        folder = self._directory
        if (folder / "tokenizer.json").is_file():
            model = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            model.no_truncation()  # trainers save both; they are for batches of theirs
            model.no_padding()
        elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            model = _open_pair(folder, files)
        else:
            raise TextError(f"{folder}: no tokenizer (tokenizer.json, tokenizer.model, or "
                            "vocab.json with merges.txt)")
        known = {token.content for token in model.get_added_tokens_decoder().values()}
        model.add_tokens([
            tokenizers.AddedToken(token.content, single_word=token.single_word,
                                  lstrip=token.lstrip, rstrip=token.rstrip,
                                  normalized=token.normalized, special=token.special)
            for token in files.tokens(known)])
        return model

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without bos and eos."""
        return self._encode(json.dumps(text)[1:-1] if self._wraps_json else text)

    def decode(self, ids: list[int]) -> str:
        """Text of ids; invalid text becomes replacement characters."""
        text = self._decode([i for i in ids if i not in (self.bos, self.eos)])
        if not self._wraps_json:
            return text
        try:
            return json.loads(f'"{text}"')
        except ValueError:
            return text

    def fingerprint(self) -> str:
        """A checksum of all files that define the encoding."""
        digest = hashlib.sha256()
        for name in TOKENIZER_FILES:
            path = self._directory / name
            if path.is_file():
                digest.update(name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()


def _open_pair(folder: Path, files: SmallFiles) -> Any:
    """vocab.json and merges.txt, as the class that tokenizer_config.json or the model names."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind = files.config.get("tokenizer_class", "").removesuffix("Fast")
    if not kind and files.model.get("model_type") in ("qwen2", "qwen3"):
        kind = "Qwen2Tokenizer"
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"),
                                               str(folder / "merges.txt")))
    tokenizer.decoder = decoders.ByteLevel()
    space = bool(files.config.get("add_prefix_space"))
    if kind == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)])
    elif kind in ("", "GPT2Tokenizer", "JSONGPT2Tokenizer"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    else:
        raise TextError(f"{folder}: tokenizer_class {kind} with vocab.json and merges.txt is not "
                        "supported; GPT2Tokenizer and Qwen2Tokenizer are")
    return tokenizer
