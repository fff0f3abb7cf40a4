// Request conversion: each field at and beyond its bounds, defaults, and messages that name fields.
#include "server/calls/conversion/request_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/fixtures/character_tokenizer.h"

namespace fox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kVocab = 100;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ConversionContext Context() {
  ConversionContext context;
  context.served_model_name = "served";
  context.limits.vocab_size = kVocab;
  context.limits.max_model_len = 50;
  context.engine.max_logprobs = 5;
  return context;
}

v1::GenerateRequest Base() {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1);
  return request;
}

using R = v1::GenerateRequest;

struct Case {
  const char* field;  // in the message; "" when it must be accepted
  std::function<void(R*)> change;
};

void Check(const std::vector<Case>& cases, const ConversionContext& context = Context(),
           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  for (size_t i = 0; i < cases.size(); ++i) {
    R request = Base();
    cases[i].change(&request);
    const absl::Status status = ConvertGenerate(request, true, context).status();
    const bool accepted = *cases[i].field == 0;
    EXPECT_EQ(status.code(), accepted ? absl::StatusCode::kOk : code) << i << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cases[i].field)) << i;
  }
}

GenerationSpec Converted(const R& request, const ConversionContext& context = Context(),
                         bool stream = true) {
  absl::StatusOr<GenerationSpec> spec = ConvertGenerate(request, stream, context);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

// Values around each range: engine/request/request_validation_test.cc.
TEST(RequestConversionTest, FloatRanges) {
  for (const char* name : {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                           "repetition_penalty"}) {
    const auto* field = v1::Sampling::descriptor()->FindFieldByName(name);
    const auto set = [=](float value) {
      return [=](R* r) {
        r->mutable_sampling()->GetReflection()->SetFloat(r->mutable_sampling(), field, value);
      };
    };
    Check({{"", set(1)}, {name, set(100.5f)}, {name, set(-2.5f)}, {name, set(std::nanf(""))}});
  }
}

TEST(RequestConversionTest, IdsCountsAndStrings) {
  const auto bias = [](uint32_t id, float value) {
    return [=](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[id] = value; };
  };
  const auto stops = [](int count, const std::string& text) {
    return [=](R* r) {
      for (int i = 0; i < count; ++i) r->mutable_stopping()->add_stop(text);
    };
  };
  const auto tokens = [](uint32_t least, uint32_t most) {
    return [=](R* r) {
      r->mutable_stopping()->set_min_tokens(least);
      r->mutable_stopping()->set_max_tokens(most);
    };
  };
  Check({
      {"", [](R* r) { r->mutable_token_ids()->add_ids(kVocab - 1); }},
      {"token_ids", [](R* r) { r->mutable_token_ids()->add_ids(kVocab); }},
      {"token_ids", [](R* r) { r->mutable_token_ids()->add_ids(UINT32_MAX); }},
      {"prompt", [](R* r) { r->mutable_token_ids()->clear_ids(); }},
      {"prompt", [](R* r) { r->clear_token_ids(); }},
      {"text", [](R* r) { r->set_text(std::string()); }},
      {"sampling.n", [](R* r) { r->mutable_sampling()->set_n(0); }},
      {"", [](R* r) { r->mutable_sampling()->set_n(16); }},
      {"sampling.n", [](R* r) { r->mutable_sampling()->set_n(17); }},
      {"sampling.n", [](R* r) { r->mutable_sampling()->set_n(UINT32_MAX); }},
      {"", [](R* r) { r->mutable_sampling()->set_top_k(UINT32_MAX); }},
      {"logit_bias", bias(kVocab, 1)},
      {"logit_bias: id 4294967295", bias(4294967295u, 1)},
      {"logit_bias", bias(1, 100.5f)},
      {"logit_bias", bias(1, std::nanf(""))},
      {"allowed_token_ids", [](R* r) { r->mutable_sampling()->add_allowed_token_ids(kVocab); }},
      {"stopping.max_tokens", tokens(0, 0)},
      {"", tokens(0, UINT32_MAX)},
      {"stopping.min_tokens", tokens(4, 3)},
      {"stopping.stop", stops(1, "")},
      {"stopping.stop", stops(1, std::string(257, 'x'))},
      {"stopping.stop", stops(17, "x")},
      {"stop_token_ids", [](R* r) { r->mutable_stopping()->add_stop_token_ids(kVocab); }},
      {"output.logprobs", [](R* r) { r->mutable_output()->set_logprobs(-1); }},
      {"", [](R* r) { r->mutable_output()->set_logprobs(5); }},
      {"output.logprobs", [](R* r) { r->mutable_output()->set_logprobs(6); }},
      {"output.prompt_logprobs", [](R* r) { r->mutable_output()->set_prompt_logprobs(6); }},
      {"logprob_token_ids", [](R* r) { r->mutable_output()->add_logprob_token_ids(1); }},
      {"stream_interval", [](R* r) { r->mutable_output()->set_stream_interval(0); }},
      {"stream_interval", [](R* r) { r->mutable_output()->set_stream_interval(1025); }},
      {"queue_timeout_ms", [](R* r) { r->set_queue_timeout_ms(0); }},
      {"truncate_prompt_tokens", [](R* r) { r->set_truncate_prompt_tokens(0); }},
      {"cache.cache_salt: at most 256 bytes",
       [](R* r) { r->mutable_cache()->set_cache_salt(std::string(257, 's')); }},
      {"acp.log_tolerance", [](R* r) { r->mutable_acp()->set_log_tolerance(-9.99f); }},
      {"acp.log_tolerance", [](R* r) { r->mutable_acp()->set_log_tolerance(-kInfinity); }},
      {"", [](R* r) { r->mutable_acp()->set_log_tolerance(-10); }},
      {"acp.mode", [](R* r) { r->mutable_acp()->set_mode(v1::PAPER); }},
      {"", [](R* r) { r->mutable_acp()->set_mode(v1::CERTIFIED); }},
      {"priority", [](R* r) { r->set_priority(-1); }},
      {"", [](R* r) { r->set_priority(0); }},
  });
}

TEST(RequestConversionTest, FieldsThatNeedMoreOfTheServer) {
  ConversionContext other = Context();
  other.engine.priority_scheduling = true;
  other.engine.acp = AcpMode::kOff;
  Check({{"", [](R* r) { r->set_priority(-1); }},
         {"", [](R* r) { r->mutable_acp()->set_mode(v1::OFF); }},
         {"ACP is off", [](R* r) { r->mutable_acp()->set_log_tolerance(-20); }}},
        other);
  Check({{"text", [](R* r) { r->set_text("x"); }},
         {"output.text", [](R* r) { r->mutable_output()->set_text(true); }},
         {"stopping.stop", [](R* r) { r->mutable_stopping()->add_stop("x"); }}},
        Context(), absl::StatusCode::kFailedPrecondition);  // there is no tokenizer
}

TEST(RequestConversionTest, DefaultsComeFromTheModel) {
  ConversionContext context = Context();
  context.defaults.temperature = 0.25f;
  context.defaults.top_k = 7;
  context.defaults.max_tokens = 20;
  context.defaults.eos_token_ids = {9};
  v1::GenerateRequest request = Base();
  request.mutable_stopping()->add_stop_token_ids(3);
  GenerationSpec spec = Converted(request, context);
  Request out = spec.sequences.at(0);
  EXPECT_EQ(out.sampling.temperature, 0.25f);
  EXPECT_EQ(out.sampling.top_k, 7);
  EXPECT_EQ(out.stop.max_tokens, 20);
  EXPECT_THAT(out.stop.stop_token_ids, ElementsAre(3, 9));
  EXPECT_EQ(out.flow_window, 64 + 1);
  EXPECT_FALSE(spec.text);  // no tokenizer
  EXPECT_TRUE(spec.token_ids);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  out = Converted(request, context, /*stream=*/false).sequences[0];
  EXPECT_THAT(out.stop.stop_token_ids, ElementsAre(3));
  EXPECT_EQ(out.sampling.temperature, 0);
  EXPECT_EQ(out.flow_window, 0);
}

TEST(RequestConversionTest, LengthsAgainstTheContext) {
  v1::GenerateRequest request;
  for (int i = 0; i < 49; ++i) request.mutable_token_ids()->add_ids(5);
  EXPECT_EQ(Converted(request).sequences[0].stop.max_tokens, 1);  // cut to the room that is left
  for (int i = 0; i < 2; ++i) {
    request.mutable_token_ids()->add_ids(6);
    EXPECT_EQ(ConvertGenerate(request, true, Context()).status().code(),
              absl::StatusCode::kOutOfRange);
  }
  request.set_truncate_prompt_tokens(3);
  EXPECT_THAT(Converted(request).sequences[0].prompt, ElementsAre(5, 6, 6));
}

TEST(RequestConversionTest, SequencesDifferBySeedAlone) {
  v1::GenerateRequest request = Base();
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_seed(UINT64_MAX);
  request.mutable_output()->set_prompt_logprobs(1);
  request.mutable_cache()->set_cache_salt(std::string(256, 's'));
  request.mutable_cache()->set_bypass_prefix_cache(true);
  const GenerationSpec spec = Converted(request);
  ASSERT_EQ(spec.sequences.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(spec.sequences[i].sampling.seed, UINT64_MAX + i);
    EXPECT_EQ(spec.sequences[i].sampling.prompt_logprobs, i == 0 ? 1 : -1);
    EXPECT_EQ(spec.sequences[i].cache_salt, std::string(256, 's'));
    EXPECT_TRUE(spec.sequences[i].bypass_prefix_cache);
  }
  request.mutable_sampling()->clear_seed();
  EXPECT_NE(Converted(request).sequences[0].sampling.seed,
            Converted(request).sequences[0].sampling.seed);
}

TEST(RequestConversionTest, AcpModesBecomeTolerances) {
  v1::GenerateRequest request = Base();
  EXPECT_FALSE(Converted(request).sequences[0].log_tolerance.has_value());
  request.mutable_acp()->set_log_tolerance(-20);
  EXPECT_EQ(Converted(request).sequences[0].log_tolerance, -20.0);
  request.mutable_acp()->set_mode(v1::OFF);
  EXPECT_EQ(Converted(request).sequences[0].log_tolerance,
            -std::numeric_limits<double>::infinity());
}

TEST(RequestConversionTest, BosGoesBeforeIdsThatLackItWhereTheServerSaysSo) {
  const CharacterTokenizer tokenizer;
  constexpr int32_t kBos = CharacterTokenizer::kBos;
  ConversionContext context = Context();
  context.tokenizer = &tokenizer;
  context.limits.vocab_size = CharacterTokenizer::kVocabSize;
  const auto prompt_of = [&](const std::vector<uint32_t>& ids, bool add_special = true) {
    v1::ScoreRequest request;
    for (uint32_t id : ids) request.mutable_token_ids()->add_ids(id);
    if (!add_special) request.set_add_special_tokens(false);
    return ConvertScore(request, context).value().sequences.front().prompt;
  };
  EXPECT_THAT(prompt_of({5}), ElementsAre(5));
  context.add_bos_to_ids = true;
  EXPECT_THAT(prompt_of({5}), ElementsAre(kBos, 5));
  EXPECT_THAT(prompt_of({kBos, 5}), ElementsAre(kBos, 5));
  EXPECT_THAT(prompt_of({5}, /*add_special=*/false), ElementsAre(5));
  v1::GenerateRequest none;
  none.mutable_token_ids();
  EXPECT_FALSE(ConvertGenerate(none, true, context).ok());
}

TEST(RequestConversionTest, ReservedFieldsAreUnimplemented) {
  for (int number : {5, 13}) {
    SCOPED_TRACE(number);
    v1::GenerateRequest request = Base();
    v1::Sampling* sampling = request.mutable_sampling();
    sampling->GetReflection()->MutableUnknownFields(sampling)->AddVarint(number, 1);
    EXPECT_EQ(ConvertGenerate(request, true, Context()).status().code(),
              absl::StatusCode::kUnimplemented);
  }
  v1::GenerateRequest request = Base();  // an unknown number is ignored
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(999, 1);
  EXPECT_TRUE(ConvertGenerate(request, true, Context()).ok());
}

TEST(RequestConversionTest, AnAnswerHasOneGrammarAtMost) {
  ConversionContext context = Context();
  v1::GenerateRequest request = Base();
  request.mutable_sampling()->set_regex("a+");
  EXPECT_EQ(ConvertGenerate(request, true, context).status().code(),
            absl::StatusCode::kFailedPrecondition);
  GrammarCompiler compiler([] { return std::vector<std::string>(8); });
  context.grammars = &compiler;
  EXPECT_EQ(ConvertGenerate(request, true, context)->grammar->text, "a+");
  request.mutable_sampling()->add_choice("b");
  const absl::Status two = ConvertGenerate(request, true, context).status();
  EXPECT_TRUE(absl::IsInvalidArgument(two)) << two;
  EXPECT_EQ(two.message().find("sampling.choice: at most one of"), 0U) << two;
}

TEST(RequestConversionTest, NamesAndIds) {
  EXPECT_TRUE(CheckModelName("", Context()).ok());
  EXPECT_TRUE(CheckModelName("served", Context()).ok());
  EXPECT_EQ(CheckModelName("other", Context()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CheckRequestId("")->size(), 36u);
  EXPECT_EQ(*CheckRequestId("mine"), "mine");
  EXPECT_TRUE(CheckRequestId(std::string(128, 'x')).ok());
  EXPECT_FALSE(CheckRequestId(std::string(257, 'x')).ok());
  EXPECT_FALSE(CheckRequestId("two words").ok());
  EXPECT_FALSE(CheckRequestId("caf\xc3\xa9").ok());
}

TEST(RequestConversionTest, ScoreAsksForThePromptAlone) {
  v1::ScoreRequest request;
  EXPECT_FALSE(ConvertScore(request, Context()).ok());
  request.mutable_token_ids()->add_ids(4);
  request.set_logprobs(2);
  absl::StatusOr<GenerationSpec> spec = ConvertScore(request, Context());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->sequences[0].stop.max_tokens, 0);
  EXPECT_EQ(spec->sequences[0].sampling.prompt_logprobs, 2);
  request.set_logprobs(6);
  EXPECT_FALSE(ConvertScore(request, Context()).ok());
}

TEST(RequestConversionTest, MessagesAreAPromptOfModelsThatChat) {
  const CharacterTokenizer tokenizer;
  const ChatFormat chat = tokenizer.Chat();
  ConversionContext context = Context();
  context.tokenizer = &tokenizer;
  context.limits.vocab_size = CharacterTokenizer::kVocabSize;
  const auto say = [](R* r) {
    v1::ChatMessage* turn = r->mutable_messages()->add_turns();
    turn->set_role("user");
    turn->set_content("hi");
  };
  Check({{"messages: the model has no chat format; send text", say}}, context,
        absl::StatusCode::kFailedPrecondition);
  context.chat = &chat;
  context.max_prompt_bytes = 3;
  Check(
      {{"", say},
       {"messages[1].content: 4 bytes are more than the limit of 3", [&](R* r) { say(r), say(r); }},
       {"messages: there is none", [](R* r) { r->mutable_messages(); }}},
      context);
  R request;
  say(&request);
  const Request sequence = Converted(request, context).sequences[0];
  EXPECT_EQ(Detokenize(tokenizer, sequence.prompt, /*skip_special=*/false), "<s>U:hi\nA:");
  EXPECT_EQ(sequence.stop.max_tokens, 42);  // all that the context leaves
  EXPECT_THAT(sequence.stop.stop_token_ids, ElementsAre(CharacterTokenizer::kEos));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_messages()->set_add_generation_prompt(false);
  const Request open = Converted(request, context).sequences[0];
  EXPECT_EQ(Detokenize(tokenizer, open.prompt, /*skip_special=*/true), "U:hi\n");
  EXPECT_TRUE(open.stop.stop_token_ids.empty());
}

}  // namespace
}  // namespace fox
