"""Real vocabularies in directories as the hub has them, against the packages that made them: ids
and texts of `tokenizers` and `sentencepiece`, chats of `mistral-common`. The vocabularies come with
the packages mistral-common, llama-models and dashscope (Qwen's). Usage: hub_tokenizer_test.py
PROGRAM, the path of tokenizer_lines; ends with 77, skipped, where a package is missing."""

import base64
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hub_texts import MARKS, texts

SKIPPED = 77
BEYOND = 100  # ids that the model has beyond its tokenizer's
CHATML = ["<|im_start|>", "<|im_end|>"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHATS = [["Hello"], ["Hello", "Hi there", "a  b"], ["  x\n", "y", " [INST] z", "w", "</s>"],
         ["\u4f60\u597d"], ["def f():\n    pass", "ok", "\U0001f44d\U0001f3fd"]]
Encode = Callable[[str], list[int]]
Decode = Callable[[list[int], bool], str]

failures = 0


def package(name: str) -> Path:
    """The folder of a package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        print(f"SKIPPED: no Python package {name}; ./run test all installs it", flush=True)
        raise SystemExit(SKIPPED)
    return Path(next(iter(spec.submodule_search_locations)))


def answers(folder: Path, size: int, lines: list[dict[str, Any]]) -> list[Any]:
    """Our tokenizer's answer to each line."""
    done = subprocess.run([sys.argv[1], str(folder), str(size)], capture_output=True, text=True,
                          input="".join(json.dumps(line) + "\n" for line in lines), check=False)
    if done.returncode != 0:
        raise SystemExit(f"{folder.name}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n")[1:-1]]


def expect(name: str, rows: list[tuple[Any, Any, Any]]) -> None:
    """Compares rows of an input, the right result and our result."""
    global failures
    wrong = [row for row in rows if row[1] != row[2]]
    failures += len(wrong)
    print(f"{name}: {len(rows)} rows, {len(wrong)} differ", flush=True)
    for given, right, ours in wrong[:3]:
        print(f"  {given!r}\n    right {right!r}\n    ours  {ours!r}")


def compare(name: str, folder: Path, size: int, encode: Encode, decode: Decode | None = None,
            samples: list[str] | None = None) -> None:
    """Compares the ids of texts, and the texts of these and of random ids."""
    samples = samples or texts(1200, seed=11)
    right = [encode(text) for text in samples]
    expect(f"{name}: encode", list(zip(samples, right, answers(
        folder, size + BEYOND, [{"text": text} for text in samples]))))
    if decode is None:
        return
    rng = random.Random(12)
    rows = [ids for ids in right if ids]
    rows += [[rng.randrange(size) for _ in range(rng.randint(1, 9))] for _ in range(400)]
    pairs = [(ids, skip) for ids in rows for skip in (False, True)]
    ours = answers(folder, size + BEYOND, [{"ids": ids, "skip": skip} for ids, skip in pairs])
    expect(f"{name}: decode", [(pair, decode(*pair), text) for pair, text in zip(pairs, ours)])


def write(folder: Path, **files: Any) -> Path:
    """Writes small JSON files."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def compare_saved(name: str, folder: Path, model: Path | None) -> None:
    """A directory with a tokenizer.json against `tokenizers`, then with tokenizer.model beside."""
    import tokenizers

    saved = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    size = max(saved.get_vocab().values()) + 1
    for beside in (False, True):
        if beside and model is None:
            return
        if beside and model is not None:
            shutil.copy(model, folder / "tokenizer.model")
        compare(f"{name}, saved{', tokenizer.model beside' if beside else ''}", folder, size,
                lambda text: saved.encode(text, add_special_tokens=False).ids,
                lambda ids, skip: saved.decode(ids, skip_special_tokens=skip))


def chats(name: str, folder: Path, model: Path, size: int, spaced: bool,
          conversations: list[list[str]]) -> None:
    """Prompts of Mistral's models against its own package."""
    from mistral_common.protocol.instruct.messages import AssistantMessage, UserMessage
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    reference = MistralTokenizer.from_file(str(model))
    user = {"prefix": "[INST] ", "suffix": " [/INST]" if spaced else "[/INST]"}
    write(folder, chat_format={"bos": "<s>", "alternate": True, "end": "", "generation_prompt": "",
                               "roles": {"user": user,
                                         "assistant": {"prefix": " ", "suffix": "</s>"}}})
    rows, lines = [], []
    for chat in conversations:
        kinds = [(UserMessage, "user"), (AssistantMessage, "assistant")]
        messages = [kinds[i % 2][0](content=content) for i, content in enumerate(chat)]
        request = ChatCompletionRequest(messages=messages)
        rows.append(reference.encode_chat_completion(request).tokens)
        lines.append({"messages": [{"role": kinds[i % 2][1], "content": content}
                                   for i, content in enumerate(chat)]})
    expect(f"{name}: chats", list(zip(conversations, rows, answers(folder, size + BEYOND, lines))))


