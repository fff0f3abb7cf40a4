// SequenceEvents: one sequence's engine outputs become fox.v1 events: log-probabilities of the
// prompt, TokenDelta, Finish. Text and stop strings are made here; a stop string ends the sequence
// in the engine. Read text_assembler.h next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fox/v1/inference.pb.h"
#include "models/tokenizer/text_assembler.h"
#include "server/calls/conversion/request_conversion.h"
#include "server/calls/format.h"
#include "server/calls/server_core.h"

namespace fox {

// The smallest float32 that is at least `bound`: a certificate must not understate the loss.
float RoundedUp(double bound);

// The first event of a prompt: id, model, count of tokens, seed; text and ids where they are
// echoed. Takes the texts out of the spec, whose sequences it still has.
v1::GenerateDelta MakePromptEvent(const ConversionContext& context, GenerationSpec* spec);

// Used by one thread at a time. `spec` but its sequences, and `core`, must outlive it.
class SequenceEvents {
 public:
  // For spec.sequences[index], whose id is set. `arrival`: the call's, on the engine's clock.
  // `audited`: it keeps the tokens for TakeTokens.
  SequenceEvents(const GenerationSpec& spec, size_t index, Seconds arrival, ServerCore& core,
                 bool audited = false);

  // Records the times of `tokens` more, known at `when`, also of a prompt that has failed.
  void CountTokens(size_t tokens, Seconds when);
  // Adds to `events` the ones that `output` makes due. Its `finish` is for EndSequence.
  void ConsumeOutput(const RequestOutput& output, std::vector<CallEvent>* events);
  // Adds the text that was held back, and the Finish. `audit`: null, or for it.
  void EndSequence(const Finish& finish, Seconds when, std::vector<CallEvent>* events,
                   const v1::Audit* audit = nullptr);

  RequestId id() const { return id_; }
  // True if a stop string has ended it: the reason that the engine gives no longer matters.
  bool stopped() const { return stop_ >= 0; }
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  // Prompt and answer, up to a stop string, if it is audited. Once.
  std::vector<int32_t> TakeTokens() { return std::move(tokens_); }
  bool audited() const { return audited_; }
  Seconds first_token() const { return first_token_; }  // kNever: none yet
  // The reason that Finish names when the engine ended the sequence well.
  v1::FinishReason Reason(const Finish& finish) const;

 private:
  void ConsumeToken(const SampledToken& token);
  // Adds the delta to `events` when it is due, or `force`.
  void FlushDelta(bool force, std::vector<CallEvent>* events);
  void AddEvent(v1::GenerateDelta delta, int64_t tokens, std::vector<CallEvent>* events) const;
  v1::Finish FinishEvent(const Finish& finish, const v1::Audit* audit) const;
  v1::PerfMetrics Timing(const RequestStats& stats, Seconds when) const;

  const GenerationSpec& spec_;
  ServerCore& core_;
  const RequestId id_;
  const uint32_t index_;
  const int32_t min_tokens_;
  const int64_t prompt_tokens_;
  const Seconds arrival_;
  const bool audited_;

  std::vector<int32_t> tokens_;          // prompt and answer, if it is audited
  std::unique_ptr<TextAssembler> text_;  // null: neither text nor stop strings
  v1::TokenDelta delta_;                 // not due yet
  int64_t delta_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  bool has_begun_ = false;  // the first delta comes alone
  Seconds first_token_ = kNever, last_token_ = kNever;
  int stop_ = -1;  // index of the stop string found
};

}  // namespace fox
