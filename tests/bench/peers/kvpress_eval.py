#!/usr/bin/env python3
"""The recall questions of ./run evaluate, answered by heuristics of NVIDIA's kvpress.

    python3 kvpress_eval.py MODEL --length 4096 --questions 30 --keep 0.152 --json rows.jsonl

kvpress's own pipeline compresses the text, then reads the question and answers greedily. A press
that scores keys by the newest queries answers twice: as the pipeline does by default, and with the
question inside the compressed text, as kvpress's evaluation does if `query_aware`. Texts, lengths
and grades are those of models/evaluate/recall_tasks.py. The share of keys and values that is kept
is counted in the cache before the question; question and answer are kept whole. A masked share
(AdaKV, KVzip) still occupies memory and is counted as removed.

With --window-student DIR, the --out of ./run foxify --window-baseline W, the model answers as that
student, without a press: each token attends to itself, the W - 1 before it, and a sink.

Exit status: 0 done; 1 failed, with the reason in one line; 2 usage.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import logging
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from models.convert.refusal import Refusal  # noqa: E402
from models.evaluate import comparison, recall_tasks  # noqa: E402
from models.evaluate.client import Client  # noqa: E402
from models.finetune.arguments import OneLineParser, positive  # noqa: E402
from models.finetune.progress import ProgressLine, duration  # noqa: E402

KVPRESS = "kvpress==0.5.5"
ALL_KEYS = "none"
# By name: makes a press from the module kvpress and the share to remove. The first ones are
# complete if a run ends early.
PRESSES: dict[str, Callable[[Any, float], Any]] = {
    ALL_KEYS: lambda k, ratio: None,
    "KVzip": lambda k, ratio: k.KVzipPress(ratio),
    "SnapKV": lambda k, ratio: k.SnapKVPress(ratio),
    "AdaKV(SnapKV)": lambda k, ratio: k.AdaKVPress(k.SnapKVPress(ratio)),
    "PyramidKV": lambda k, ratio: k.PyramidKVPress(ratio),
    "TOVA": lambda k, ratio: k.TOVAPress(ratio),
    "ExpectedAttention": lambda k, ratio: k.ExpectedAttentionPress(ratio),
    # The epsilon of kvpress's own evaluation of this pair.
    "AdaKV(ExpectedAttention)": lambda k, ratio: k.AdaKVPress(
        k.ExpectedAttentionPress(ratio, epsilon=1e-2)),
    "KeyDiff": lambda k, ratio: k.KeyDiffPress(ratio),
    "LagKV": lambda k, ratio: k.LagKVPress(ratio),
    "Knorm": lambda k, ratio: k.KnormPress(ratio),
    "StreamingLLM": lambda k, ratio: k.StreamingLLMPress(ratio),
    "ChunkKV(SnapKV)": lambda k, ratio: k.ChunkKVPress(k.SnapKVPress(ratio)),
}
BY_QUERIES = {"SnapKV", "AdaKV(SnapKV)", "PyramidKV", "TOVA", "ChunkKV(SnapKV)"}


@dataclasses.dataclass(frozen=True)
class Job:
    """The questions of one task for one press."""

    press: str
    question_seen: bool
    task: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """Text, and the share of the context's keys and values: in the cache, and attended to."""

    text: str
    cached: float
    kept: float


class Tokens(Client):
    """The model's tokenizer as transformers loads it, in place of a server."""

    def __init__(self, model: str, tokenizer: Any, max_model_len: int) -> None:
        self.model, self.max_model_len = model, max_model_len
        self._encode = functools.cache(
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)))

    def tokens(self, text: str) -> tuple[int, ...]:
        return self._encode(text)


class Peer:
    """A model behind kvpress's pipeline."""

    def __init__(self, model: str, student: str | None, device: str, threads: int) -> None:
        torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        transformers.AttentionInterface.register("causal", causal)  # before kvpress wraps it
        self._kvpress = importlib.import_module("kvpress")
        logging.getLogger("kvpress").setLevel(logging.ERROR)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation="causal").eval()
        self._window = become(self._model, pathlib.Path(student)) if student else None
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        end = self._model.generation_config.eos_token_id
        self._model.generation_config.eos_token_id = [
            *(end if isinstance(end, list) else [end]),
            *(token for token, text in enumerate(texts) if "\n" in text)]
        self._new_cache = transformers.DynamicCache
        self._pipeline = self._kvpress.KVPressTextGenerationPipeline(
            model=self._model, tokenizer=tokenizer, device=device)
        self.client = Tokens(pathlib.Path(model).name, tokenizer,
                             self._model.config.max_position_embeddings)

    def answer(self, question: recall_tasks.Question, job: Job, keep: float) -> Answer:
        """The first line of the answer."""
        context, asked = question.text + "\n\n", question.question
        if job.question_seen:
            context, asked = context + asked, ""
        cache = self._new_cache()
        answer = self._pipeline(
            context, question=asked, answer_prefix=question.lead, cache=cache,
            press=PRESSES[job.press](self._kvpress, 1 - keep),
            max_new_tokens=recall_tasks.answer_tokens(question, self.client))["answer"]
        tokens = self._pipeline.preprocess(context, [], "", sys.maxsize)["context_ids"].shape[1]
        return Answer(answer.split("\n")[0], *self._shares(cache, tokens))

    def _shares(self, cache: Any, tokens: int) -> tuple[float, float]:
        """In the cache, and not masked: shares of `tokens` in all heads of all layers."""
        cached = masked = 0
        for block, layer in zip(self._model.model.layers, cache.layers, strict=True):
            cached += layer.keys.shape[1] * layer.keys.shape[2]
            indices = getattr(block.self_attn, "masked_key_indices", None)
            masked += 0 if indices is None else len(indices[1])
        whole = tokens * sum(layer.keys.shape[1] for layer in cache.layers)
        if self._window is not None:  # the cache holds keys that no token attends to any more
            cached = min(cached, self._window / tokens * whole)
        return cached / whole, (cached - masked) / whole


