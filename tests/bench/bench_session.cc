// Loading and prefilling for all benchmarks. See bench_session.h.
#include "tests/bench/bench_session.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/memory_budget.h"
#include "engine/tools/text_tokens.h"
#include "kernels/cpu/cpu_ops.h"
#include "models/checkpoint.h"

namespace fox {
namespace {

absl::StatusOr<std::vector<int64_t>> ParseList(const std::string& text, const char* flag) {
  std::vector<int64_t> values;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || (stop < end && *stop != ',')) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": \"", text, "\" is not a list such as 512,2048"));
    }
    values.push_back(value);
    at = stop < end ? stop + 1 : end;
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// "off,paper,certified", in the order given.
absl::StatusOr<std::vector<AcpMode>> ParseModes(const std::string& text) {
  std::vector<AcpMode> modes;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const auto mode = ParseAcpMode(text.substr(at, end - at));
    if (!mode) {
      return absl::InvalidArgumentError(
          absl::StrCat("--modes: \"", text, "\" is not a list of off, paper, certified"));
    }
    modes.push_back(*mode);
    at = end + 1;
  }
  return modes;
}

// Models without a tokenizer get ids spread over their vocabulary.
std::vector<int32_t> SpreadIds(int64_t vocab) {
  std::vector<int32_t> ids(4096);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(static_cast<int64_t>(i * i * 7919 + i * 104729) % vocab);
  }
  return ids;
}

double OutTimesIn(const PackedWeight& weight) {
  return static_cast<double>(weight.out()) * static_cast<double>(weight.in());
}

}  // namespace

absl::Status BenchFlags::Parse(const std::vector<std::string>& arguments,
                               const std::string& command) {
  std::string length_list = "512,1024,2048,4096,8192", batch_list = "1,2,4,8";
  std::string context_list = "512,2048,8192", mode_list = "off,paper,certified";
  model.model = std::string(FOX_SOURCE_DIR) + "/models/demo";
  FlagSet set;
  model.Register(set);
  set.Group("Benchmark");
  set.String("lengths", "LIST", "prompt lengths of prefill", &length_list);
  set.String("batch-sizes", "LIST", "sequences of a decode step", &batch_list);
  set.String("contexts", "LIST", "tokens before a decode step, and for memory", &context_list);
  set.String("modes", "LIST", "bounds to compare", &mode_list);
  set.String("text", "FILE", "real text, so that gates are real; else MODEL/prompt_long.txt",
             &text);
  set.Int("repeat", "N", "measured runs of a prefill; four times as many decode steps", 1, 1000,
          &repeat);
  set.Int("buffer-mib", "N", "buffer that the read bandwidth is measured on", 1, 1 << 16,
          &buffer_mib);
  set.Int("matmul-size", "N", "rows and columns of the weight of the peak matrix product", 64,
          1 << 15, &matmul_size);
  set.String("json", "FILE", "writes all rows there", &json);
  if (absl::Status s = ParseOrHelp(set, arguments, command); !s.ok()) return s;
  if (set.IsSet("acp")) return absl::InvalidArgumentError("--acp: give --modes, a list");
  if (absl::Status s = Require(model.model, "model"); !s.ok()) return s;
  const auto parsed_lengths = ParseList(length_list, "lengths");
  if (!parsed_lengths.ok()) return parsed_lengths.status();
  const auto parsed_batches = ParseList(batch_list, "batch-sizes");
  if (!parsed_batches.ok()) return parsed_batches.status();
  const auto parsed_contexts = ParseList(context_list, "contexts");
  if (!parsed_contexts.ok()) return parsed_contexts.status();
  const auto parsed_modes = ParseModes(mode_list);
  if (!parsed_modes.ok()) return parsed_modes.status();
  lengths = *parsed_lengths, batch_sizes = *parsed_batches, contexts = *parsed_contexts;
  modes = *parsed_modes;
  if (lengths.empty() || batch_sizes.empty() || contexts.empty()) {
    return absl::InvalidArgumentError("an empty list of lengths, batch sizes or contexts");
  }
  return absl::OkStatus();
}

double BenchModel::LinearFlopsPerRow() const {
  double sum = 0;
  for (const LayerWeights& layer : runner->weights().layers) {
    sum += OutTimesIn(*layer.projection) + OutTimesIn(*layer.o) + OutTimesIn(*layer.gate_up) +
           OutTimesIn(*layer.down);
  }
  return 2 * sum;
}

double BenchModel::HeadFlopsPerRow() const { return 2 * OutTimesIn(*runner->weights().lm_head); }

double BenchModel::BlockBytes() const {
  const PagedKvShape& shape = runner->cache().view().shape;
  const double kv = 2.0 * kPageTokens * shape.head_dim * static_cast<double>(SizeOf(shape.dtype));
  return kv / shape.group() + kPageTokens * static_cast<double>(SizeOf(shape.wide_dtype()));
}

std::vector<int32_t> BenchSession::TokensAt(int64_t first, int64_t count) const {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = text[(static_cast<size_t>(first) + i) % text.size()];
  return ids;
}

