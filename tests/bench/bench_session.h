// BenchSession: what every benchmark starts from: flags, the text as tokens, the machine's peaks,
// the report, and models loaded on demand, one for each bound. Read fox_bench.cc for the list of
// benchmarks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/eval/eval_command.h"
#include "engine/trace/timed_ops.h"
#include "tests/bench/machine_peaks.h"
#include "tests/bench/measurement.h"

namespace fox {

struct BenchFlags {
  EvalFlags model;
  std::vector<int64_t> lengths, batch_sizes, contexts;
  std::vector<int64_t> max_model_lens;  // limits to decode under; empty: as long as is needed
  std::vector<AcpMode> modes;
  std::string text, json;
  int64_t repeat = 5;
  int64_t buffer_mib = 1024;
  int64_t matmul_size = 4096;
  bool chunk_given = false;

  absl::Status Parse(const std::vector<std::string>& arguments, const std::string& command);
};

// A model over its cache whose operations are timed.
struct BenchModel {
  TimedOps* ops = nullptr;  // the runner's; on a GPU they are not timed unless told to
  std::unique_ptr<ModelRunner> runner;
  double log_tolerance = -10;

  // Multiply-adds times two of one row through all layers; the head is counted apart.
  double LinearFlopsPerRow() const;
  double HeadFlopsPerRow() const;
  // Keys, values and gates that one visited (query head, page) block reads.
  double BlockBytes() const;
};

struct BenchSession {
  BenchFlags flags;
  ModelConfig config;
  bool on_gpu = false;
  DType dtype = DType::kF32;  // of weights and pages
  std::vector<int32_t> text;  // repeated as often as needed by TokensAt
  MachinePeaks peaks;
  BenchReport report;

  // `count` tokens from position `first` of the endless text.
  std::vector<int32_t> TokensAt(int64_t first, int64_t count) const;
  // The pool holds `max_len` tokens of each sequence; they may grow up to `limit`, if that is more.
  // ResourceExhausted when the pool would not fit into memory.
  absl::StatusOr<BenchModel> Load(AcpMode mode, int64_t sequences, int64_t max_len,
                                  int64_t limit = 0) const;
};

// Loads text and config and measures the peaks.
absl::StatusOr<BenchSession> OpenSession(const BenchFlags& flags);

// Appends `count` tokens of the text to `slot` at `position` in chunks, as many in flight as the
// runner takes, wanting the last row's logits, or a token sampled from them where the runner
// samples. Returns the slot's counters afterwards.
absl::StatusOr<AcpStats> Prefill(const BenchSession& session, BenchModel& model, int32_t slot,
                                 int64_t position, int64_t count);

absl::Status BenchPrefill(BenchSession& session);
absl::Status BenchDecode(BenchSession& session);
absl::Status BenchLinear(BenchSession& session);
absl::Status BenchMemory(BenchSession& session);
absl::Status BenchSwap(BenchSession& session);
// GPU only. BenchDecode runs BenchGpuDecode there.
absl::Status BenchAttention(BenchSession& session);
absl::Status BenchGpuDecode(BenchSession& session);

// One table line of shares of `total` seconds by kind of operation, and the same as JSON.
std::string SharesLine(const OpSeconds& seconds, double total);
nlohmann::ordered_json SharesJson(const OpSeconds& seconds, double total);

}  // namespace fox
