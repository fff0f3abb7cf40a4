#!/usr/bin/env python3
"""Tells which branches of the parsers the corpora of the fuzz targets reach.

    cmake --preset fuzz -B build/coverage -D FOX_SANITIZE=fuzzer-no-link \\
        -D CMAKE_CXX_FLAGS="-gline-tables-only -fprofile-instr-generate -fcoverage-mapping"
    cmake --build build/coverage --target fuzzers
    python3 tests/fuzz/branch_coverage.py build/coverage/bin

A branch is one outcome of a condition, so that each condition has two. FOX_CHECK has none: its
failure is a bug. --missing prints the outcomes that no input has; --more FOLDER adds inputs of
FOLDER/TARGET, for example fuzz-out/work; the exit status is 1 below --least percent in any file.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SUFFIX = "_fuzzer"
# What reads bytes that come from outside, and what turns them into terms of the engine.
PARSERS = {
    "checkpoints": ("models/json_reader.cc", "models/safetensors.cc", "models/tensor_files.cc",
                    "models/model_config.cc", "models/generation_config.cc",
                    "models/checkpoint.cc", "models/error_text.cc"),
    "tokenizer files": tuple("models/tokenizer/" + name for name in (
        "tokenizer_config.cc", "json_fields.h", "gpt2_files.cc", "tokenizer_json.cc",
        "byte_level_bpe.cc", "added_tokens.cc", "proto_wire.cc", "sentencepiece_check.cc",
        "charsmap_check.cc", "sentencepiece_tokenizer.cc", "tokenizer_json_writer.cc")),
    "text": tuple("models/tokenizer/" + name for name in (
        "utf8.cc", "json_escape.cc", "pretokenizer.cc", "bpe_merger.cc", "bpe_windows.cc",
        "stop_matcher.cc", "text_assembler.cc", "token_stream.cc", "longcrawl64_tokenizer.cc")),
    "requests": ("server/calls/request_conversion.cc", "server/calls/sampling_defaults.cc",
                 "server/rpc/vllm_call.cc", "server/http/completion_request.cc",
                 "server/http/json_fields.cc"),
    "HTTP": ("server/http/http_parser.cc", "server/http/http_message.cc",
             "server/calls/trace_context.cc"),
    "operator": ("server/server_flags.cc", "engine/flags/flag_set.cc", "server/calls/token_set.cc"),
}


def tool(name: str) -> str:
    """The llvm program of the clang that built the targets."""
    path = shutil.which(f"{name}-14") or shutil.which(name)
    return path or sys.exit(f"{name}-14 is missing: apt-get install llvm-14")


def replay(binary: pathlib.Path, folders: list[pathlib.Path], profile: pathlib.Path) -> None:
    """Runs every file of `folders` once."""
    files = [str(file) for folder in folders if folder.is_dir() for file in folder.iterdir()]
    done = subprocess.run([str(binary), *files], env={"LLVM_PROFILE_FILE": str(profile)},
                          capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{binary.name}: {done.stderr.decode(errors='replace')[-2000:]}")


def exported(binaries: list[pathlib.Path], profiles: list[pathlib.Path],
             folder: pathlib.Path) -> dict:
    """What llvm-cov knows of the parsers' files."""
    merged = folder / "merged"
    subprocess.run([tool("llvm-profdata"), "merge", "-o", str(merged), *map(str, profiles)],
                   check=True)
    objects = [word for binary in binaries[1:] for word in ("-object", str(binary))]
    command = [tool("llvm-cov"), "export", "-skip-functions", f"-instr-profile={merged}",
               str(binaries[0]), *objects]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def outcomes(data: dict) -> dict[str, dict[tuple, list[int]]]:
    """By file and place how often a condition was true and false, instances of templates added."""
    found: dict[str, dict[tuple, list[int]]] = {}
    known = [path for paths in PARSERS.values() for path in paths]
    for file in data["data"][0]["files"]:  # by names that a compiler's cache may have made relative
        path = next((path for path in known if file["filename"].endswith("/" + path)), None)
        if path is None:
            continue
        places = found.setdefault(path, collections.defaultdict(lambda: [0, 0]))
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for line, column, _, _, true, false, *_ in file["branches"]:
            if lines[line - 1].startswith("true)", column - 1):
                continue  # while (true)
            places[line, column][0] += true
            places[line, column][1] += false
    return found


def report(found: dict[str, dict[tuple, list[int]]], missing: bool) -> float:
    """Prints a table; the least percentage of a file."""
    least, reached_all, total_all = 100.0, 0, 0
    print("| parsers | file | branches | reached |\n|---|---|---|---|")
    for group, paths in PARSERS.items():
        for path in paths:
            if path not in found:
                sys.exit(f"{path} is in no target")
            counts = [count for place in found[path].values() for count in place]
            reached = sum(count > 0 for count in counts)
            reached_all, total_all = reached_all + reached, total_all + len(counts)
            percent = 100 * reached / len(counts) if counts else 100
            least = min(least, percent)
            print(f"| {group} | {path} | {reached} of {len(counts)} | {percent:.1f}% |")
    print(f"| all | | {reached_all} of {total_all} | {100 * reached_all / total_all:.1f}% |")
    for path, places in sorted(found.items()) if missing else ():
        text = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for (line, column), counts in sorted(places.items()):
            for outcome, count in zip(("true", "false"), counts):
                if count == 0:
                    print(f"{path}:{line}:{column}: never {outcome}: {text[line - 1].strip()}")
    return least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="build/coverage/bin")
    parser.add_argument("--more", type=pathlib.Path, help="a folder of inputs by target")
    parser.add_argument("--missing", action="store_true", help="print what is not reached")
    parser.add_argument("--least", type=float, default=0, help="percent of every file")
    arguments = parser.parse_args()
    binaries = sorted(arguments.binaries.glob("*" + SUFFIX))
    if not binaries:
        sys.exit(f"there are no fuzz targets in {arguments.binaries}")
    with tempfile.TemporaryDirectory() as folder:
        profiles = []
        for binary in binaries:
            name = binary.name.removesuffix(SUFFIX)
            profiles.append(pathlib.Path(folder, name))
            inputs = [HERE / "corpora" / name]
            if arguments.more:
                inputs.append(arguments.more / name)
            replay(binary, inputs, profiles[-1])
        data = exported(binaries, profiles, pathlib.Path(folder))
    return 1 if report(outcomes(data), arguments.missing) < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
