// Requests of a gateway as engine terms, events as its answers.
#include "server/rpc/vllm_call.h"

#include <gtest/gtest.h>

#include "tests/e2e/character_tokenizer.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

constexpr int32_t kBos = CharacterTokenizer::kBos;

class VllmCallTest : public ::testing::Test {
 protected:
  VllmCallTest() {
    context_.tokenizer = &characters_;
    context_.limits.vocab_size = CharacterTokenizer::kVocabSize;
    context_.limits.max_model_len = 4096;
    message_.set_request_id("id");
    message_.set_stream(true);
    SetIds({'h', 'i'});
  }
  void SetIds(const std::vector<int32_t>& ids) {
    message_.mutable_tokenized()->clear_input_ids();
    for (int32_t id : ids) {
      message_.mutable_tokenized()->add_input_ids(static_cast<uint32_t>(id));
    }
  }
  absl::StatusOr<GenerationSpec> Convert() { return VllmCall(context_).Convert(message_); }
  std::vector<int32_t> Prompt() {
    const absl::StatusOr<GenerationSpec> spec = Convert();
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->sequences.at(0).prompt : std::vector<int32_t>();
  }
  absl::StatusCode CodeWith(void (*change)(vllm_wire::SamplingParams*)) {
    vllm_wire::GenerateRequest message = message_;
    change(message.mutable_sampling_params());
    return VllmCall(context_).Convert(message).status().code();
  }

  CharacterTokenizer characters_;
  ConversionContext context_;
  vllm_wire::GenerateRequest message_;
};

TEST_F(VllmCallTest, BosIsAddedUnlessItIsThere) {
  EXPECT_EQ(Prompt(), (std::vector<int32_t>{kBos, 'h', 'i'}));
  SetIds({kBos, 'h', 'i'});
  EXPECT_EQ(Prompt(), (std::vector<int32_t>{kBos, 'h', 'i'}));
  SetIds({kBos});
  EXPECT_EQ(Prompt(), (std::vector<int32_t>{kBos}));
  message_.set_text("hi");
  EXPECT_EQ(Prompt(), (std::vector<int32_t>{kBos, 'h', 'i'}));
  SetIds({});
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kInvalidArgument);
  SetIds({CharacterTokenizer::kVocabSize});
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kInvalidArgument);
  context_.tokenizer = nullptr;
  SetIds({'h'});
  EXPECT_EQ(Prompt(), (std::vector<int32_t>{'h'}));
}

TEST_F(VllmCallTest, EveryFieldArrives) {
  vllm_wire::SamplingParams* p = message_.mutable_sampling_params();
  p->set_temperature(0.5f);
  p->set_top_p(0.25f);
  p->set_top_k(7);
  p->set_min_p(0.125f);
  p->set_frequency_penalty(1.5f);
  p->set_presence_penalty(-1.5f);
  p->set_repetition_penalty(1.25f);
  p->set_max_tokens(9);
  p->set_min_tokens(3);
  p->add_stop("stop");
  p->add_stop_token_ids(65);
  p->set_skip_special_tokens(true);
  p->set_ignore_eos(true);
  p->set_n(2);
  p->set_logprobs(4);
  p->set_seed(-7);
  (*p->mutable_logit_bias())[66] = 2;
  p->set_truncate_prompt_tokens(2);
  const absl::StatusOr<GenerationSpec> spec = Convert();
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->sequences.size(), 2u);
  const Request& first = spec->sequences[0];
  EXPECT_EQ(first.sampling.temperature, 0.5f);
  EXPECT_EQ(first.sampling.top_p, 0.25f);
  EXPECT_EQ(first.sampling.top_k, 7);
  EXPECT_EQ(first.sampling.min_p, 0.125f);
  EXPECT_EQ(first.sampling.frequency_penalty, 1.5f);
  EXPECT_EQ(first.sampling.presence_penalty, -1.5f);
  EXPECT_EQ(first.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(first.sampling.logprobs, 4);
  EXPECT_EQ(first.sampling.seed, static_cast<uint64_t>(-7));
  EXPECT_EQ(first.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{66, 2.0f}}));
  EXPECT_EQ(first.stop.max_tokens, 9);
  EXPECT_EQ(first.stop.min_tokens, 3);
  EXPECT_EQ(first.stop.stop_token_ids, (std::vector<int32_t>{65}));
  EXPECT_TRUE(first.stop.ignore_eos);
  EXPECT_EQ(first.prompt, (std::vector<int32_t>{'h', 'i'}));
  EXPECT_GT(first.flow_window, 0);
  EXPECT_EQ(spec->request_id, "id");
  EXPECT_EQ(spec->stop, (std::vector<std::string>{"stop"}));
  EXPECT_TRUE(spec->skip_special && spec->token_ids && spec->logprobs && !spec->text);
}