def window_of(student: pathlib.Path) -> int:
    """The window of a student; Refusal if it is no --out of ./run foxify --window-baseline."""
    lora_adapter = importlib.import_module("models.convert.lora_adapter")
    try:
        return json.loads((student / lora_adapter.CONFIG).read_text(encoding="utf-8"))["window"]
    except (OSError, ValueError, KeyError):
        raise Refusal(f"{student}: no adapter of ./run foxify --window-baseline") from None


def become(model: Any, student: pathlib.Path) -> int:
    """Merges the adapter of a window-trained student into its base, as convert does, and returns
    the window."""
    torch, safetensors, lora_adapter = (importlib.import_module(name) for name in (
        "torch", "safetensors.torch", "models.convert.lora_adapter"))
    window = window_of(student)
    found = {name: tensor.float() for path in lora_adapter.adapter_paths(student)
             for name, tensor in safetensors.load_file(path).items()}
    with torch.no_grad():
        for name, tensor in found.items():
            if name.endswith(".lora_B.weight"):
                weight = model.get_parameter(name.replace(".lora_B", ""))
                weight.copy_(weight.float() + tensor @ found[name.replace(".lora_B", ".lora_A")])
            elif not name.endswith((".lora_A.weight", ".sinks")):  # of --rank 0
                model.get_parameter(name).copy_(tensor)
    for n, block in enumerate(model.model.layers):
        block.self_attn.sinks = found[f"model.layers.{n}.self_attn.sinks"].to(model.device)
        block.self_attn.window = window
    return window


