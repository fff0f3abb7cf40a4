// ValidateRequest: special floats for every field, ids around the bounds, lengths around the
// context.
#include "engine/request/request_validation.h"

#include <cmath>
#include <functional>
#include <string>

#include "engine/request/sampling_limits.h"
#include "gtest/gtest.h"

namespace fox {
namespace {

constexpr int32_t kVocab = 100;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

ExecutorLimits Limits() {
  ExecutorLimits limits;
  limits.num_pages = 8;
  limits.lists_per_slot = 4;
  limits.max_num_seqs = 2;
  limits.max_model_len = 50;
  limits.max_num_batched_tokens = 16;
  limits.max_logit_rows = 16;
  limits.vocab_size = kVocab;
  return limits;
}

Request Good() {
  Request request;
  request.id = 1;
  request.prompt = {1, 2, 3};
  return request;
}

absl::StatusCode Code(const Request& request) {
  EngineOptions options;
  options.eos_token_ids = {0};
  return ValidateRequest(request, options, Limits()).code();
}

constexpr absl::StatusCode kBad = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kFine = absl::StatusCode::kOk;

const float kSpecial[] = {std::nanf(""), -std::nanf(""), kInf,    -kInf,    0.0f,    -0.0f,
                          kDenormal,     -kDenormal,     1e-38f,  -1e-38f,  0.5f,    1.0f,
                          1.0000001f,    -1.0f,          2.0f,    -2.0f,    2.0001f, -2.0001f,
                          100.0f,        -100.0f,        100.01f, -100.01f, 3.4e38f, -3.4e38f};

struct FloatField {
  const char* name;
  std::function<void(Request&, float)> set;
  std::function<bool(double)> legal;
};

TEST(RequestValidationTest, SpecialFloatsOfEveryField) {
  const FloatField fields[] = {
      {"temperature", [](Request& r, float x) { r.sampling.temperature = x; },
       [](double x) { return x >= 0 && x <= 100; }},
      {"top_p", [](Request& r, float x) { r.sampling.top_p = x; },
       [](double x) { return x >= 0 && x <= 1; }},
      {"min_p", [](Request& r, float x) { r.sampling.min_p = x; },
       [](double x) { return x >= 0 && x <= 1; }},
      {"presence_penalty", [](Request& r, float x) { r.sampling.presence_penalty = x; },
       [](double x) { return x >= -2 && x <= 2; }},
      {"frequency_penalty", [](Request& r, float x) { r.sampling.frequency_penalty = x; },
       [](double x) { return x >= -2 && x <= 2; }},
      {"repetition_penalty", [](Request& r, float x) { r.sampling.repetition_penalty = x; },
       [](double x) { return x > 0 && x <= 100; }},
      {"logit_bias",
       [](Request& r, float x) {
         r.sampling.logit_bias = {{5, x}};
       },
       [](double x) { return x >= -100 && x <= 100; }},
      {"log_tolerance", [](Request& r, float x) { r.log_tolerance = static_cast<double>(x); },
       [](double x) { return x <= -10; }},
      {"queue_deadline", [](Request& r, float x) { r.queue_deadline = static_cast<double>(x); },
       [](double x) { return !std::isnan(x); }},
      {"deadline", [](Request& r, float x) { r.deadline = static_cast<double>(x); },
       [](double x) { return !std::isnan(x); }},
  };
  for (const FloatField& field : fields) {
    for (const float x : kSpecial) {
      Request request = Good();
      field.set(request, x);
      const absl::Status status = ValidateRequest(request, EngineOptions(), Limits());
      const bool legal = field.legal(static_cast<double>(x));
      EXPECT_EQ(status.code(), legal ? kFine : kBad) << field.name << " = " << x;
      if (!legal) {
        EXPECT_EQ(std::string(status.message()).find(field.name), 0u) << status;
      }
    }
  }
}

TEST(RequestValidationTest, IntegersAroundTheBounds) {
  struct Case {
    std::function<void(Request&, int32_t)> set;
    int32_t least = 0, most = INT32_MAX;
  };
  const Case cases[] = {
      {[](Request& r, int32_t id) { r.prompt[1] = id; }, 0, kVocab - 1},
      {[](Request& r, int32_t id) { r.stop.stop_token_ids = {id}; }, 0, kVocab - 1},
      {[](Request& r, int32_t id) { r.sampling.logit_bias.emplace_back(id, 1.0f); }, 0, kVocab - 1},
      {[](Request& r, int32_t id) {
         r.sampling.allowed_token_ids = {1, id};
       },
       0, kVocab - 1},
      {[](Request& r, int32_t id) { r.sampling.logprob_token_ids = {id}; }, 0, kVocab - 1},
      {[](Request& r, int32_t x) { r.sampling.top_k = x; }},
      {[](Request& r, int32_t x) { r.sampling.logprobs = x; }, -1, 20},
      {[](Request& r, int32_t x) { r.sampling.prompt_logprobs = x; }, -1, 20},
      {[](Request& r, int32_t x) { r.stop.max_tokens = x; }},
      {[](Request& r, int32_t x) { r.stop.min_tokens = x; }, 0, 16},
      {[](Request& r, int32_t x) { r.flow_window = x; }},
      {[](Request& r, int32_t x) { r.priority = x; }, INT32_MIN},
  };
  for (const Case& c : cases) {
    for (const int32_t x :
         {INT32_MIN, -2, -1, 0, 1, 16, 17, 20, 21, kVocab - 1, kVocab, kVocab + 1, INT32_MAX}) {
      Request request = Good();
      c.set(request, x);
      EXPECT_EQ(Code(request), x >= c.least && x <= c.most ? kFine : kBad)
          << &c - cases << ": " << x;
    }
  }
}

TEST(RequestValidationTest, RowsOfAPrompt) {
  const auto code = [](int64_t first, int32_t max_tokens, int32_t logprobs, int64_t rows) {
    Request request = Good();  // three tokens: rows 0 and 1 predict one
    request.prompt_rows = std::make_shared<PromptRows>();
    request.prompt_rows->first = first;
    request.prompt_rows->logits.resize(static_cast<size_t>(rows * kVocab));
    request.stop.max_tokens = max_tokens;
    request.sampling.prompt_logprobs = logprobs;
    return Code(request);
  };
  EXPECT_EQ(code(0, 0, -1, 2), kFine);
  EXPECT_EQ(code(1, 0, -1, 1), kFine);
  EXPECT_EQ(code(1, 0, -1, 0), kBad);
  EXPECT_EQ(code(0, 0, -1, 1), kBad);
  EXPECT_EQ(code(-1, 0, -1, 3), kBad);
  EXPECT_EQ(code(2, 0, -1, 0), kBad);
  EXPECT_EQ(code(0, 1, -1, 2), kBad);
  EXPECT_EQ(code(0, 0, 0, 2), kBad);
}

TEST(RequestValidationTest, Lengths) {
  Request request = Good();
  request.prompt.clear();
  EXPECT_EQ(Code(request), kBad);
  for (const size_t length : {1u, 48u, 49u}) {
    request.prompt.assign(length, 1);
    EXPECT_EQ(Code(request), kFine) << length;
  }
  for (const size_t length : {50u, 51u, 5000u}) {
    request.prompt.assign(length, 1);
    EXPECT_EQ(Code(request), absl::StatusCode::kOutOfRange) << length;
  }
  ExecutorLimits limits = Limits();
  limits.num_pages = limits.lists_per_slot;
  EXPECT_TRUE(ValidateRequest(Good(), EngineOptions(), limits).ok());
  limits.num_pages = limits.lists_per_slot - 1;
  EXPECT_EQ(ValidateRequest(Good(), EngineOptions(), limits).code(), absl::StatusCode::kOutOfRange);
}

TEST(RequestValidationTest, WithoutEvictionAPromptMustFitIntoThePool) {
  ExecutorLimits limits = Limits();
  limits.num_pages = limits.lists_per_slot;
  limits.max_model_len = 500;
  EngineOptions options;
  options.acp = AcpMode::kOff;
  Request request = Good();
  request.prompt.assign(64, 1);
  EXPECT_TRUE(ValidateRequest(request, options, limits).ok());
  request.prompt.assign(65, 1);
  EXPECT_EQ(ValidateRequest(request, options, limits).code(), absl::StatusCode::kOutOfRange);
  options.acp = AcpMode::kCertified;  // it may
  EXPECT_TRUE(ValidateRequest(request, options, limits).ok());
}

TEST(RequestValidationTest, TheMostUrgentPriorityIsBounded) {
  EngineOptions options;
  Request request = Good();
  request.priority = -1;
  EXPECT_TRUE(ValidateRequest(request, options, Limits()).ok());  // it is not looked at
  options.priority_scheduling = true;
  EXPECT_EQ(ValidateRequest(request, options, Limits()).code(), kBad);
  options.min_priority = -1;
  EXPECT_TRUE(ValidateRequest(request, options, Limits()).ok());
}

TEST(RequestValidationTest, Lists) {
  Request request = Good();
  request.sampling.logit_bias = {{5, 1.0f}, {6, 1.0f}, {5, 2.0f}};
  EXPECT_EQ(Code(request), kBad);
  request = Good();
  request.stop.stop_token_ids.assign(kMaxStopTokenIds + kMaxDefaultStopTokenIds, 3);
  EXPECT_EQ(Code(request), kFine);
  request.stop.stop_token_ids.push_back(3);
  EXPECT_EQ(Code(request), kBad);
  request = Good();
  request.sampling.logprob_token_ids.assign(128, 3);  // as on the wire
  EXPECT_EQ(Code(request), kFine);
  request.sampling.logprob_token_ids.push_back(3);
  EXPECT_EQ(Code(request), kBad);
  request = Good();
  request.sampling.allowed_token_ids = {0, 7};
  request.stop.stop_token_ids = {7};
  EXPECT_EQ(Code(request), kFine);
  request.stop.min_tokens = 1;  // nothing could be sampled
  EXPECT_EQ(Code(request), kBad);
  request.stop.ignore_eos = true;  // 0 could
  EXPECT_EQ(Code(request), kFine);
}

}  // namespace
}  // namespace fox
