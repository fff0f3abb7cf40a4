// Engine factory: makes an engine from a model directory and flags. The one place where checkpoint,
// backend, memory and scheduler meet.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/flag_set.h"
#include "engine/engine.h"
#include "engine/request/snapshot_store.h"
#include "engine/request/step_observer.h"
#include "engine/run/model_runner.h"
#include "kernels/interface/ops.h"
#include "models/checkpoint/model_config.h"
#include "models/weights.h"

namespace fox {

// Where the prefix cache keeps snapshots that leave the pool.
struct PrefixStoreConfig {
  std::string dir;      // empty: nowhere
  int64_t max_gb = 32;  // of all its files, in 10^9 bytes
  std::string version;  // of the program: another one's files are not found
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

struct EngineConfig {
  std::string model_dir;
  std::string device = "cpu";  // cpu | cuda | auto: cuda where there is one
  std::string dtype = "auto";  // auto | f64 | f32 | bf16; cuda: auto | bf16
  // Unset: the blocks of the GGUF file that the checkpoint was converted from, on the CPU; else
  // none.
  std::optional<Quantization> quantization = Quantization::kNone;
  std::optional<DType> kv_cache_dtype;  // kE4M3; unset: as the weights; fp8 not beside f64
  // max_model_len 0: see MemoryRequest; loading sets dtype, kv_dtype, num_pages, snapshot_slots and
  // staging_*
  RunnerOptions runner;
  EngineOptions engine;                 // loading sets acp, log_tolerance and eos_token_ids
  std::optional<double> log_tolerance;  // log eps; unset: the checkpoint's own, else -10
  int threads = 0;                      // 0: one per core
  int64_t kv_cache_bytes = 0;           // 0: see MemoryRequest
  int64_t kv_cache_tokens = 0;          // see MemoryRequest
  int64_t host_bytes_beside = 0;        // host memory kept for other parts of the process
  bool allow_nonfinite = false;
  bool plain_gemm = false;  // row-independent matrix products, for invariance; CPU
  PrefixStoreConfig prefix_store;
  double gpu_memory_utilization = 0.9;   // share of the GPU's memory that the engine may allocate
  bool portable_kernels = false;         // no Hopper kernels even on Hopper, for tests
  bool overlap_kernels = true;           // false: one kernel at a time, for tests
  std::vector<StepObserver*> observers;  // must outlive the engine
  LoadProgress progress;
};

// Parses "auto" (bf16 where it is fast, else f32), "f64", "f32", "bf16", for the CPU.
absl::StatusOr<DType> ChooseDType(const std::string& name);

// A backend without a model, and the type of its linear weights and pages.
struct Backend {
  std::unique_ptr<Ops> ops;
  DType dtype = DType::kF32;
};
absl::StatusOr<Backend> MakeBackend(const EngineConfig& config);

// Loads only the model and its cache, for tools that make their own plans.
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadRunner(const EngineConfig& config);

struct LoadedEngine {
  ModelConfig config;
  std::unique_ptr<StepExecutor> executor;
  std::unique_ptr<SnapshotStore> store;  // uses `executor`; null: none
  std::unique_ptr<Engine> engine;        // uses both
  EngineOptions options;
  std::string memory_plan;  // human-readable, several lines
  std::string backend;      // for example "cpu (2 threads, oneDNN bf16, attention avx512)"
  std::string dtype;        // of weights: f64, f32, bf16, fp8, q8 or q4
  std::string kv_dtype;     // of pages
};

// Errors are one line that names the flag, key or tensor; nothing has been started then.
absl::StatusOr<LoadedEngine> LoadEngine(const EngineConfig& config);

// Parses "off", "paper", "certified".
std::optional<AcpMode> ParseAcpMode(const std::string& name);
const char* NameOf(AcpMode mode);
const char* NameOf(Quantization quantization);
// With an optional target "auto" leaves it unset.
template <typename Target>
void AddQuantization(FlagSet* flags, Target* target) {
  std::vector<std::pair<std::string, Target>> values = {{"none", Quantization::kNone},
                                                        {"fp8", Quantization::kFp8},
                                                        {"q8", Quantization::kQ8},
                                                        {"q4", Quantization::kQ4}};
  std::string help =
      "round weights of linear layers: fp8 to e4m3; on the CPU, in blocks of 32, q8 and q4 to "
      "GGUF's Q8_0 and Q4_0, the vocabulary to Q8_0";
  if constexpr (!std::is_same_v<Target, Quantization>) {
    values.insert(values.begin(), {"auto", std::nullopt});
    help += "; auto: on the CPU those that a converted GGUF file had, else none";
  }
  flags->Enum("quantization", values, help, target);
}
inline void AddPrefixStore(FlagSet* flags, PrefixStoreConfig* target) {
  flags->String("prefix-cache-dir", "DIR",
                "directory for prefixes that leave the cache, and for all at SIGTERM [none]",
                &target->dir);
  flags->Int("prefix-cache-disk-gb", "N", "limit of GB in --prefix-cache-dir", 1, 1 << 20,
             &target->max_gb);
}
inline void AddKvCacheDType(FlagSet* flags, std::optional<DType>* target) {
  flags->Enum("kv-cache-dtype", {{"auto", std::nullopt}, {"fp8", DType::kE4M3}},
              "type of keys and values in pages; fp8: 8 bits (e4m3)", target);
}

}  // namespace fox