def mistral(folder: Path) -> None:
    """Four versions of one sentencepiece model, with and without a tokenizer.json."""
    import sentencepiece
    import transformers

    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
              "unk_token": "<unk>"}
    plain = [text for text in texts(1200, seed=11) if not any(mark in text for mark in MARKS[:10])]
    for path in sorted((package("mistral_common") / "data").glob("*.model.v*")):
        version = path.name.rpartition(".")[2]
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        size = model.vocab_size()
        control = [model.id_to_piece(i) for i in range(size) if model.is_control(i)]
        for legacy in (True, False):
            kind = f"mistral {version}{', legacy' if legacy else ''}"
            bare = folder / f"{version}-{legacy}"
            bare.mkdir()
            shutil.copy(path, bare / "tokenizer.model")
            write(bare, config={"model_type": "llama"},
                  tokenizer_config={**config, "legacy": legacy,
                                    "additional_special_tokens": [*control, *CHATML]})
            if legacy:
                compare(kind, bare, size, lambda text: list(model.encode(text)), None, plain)
            if version in ("v1", "v3") and legacy == (version == "v1"):
                chats(kind, bare, path, size, version == "v1", CHATS)
            saved = bare / "saved"
            transformers.AutoTokenizer.from_pretrained(str(bare)).save_pretrained(str(saved))
            compare_saved(kind, saved, path)
            if version == "v3" and not legacy:
                # transformers 5 writes a tokenizer.json that cuts runs of spaces differently.
                plain_chats = [chat for chat in CHATS
                               if not any(" " in text[:1] + text[-1:] or "  " in text
                                          for text in chat)]
                chats(f"{kind}, saved, tokenizer.model beside", saved, path, size, False,
                      plain_chats)


def ranks(path: Path) -> dict[bytes, int]:
    """A vocabulary from a file in tiktoken's form."""
    return {base64.b64decode(word): int(rank) for word, rank in
            (line.split() for line in path.read_text().splitlines() if line.strip())}


def split(word: bytes, rank_of: dict[bytes, int]) -> list[bytes]:
    """The parts of a word before its last merge."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 2:
        best = min(range(len(parts) - 1),
                   key=lambda i: rank_of.get(parts[i] + parts[i + 1], 1 << 30))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def spelling(rank_of: dict[bytes, int]) -> tuple[dict[bytes, str], list[str]]:
    """Words in GPT-2's byte alphabet, and the merges that produce them."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    spelt = {word: "".join(letters[byte] for byte in word) for word in rank_of}
    parts = [split(word, rank_of) for word in rank_of if len(word) > 1]
    return spelt, [" ".join(spelt[part] for part in two) for two in parts]


def qwen(folder: Path) -> None:
    """vocab.json and merges.txt, of the class that tokenizer_config.json names."""
    import transformers

    rank_of = ranks(package("dashscope") / "resources" / "qwen.tiktoken")
    spelt, merges = spelling(rank_of)
    write(folder, vocab={spelt[word]: rank for word, rank in rank_of.items()})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    write(folder, config={"model_type": "qwen2"}, tokenizer_config={
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "additional_special_tokens": CHATML})
    reference = transformers.AutoTokenizer.from_pretrained(str(folder))
    compare("qwen", folder, len(reference),
            lambda text: reference.encode(text, add_special_tokens=False),
            lambda ids, skip: reference.decode(ids, skip_special_tokens=skip,
                                               clean_up_tokenization_spaces=False))
    reference.save_pretrained(str(folder / "saved"))
    compare_saved("qwen", folder / "saved", None)


def llama3(folder: Path) -> None:
    """A tokenizer.json of tiktoken's form."""
    import transformers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    path = package("llama_models") / "llama3" / "tokenizer.model"
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    converted = TikTokenConverter(str(path), pattern=LLAMA3,
                                  extra_special_tokens=special).converted()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=converted, bos_token=special[0], eos_token=special[2])
    fast.save_pretrained(str(folder))
    compare_saved("llama 3", folder, None)


def tekken(folder: Path) -> None:
    """A GGUF file's keys as the converter turns them into a tokenizer.json, of Mistral's words."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from models.convert.gguf_tokenizer import tokenizer_files

    path = package("mistral_common") / "data" / "tekken_240911.json"
    reference, content = Tekkenizer.from_file(str(path)), json.loads(path.read_text())
    control = content["config"]["default_num_special_tokens"]
    size = content["config"]["default_vocab_size"]
    words = content["vocab"][: size - control]
    rank_of = {base64.b64decode(word["token_bytes"]): word["rank"] for word in words}
    names = [reference.id_to_piece(i) for i in range(control)]
    spelt, merges = spelling(rank_of)
    keys = {"model": "gpt2", "pre": "tekken", "merges": merges, "bos_token_id": 1,
            "eos_token_id": 2, "unknown_token_id": 0xFFFFFFFF,  # none
            "tokens": [*names, *spelt.values()], "token_type": [3] * control + [1] * len(words)}
    files = tokenizer_files(lambda key, other: keys.get(key.removeprefix("tokenizer.ggml."), other),
                            size)
    for name, value in files.items():
        write(folder, **{name.removesuffix(".json"): value})
    plain = [text for text in texts(1200, seed=11) if not any(name in text for name in names)]
    compare("tekken", folder, size, lambda text: reference.encode(text, False, False), None, plain)


def main() -> int:
    for name in ("tokenizers", "transformers", "sentencepiece", "mistral_common", "llama_models",
                 "dashscope"):
        package(name)
    with tempfile.TemporaryDirectory() as folder:
        for part in (mistral, qwen, llama3, tekken):
            (Path(folder) / part.__name__).mkdir()
            part(Path(folder) / part.__name__)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
