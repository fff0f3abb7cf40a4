// Ranges at their ends, and the comments of the .proto against them.
#include "engine/request/sampling_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

using ::testing::HasSubstr;

TEST(SamplingLimitsTest, OpenEndsAreOutside) {
  constexpr Range kOpen{0, 1, true, true};
  constexpr Range kClosed{0, 1};
  for (const double end : {0.0, 1.0}) {
    EXPECT_FALSE(kOpen.Contains(end));
    EXPECT_TRUE(kClosed.Contains(end));
  }
  for (const Range& range : {kOpen, kClosed}) {
    EXPECT_TRUE(range.Contains(0.5));
    for (const double x : {-0.001, 1.001, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      EXPECT_FALSE(range.Contains(x)) << x;
    }
  }
  EXPECT_EQ(ToString(kOpen), "(0, 1)");
  EXPECT_EQ(ToString(kClosed), "[0, 1]");
  EXPECT_EQ(CheckRange("x", 2, kClosed).message(), "x: must be in [0, 1]");
}

TEST(SamplingLimitsTest, ALogToleranceIsFiniteAndBelowZero) {
  for (const double x : {-1e-300, -10.0, -1e300}) EXPECT_TRUE(kLogTolerance.Contains(x)) << x;
  for (const double x : {0.0, -0.0, 1.0, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    EXPECT_FALSE(kLogTolerance.Contains(x)) << x;
  }
}

TEST(SamplingLimitsTest, CountsEndAtTheMost) {
  EXPECT_TRUE(CheckCount("ids", 3, 3).ok());
  EXPECT_EQ(CheckCount("ids", 4, 3).message(), "ids: at most 3 entries");
}

// The comment above a field of the .proto: the lines of // before `declaration`.
std::string CommentOf(const std::string& declaration) {
  std::ifstream file(std::string(FOX_SOURCE_DIR) + "/proto/fox/v1/inference.proto");
  std::string line, comment;
  while (std::getline(file, line)) {
    if (line.find(declaration) != std::string::npos) return comment;
    const size_t begin = line.find("//");
    comment = begin == std::string::npos ? "" : comment + line.substr(begin + 2);
  }
  return "no such field";
}

TEST(SamplingLimitsTest, TheProtoSaysTheSame) {
  const std::pair<const char*, Range> ranges[] = {
      {"float temperature = ", kTemperature},
      {"float top_p = ", kTopP},
      {"float min_p = ", kMinP},
      {"float presence_penalty = ", kPresencePenalty},
      {"float frequency_penalty = ", kFrequencyPenalty},
      {"float repetition_penalty = ", kRepetitionPenalty},
      {"logit_bias = ", kLogitBias},
  };
  for (const auto& [field, range] : ranges) {
    EXPECT_THAT(CommentOf(field), HasSubstr(ToString(range))) << field;
  }
  const std::pair<const char*, size_t> counts[] = {
      {"logit_bias = ", kMaxLogitBiases},
      {"repeated uint32 stop_token_ids = ", kMaxStopTokenIds},
      {"repeated uint32 logprob_token_ids = 5", kMaxLogprobTokenIds},
      {"repeated uint32 logprob_token_ids = 6", kMaxLogprobTokenIds},
  };
  for (const auto& [field, most] : counts) {
    const std::string comment = CommentOf(field);
    EXPECT_TRUE(comment.find(absl::StrCat("t most ", most)) != std::string::npos)
        << field << comment;
  }
}

}  // namespace
}  // namespace fox
