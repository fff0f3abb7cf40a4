#!/usr/bin/env python3
"""Bugs written into the real sources, one at a time: the simulation must find each within 100 days,
or on one of the days that failed once.

    mutants.py BUILD [--only WORD] [--jobs N]

BUILD is a build folder in which fox-simulate was built, for example build/cpu. Each mutant costs
the compilation of a file or three; nothing in BUILD or in the sources changes. Exit 0: every mutant
was found.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[3]
DAYS = 100
Mutant = tuple[str, str, str, str]  # its name, a file, text that occurs once, text instead
FAILED_ONCE = [  # with some mutant
    ["--seed", "20001099", "--chunk-multiple", "1"],
    ["--seed", "130"],
    ["--seed", "133"],
    ["--seed", "135", "--chunk-multiple", "1"],
    ["--seed", "170", "--chunk-multiple", "1"],
    ["--seed", "20003198", "--operations", "600", "--flood", "--chunk-multiple", "1"],
    ["--seed", "1419", "--chunk-multiple", "128"],
    ["--seed", "2060", "--chunk-multiple", "128"],
]
SCHEDULERS = ["engine/schedule/scheduler.cc", "engine/schedule/scheduler_pages.cc",
              "engine/schedule/prefix_cache.cc", "engine/schedule/prefix_storage.cc",
              "engine/engine.cc", "engine/engine_requests.cc"]
SEQUENCES = [*SCHEDULERS, "engine/schedule/sequence.cc", "engine/schedule/waiting_queue.cc"]
USERS = {  # header: sources to compile with it
    "engine/schedule/page_budget.h": [*SCHEDULERS, "engine/schedule/page_budget.cc",
                                      "tests/engine/sim/day.cc",
                                      "tests/engine/sim/day_checks.cc"],
    "engine/schedule/policy.h": ["engine/schedule/scheduler.cc",
                                 "engine/schedule/scheduler_pages.cc"],
    "engine/schedule/prefix_cache.h": ["engine/schedule/prefix_cache.cc",
                                       "engine/schedule/prefix_storage.cc"],
    "engine/schedule/sequence.h": SEQUENCES,
    "engine/request/chunk_rule.h": SEQUENCES,
    "engine/request/reader_window.h": SEQUENCES,
    "kernels/cpu/page_pool.h": ["kernels/cpu/append.cc", "kernels/cpu/evict.cc",
                                "kernels/cpu/share.cc"],
}
S, X = "engine/schedule/scheduler.cc", "engine/schedule/scheduler_pages.cc"
L, LH = "engine/schedule/page_budget.cc", "engine/schedule/page_budget.h"
B, Q = "engine/schedule/policy.h", "engine/schedule/sequence.h"
T, CR = "engine/request/step_plan.cc", "engine/request/chunk_rule.h"
E, R, W = "engine/engine.cc", "engine/engine_requests.cc", "engine/schedule/waiting_queue.cc"
V, A, C = "kernels/cpu/evict.cc", "kernels/cpu/append.cc", "engine/schedule/sequence.cc"
P, PH = "engine/schedule/prefix_cache.cc", "engine/schedule/prefix_cache.h"
PS, TR = "engine/schedule/prefix_storage.cc", "engine/store/snapshot_transfers.cc"
I = "kernels/cpu/slot_image.cc"
O, K = "kernels/cpu/page_pool.h", "kernels/cpu/share.cc"
N, RW = "engine/request/sampler.cc", "engine/request/reader_window.h"
# name, file, what stands there, what stands there instead
MUTANTS = [
    ("slot is not released", S, "  release_slots_.push_back(sequence->slot);\n", ""),
    ("released pages count twice", S, "  pages_ += ledger_.held(sequence->slot);\n",
     "  pages_ += 2 * ledger_.held(sequence->slot);\n"),
    ("promised pages are not taken", X, "      pages_ -= need;\n      sequence", "      sequence"),
    ("runs without its pages", X, "if (need == 0 || pages_ >= need + left) {",
     "if (need == 0 || pages_ >= left) {"),
    ("gives up with plans in flight", X, "!yields && !ledger_.in_flight() &&", "!yields &&"),
    ("resumed but not queued", S, "sequence->place = places_++;\n  waiting_.Add(sequence, now);",
     "sequence->place = places_++;"),
    ("pages taken, slot kept", X,
     "  ++schedule->preemptions;\n  ReleaseSlot(sequence);\n",
     "  ++schedule->preemptions;\n"),
    ("samples before the end", C, "samples_last = count == remaining() && samples();",
     "samples_last = samples();"),
    ("states are sent again", S,
     "planned.sample->logits_processor.on && !sequence->has_penalty_state",
     "planned.sample->logits_processor.on"),
    ("states are never sent", S,
     "    plan.penalty_state.push_back(\n", "    static_cast<void>(SlotTokens\n"),
    ("pending is forgotten", S, "    ++sequence->pending;\n", ""),
    ("one more slot", S, "running() < max_running_ && pass", "running() <= max_running_ && pass"),
    ("back before its results", B, "  if (next.slot < 0 && next.in_flight > 0) return false;\n",
     ""),
    ("no running slot is given up", S, "  if (running() < max_running_) return;\n",
     "  if (running() <= max_running_) return;\n"),
    ("a slot that was given up goes to any client", W,
     "  if (Sequence* due = Due(now); due != nullptr) return due;\n", ""),
    ("paused pages beside snapshots", X, "pages_ + held + ledger_.shared())) return false",
     "pages_ + ledger_.shared())) return false"),
    ("a low count of pages is final", X, " && !IsCountLow(*next, held)", ""),
    ("misses_deadline though it started", B, "if (next.started || next", "if (next"),
    ("rows are not counted", S,
     "budget->logit_rows -= static_cast<int64_t>(planned.logit_rows.size());", ""),
    ("tokens are not counted", S, "  budget->tokens -= count;\n", ""),
    ("chunk of one page too many", S, "min_chunk()) + pages / limits_",
     "min_chunk()) + 1 + pages / limits_"),
    ("computed is one short", S, "  sequence->computed += count;",
     "  sequence->computed += count > 64 ? count - 1 : count;"),
    ("paused readers keep their slots", S, "    if (!sequence->paused()) continue;\n",
     "    continue;\n"),
    ("paused is miscounted", S,
     "  if (sequence->state == SequenceState::kPaused) --paused_;\n", ""),
    ("free slot handed out twice", S, "    free_slots_.erase(next->slot);\n", ""),
    ("releases are forgotten by the ledger", L,
     "  for (const int32_t slot : plan.release_slots) empty(slot);\n", ""),
    ("a released slot still holds", L, "std::exchange(held(slot), 0)", "held(slot)"),
    ("plans behind are not counted", L,
     "  for (const StepPlan& later : plans_) Apply(later, &expected_);\n", ""),
    ("taken pages are not counted", L, "    pool->free -= pages;\n", ""),
    ("pages by whole hundreds", LH, "PagesFor(to) - PagesFor(from)", "to / 64 - from / 64"),
    ("fed beyond max_tokens", Q, "produced() < max_tokens)", "produced() <= max_tokens)"),
    ("window of one more", RW, "ahead >= window_)", "ahead > window_)"),
    ("never reads on", RW, "ahead <= window_ / 2", "ahead < window_ / 2"),
    ("states survive a slot", C, "  has_penalty_state = false;\n", ""),
    ("computed tokens survive a slot", C, "  computed = 0;\n", ""),
    ("what is shared has no certificate", T,
     "    stats.peak_pages = stats.live_pages();\n",
     "    stats.peak_pages = stats.live_pages();\n    stats.max_log_evicted_mass = kNoMass;\n"),
    ("certificates add nothing to a request's", C,
     "  stats.acp += std::exchange(slot_stats, {});\n",
     "  const double mass = stats.acp.max_log_evicted_mass;\n"
     "  stats.acp += std::exchange(slot_stats, {});\n"
     "  stats.acp.max_log_evicted_mass = mass;\n"),
    ("counts are lost", N, "static_cast<uint32_t>(entry.generated) : kTokenInPrompt",
     "1u : kTokenInPrompt"),
    ("prompt is scored again", C, "return std::max(computed, prompt_rows_done);",
     "return computed;"),
    ("the token itself is scored", C, "tokens[static_cast<size_t>(computed + row) + 1]",
     "tokens[static_cast<size_t>(computed + row)]"),
    ("counters twice", C, "if (slot >= 0 || in_flight > 0) return;", "if (slot >= 0) return;"),
    ("sample of the last position", N, "static_cast<uint64_t>(position);",
     "static_cast<uint64_t>(position) - 1;"),
    ("stop ids are not masked", N,
     "for (const int32_t id : stop.MaskedAt(produced)) add(id, 0, kTokenStops);", ""),
    ("results go to an id's next owner", E,
     "found == sequences_.end() || found->second->arrival != arrival",
     "found == sequences_.end()"),
    ("one token too many", E, "sequence->generated() >= sequence->max_tokens",
     "sequence->generated() > sequence->max_tokens"),
    ("asleep with a slot to release", E, "!scheduler_.has_pending_release() &&", ""),
    ("asleep with a plan in flight", E, "idle_ = in_flight_.empty() &&", "idle_ ="),
    ("first scores are skipped", E, "position >= sequence->prompt_tokens - 1",
     "position >= sequence->prompt_tokens - 2"),
    ("stop token is delivered", E, "if (sequence->stop.Stops(token->id)) {",
     "if (sequence->stop.Stops(token->id) && sequence->generated() > 0) {"),
    ("cancelled request is not found", E,
     "calls_.cancellations.push_back({id, status, reason});", ""),
    ("acknowledged twice over", E, "sequence.reader.Acknowledge(\n      std::min(",
     "sequence.reader.Acknowledge(\n      2 * std::min("),
    ("free pages of another time", E, "  free_pages_ = result->free_pages;\n",
     "  free_pages_ = result->free_pages + 1;\n"),
    ("windows of slot 0", E, "result.first_pages + planned.slot * limits_.lists_per_slot",
     "result.first_pages"),
    ("cancellations stay", R, "  calls_.cancellations.clear();\n", ""),
    ("queue deadline after the start", R,
     "    } else if (!sequence->group->started && now >= sequence->request.queue_deadline) {",
     "    } else if (now >= sequence->request.queue_deadline) {"),
    ("queue deadline is no event", R,
     "  if (!sequence.group->started) next = std::min(next, sequence.request.queue_deadline);\n",
     ""),
    ("deadline is no event", R, "  Seconds next = sequence.request.deadline;\n",
     "  Seconds next = kNever;\n"),
    ("stalls are no event", R,
     "    next = std::min(next, sequence.reader.paused_since() + options_.stall",
     "    next = std::min(next, 1e9 + sequence.reader.paused_since() + options_.stall"),
    ("a queue of one more", R, "  while (waiting + count > options_.max_num_queued_reqs ||",
     "  while (waiting + count > options_.max_num_queued_reqs + 1 ||"),
    ("one more is paused", R, "scheduler_.paused() > options_.max_paused_reqs",
     "scheduler_.paused() > options_.max_paused_reqs + 1"),
    ("acknowledgement is forgotten", R,
     "    if (rested && !sequence->paused()) scheduler_.Resume(sequence, now);\n", ""),
    ("a wrong request is accepted", R, "    if (!status.ok()) return status;\n    if (sequences",
     "    if (sequences"),
    ("an id is accepted twice", R, "sequences_.count(request.id) > 0 || ", ""),
    ("the displaced are not told", R, "          &displaced_);", "          &unheard);"),
    ("none is rescued", S, "  SetRescued(longest, true);\n", ""),
    ("half of a group is displaced", W, "(*last)->started || (*last)->group->started",
     "(*last)->started"),
    ("queued tokens stay", W,
     "  Count(*sequence, -1, &client);\n  if (!client.waiting.empty())",
     "  if (!client.waiting.empty())"),
    ("evicts the page that ends", V, "while (first < p) {", "while (first <= p) {"),
    ("frees the next page", V, "DropPage(kv, slot, table[first]);",
     "DropPage(kv, slot, table[first + 1]);"),
    ("evicts without licence", V, "if (!MayDrop(evicted_mass, 0, log_eps)) break;",
     "if (!MayDrop(evicted_mass - 1, 0, log_eps)) break;"),
    ("never evicts from head 0", V, "int64_t head = 0; head < kv.shape.lists_per_slot()",
     "int64_t head = 1; head < kv.shape.lists_per_slot()"),
    ("first of the old owner", V, "      kv.first_live[list] = 0;\n", ""),
    ("certificate of the old owner", V, "      kv.max_log_evicted_mass[list] = kNoMass;\n", ""),
    ("releases evicted pages too", V,
     "for (int p = kv.first_live[list]; p < PagesFor(length); ++p)",
     "for (int p = 0; p < PagesFor(length); ++p)"),
    ("keeps the last page", V, "p < PagesFor(length); ++p) {", "p < PagesFor(length - 1); ++p) {"),
    ("a page for each step", A, "for (int p = PagesFor(rows.position); p < end; ++p) {",
     "for (int p = static_cast<int>(rows.position / 64); p < end; ++p) {"),
    ("takes a page that is not free", O, "kv.free_stack[--*kv.free_count]",
     "kv.free_stack[(*kv.free_count)--]"),
    ("a reference is leaked", O, "  owners += OwnerWord(slot);\n",
     "  owners += 2 * OwnerWord(slot);\n"),
    ("a page is freed while shared", O, "  owners += OwnerWord(slot);\n", ""),
    ("a shared page has one owner still", O,
     "  if (NumOwners(owners) == 1) --kv.sole_pages[SoleOwner(owners)];\n", ""),
    ("the last owner is not told", O, "    ++kv.sole_pages[SoleOwner(owners)];\n", ""),
    ("shares evicted pages", K, "const int first = kv.first_live[source];", "const int first = 0;"),
    ("shares the page that fills", K, "static_cast<int>(kv.length[from] / kPageTokens)",
     "PagesFor(kv.length[from])"),
    ("shared pages begin elsewhere", K, "    kv.first_live[list] = first;\n", ""),
    ("a certificate is not shared", K,
     "    kv.max_log_evicted_mass[list] = kv.max_log_evicted_mass[source];\n", ""),
    ("a snapshotted slot still holds", L,
     "  for (const SharedSlot& snapshot : plan.snapshots) held(snapshot.from) = 0;\n", ""),
    ("a snapshot that is shared still holds", L,
     "  for (const SharedSlot& start : plan.starts) held(start.from) = 0;\n", ""),
    ("what is shared now is held", L, "  expected_.held[static_cast<size_t>(from)] = 0;\n", ""),
    ("a snapshot is not dropped", P, "  drops_.push_back(slot);\n", ""),
    ("a snapshot is not taken", P,
     "  snapshots_.push_back({sequence->slot, node->snapshot, tokens});\n", ""),
    ("a start is forgotten", P,
     "    starts_.push_back({state.snapshot, sequence->slot, state.found});\n", ""),
    ("dropped pages count twice", P, "  dropped_pages_ += pages;\n",
     "  dropped_pages_ += 2 * pages;\n"),
    ("dropped pages count again", P, "  dropped_pages_ = 0;\n", ""),
    ("drops free what others have", P, "  dropped_pages_ += pages;\n",
     "  dropped_pages_ += std::max(pages, snapshot.pages);\n"),
    ("drops what a start needs", P, "At(sequence.prefix_.snapshot).pinned = plan_;", ";"),
    ("a pin holds for ever", P, "number = plan_++;", "number = plan_;"),
    ("no token is left", CR, "fixed ? 2 : 1;", "fixed ? 2 : 0;"),
    ("scores are skipped", P, "std::min(limit, sequence.prompt_rows_done) : limit;",
     "limit : limit;"),
    ("chunks: one token is left", CR, "    if (fixed && end == begin + left - 1) end -= unit;\n",
     ""),
    ("chunks: end anywhere", CR, "(begin + count) / unit * unit;", "begin + count;"),
    ("chunks: answers are kept", P, "return tokens <= SnapshotTokens(sequence) && ",
     "return tokens <= static_cast<int64_t>(sequence.tokens.size()) && "),
    ("chunks: snapshots at any page", P, " && tokens % sequence.chunks.unit == 0;", ";"),
    ("chunks: a start leaves one token", CR, "fixed ? 2 : 1;", "1;"),
    ("chunks: answers come again as prompts", CR, "return fixed ? prompt : length;",
     "return length;"),
    ("chunks: come before decodes", S, "while (count == 1 && at > 0 &&",
     "while (false && at > 0 &&"),
    ("chunks: one row of pages is promised", X,
     "ledger_.Between(sequence.computed, sequence.computed + sequence.min_chunk());",
     "ledger_.Between(sequence.computed, sequence.computed + 1);"),
    ("chunks: mixed steps are long", S,
     "if (limits_.prefill_tokens_per_decode > 0 && decodes + returns > 0)", "if (false)"),
    ("a flush is forgotten", P, "  if (!has_doomed_) return;\n", "  return;\n"),
    ("an ended one is waited for", P,
     "    if (node->computing == sequence) node->computing = nullptr;\n", ""),
    ("a claim outlives its owner", P, "  Unclaim(sequence);\n  const int64_t tokens",
     "  const int64_t tokens"),
    ("salts share", PH, "return {sequence.request.cache_salt,", 'return {"",'),
    ("tolerances share", PH, ", sequence.log_tolerance};", ", 0.0};"),
    ("store: pages of an image are not counted", L,
     "  for (const SlotTransfer& load : plan.loads) take(load.slot, load.pages);\n", ""),
    ("store: the certificate is forgotten", T,
     "    stats.max_log_evicted_mass = load.max_log_evicted_mass;\n", ""),
    ("store: a buffer is free while a plan reads it", TR, "buffer.state = State::kLoading;",
     "buffer.state = State::kFree;"),
    ("store: a read that failed arrives", TR, "done.read && done.ok &&", "done.read &&"),
    ("store: lands without room", PS,
     "  if (room + dropped_pages_ - before < what.pages) return false;\n", ""),
    ("store: half of a page is saved", I,
     "out + array.offset, static_cast<size_t>(array.bytes));",
     "out + array.offset, static_cast<size_t>(array.bytes / 2));"),
    ("store: an image gets the pages that it had", I, "kv.Table(list)[p] = TakePage(kv, slot);",
     "TakePage(kv, slot);"),
    ("a bypass uses it", PH, "budget_ > 0 && !sequence.request.bypass_prefix_cache",
     "budget_ > 0"),
]


class Workshop:
    """Compiles and links as the build folder does."""

    def __init__(self, build: pathlib.Path, target: str) -> None:
        self.build, self.target = build, target
        entries = json.loads((build / "compile_commands.json").read_text())
        self.commands = {str(pathlib.Path(e["file"]).resolve()): e for e in entries}
        listing = subprocess.run(["ninja", "-C", str(build), "-t", "commands", target],
                                 check=True, capture_output=True, text=True).stdout
        self.link = [line for line in listing.splitlines() if f"-o bin/{target} " in line][-1]

    def compile(self, source: str, folder: pathlib.Path) -> pathlib.Path:
        """`source` as it is in `folder`, or here; headers in `folder` come first."""
        entry = self.commands[str(ROOT / source)]
        words = shlex.split(entry["command"])
        target = folder / (pathlib.Path(source).stem + ".o")
        mutated = folder / source
        words[words.index("-o") + 1] = str(target)
        words[words.index("-c") + 1] = str(mutated if mutated.exists() else ROOT / source)
        for option in ("-MT", "-MF"):
            if option in words:
                words[words.index(option) + 1] = str(target) + ".d"
        words = ["-O1" if w == "-O3" else w for w in words
                 if not w.endswith("ccache") and w != "-Werror"]
        words[1:1] = [f"-I{folder}"]
        subprocess.run(words, check=True, cwd=entry["directory"], capture_output=True, text=True)
        return target

    def make(self, mutant: Mutant, folder: pathlib.Path) -> pathlib.Path:
        """The program with that bug."""
        _, name, old, new = mutant
        text = (ROOT / name).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{name} has {text.count(old)} times: {old}")
        (folder / name).parent.mkdir(parents=True)
        text = text.replace(old, new)
        if "unheard" in new:
            text = text.replace("  std::set<const SequenceGroup*> groups;",
                                "  std::set<const SequenceGroup*> groups;\n"
                                "  std::vector<RequestOutput> unheard;")
        (folder / name).write_text(text)
        objects = [str(self.compile(source, folder)) for source in USERS.get(name, [name])]
        program = folder / self.target
        command = self.link.replace(f"-o bin/{self.target} ",
                                    " ".join(objects) + f" -o {program} ")
        subprocess.run(command, shell=True, check=True, cwd=self.build, capture_output=True)
        return program


def misplaced(table: Sequence[Mutant]) -> list[str]:
    """Names of the mutants that do not change exactly one place of the sources as they are."""
    return [name for name, path, old, new in table
            if (ROOT / path).read_text().count(old) != 1 or old == new]


def find(shop: Workshop, mutant: Mutant, runs: list[list[str]]) -> str:
    """How one of the runs of the program found the mutant; empty: none did."""
    with tempfile.TemporaryDirectory() as name:
        try:
            program = shop.make(mutant, pathlib.Path(name))
        except subprocess.CalledProcessError as error:
            return f"COMPILER {error.stderr[-2000:]!r}"
        for words in runs:
            try:
                run = subprocess.run([str(program), *words], timeout=120, capture_output=True,
                                     text=True)
            except subprocess.TimeoutExpired:
                return "hangs"
            if run.returncode < 0:
                return f"signal {-run.returncode}: {run.stderr.strip()[-120:]}"
            if run.returncode > 0:
                return next(line for line in run.stdout.splitlines() if line.startswith("seed "))
    return ""


def main(about: str, table: Sequence[Mutant], target: str, runs: list[list[str]]) -> int:
    """Tries each mutant of the table in the program `target`, run with each list of arguments."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="mutants whose name or file has this")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    shop = Workshop(arguments.build.resolve(), target)
    chosen = [m for m in table if arguments.only in m[0] or arguments.only in m[1]]
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, how in zip(chosen, pool.map(lambda m: find(shop, m, runs), chosen)):
            missed += not how or how.startswith("COMPILER")
            print(f"{mutant[1]}: {mutant[0]}: {how or 'MISSED'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(__doc__, MUTANTS, "fox-simulate", [["--days", str(DAYS)], *FAILED_ONCE]))
