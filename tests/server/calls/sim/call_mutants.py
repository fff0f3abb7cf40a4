#!/usr/bin/env python3
"""Bugs written into the call layer, one at a time: its simulation must find each in 1,000 days.

    call_mutants.py BUILD [--only WORD] [--jobs N]

BUILD is a build folder in which fox-simulate-calls was built; see tests/engine/sim/mutants.py.
"""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "engine" / "sim"))

import mutants  # noqa: E402

RUNS = [["--days", "1000"]]
C = "server/calls/call.cc"
P, B = "server/calls/limits/admission_pool.cc", "server/calls/limits/call_budget.cc"
D, R = "engine/delivery_pool.cc", "server/calls/registry.cc"
MUTANTS: tuple[mutants.Mutant, ...] = (
    ("a write that has ended keeps the next one out", C,
     "    writing_ = false;\n    written =", "    written ="),
    ("tokens that were read are not acknowledged", C,
     "core_.engine.Acknowledge(sequence, tokens);", "static_cast<void>(sequence + tokens);"),
    ("tokens are acknowledged twice", C,
     "core_.engine.Acknowledge(sequence, tokens);",
     "core_.engine.Acknowledge(sequence, 2 * tokens);"),
    ("an answer outgrows the budget", C,
     "      if (!AccountBytes()) {", "      if (!AccountBytes() && false) {"),
    ("a reader that holds a write keeps the memory", C,
     "      hangs = writing_;", "      hangs = false;"),
    ("contents go while an admission thread uses them", C,
     "  if (stage_ == Stage::kConverting) return;  // an", "  //"),
    ("contents of a call that failed in conversion stay", C,
     "    format_->DropContents();\n    AccountBytes();\n  }\n}", "  }\n}"),
    ("admission never ends", C,
     "  if (stage_ == Stage::kConverting) stage_ = Stage::kRunning;", ""),
    ("a failed call goes on converting", C,
     "      if (!failure_.ok() || i == prompts_.size()) break;",
     "      if (i == prompts_.size()) break;"),
    ("a prompt that failed meanwhile is submitted", C,
     "    if (std::exchange(run->decided, true)) return;", "    run->decided = true;"),
    ("an id that runs is taken twice", R,
     "  return prompts_.emplace(std::pair(request_id, tenant), std::move(entry)).second;",
     "  prompts_.emplace(std::pair(request_id, tenant), std::move(entry));\n  return true;"),
    ("a cancellation before the ids is lost", C,
     "    cancelled = run->cancelled;  // by", "    // by"),
    ("the ids are not kept", C, "    run->ids = ids;\n", ""),
    ("an id stays registered", C,
     "  if (run->registered) core_.registry()", "  if (false) core_.registry()"),
    ("a completed prompt counts as open", C, "  --open_prompts_;\n", ""),
    ("a failed prompt does not fail its call", C,
     "  if (!run->failure.ok()) SetFailure(run->failure);\n", ""),
    ("two writes at a time", C,
     "  if (writing_ || stage_ >= Stage::kDraining) return step;",
     "  if (stage_ >= Stage::kDraining) return step;"),
    ("an answer ends twice", C, "    stage_ = Stage::kDraining;\n", ""),
    ("an answer ends before its last events", C,
     "  if (last && (!failure_.ok() || !format_->HasOutput())) {", "  if (last) {"),
    ("a failed call waits for its stream", C,
     "!(stream_ && failure_.ok() && format_->HasOutput())", "!(stream_ && format_->HasOutput())"),
    ("sequences of a failed call run on", C,
     "    step->cancelled.insert(step->cancelled.end(), run->ids.begin(), run->ids.end());\n", ""),
    ("prompts of a failed call are never decided", C,
     "    if (!std::exchange(run->decided, true)) step->undecided.push_back(run.get());\n", ""),
    ("they are decided and do not end", C,
     "  for (PromptRun* run : step.undecided) EndAdmission(run, step.failure);\n", ""),
    ("an ended call keeps its share", C, "  if (released_ && last) EndCall();\n", ""),
    ("a failed stream gets a sign of life", C,
     "  if (!stream_ || !failure_.ok() || stage_ >= Stage::kDraining) return;",
     "  if (!stream_ || stage_ >= Stage::kDraining) return;"),
    ("an ended stream gets a sign of life", C,
     "  if (!stream_ || !failure_.ok() || stage_ >= Stage::kDraining) return;",
     "  if (!stream_ || !failure_.ok()) return;"),
    ("a hanging engine is waited for", C,
     "  PostBegin(run, status);\n}\n\nCall::PromptRun*", "}\n\nCall::PromptRun*"),
    ("bytes of a written part stay charged", C, "  accounted_bytes_ = bytes;\n", ""),
    ("a prompt is counted in admission for ever", C, "  core_.EndAdmission();\n", ""),
    ("outputs of a step replace those that wait", D,
     "      if (lane->queue.empty()) {", "      if (true) {"),
    ("a lane loses its first output", D,
     "  DeliverAll(*lanes_[lane], &deliveries);",
     "  if (deliveries.size() > 1) deliveries.erase(deliveries.begin());\n"
     "  DeliverAll(*lanes_[lane], &deliveries);"),
    ("a share that changes is not charged", B,
     "!budget_->Change(client_, 0, change)", "!budget_->Change(client_, 0, change / 2)"),
    ("a client's tasks are forgotten with its first", P,
     "  if (--account->second.queued == 0) clients_.erase(account);",
     "  if (account->second.queued > 0) clients_.erase(account);"),
)

if __name__ == "__main__":
    sys.exit(mutants.main(__doc__, MUTANTS, "fox-simulate-calls", RUNS))
