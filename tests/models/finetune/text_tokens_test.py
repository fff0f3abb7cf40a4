"""Texts become tokens document by document, and windows of every epoch cover them."""

from __future__ import annotations

import gzip
import json
import lzma
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from toy_model import ROOT, write_toy  # first: it skips without its packages

import jinja2
import numpy as np

from models.convert.chat_format import write_chat_format
from models.finetune import text_tokens
from models.finetune.text_tokenizer import SmallFiles
from models.finetune.text_tokens import (
    TextError, TextTokenizer, Windows, info_path, open_tokens, read_pieces, write_tokens)

END = 256
TEMPLATE = ("{% for m in messages %}<|endoftext|>{{ m.role }}\n{{ m.content | trim }}"
            "<|endoftext|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}")
CHAT = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "žluť 漢字 🦊\n"},
        {"role": "assistant", "content": "\u2028ok"}, {"role": "user", "content": "?"}]


class TokenFileTest(unittest.TestCase):
    """With the byte tokenizer, whose ids are GPT-2's characters in order of bytes."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_toy(self.folder)
        self.out = self.folder / "t.tokens"

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def tokens(self, *paths: Path) -> list[int]:
        write_tokens(list(paths), self.folder, self.out, 2)
        return open_tokens(self.out)[0].tolist()

    def test_documents_are_wrapped(self) -> None:
        a = self.write("a.txt", b"one\n\0\ntwo\n\0\n")
        b = self.write("b.txt", "dr\u00ef\n".encode())
        want = [END, *b"one", END, END, *b"two", END, END, *"dr\u00ef\n".encode(), END]
        self.assertEqual(self.tokens(a, b), want)
        info = open_tokens(self.out)[1]
        self.assertEqual((info.documents, info.text_bytes, info.dtype), (3, 11, "uint16"))

    def test_packed_files_are_read(self) -> None:
        path = self.write("a.txt.xz", lzma.compress(b"x\n\0\n\n\0\ny"))
        self.assertEqual(self.tokens(path), [END, *b"x", END, END, *b"y", END])

    def test_entries_of_data_sets_are_documents(self) -> None:
        """Chats are what jinja2 makes of the model's template; texts have their ends."""
        config = json.loads((self.folder / "tokenizer_config.json").read_text())
        (self.folder / "tokenizer_config.json").write_text(json.dumps(
            {**config, "chat_template": TEMPLATE}))
        self.assertEqual(write_chat_format(self.folder), "")
        rendered = jinja2.Template(TEMPLATE).render(messages=CHAT)
        chat = [i for n, part in enumerate(rendered.split("<|endoftext|>"))
                for i in [END] * bool(n) + list(part.encode())]
        parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in CHAT]
        sharegpt = [{"from": {"user": "human", "assistant": "gpt"}.get(turn["role"], "system"),
                     "value": turn["content"]} for turn in CHAT]
        entries = [({"text": "a\u2028b", "meta": 1}, [END, *"a\u2028b".encode(), END]),
                   ({"messages": CHAT}, chat), ({"id": 7, "conversations": sharegpt}, chat),
                   ({"messages": parts, "text": None}, chat), ({"text": ""}, [])]
        lines = [json.dumps(entry, ensure_ascii=n % 2 == 0) for n, (entry, _) in enumerate(entries)]
        lined = "\ufeff" + "\r\n\n  \n".join(lines)
        want = [i for _, ids in entries for i in ids]
        for name, data in (("a.jsonl", lined.encode()), ("b.json", f"[{','.join(lines)}]".encode()),
                           ("c.jsonl.gz", gzip.compress(lined.encode())),
                           ("d.jsonl.xz", lzma.compress(lined.encode()))):
            with self.subTest(name):
                self.assertEqual(self.tokens(self.write(name, data)), want)
        for line, reason in (('{"prompt": "x"}', "line 1: neither .*'text'"),
                             ("[1", "line 1: no JSON"), ('"x"', "line 1: neither"),
                             ('{"text": "\\ud83d"}', "line 1: .*surrogates not allowed"),
                             ('{"messages": [{"role": "judge"}]}', "has no 'judge'"),
                             ('{"messages": ["x"]}', "line 1: neither"),
                             ('{"text": ["x"]}', "line 1: neither")):
            with self.subTest(line), self.assertRaisesRegex(TextError, reason):
                self.tokens(self.write("e.jsonl", line.encode()))
        with self.assertRaisesRegex(TextError, "f.parquet: Parquet; make .jsonl"):
            self.tokens(self.write("f.parquet", b"PAR1\x15\x04"))
        (self.folder / "chat_format.json").unlink()
        with self.assertRaisesRegex(TextError, "a chat, but the model has no chat_format.json"):
            self.tokens(self.write("a.jsonl", json.dumps({"messages": CHAT}).encode()))

    def test_any_block_size_gives_the_same_documents(self) -> None:
        text = b"\n\0\nab\n\0\n\n\0\n\nc\nd\0\ne\n\0\nf\n\0"
        path = self.write("a.txt", text)
        want = [document for document in text.split(b"\n\0\n") if document]
        for size in (1, 2, 3, 5, 1000):
            with self.subTest(size=size):
                with mock.patch.object(text_tokens, "READ_BYTES", size):
                    self.assertEqual([piece.text for piece in read_pieces(path)], want)

    def test_long_documents_are_cut_at_line_ends(self) -> None:
        path = self.write("a.txt", b"line one\nline two\nline three\n\0\nrest")
        with mock.patch.multiple(text_tokens, LONGEST_PIECE=16, READ_BYTES=4):
            pieces = list(read_pieces(path))
            self.assertEqual(b"".join(piece.text for piece in pieces[:-1]),
                             b"line one\nline two\nline three")
            self.assertEqual([piece.first for piece in pieces], [True, False, False, True])
            self.assertEqual([piece.last for piece in pieces], [False, False, True, True])
            for parts in (["one two", " three four", " five six"], ["漢字漢字", "漢字"]):
                pieces = list(read_pieces(self.write("b.txt", "".join(parts).encode())))
                self.assertEqual([piece.text.decode() for piece in pieces], parts)

    def test_what_is_there_is_kept_until_its_texts_change(self) -> None:
        path = self.write("a.txt", b"abc")
        self.tokens(path)
        made = self.out.stat().st_mtime_ns
        self.assertEqual(self.tokens(path), [END, *b"abc", END])
        self.assertEqual(self.out.stat().st_mtime_ns, made)
        marked = self.write("a.txt", "abcd\ufeff".encode("utf-8-sig"))  # not a part of the text
        self.assertEqual(self.tokens(marked), [END, *"abcd\ufeff".encode(), END])

    def test_errors_name_the_file(self) -> None:
        with self.assertRaisesRegex(TextError, r"latin.txt: not UTF-8 \(byte 2 .*0xe9"):
            self.tokens(self.write("good.txt", b"ok"), self.write("latin.txt", b"caf\xe9"[1:]))
        self.assertFalse(self.out.exists())
        whole = lzma.compress(b"abc" * 99999)
        for wrong in (b"plain text", b"", whole[:-9], whole[:40] + b"?" + whole[41:]):
            with self.subTest(wrong=wrong):
                with self.assertRaisesRegex(
                        TextError, "false.xz: no whole .xz file|no text in false"):
                    self.tokens(self.write("false.xz", wrong))
        with self.assertRaisesRegex(TextError, "gone.txt: no such file"):
            self.tokens(self.folder / "gone.txt")
        with self.assertRaisesRegex(TextError, "no text in empty.txt"):
            self.tokens(self.write("empty.txt", b""))
        with self.assertRaisesRegex(TextError, "no tokenizer"):
            TextTokenizer(self.folder.parent)
        self.tokens(self.write("a.txt", b"abc"))
        with open(self.out, "ab") as file:
            file.write(b"xx")
        with self.assertRaisesRegex(TextError, "6 tokens, but 5 are described"):
            open_tokens(self.out)
        info_path(self.out).unlink()
        with self.assertRaisesRegex(TextError, "no token file"):
            open_tokens(self.out)


class TokenizerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_sentencepiece(self) -> None:
        tokenizer = TextTokenizer(ROOT / "models" / "demo")
        self.assertEqual((tokenizer.vocab_size, tokenizer.bos, tokenizer.eos), (8192, 1, 2))
        text = "Once upon a time, in Ruritania \u00fc"
        ids = tokenizer.encode(text)
        self.assertNotIn(1, ids)
        self.assertEqual(tokenizer.decode([1, *ids, 2]), text)

    def test_holes_among_the_ids(self) -> None:
        """A tokenizer of 257 tokens whose last one has the id 70,000, as tokenizers encodes."""
        write_toy(self.folder)
        model = TextTokenizer(self.folder)._open_bpe(SmallFiles(self.folder))
        definition = json.loads(model.to_str())
        definition["model"]["vocab"]["<far>"] = 70_000
        definition["added_tokens"].append({**definition["added_tokens"][0], "id": 70_000,
                                           "content": "<far>"})
        (self.folder / "tokenizer.json").write_text(json.dumps(definition))
        (self.folder / "a.txt").write_text("a<far>")
        write_tokens([self.folder / "a.txt"], self.folder, self.folder / "t.tokens", 1)
        tokens, info = open_tokens(self.folder / "t.tokens")
        self.assertEqual((tokens.tolist(), info.dtype), ([END, 97, 70_000, END], "uint32"))
        self.assertEqual(TextTokenizer(self.folder).vocab_size, 70_001)

    def test_bytes_and_json_inside(self) -> None:
        write_toy(self.folder)
        text = 'a "quoted" line\nand \u00fc'
        plain = TextTokenizer(self.folder)
        self.assertEqual(plain.encode(text), list(text.encode()))
        self.assertEqual(plain.decode(plain.encode(text)), text)
        fingerprint = plain.fingerprint()
        config = self.folder / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()),
                                      "tokenizer_class": "JSONGPT2Tokenizer"}))
        wrapped = TextTokenizer(self.folder)
        self.assertEqual(wrapped.encode("\n\u00fc"), list(b"\\n\\u00fc"))
        self.assertEqual(wrapped.decode(wrapped.encode(text)), text)
        self.assertNotEqual(wrapped.fingerprint(), fingerprint)

    def test_what_a_trainer_saved_does_not_cut_texts(self) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        write_toy(self.folder)
        saved = Tokenizer(models.BPE.from_file(str(self.folder / "vocab.json"),
                                               str(self.folder / "merges.txt")))
        saved.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        saved.enable_truncation(8)
        saved.enable_padding(length=12)
        saved.save(str(self.folder / "tokenizer.json"))
        for text in ("abc", "abcdefghijklm"):
            with self.subTest(text):
                self.assertEqual(TextTokenizer(self.folder).encode(text), list(text.encode()))


