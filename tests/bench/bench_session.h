// BenchSession: shared by the benchmarks of a model: flags, the text as tokens, the machine's
// peaks, the report, and models loaded on demand, one for each bound.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/eval/eval_command.h"
#include "tests/bench/machine_peaks.h"
#include "tests/bench/measurement.h"
#include "tests/bench/run_requests.h"

namespace fox {

struct BenchFlags {
  EvalFlags model;
  std::vector<int64_t> lengths, batch_sizes, contexts;
  std::vector<AcpMode> modes;
  std::string text, json;
  int64_t repeat = 5;
  int64_t buffer_mib = 1024;
  int64_t matmul_size = 4096;
  int64_t max_model_len = 0;  // 0: the longest sequence of the benchmark
  int64_t prompt_rows = 0;    // beside the tokens of each decode step
  bool chunk_given = false;

  absl::Status Parse(const std::vector<std::string>& arguments, const std::string& command);
};

// Parses "off,paper,certified"; keeps the order. Errors name `flag`.
absl::StatusOr<std::vector<AcpMode>> ParseModes(const std::string& text, const char* flag);

// A model with its KV cache.
struct BenchModel {
  std::unique_ptr<ModelRunner> runner;
  double log_tolerance = -10;

  // Operations (two for a multiply-add) of one row through the linear layers, and through the head.
  double LinearFlopsPerRow() const;
  double HeadFlopsPerRow() const;
  // Bytes of keys, values and gates that one visited (query head, page) block reads.
  double BlockBytes() const;
};

struct BenchSession {
  BenchFlags flags;
  ModelConfig config;
  bool on_gpu = false;
  DType dtype = DType::kF32;  // of weights and pages
  Prompt text;
  MachinePeaks peaks;
  BenchReport report;

  // log eps under the bound `mode`.
  double ToleranceOf(AcpMode mode) const;
  // Loads a model whose pool holds `sequences` sequences of `max_len` tokens; they may grow up to
  // --max-model-len if that is more. ResourceExhausted if the pool does not fit into memory.
  absl::StatusOr<BenchModel> Load(AcpMode mode, int64_t sequences, int64_t max_len) const;
};

// Loads the text and the config and measures the peaks.
absl::StatusOr<BenchSession> OpenSession(const BenchFlags& flags);

// Appends `count` tokens of the text to `slot` at `position`, in chunks, with as many in flight as
// the runner allows. Asks for the last row's logits, or for a token if the runner samples. Returns
// the slot's counters afterwards.
absl::StatusOr<AcpStats> Prefill(const BenchSession& session, BenchModel& model, int32_t slot,
                                 int64_t position, int64_t count);

absl::Status BenchPrefill(BenchSession& session);
absl::Status BenchDecode(BenchSession& session);
absl::Status BenchAttention(BenchSession& session);  // GPU only

// Commands without a session, which parse flags of their own.
absl::Status BenchServe(const std::vector<std::string>& arguments);
absl::Status BenchCache(const std::vector<std::string>& arguments);
// Fails with Internal if any answer differs.
absl::Status BenchInvariance(const std::vector<std::string>& arguments);
absl::Status MakeModel(const std::vector<std::string>& arguments);

}  // namespace fox
