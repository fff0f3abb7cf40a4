// EvalFlags: input files, and a configuration that fits the text.
#include "engine/eval/eval_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/eval/teacher_forcing.h"
#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

using ::testing::HasSubstr;

EvalFlags FlagsFor(const std::string& acp) {
  EvalFlags flags;
  flags.model = std::string(FOX_SOURCE_DIR) + "/tests/golden/dev_pro_d64";
  flags.dtype = "f32";
  flags.acp = acp;
  return flags;
}

std::vector<int32_t> SomeIds(int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back((i * i * 31 + i * 7 + 5) % 512);
  return ids;
}

TEST(EvalCommandTest, ThePoolHoldsTheTextAndNoMore) {
  for (const int64_t tokens : {1, 64, 65, 1000}) {
    SCOPED_TRACE(tokens);
    const auto runner = LoadRunner(FlagsFor("certified").Config(tokens));
    ASSERT_TRUE(runner.ok()) << runner.status();
    const ExecutorLimits& limits = (*runner)->limits();
    EXPECT_EQ(limits.num_pages, PagesFor(tokens) * limits.lists_per_slot) << tokens;
    EXPECT_EQ(limits.max_model_len, tokens);
    EXPECT_EQ(limits.max_num_seqs, 1);
    // Rows of activations and logits, too.
    EXPECT_EQ((*runner)->options().max_num_batched_tokens, std::min<int64_t>(tokens, 512));
    EXPECT_EQ((*runner)->options().max_logit_rows, std::min<int64_t>(tokens, 512));
    // And that is enough, to the last page.
    const auto ids = SomeIds(static_cast<int32_t>(tokens));
    TeacherForcingOptions options;
    options.decode_from = tokens - 1;
    const absl::Status run = RunTeacherForced(**runner, ids, options, nullptr);
    EXPECT_TRUE(run.ok()) << run;
  }
}

TEST(EvalCommandTest, APoolThatRunsDryIsAnError) {
  EngineConfig config = FlagsFor("off").Config(1000);
  config.kv_cache_tokens = 200;
  const auto runner = LoadRunner(config);
  ASSERT_TRUE(runner.ok()) << runner.status();
  TeacherForcingOptions options;
  options.chunk = 100;
  int64_t rows = 0;
  const absl::Status run =
      RunTeacherForced(**runner, SomeIds(1000), options,
                       [&](int64_t, const MatrixView& logits) { rows += logits.rows; });
  EXPECT_TRUE(absl::IsResourceExhausted(run)) << run;
  EXPECT_THAT(std::string(run.message()), HasSubstr("no room in the KV cache after 200 tokens"));
  EXPECT_EQ(rows, 200);
}

TEST(EvalCommandTest, IdsAreOneListAndNothingElse) {
  const std::string path = TempPath("ids.json");
  const auto read = [&](const std::string& text) {
    WriteWhole(path, text);
    return ReadIds(path);
  };
  EXPECT_EQ(*read(" [1, 2147483647]\n"), (std::vector<int32_t>{1, 2147483647}));
  const std::string not_ids[] = {"", "{}", "[]", "[1] x", std::string("[1]\0, 2]", 8), "[1", "[-1]",
                                 "[1.5]", "[\"1\"]", "[[1]]",
                                 // 2^32 + 1 and 2^64 + 1 would wrap to 1.
                                 "[4294967297]", "[18446744073709551617]"};
  for (const std::string& text : not_ids) {
    SCOPED_TRACE(text);
    const absl::Status status = read(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

}  // namespace
}  // namespace fox