absl::StatusOr<BenchModel> BenchSession::Load(AcpMode mode, int64_t sequences,
                                              int64_t max_len) const {
  const auto checkpoint = Checkpoint::Open(flags.model.model, {});
  if (!checkpoint.ok()) return checkpoint.status();
  const auto dtype = ChooseDType(flags.model.dtype);
  if (!dtype.ok()) return dtype.status();
  RunnerOptions options;
  options.acp = mode;
  options.kv_dtype = *dtype;
  options.max_slots = static_cast<int32_t>(sequences);
  options.max_batch_tokens = std::max(flags.model.chunk, sequences);
  options.max_logit_rows = sequences;
  options.max_model_len = max_len;
  const PagedKvShape shape = CacheShape(config, options);
  const int64_t pages = sequences * shape.lists_per_slot() * PagesFor(max_len);
  const int64_t bytes = pages * static_cast<int64_t>(shape.page_bytes());
  if (bytes > AvailableBytes() / 4 * 3) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d sequences of %d tokens take %d MiB of KV pages; lower --contexts or "
                        "--batch-sizes",
                        sequences, max_len, bytes >> 20));
  }
  options.num_pages = static_cast<int>(pages);
  BenchModel model;
  model.seconds = std::make_unique<OpSeconds>();
  const CpuOptions cpu{*dtype, flags.model.plain_gemm, static_cast<int>(flags.model.threads)};
  auto ops = std::make_unique<TimedOps>(std::make_unique<CpuOps>(cpu), model.seconds.get());
  const DType wide = *dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  FoxWeights weights = LoadWeights(*checkpoint, *ops, wide, nullptr);
  model.runner = std::make_unique<ModelRunner>(std::move(ops), std::move(weights), options);
  EvalFlags tolerance = flags.model;
  tolerance.acp = NameOf(mode);
  model.log_tolerance = tolerance.Tolerance(config);
  return model;
}

absl::StatusOr<BenchSession> OpenSession(const BenchFlags& flags) {
  BenchSession session;
  session.flags = flags;
  const auto checkpoint = Checkpoint::Open(flags.model.model, {});
  if (!checkpoint.ok()) return checkpoint.status();
  session.config = checkpoint->config();
  const std::string path =
      flags.text.empty() ? absl::StrCat(flags.model.model, "/prompt_long.txt") : flags.text;
  auto text = EncodeTextFile(flags.model.model, session.config, path, -1);
  if (text.ok() && !text->ids.empty()) {
    session.text = std::move(text->ids);
  } else if (!flags.text.empty()) {
    return text.ok() ? absl::InvalidArgumentError("--text: no text in " + path) : text.status();
  } else {
    session.text = SpreadIds(session.config.vocab_size);
    session.report.Note("no text for this model: token ids are spread over its vocabulary");
  }

  const auto dtype = ChooseDType(flags.model.dtype);
  if (!dtype.ok()) return dtype.status();
  CpuOps ops({*dtype, flags.model.plain_gemm, static_cast<int>(flags.model.threads)});
  const DType wide = *dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  session.peaks.read_bytes_per_second = MeasureReadBandwidth(flags.buffer_mib << 20, 7);
  session.peaks.flops_per_second = MeasureMatmul(ops, wide, flags.matmul_size, 7);
  const Summary& read = session.peaks.read_bytes_per_second;
  const Summary& flops = session.peaks.flops_per_second;
  std::string load = "unknown";
  if (std::ifstream file("/proc/loadavg"); file) std::getline(file, load);
  session.report.Note(absl::StrFormat(
      "%s, %s, %s\nread bandwidth %.1f GB/s (%.1f .. %.1f), matrix product %.0f GFLOP/s "
      "(%.0f .. %.0f); load %s",
      flags.model.model, NameOf(*dtype), ops.Description(), read.median / 1e9, read.min / 1e9,
      read.max / 1e9, flops.median / 1e9, flops.min / 1e9, flops.max / 1e9, load));
  session.report.facts() = {{"model", flags.model.model},
                            {"dtype", NameOf(*dtype)},
                            {"backend", ops.Description()},
                            {"load", load},
                            {"read_bytes_per_second", ToJson(read)},
                            {"flops_per_second", ToJson(flops)}};
  return session;
}

absl::StatusOr<SlotStats> Prefill(const BenchSession& session, BenchModel& model, int32_t slot,
                                  int64_t position, int64_t count) {
  SlotStats stats;
  const int64_t end = position + count;
  while (position < end) {
    const int64_t rows = std::min(session.flags.model.chunk, end - position);
    PlannedSequence seq;
    seq.slot = slot;
    seq.position = position;
    // Slots read different places of the text.
    seq.token_ids = session.TokensAt(position + slot * 997, rows);
    if (position + rows == end) seq.logit_rows = {static_cast<int32_t>(rows - 1)};
    seq.log_tolerance = model.log_tolerance;
    StepPlan plan;
    plan.sequences = {std::move(seq)};
    if (position == 0) plan.release_slots = {slot};
    const auto result = model.runner->Run(plan);
    if (!result.ok()) return result.status();
    stats = result->stats[0];
    position += rows;
  }
  return stats;
}

std::string SharesLine(const OpSeconds& seconds, double total) {
  std::string line = "     share:";
  double rest = total;
  for (size_t i = 0; i < kOpKinds; ++i) {
    const double part = seconds.seconds[i];
    rest -= part;
    if (part / total < 0.002) continue;
    absl::StrAppendFormat(&line, " %s %.1f%%", NameOf(static_cast<OpKind>(i)), 100 * part / total);
  }
  absl::StrAppendFormat(&line, " rest %.1f%%", 100 * rest / total);
  return line;
}

nlohmann::ordered_json SharesJson(const OpSeconds& seconds, double total) {
  nlohmann::ordered_json json;
  for (size_t i = 0; i < kOpKinds; ++i) {
    json[NameOf(static_cast<OpKind>(i))] = seconds.seconds[i] / total;
  }
  return json;
}

}  // namespace fox