def causal(module: Any, query: Any, key: Any, value: Any, _mask: Any, dropout: float = 0.0,
           scaling: float | None = None, **_: Any) -> tuple[Any, None]:
    """Attention of the newest tokens to all keys of a layer, [batch, heads, tokens, head_dim].

    Layers keep different numbers of keys under PyramidKV. transformers makes one mask for all of
    them, which fits only if it is aligned at its end, as flash attention's is.
    """
    torch = importlib.import_module("torch")
    if hasattr(module, "window"):
        return windowed(query, key, value, scaling, module.sinks, module.window), None
    queries, keys = query.shape[2], key.shape[2]
    visible = None
    if 1 < queries < keys:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        visible = visible.tril(keys - queries)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible, is_causal=1 < queries == keys, scale=scaling,
        dropout_p=dropout, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def windowed(query: Any, key: Any, value: Any, scaling: float, sinks: Any, window: int) -> Any:
    """Attention of the newest tokens to the last `window` keys and a sink [heads], a key without a
    value, in float32; [batch, tokens, heads, head_dim]."""
    torch = importlib.import_module("torch")
    queries, keys = query.shape[2], key.shape[2]
    key, value = (x.float().repeat_interleave(query.shape[1] // x.shape[1], 1)
                  for x in (key, value))
    visible = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    visible = visible.triu(keys - queries - window + 1)
    logits = (query.float() @ key.mT * scaling).masked_fill(~visible, -torch.inf)
    column = sinks.to(query.device)[:, None, None].expand(*logits.shape[:-1], 1)
    weights = torch.cat((logits, column), -1).softmax(-1)[..., :-1]
    return (weights @ value).to(query.dtype).transpose(1, 2).contiguous()


def measure(peer: Any, job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """A row: mean recall of a job's questions, with its error, and the shares that were kept."""
    begin = time.monotonic()
    questions = recall_tasks.make(job.task, peer.client, arguments.length, arguments.questions,
                                  arguments.seed)
    answers = [peer.answer(question, job, arguments.keep) for question in questions]
    mean, error = comparison.mean([recall_tasks.grade(question, answer.text)
                                   for question, answer in zip(questions, answers)])
    cached, kept = (sum(getattr(answer, share) for answer in answers) / len(answers)
                    for share in ("cached", "kept"))
    return {"bench": arguments.bench, "model": peer.client.model, **dataclasses.asdict(job),
            "length": arguments.length, "seed": arguments.seed, "questions": len(questions),
            "recall": {"mean": mean, "error": error}, "kept": kept, "cached": cached,
            "seconds_of_a_question": (time.monotonic() - begin) / len(questions)}


_peer: Peer  # of a worker process


def start_worker(arguments: argparse.Namespace) -> None:
    global _peer
    threads = max(1, (os.cpu_count() or 1) // arguments.workers)
    _peer = Peer(arguments.model, arguments.window_student, arguments.device, threads)


def work(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    return measure(_peer, job, arguments)


def versions() -> dict[str, str]:
    """Versions of the packages; Refusal if kvpress does not work with one of them."""
    try:
        found = {name: importlib.metadata.version(name)
                 for name in ("kvpress", "transformers", "torch")}
    except importlib.metadata.PackageNotFoundError as error:
        raise Refusal(f"the package {error.name} is missing: pip install {KVPRESS}, or "
                      "--peer-packages DIR") from None
    requirements = importlib.import_module("packaging.requirements")
    for text in importlib.metadata.requires("kvpress") or ():
        needed = requirements.Requirement(text)
        if needed.name in found and not needed.specifier.contains(found[needed.name]):
            raise Refusal(f"kvpress {found['kvpress']} needs {needed.name}{needed.specifier}, not "
                          f"{found[needed.name]}")
    return found


def jobs_of(presses: list[str], tasks: list[str]) -> list[Job]:
    return [Job(press, seen, task) for press in presses
            for seen in ((False, True) if press in BY_QUERIES else (False,)) for task in tasks]


def run(arguments: argparse.Namespace, results: Any) -> None:
    """Measures all jobs, several at a time, because each waits for launches by its own core."""
    if arguments.peer_packages:
        sys.path.insert(0, arguments.peer_packages)
    presses, arguments.bench = arguments.press, "kvpress"
    if arguments.window_student:
        window_of(pathlib.Path(arguments.window_student))  # before the processes start
        presses, arguments.bench, arguments.keep = [ALL_KEYS], "window-student", 1
    elif arguments.keep is None:
        raise Refusal("--keep is missing")
    found = versions()
    if not (pathlib.Path(arguments.model) / "tokenizer_config.json").is_file():
        raise Refusal(f"{arguments.model}: no checkpoint with a tokenizer_config.json")
    if "cuda" in arguments.device and not importlib.import_module("torch").cuda.is_available():
        raise Refusal("there is no GPU that PyTorch can use; --device cpu takes hours")
    recall_tasks.book_sentences()
    jobs = jobs_of(presses, arguments.recall)
    line, begin = ProgressLine(), time.monotonic()
    line.doing(f"kvpress: {len(jobs)} pairs of press and task")
    with concurrent.futures.ProcessPoolExecutor(
            arguments.workers, multiprocessing.get_context("spawn"), start_worker,
            (arguments,)) as pool:
        futures = {pool.submit(work, job, arguments): job for job in jobs}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
                results.row(**row_of(future, futures[future], arguments.bench), versions=found)
                left = (time.monotonic() - begin) / done * (len(jobs) - done)
                line.doing(f"kvpress: {done} of {len(jobs)} pairs of press and task, "
                           f"{duration(left)} left")
        finally:
            for future in futures:  # after a refusal
                future.cancel()


def row_of(future: concurrent.futures.Future[dict[str, Any]], job: Job, bench: str
           ) -> dict[str, Any]:
    """A job's row, or its error: a press may fail on a text."""
    try:
        return future.result()
    except concurrent.futures.BrokenExecutor:
        raise Refusal("a worker process ended; its error stands above") from None
    except Exception as error:  # pylint: disable=broad-except
        return {"bench": bench, **dataclasses.asdict(job),
                "error": f"{type(error).__name__}: {error}"[:300]}


def names(known: Any) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return text.split(",")
    return parse


def share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="kvpress_eval.py", description=__doc__,
                           formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a checkpoint's directory")
    parser.add_argument("--length", type=positive, default=4096, metavar="N",
                        help="tokens of a prompt (default 4096)")
    parser.add_argument("--questions", type=positive, default=30, metavar="N",
                        help="of each task, the first ones of ./run evaluate (default 30)")
    parser.add_argument("--keep", type=share, metavar="SHARE",
                        help="of the text's keys and values, as foxserve kept")
    parser.add_argument("--window-student", metavar="DIR", help="answer as this student, without "
                        "a press")
    parser.add_argument("--seed", type=int, default=1, help="of the tasks (default 1)")
    parser.add_argument("--press", type=names(PRESSES), default=list(PRESSES), metavar="LIST",
                        help="presses (default all): " + ", ".join(PRESSES))
    parser.add_argument("--recall", type=names(recall_tasks.TASKS), metavar="LIST",
                        default=list(recall_tasks.TASKS),
                        help="tasks (default all): " + ", ".join(recall_tasks.TASKS))
    parser.add_argument("--workers", type=positive, default=1, metavar="N",
                        help="processes, each with the model (default 1)")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    return parser


def main() -> int:
    inputs = importlib.import_module("inputs")  # needs torch
    try:
        run(*inputs.start(make_parser()))
    except Refusal as refusal:
        print(f"kvpress_eval: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("kvpress_eval: interrupted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
