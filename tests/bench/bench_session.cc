// Flags, loading and prefilling for the benchmarks of a model.
#include "tests/bench/bench_session.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/run/memory_budget.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/bench/gpu_machine.h"

namespace fox {
namespace {

// Parses "512,2048"; the values are sorted, each kept once.
absl::Status ParseList(const std::string& text, const char* flag, std::vector<int64_t>* values) {
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (!absl::SimpleAtoi(part, &values->emplace_back()) || values->back() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": \"", text, "\" is not a list such as 512,2048"));
    }
  }
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
  return absl::OkStatus();
}

double OutTimesIn(const PackedWeight& weight) {
  return static_cast<double>(weight.out()) * static_cast<double>(weight.in());
}

// Where the demo model is: beside the installed program, or in the sources.
std::string DemoModel() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path installed = bin.parent_path() / "share" / "foxserve" / "demo";
  return fs::exists(installed, error) ? installed.string() : FOX_SOURCE_DIR "/models/demo";
}

// Default of --chunk on a GPU, which needs more rows at once than a CPU.
constexpr int64_t kGpuChunk = 16384;

int64_t FreeBytes(Ops& ops) {
  return ops.queue() != nullptr ? static_cast<int64_t>(ops.queue()->free_bytes())
                                : AvailableMemory().bytes;
}

void RegisterBenchFlags(FlagSet& set, BenchFlags& flags) {
  set.Group("Benchmark");
  set.String("text", "FILE", "real text, so that gates are real; else MODEL/prompt_long.txt",
             &flags.text);
  set.Int("repeat", "N", "measured runs of a prefill; four times as many decode steps", 1, 1000,
          &flags.repeat);
  set.Int("buffer-mib", "N", "buffer that the read bandwidth is measured on", 1, 1 << 16,
          &flags.buffer_mib);
  set.Int("matmul-size", "N", "rows and columns of the weight of the peak matrix product", 64,
          1 << 15, &flags.matmul_size);
  set.Int("max-model-len", "N",
          "longest sequence allowed, to decode under; 0: as long as is needed", 0, 1 << 24,
          &flags.max_model_len);
  set.Int("prompt-rows", "N", "rows of a prompt beside the tokens of each decode step", 0, 1 << 20,
          &flags.prompt_rows);
  set.String("json", "FILE", "writes all rows there", &flags.json);
}

// Measures the machine's peaks and adds its description to the report.
absl::Status DescribeMachine(BenchSession& session) {
  const BenchFlags& flags = session.flags;
  const auto backend = MakeBackend(flags.model.Config(kPageTokens));
  if (!backend.ok()) return backend.status();
  Ops& ops = *backend->ops;
  session.on_gpu = ops.queue() != nullptr;
  session.dtype = backend->dtype;
  if (session.on_gpu && !flags.chunk_given) session.flags.model.chunk = kGpuChunk;
  auto& facts = session.report.facts();
  std::string load = "unknown";
  if (std::ifstream file("/proc/loadavg"); file) std::getline(file, load);
  facts = {{"model", flags.model.model},
           {"dtype", NameOf(session.dtype)},
           {"quantization", NameOf(flags.model.quantization)},
           {"kv_dtype", NameOf(flags.model.kv_cache_dtype.value_or(session.dtype))},
           {"backend", ops.Description()},
           {"load", load}};
  if (session.on_gpu) facts["gpu"] = GpuFacts();
  const auto peaks = MeasurePeaks(ops, session.dtype, flags.buffer_mib << 20, flags.matmul_size);
  if (!peaks.ok()) return peaks.status();
  session.peaks = *peaks;
  const Summary& read = session.peaks.read_bytes_per_second;
  const Summary& flops = session.peaks.flops_per_second;
  facts["read_bytes_per_second"] = ToJson(read);
  facts["flops_per_second"] = ToJson(flops);
  session.report.Note(absl::StrFormat(
      "%s, %s, %s\nread bandwidth %.1f GB/s (%.1f .. %.1f), matrix product %.0f GFLOP/s "
      "(%.0f .. %.0f); load %s",
      flags.model.model, NameOf(session.dtype), ops.Description(), read.median / 1e9,
      read.min / 1e9, read.max / 1e9, flops.median / 1e9, flops.min / 1e9, flops.max / 1e9, load));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<AcpMode>> ParseModes(const std::string& text, const char* flag) {
  std::vector<AcpMode> modes;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const auto mode = ParseAcpMode(name);
    if (!mode) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": \"", text, "\" is not a list of off, paper, certified"));
    }
    modes.push_back(*mode);
  }
  return modes;
}

