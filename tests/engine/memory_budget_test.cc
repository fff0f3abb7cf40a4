// PlanMemory: pages and context from bytes, and the refusal of what cannot hold one page row.
#include "engine/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fox {
namespace {

using ::testing::HasSubstr;

ModelConfig SmallModel() {
  ModelConfig config;
  config.num_layers = 3;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 16;
  return config;
}

constexpr int64_t kLists = 6;  // layers x kv heads

int64_t PageBytes() {
  return static_cast<int64_t>(CacheShape(SmallModel(), RunnerOptions()).page_bytes());
}

// Plans with bytes for that many pages.
absl::StatusOr<RunnerOptions> Plan(const ModelConfig& config, int64_t pages, int64_t max_len = 0) {
  RunnerOptions options;
  const MemoryRequest request{0, pages * PageBytes(), max_len};
  if (absl::Status status = PlanMemory(config, request, options); !status.ok()) return status;
  return options;
}

TEST(MemoryBudgetTest, TheContextIsWhatThePoolHoldsUnpruned) {
  const auto options = Plan(SmallModel(), 10 * kLists + kLists - 1);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->num_pages, 11 * kLists - 1);
  EXPECT_EQ(options->max_model_len, 10 * kPageTokens);
}

TEST(MemoryBudgetTest, AnAskedForContextStays) {
  EXPECT_EQ(Plan(SmallModel(), 10 * kLists, 5000)->max_model_len, 5000);
  EXPECT_EQ(Plan(SmallModel(), 100000 * kLists)->max_model_len, 131072);
}

TEST(MemoryBudgetTest, RopeKeepsToItsPositionsUnlessTold) {
  ModelConfig config = SmallModel();
  config.max_position_embeddings = 256;
  EXPECT_EQ(Plan(config, 10 * kLists)->max_model_len, 10 * kPageTokens);
  config.use_rope = true;
  EXPECT_EQ(Plan(config, 10 * kLists)->max_model_len, 256);
  EXPECT_EQ(Plan(config, 10 * kLists, 600)->max_model_len, 600);
}

TEST(MemoryBudgetTest, TheFlagGoesBeforeWhatIsAvailable) {
  RunnerOptions options;
  const MemoryRequest request{7 * kLists * PageBytes(), 9 * kLists * PageBytes(), 0};
  ASSERT_TRUE(PlanMemory(SmallModel(), request, options).ok());
  EXPECT_EQ(options.num_pages, 7 * kLists);
}

TEST(MemoryBudgetTest, LessThanOnePageRowIsRefused) {
  EXPECT_TRUE(Plan(SmallModel(), kLists).ok());
  const absl::Status status = Plan(SmallModel(), kLists - 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--kv-cache-mb"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes 6"));
}

}  // namespace
}  // namespace fox