class WindowsTest(unittest.TestCase):
    def test_an_epoch_holds_each_token_once(self) -> None:
        windows = Windows(np.arange(1000, dtype=np.uint16), 10, 7)
        self.assertEqual(windows.per_epoch, 98)
        starts = []
        for epoch in range(3):
            with self.subTest(epoch=epoch):
                batch = windows.batch(range(epoch * 98, (epoch + 1) * 98))
                self.assertEqual(batch.shape, (98, 11))
                self.assertTrue((np.diff(batch, axis=1) == 1).all())
                inputs = np.sort(batch[:, :-1].reshape(-1))
                self.assertTrue((np.diff(inputs) == 1).all())
                starts.append(tuple(batch[:, 0]))
        self.assertEqual(len(set(starts)), 3)
        self.assertEqual(len({min(order) for order in starts}), 3)

    def test_any_window_is_found_again(self) -> None:
        tokens = np.arange(500, dtype=np.uint16)
        first, again = Windows(tokens, 16, 1), Windows(tokens, 16, 1)
        forwards = [first.window(i).tolist() for i in range(60)]
        self.assertEqual([again.window(i).tolist() for i in reversed(range(60))], forwards[::-1])
        self.assertNotEqual(Windows(tokens, 16, 2).window(0).tolist(), forwards[0])

    def test_too_little_text(self) -> None:
        for count in (0, 19, 20):
            with self.subTest(count=count), self.assertRaisesRegex(
                    TextError, f"{count} tokens of text are too few for windows of 10"):
                Windows(np.zeros(count, dtype=np.uint16), 10, 0)
        self.assertEqual(Windows(np.zeros(21, dtype=np.uint16), 10, 0).per_epoch, 1)
