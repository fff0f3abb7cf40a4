// SequenceEvents: one sequence's engine outputs become fox.v1 events: log-probabilities of the
// prompt, TokenDelta, Finish. Text and stop strings are made here; a stop string ends the sequence
// in the engine. Read text_assembler.h next.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/engine_thread.h"
#include "fox/v1/inference.pb.h"
#include "models/tokenizer/text_assembler.h"
#include "server/calls/request_conversion.h"

namespace fox {

// Where a call's events go. Called by one thread at a time; must not block.
class GenerationConsumer {
 public:
  virtual ~GenerationConsumer() = default;
  // `prompt`: GenerationSpec's. `tokens` of `sequence` are in this event:
  // EngineThread::Acknowledge them when the reader has it. Returns Ok, or what the call shall end
  // with; what still comes after that is of no use.
  virtual absl::Status Deliver(size_t prompt, v1::GenerateDelta event, RequestId sequence,
                               int64_t tokens) = 0;
  // The last call. Ok: every sequence has had its Finish.
  virtual void Done(const absl::Status& status) = 0;
};

// Used by one thread at a time. `spec` but its sequences, `context`, `engine` and `consumer` must
// outlive it.
class SequenceEvents {
 public:
  // Of spec.sequences[index], whose id is set. `arrival`: of the call, on the engine's clock.
  SequenceEvents(const GenerationSpec& spec, size_t index, Seconds arrival,
                 const ConversionContext& context, EngineThread& engine,
                 GenerationConsumer& consumer);

  // Delivers what became known at `when`, and returns what Deliver did. `output.finish` is for End.
  absl::Status Consume(const RequestOutput& output, Seconds when);
  // Delivers what was held back, and the Finish.
  absl::Status End(const Finish& finish, Seconds when);

  RequestId id() const { return id_; }
  // Whether a stop string has ended it: what the engine says of its end no longer matters.
  bool stopped() const { return stop_ >= 0; }
  int64_t completion_tokens() const { return completion_tokens_; }
  Seconds first_token() const { return first_token_; }  // kNever: none yet
  // What Finish says when the engine ended it well.
  v1::FinishReason Reason(const Finish& finish) const;

 private:
  void ConsumeToken(const SampledToken& token);
  // Delivers the delta when it is due, or `force`.
  absl::Status Flush(bool force);
  v1::Finish FinishEvent(const Finish& finish) const;
  v1::PerfMetrics Timing(const RequestStats& stats, Seconds when) const;

  const GenerationSpec& spec_;
  const ConversionContext& context_;
  EngineThread& engine_;
  GenerationConsumer& consumer_;
  const RequestId id_;
  const uint32_t index_;
  const int32_t min_tokens_;
  const int64_t prompt_tokens_;
  const Seconds arrival_;

  std::unique_ptr<TextAssembler> text_;  // null: neither text nor stop strings
  v1::TokenDelta delta_;                 // not delivered yet
  int64_t delta_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  bool delivered_ = false;  // the first delta comes alone
  Seconds first_token_ = kNever;
  int stop_ = -1;  // index of the stop string found
};

}  // namespace fox