TEST_F(VllmCallTest, WhatIsNotSetIsTheServers) {
  context_.defaults.temperature = 0.75f;
  context_.defaults.top_p = 0.5f;
  context_.defaults.max_tokens = 11;
  const absl::StatusOr<GenerationSpec> spec = Convert();
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->sequences.size(), 1u);
  EXPECT_EQ(spec->sequences[0].sampling.temperature, 0.75f);
  EXPECT_EQ(spec->sequences[0].sampling.top_p, 0.5f);
  EXPECT_EQ(spec->sequences[0].stop.max_tokens, 11);
}

TEST_F(VllmCallTest, Refusals) {
  using P = vllm_wire::SamplingParams;
  EXPECT_EQ(CodeWith([](P*) {}), absl::StatusCode::kOk);
  EXPECT_EQ(CodeWith([](P* p) { p->set_max_tokens(0); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeWith([](P* p) { p->set_n(17); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeWith([](P* p) { p->set_logprobs(-1); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeWith([](P* p) { (*p->mutable_logit_bias())[-1] = 1; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeWith([](P* p) { p->set_truncate_prompt_tokens(-1); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeWith([](P* p) { p->set_regex("a"); }), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CodeWith([](P* p) { p->mutable_choice(); }), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CodeWith([](P* p) { p->set_prompt_logprobs(0); }), absl::StatusCode::kUnimplemented);
  message_.set_request_id(std::string(256, 'x'));
  EXPECT_TRUE(Convert().ok());
  message_.set_request_id(std::string(257, 'x'));
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(VllmCallTest, OneMessageHoldsAnAnswerOrAStreamIsAsked) {
  context_.limits.max_model_len = 1 << 20;
  context_.engine.max_logprobs = 20;
  message_.mutable_sampling_params()->set_max_tokens(21000);
  message_.mutable_sampling_params()->set_logprobs(20);
  EXPECT_TRUE(Convert().ok());
  message_.set_stream(false);
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kOutOfRange);
  message_.mutable_sampling_params()->set_max_tokens(20000);
  EXPECT_TRUE(Convert().ok());
}

v1::GenerateDelta PromptEvent(uint32_t tokens) {
  v1::GenerateDelta event;
  event.mutable_prompt()->set_prompt_tokens(tokens);
  return event;
}

v1::GenerateDelta DeltaEvent(uint32_t index, const std::vector<uint32_t>& ids, bool top = false) {
  v1::GenerateDelta event;
  event.mutable_delta()->set_index(index);
  for (uint32_t id : ids) {
    event.mutable_delta()->add_token_ids(id);
    if (!top) continue;
    v1::TokenLogprobs* position = event.mutable_delta()->add_logprobs();
    position->mutable_token()->set_token_id(id);
    position->mutable_token()->set_logprob(-0.5f);
    v1::TokenLogprob* other = position->add_top();
    other->set_token_id(id + 1);
    other->set_logprob(-2);
  }
  return event;
}

v1::GenerateDelta FinishEvent(uint32_t index, v1::FinishReason reason, uint32_t tokens) {
  v1::GenerateDelta event;
  event.mutable_finish()->set_index(index);
  event.mutable_finish()->set_reason(reason);
  event.mutable_finish()->mutable_usage()->set_completion_tokens(tokens);
  return event;
}

TEST_F(VllmCallTest, AStreamHasEachIdOnce) {
  VllmCall call(context_);
  ASSERT_TRUE(call.Convert(message_).ok());
  vllm_wire::GenerateResponse out;
  EXPECT_FALSE(call.Answer(PromptEvent(3), &out));
  ASSERT_TRUE(call.Answer(DeltaEvent(1, {65, 66}, /*top=*/true), &out));
  EXPECT_EQ(out.chunk().index(), 1u);
  EXPECT_EQ(out.chunk().prompt_tokens(), 3u);
  EXPECT_EQ(out.chunk().completion_tokens(), 2u);
  EXPECT_EQ(out.chunk().token_ids(1), 66u);
  const vllm_wire::OutputLogProbs& logprobs = out.chunk().output_logprobs();
  EXPECT_EQ(logprobs.token_logprobs(1), -0.5f);
  EXPECT_EQ(logprobs.token_ids(1), 66u);
  EXPECT_EQ(logprobs.top_logprobs(1).token_ids(0), 67u);
  EXPECT_EQ(logprobs.top_logprobs(1).values(0), -2);
  out.Clear();
  v1::GenerateDelta finish = FinishEvent(1, v1::STOP, 2);
  finish.mutable_finish()->set_stop_str("B");
  ASSERT_TRUE(call.Answer(finish, &out));
  EXPECT_EQ(out.complete().index(), 1u);
  EXPECT_TRUE(out.complete().output_ids().empty());
  EXPECT_EQ(out.complete().finish_reason(), "stop");
  EXPECT_EQ(out.complete().matched_stop_str(), "B");
  EXPECT_EQ(out.complete().completion_tokens(), 2u);
}

TEST_F(VllmCallTest, AnAnswerIsOneMessagePerSequence) {
  message_.set_stream(false);
  VllmCall call(context_);
  const absl::StatusOr<GenerationSpec> spec = call.Convert(message_);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->sequences[0].flow_window, 0);  // nobody reads meanwhile
  vllm_wire::GenerateResponse out;
  EXPECT_FALSE(call.Answer(PromptEvent(3), &out));
  EXPECT_FALSE(call.Answer(DeltaEvent(1, {65}, true), &out));
  EXPECT_FALSE(call.Answer(DeltaEvent(0, {70}), &out));
  EXPECT_FALSE(call.Answer(DeltaEvent(1, {66}, true), &out));
  ASSERT_TRUE(call.Answer(FinishEvent(1, v1::LENGTH, 2), &out));
  ASSERT_EQ(out.complete().output_ids_size(), 2);
  EXPECT_EQ(out.complete().output_ids(1), 66u);
  EXPECT_EQ(out.complete().output_logprobs().token_ids_size(), 2);
  EXPECT_EQ(out.complete().finish_reason(), "length");
  out.Clear();
  v1::GenerateDelta finish = FinishEvent(0, v1::ABORT, 1);
  finish.mutable_finish()->set_stop_token_id(9);
  ASSERT_TRUE(call.Answer(finish, &out));
  EXPECT_EQ(out.complete().output_ids(0), 70u);
  EXPECT_EQ(out.complete().finish_reason(), "abort");
  EXPECT_EQ(out.complete().matched_token_id(), 9u);
}

// The gateway has plain GPT-2, the model reads and writes JSON's escapes.
class VllmCallEscapedTest : public VllmCallTest {
 protected:
  VllmCallEscapedTest() {
    context_.tokenizer = wrapper_.get();
    context_.limits.vocab_size = kGpt2Vocab;
  }
  std::vector<int32_t> Plain(const std::string& text) const {
    return *wrapper_->Unescaped().Encode(text, false);
  }

  const std::unique_ptr<Tokenizer> wrapper_ = LoadLongCrawl64();
  const std::string text_ = "“Déjà vu”\n\t 🦊 \\ \"x\"<|endoftext|>";
};

TEST_F(VllmCallEscapedTest, PromptsAreEscaped) {
  SetIds(Plain(text_));
  EXPECT_EQ(Prompt(), *wrapper_->Encode(text_, true));
  std::vector<int32_t> with_bos = wrapper_->info().prefix;
  ASSERT_FALSE(with_bos.empty());
  for (int32_t id : Plain(text_)) with_bos.push_back(id);
  SetIds(with_bos);
  EXPECT_EQ(Prompt(), *wrapper_->Encode(text_, true));
  SetIds({50257});
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kInvalidArgument);
  SetIds({Plain("\xF0\x9F\xA6\x8A").at(0), 58});  // a part of a character
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kInvalidArgument);
  SetIds(Plain("hi"));
  message_.mutable_sampling_params()->set_logprobs(0);
  EXPECT_EQ(Convert().status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(VllmCallEscapedTest, AnswersAreNot) {
  for (bool stream : {true, false}) {
    message_.set_stream(stream);
    SetIds(Plain("hi"));
    VllmCall call(context_);
    const absl::StatusOr<GenerationSpec> spec = call.Convert(message_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(spec->text && spec->include_stop && !spec->token_ids);
    vllm_wire::GenerateResponse out;
    v1::GenerateDelta event;
    event.mutable_delta()->set_text("“Déjà ");
    std::vector<int32_t> ids;
    if (call.Answer(event, &out)) {
      EXPECT_EQ(out.chunk().completion_tokens(),
                static_cast<uint32_t>(out.chunk().token_ids_size()));
      ids.assign(out.chunk().token_ids().begin(), out.chunk().token_ids().end());
    }
    event.mutable_delta()->set_text("vu” 🦊");
    if (call.Answer(event, &out)) {
      ids.insert(ids.end(), out.chunk().token_ids().begin(), out.chunk().token_ids().end());
    }
    ASSERT_TRUE(call.Answer(FinishEvent(0, v1::STOP, 4), &out));
    if (!stream) ids.assign(out.complete().output_ids().begin(), out.complete().output_ids().end());
    EXPECT_EQ(Detokenize(wrapper_->Unescaped(), ids, false), "“Déjà vu” 🦊");
  }
}

TEST(VllmCallEndTest, NoRequestShutsItsWorkerOut) {
  EXPECT_EQ(VllmCall::EndOf(absl::InternalError("NaN")), absl::FailedPreconditionError("NaN"));
  EXPECT_EQ(VllmCall::EndOf(absl::UnknownError("x")), absl::FailedPreconditionError("x"));
  EXPECT_EQ(VllmCall::EndOf(absl::CancelledError("x")), absl::AbortedError("x"));
  EXPECT_EQ(VllmCall::EndOf(absl::UnavailableError("x")), absl::UnavailableError("x"));
  EXPECT_TRUE(VllmCall::EndOf(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace fox
