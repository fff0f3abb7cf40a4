// MemoryBudget: the size of the pool for a given memory, and refusals.
#include "engine/run/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_ops.h"
#include "tests/engine/run/forwarding_ops.h"

namespace fox {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLists = 6;  // 3 layers, 2 kv heads

ModelConfig Model() {
  ModelConfig config;
  config.vocab_size = 100;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  return config;
}

RunnerOptions Options(AcpMode acp = AcpMode::kCertified) {
  RunnerOptions options;
  options.acp = acp;
  options.max_num_seqs = 2;
  return options;
}

int64_t PageBytes() { return static_cast<int64_t>(CacheShape(Model(), Options()).page_bytes()); }

// The options after planning, or the error.
absl::StatusOr<RunnerOptions> Plan(const MemoryRequest& request, RunnerOptions options = Options(),
                                   const ModelConfig& config = Model()) {
  const absl::Status status = PlanMemory(config, request, options);
  if (!status.ok()) return status;
  return options;
}

TEST(MemoryBudgetTest, ThePoolFillsTheMemory) {
  // 5 rows of pages, one page and a byte.
  const int64_t bytes = (5 * kLists + 1) * PageBytes() + 1;
  for (const MemoryRequest& request :
       {MemoryRequest{.available_bytes = bytes},
        MemoryRequest{.kv_cache_bytes = bytes, .available_bytes = 7}}) {
    const auto plan = Plan(request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->num_pages, 5 * kLists + 1);
    EXPECT_EQ(plan->max_model_len, 5 * kPageTokens);
  }
}

TEST(MemoryBudgetTest, TheLongestSequence) {
  const int64_t plenty = 10000 * kLists * PageBytes();
  EXPECT_EQ(Plan({.available_bytes = plenty})->max_model_len, 131072);
  EXPECT_EQ(Plan({.available_bytes = plenty, .max_model_len = 1 << 20})->max_model_len, 1 << 20);
  ModelConfig rope = Model();
  rope.use_rope = true;
  rope.max_position_embeddings = 4096;
  EXPECT_EQ(Plan({.available_bytes = plenty}, Options(), rope)->max_model_len, 4096);
  EXPECT_EQ(
      Plan({.available_bytes = plenty, .max_model_len = 5000}, Options(), rope)->max_model_len,
      5000);
  rope.sliding_window = 1024;
  EXPECT_EQ(Plan({.available_bytes = plenty}, Options(), rope)->max_model_len, 1024);
  EXPECT_EQ(
      Plan({.available_bytes = plenty, .max_model_len = 1024}, Options(), rope)->max_model_len,
      1024);
  const auto longer = Plan({.available_bytes = plenty, .max_model_len = 1025}, Options(), rope);
  EXPECT_TRUE(absl::IsInvalidArgument(longer.status())) << longer.status();
  EXPECT_THAT(std::string(longer.status().message()), HasSubstr("1024, its sliding_window"));
}

TEST(MemoryBudgetTest, LessThanOnePageOfEachListIsRefused) {
  EXPECT_TRUE(Plan({.available_bytes = kLists * PageBytes()}).ok());
  const absl::Status status = Plan({.available_bytes = kLists * PageBytes() - 1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--kv-cache-mb"));
}

TEST(MemoryBudgetTest, APoolForSoManyTokensIsNoLarger) {
  const int64_t plenty = 1000 * kLists * PageBytes();
  for (const AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
    SCOPED_TRACE(static_cast<int>(acp));
    const auto pages = [&](int64_t tokens) {
      const auto plan =
          Plan({.available_bytes = plenty, .max_model_len = tokens, .kv_cache_tokens = tokens},
               Options(acp));
      EXPECT_TRUE(plan.ok()) << plan.status();
      return plan.ok() ? plan->num_pages : -1;
    };
    EXPECT_EQ(pages(1), kLists);
    EXPECT_EQ(pages(64), kLists);
    EXPECT_EQ(pages(65), 2 * kLists);
    EXPECT_EQ(pages(1000), 16 * kLists);
  }
}

// Tokens that fit only with eviction are accepted if eviction is on, and refused at once if it is
// off. The error says how much memory is needed and how much there is.
TEST(MemoryBudgetTest, APoolForMoreTokensThanFit) {
  const MemoryRequest request{
      .available_bytes = 2 * kLists * PageBytes(), .max_model_len = 1000, .kv_cache_tokens = 1000};
  for (const AcpMode acp : {AcpMode::kPaper, AcpMode::kCertified}) {
    SCOPED_TRACE(static_cast<int>(acp));
    const auto plan = Plan(request, Options(acp));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->num_pages, 2 * kLists);
    EXPECT_EQ(plan->max_model_len, 1000);
  }
  const absl::Status off = Plan(request, Options(AcpMode::kOff)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(off)) << off;
  EXPECT_THAT(std::string(off.message()), HasSubstr("the KV cache of 1000 tokens takes"));
  const absl::Status none = Plan({.max_model_len = 64, .kv_cache_tokens = 64}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("but 0.0 MiB are left for it"));
}

// Running slots and tokens of a step as chosen for a pool of `rows` page rows.
RunnerOptions Chosen(int64_t rows, RunnerOptions options, int32_t max_seqs = 256,
                     bool on_gpu = true) {
  int plans = 0;
  const auto planned = PlanStepSizes(Model(), options, max_seqs, on_gpu, [&](RunnerOptions& sizes) {
    EXPECT_LT(++plans, 10);
    const int64_t activations = sizes.max_num_batched_tokens / kPageTokens;  // in rows, say
    const int64_t left = rows - (on_gpu ? activations : 0);
    return PlanMemory(
        Model(), {.available_bytes = left * kLists * PageBytes(), .max_model_len = 1024}, sizes);
  });
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.value_or(RunnerOptions());
}

TEST(MemoryBudgetTest, SlotsFitThePool) {
  RunnerOptions chosen = Options();
  chosen.max_num_seqs = 0;
  EXPECT_EQ(Chosen(100000, chosen).max_num_seqs, 256);
  EXPECT_EQ(Chosen(100000, chosen, 32).max_num_seqs, 32);
  EXPECT_EQ(Chosen(100000, chosen, 256, false).max_num_seqs, 256);
  EXPECT_EQ(Chosen(8 * 256 + 128, chosen).max_num_seqs, 256);
  EXPECT_EQ(Chosen(8 * 256 - 1, chosen, 256, false).max_num_seqs, 128);
  EXPECT_EQ(Chosen(200, chosen, 256, false).max_num_seqs, 16);
  EXPECT_EQ(Chosen(20, chosen, 256, false).max_num_seqs, 16);
  EXPECT_EQ(Chosen(20, Options(), 256, false).max_num_seqs, 2);  // asked for
}

TEST(MemoryBudgetTest, TokensOfAStepAreAQuarterOfThePool) {
  const RunnerOptions options = Options();
  EXPECT_EQ(Chosen(100000, options).max_num_batched_tokens, 8192);
  EXPECT_EQ(Chosen(100000, options, 2, false).max_num_batched_tokens, 512);
  // At first 128 of the 328 rows are activations; a quarter of the other 200 is 3,200 tokens. The
  // pool gets the rows that smaller activations leave.
  const RunnerOptions small = Chosen(328, options);
  EXPECT_EQ(small.max_num_batched_tokens, 3200);
  EXPECT_EQ(small.num_pages, (328 - 50) * kLists);
  EXPECT_EQ(Chosen(130, options).max_num_batched_tokens, 512);
  RunnerOptions asked = Options();
  asked.max_num_batched_tokens = 4096;
  EXPECT_EQ(Chosen(328, asked).max_num_batched_tokens, 4096);
}

TEST(MemoryBudgetTest, TablesOfSlotsTakeAnEighthOfThePoolAtMost) {
  RunnerOptions chosen = Options();
  chosen.max_num_seqs = 0;
  const auto planned = PlanStepSizes(Model(), chosen, 256, false, [&](RunnerOptions& sizes) {
    return PlanMemory(
        Model(), {.available_bytes = 5000 * kLists * PageBytes(), .max_model_len = 1 << 20}, sizes);
  });
  ASSERT_TRUE(planned.ok());
  EXPECT_LT(planned->max_num_seqs, 256);
  const size_t tables = TableBytes(CacheShape(Model(), *planned));
  EXPECT_LE(8 * tables, static_cast<size_t>(planned->num_pages * PageBytes()));
}

TEST(MemoryBudgetTest, ATooSmallPoolIsRefusedAtTheFewestSlots) {
  RunnerOptions chosen = Options();
  chosen.max_num_seqs = 0;
  int32_t last = 0;
  const auto planned = PlanStepSizes(Model(), chosen, 256, true, [&](RunnerOptions& sizes) {
    last = sizes.max_num_seqs;
    return absl::ResourceExhaustedError("no");
  });
  EXPECT_TRUE(absl::IsResourceExhausted(planned.status()));
  EXPECT_EQ(last, 16);
}

constexpr double kMib = 1 << 20;
constexpr int64_t kWeights = 64 << 20;

absl::StatusOr<RunnerOptions> PlanIn(int64_t limit, const MemoryRequest& request) {
  RunnerOptions options = WithStepSizes(Options(), /*on_gpu=*/false);
  const CpuOps ops({});
  const absl::Status status = PlanMemoryWithin({limit, "a test"}, {.weights = kWeights, .ops = ops},
                                               Model(), request, options);
  if (!status.ok()) return status;
  return options;
}

TEST(MemoryBudgetTest, APoolThatDoesNotFitBesideTheWeightsIsRefusedWithTheNumbers) {
  constexpr int64_t kLimit = 256 << 20;
  EXPECT_TRUE(PlanIn(kLimit, {.kv_cache_bytes = 128 << 20}).ok());
  for (const int64_t bytes : {int64_t{200} << 20, int64_t{1} << 50}) {  // alone, 200 MiB would fit
    SCOPED_TRACE(bytes);
    const absl::Status status = PlanIn(kLimit, {.kv_cache_bytes = bytes}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    for (const char* part :
         {"--kv-cache-mb: 64.0 MiB of weights", "256.0 MiB that a test leaves"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
  const absl::Status status = PlanIn(kWeights, {.available_bytes = kWeights}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(MemoryBudgetTest, AChosenPoolLeavesRoomForTheRest) {
  constexpr int64_t kLimit = 128 << 20;
  const auto plan = PlanIn(kLimit, {.available_bytes = kLimit});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PagedKvShape shape = CacheShape(Model(), *plan);
  const auto pages = static_cast<double>(plan->num_pages * PageBytes());
  const auto tables = static_cast<double>(TableBytes(shape));
  EXPECT_LE(pages + tables, static_cast<double>(kLimit - kWeights));
  EXPECT_GT(pages / kMib, 32);
  // Tables of many slots come out of the pool.
  EXPECT_LT(PlanIn(kLimit, {.available_bytes = kLimit, .max_model_len = 4 << 20})->num_pages,
            plan->num_pages);
}

TEST(MemoryBudgetTest, WeightsAreCountedInTheirType) {
  ModelConfig config = Model();
  const int64_t bf16 = WeightBytes(config, DType::kBF16, DType::kBF16, Quantization::kNone);
  EXPECT_EQ(WeightBytes(config, DType::kF32, DType::kF32, Quantization::kNone), 2 * bf16);
  const int64_t table = config.vocab_size * config.hidden_size;
  EXPECT_EQ(WeightBytes(config, DType::kBF16, DType::kF32, Quantization::kNone), bf16 + 2 * table);
  const int64_t widest = 2 * std::max(ColumnsOf(config).total, 2 * config.intermediate_size);
  EXPECT_EQ(WeightBytes(config, DType::kBF16, DType::kBF16, Quantization::kFp8),
            bf16 / 2 + 2 * table + widest * config.hidden_size);
  for (const auto& [quantization, bytes] :
       {std::pair{Quantization::kQ8, 34}, {Quantization::kQ4, 18}}) {
    EXPECT_EQ(WeightBytes(config, DType::kBF16, DType::kF32, quantization),
              (bf16 / 2 - 2 * table) / 32 * bytes + 2 * table / 32 * 34)
        << bytes;
  }
  config.head_dim *= 2;  // q, k, v and o are twice as large
  const int64_t attention = 2 * config.hidden_size * (config.q_size() + config.kv_size());
  EXPECT_EQ(WeightBytes(config, DType::kBF16, DType::kBF16, Quantization::kNone),
            bf16 + 2 * config.num_layers * attention / 2);
  config.num_layers = 0;
  EXPECT_EQ(WeightBytes(config, DType::kBF16, DType::kBF16, Quantization::kNone), 2 * 2 * table);
}

// Counts the bytes allocated.
class CountingOps final : public ForwardingOps {
 public:
  CountingOps() : ForwardingOps(std::make_unique<CpuOps>(CpuOptions{})) {}
  Buffer Allocate(size_t bytes) override {
    allocated_ += bytes;
    return ForwardingOps::Allocate(bytes);
  }
  size_t allocated() const { return allocated_; }

 private:
  size_t allocated_ = 0;
};

TEST(MemoryBudgetTest, ActivationsAreCountedAsTheyAreAllocated) {
  FoxWeights weights;
  weights.config = Model();
  weights.config.head_dim *= 2;  // hidden_size is not heads * head_dim
  weights.columns = ColumnsOf(weights.config);
  CountingOps ops;
  const Activations activations(weights, ops, 100, 3);
  EXPECT_EQ(ops.allocated(),
            Activations::Bytes(weights.config, weights.residual_dtype, ops, 100, 3));
}

// A device of which only the memory is asked for.
class FakeQueue final : public NullQueue {
 public:
  FakeQueue(size_t total, size_t free) : total_(total), free_(free) {}
  size_t free_bytes() const override { return free_; }
  size_t total_bytes() const override { return total_; }

 private:
  size_t total_, free_;
};

constexpr int64_t kGib = 1 << 30;

// Its operations: their workspace is a GiB for each two sequences.
class FakeOps final : public ForwardingOps {
 public:
  explicit FakeOps(int64_t free)
      : ForwardingOps(nullptr), queue_(64 * kGib, static_cast<size_t>(free)) {}
  DeviceQueue* queue() override { return &queue_; }
  DType ActivationDType(DType) const override { return DType::kBF16; }
  int64_t WorkspaceBytes(const Workload& load) const override {
    EXPECT_GE(load.shape.max_pages, PagesFor(131072));
    return load.max_seqs / 2 * kGib;
  }

 private:
  FakeQueue queue_;
};

TEST(MemoryBudgetTest, ADevicesPagesComeOutOfFreeMemory) {
  FoxWeights weights;
  weights.config = Model();
  const auto available = [&](double utilization, int64_t free, int32_t seqs = 2) {
    FakeOps ops(free);
    RunnerOptions options = Options();
    options.max_num_seqs = seqs;
    return AvailableDeviceBytes(ops, utilization, weights, options);
  };
  const int64_t all = available(1, 64 * kGib);
  // The workspace and all else, and little more for so small a model.
  EXPECT_LT(all, 62 * kGib);
  EXPECT_GT(all, 61 * kGib);
  EXPECT_LT(available(1, 64 * kGib, 8), all - 3 * kGib);
  EXPECT_GT(available(1, 64 * kGib, 8), all - 4 * kGib);
  EXPECT_EQ(all - available(1, 50 * kGib), 14 * kGib);  // another program's memory, or weights
  EXPECT_EQ(all - available(0.5, 64 * kGib), 32 * kGib);
  EXPECT_EQ(available(0.5, 32 * kGib), 0);  // never below nothing
  EXPECT_EQ(available(1, 0), 0);
}

}  // namespace
}  // namespace fox