absl::Status BenchFlags::Parse(const std::vector<std::string>& arguments,
                               const std::string& command) {
  std::string length_list = "512,1024,2048,4096,8192", batch_list = "1,2,4,8";
  std::string context_list = "512,2048,8192", mode_list = "off,paper,certified";
  FlagSet set;
  model.Register(set);
  RegisterBenchFlags(set, *this);
  set.String("lengths", "LIST", "prompt lengths of prefill", &length_list);
  set.String("batch-sizes", "LIST", "sequences of a decode step", &batch_list);
  set.String("contexts", "LIST", "tokens before a decode step", &context_list);
  set.String("modes", "LIST", "bounds to compare", &mode_list);
  if (absl::Status s = ParseOrHelp(set, arguments, command); !s.ok()) return s;
  chunk_given = set.IsSet("chunk");
  if (set.IsSet("acp")) return absl::InvalidArgumentError("--acp: give --modes, a list");
  if (!set.IsSet("model")) model.model = DemoModel();
  absl::Status status = Require(model.model, "model");
  status.Update(ParseList(length_list, "lengths", &lengths));
  status.Update(ParseList(batch_list, "batch-sizes", &batch_sizes));
  status.Update(ParseList(context_list, "contexts", &contexts));
  const auto parsed_modes = ParseModes(mode_list, "modes");
  status.Update(parsed_modes.status());
  if (status.ok()) modes = *parsed_modes;
  return status;
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
  const PagedKvShape& shape = runner->cache().shape;
  const auto kv = static_cast<double>(2 * shape.kv_bytes() + shape.exponent_bytes());
  return kv / shape.group() + kPageTokens * static_cast<double>(SizeOf(shape.residual_dtype()));
}

double BenchSession::ToleranceOf(AcpMode mode) const {
  EvalFlags of_mode = flags.model;
  of_mode.acp = NameOf(mode);
  return of_mode.Tolerance(config);
}

absl::StatusOr<BenchModel> BenchSession::Load(AcpMode mode, int64_t sequences,
                                              int64_t max_len) const {
  const auto checkpoint = Checkpoint::Open(flags.model.model, {});
  if (!checkpoint.ok()) return checkpoint.status();
  auto backend = MakeBackend(flags.model.Config(max_len));
  if (!backend.ok()) return backend.status();
  RunnerOptions options;
  options.acp = mode;
  options.enforce_eager = flags.model.enforce_eager;
  options.dtype = dtype;
  options.kv_dtype = flags.model.kv_cache_dtype.value_or(dtype);
  options.max_num_seqs = static_cast<int32_t>(sequences);
  options.max_num_batched_tokens = std::max(flags.model.chunk, sequences + flags.prompt_rows);
  options.max_logit_rows = sequences;
  options.max_model_len = std::max(max_len, flags.max_model_len);
  const PagedKvShape shape = CacheShape(config, options);
  const int64_t pages = sequences * shape.lists_per_slot() * PagesFor(max_len);
  const int64_t bytes = pages * static_cast<int64_t>(shape.page_bytes());
  if (bytes > FreeBytes(*backend->ops) / 4 * 3) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d sequences of %d tokens take %d MiB of KV pages; lower --contexts or "
                        "--batch-sizes",
                        sequences, max_len, bytes >> 20));
  }
  options.num_pages = static_cast<int>(pages);
  BenchModel model;
  const DType residual_dtype = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  FoxWeights weights = LoadWeights(*checkpoint, *backend->ops, residual_dtype,
                                   flags.model.quantization, options.kv_dtype, nullptr);
  model.runner =
      std::make_unique<ModelRunner>(std::move(backend->ops), std::move(weights), options);
  model.log_tolerance = ToleranceOf(mode);
  return model;
}

absl::StatusOr<BenchSession> OpenSession(const BenchFlags& flags) {
  BenchSession session;
  session.flags = flags;
  const auto checkpoint = Checkpoint::Open(flags.model.model, {});
  if (!checkpoint.ok()) return checkpoint.status();
  session.config = checkpoint->config();
  auto text = TextOf(flags.model.model, session.config, flags.text);
  if (!text.ok()) return text.status();
  session.text = *std::move(text);
  if (absl::Status status = DescribeMachine(session); !status.ok()) return status;
  return session;
}

absl::StatusOr<AcpStats> Prefill(const BenchSession& session, BenchModel& model, int32_t slot,
                                 int64_t position, int64_t count) {
  ModelRunner& runner = *model.runner;
  AcpStats stats;
  int in_flight = 0;
  const auto collect = [&]() -> absl::Status {
    const auto result = runner.Collect();
    if (!result.ok()) return result.status();
    --in_flight;
    stats = result->stats[0];
    return absl::OkStatus();
  };
  const int64_t end = position + count;
  while (position < end) {
    const int64_t rows = std::min(session.flags.model.chunk, end - position);
    PlannedSequence seq;
    seq.slot = slot;
    seq.position = position;
    // Slots read different places of the text.
    seq.token_ids = TokensOfText(session.text, position + slot * 997, rows);
    if (position + rows == end) {
      seq.logit_rows = {static_cast<int32_t>(rows - 1)};
      if (runner.limits().samples_on_device)
        seq.sample = SampleRow{.seed = static_cast<uint64_t>(slot)};
    }
    seq.log_tolerance = model.log_tolerance;
    StepPlan plan;
    plan.sequences = {std::move(seq)};
    if (position == 0) plan.release_slots = {slot};
    if (in_flight == runner.limits().depth) {
      if (absl::Status status = collect(); !status.ok()) return status;
    }
    if (absl::Status status = runner.Submit(plan); !status.ok()) return status;
    ++in_flight;
    position += rows;
  }
  while (in_flight > 0) {
    if (absl::Status status = collect(); !status.ok()) return status;
  }
  return stats;
}

}  // namespace fox
