// SimFormat: a wire form for the simulation. A plan is the message; events become records that a
// client can check; and every rule of format.h about threads and order is a check.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "server/calls/format.h"
#include "tests/server/calls/sim/sim_environment.h"

namespace fox::sim {

struct PromptPlan {
  std::string text, request_id;
  int32_t sequences = 1, max_tokens = 1;
  bool invalid = false;  // the conversion fails
  std::string choice;    // not empty: a grammar prescribes it as the answer
  std::string regex;     // not empty: a grammar of this expression; the simulation has none
};

// A client's message.
struct CallPlan {
  std::vector<PromptPlan> prompts;  // none: the call tokenizes
  bool stream = false, malformed = false;
  int32_t flow_window = 0;  // of a stream's sequences, in tokens
  size_t records_per_write = 1;
};

// One record of an answer.
struct Record {
  enum class Kind : char { kPrompt = 'P', kText = 'T', kFinish = 'F', kKeepAlive = 'K' };
  Kind kind = Kind::kKeepAlive;
  size_t prompt = 0;
  uint32_t sequence = 0;  // its index in the prompt
  int reason = 0;         // of kFinish: v1::FinishReason
  std::string text;       // of kText
};
std::string EncodeRecord(const Record& record);
// Takes the first record of `bytes`. False: they begin with none.
bool TakeRecord(std::string* bytes, Record* record);

// The answer of a call without prompts.
inline constexpr char kTokenizedAnswer[] = "tokenized";

class SimFormat final : public Format {
 public:
  SimFormat(CallPlan plan, SimEnvironment& day) : plan_(std::move(plan)), day_(day) {}
  ~SimFormat() override;

  absl::StatusOr<CallOutline> ParseMessage() override;
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t prompt) override;
  void AddEvent(CallEvent event) override;
  void AddKeepAlive() override;
  bool HasOutput() const override { return !records_.empty(); }
  Output TakeOutput(bool last) override;
  int64_t held_bytes() const override { return held_bytes_; }
  void DropContents() override;
  std::string EncodeFailure(const absl::Status& status, bool stream_has_begun) const override;

 private:
  struct Waiting {
    std::string bytes;
    RequestId sequence;
    int64_t tokens;
    int64_t held_bytes;  // at least as many as `bytes` has
  };

  void AddRecord(const Record& record, RequestId sequence, int64_t tokens);
  void Check(bool holds, const char* rule) const {
    if (!holds) day_.ReportViolation(std::string("format: ") + rule);
  }

  const CallPlan plan_;
  SimEnvironment& day_;
  bool parsed_ = false, converting_ = false, dropped_ = false, taken_last_ = false;
  size_t converted_ = 0;                         // prompts
  std::map<RequestId, int64_t> waiting_tokens_;  // by sequence, in records_
  std::deque<Waiting> records_;
  int64_t held_bytes_ = 0;
};

}  // namespace fox::sim
