#!/usr/bin/env python3
"""Cold start: seconds from exec of fox-server to its open port and to a client's first token.

Each round starts a fresh server and, when it says that it listens, a fresh fox-cli that asks for
one token. The page cache is warm after the first round, which is reported apart. `--json FILE`
appends a line.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

import gpu_build

PROMPT_IDS = "1,2,3,4,5,6,7,8"  # any model has them


def start_once(bin_folder: pathlib.Path, flags: list[str],
               environment: dict[str, str] | None) -> tuple[float, float]:
    """Seconds to the open port and to the first token of one server."""
    start = time.monotonic()
    with subprocess.Popen([bin_folder / "fox-server", "--grpc-port", "0", *flags], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          env=environment) as server:
        try:
            found = re.match(r"listening on (\S+)", server.stdout.readline())
            if not found:
                raise RuntimeError(f"fox-server {' '.join(flags)} did not start")
            listening = time.monotonic()
            subprocess.run([bin_folder / "fox-cli", "generate", "--max-tokens", "1", "--target",
                            found.group(1), "--prompt-ids", PROMPT_IDS], check=True, timeout=60,
                           stdout=subprocess.DEVNULL, env=environment)
            return listening - start, time.monotonic() - start
        finally:
            server.terminate()


def main() -> int:
    """Prints a line for a reader and, if wanted, one of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="a build folder with bin/")
    parser.add_argument("--model", default=str(gpu_build.ROOT / "models/demo"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    flags = ["--model", arguments.model, "--device", arguments.device]
    environment = gpu_build.environment(arguments.build.resolve())
    rounds = [start_once(arguments.build.resolve() / "bin", flags, environment)
              for _ in range(arguments.rounds + 1)]
    listening, first_token = (statistics.median(column) for column in zip(*rounds[1:]))
    slowest = max(token for _, token in rounds[1:])
    row = {"bench": "cold_start", "model": pathlib.Path(arguments.model).name,
           "device": arguments.device, "rounds": arguments.rounds,
           "listening_seconds": listening, "first_token_seconds": first_token,
           "slowest_first_token_seconds": slowest, "first_round_seconds": rounds[0][1]}
    print(f"cold start, {row['model']} on {arguments.device}: port open after {listening:.3f} s, "
          f"first token after {first_token:.3f} s "
          f"(slowest {slowest:.3f}, first round {rounds[0][1]:.3f})")
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
