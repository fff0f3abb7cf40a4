// The comments of the .proto against the ranges. Values at their ends:
// request_validation_test.cc.
#include "engine/request/sampling_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

using ::testing::HasSubstr;

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
