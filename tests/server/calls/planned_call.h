// PlannedCall: a Call of the simulation's format and transport, in a test without the simulation.
// A broken rule of either fails the test.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/fixtures/test_core.h"
#include "tests/server/calls/sim/sim_format.h"
#include "tests/server/calls/sim/sim_transport.h"

namespace fox {

class QuietEnvironment final : public sim::SimEnvironment {
 public:
  static QuietEnvironment& Get() {
    static auto* const environment = new QuietEnvironment();
    return *environment;
  }
  void Interrupt() override {}
  void ReportViolation(const std::string& what) override { ADD_FAILURE() << what; }
  void Count(sim::CallMark) override {}
};

// A stream of one prompt, with the id "call".
inline sim::CallPlan StreamOf(const std::string& prompt, int32_t max_tokens) {
  sim::CallPlan plan;
  plan.stream = true;
  sim::PromptPlan& only = plan.prompts.emplace_back();
  only.text = prompt;
  only.request_id = "call";
  only.max_tokens = max_tokens;
  return plan;
}

struct PlannedCall {
  // Starts it. `reads` false: the test reads.
  PlannedCall(TestCore& test, const sim::CallPlan& plan, CallInfo info = {}, bool reads = true)
      : transport(std::make_shared<sim::SimTransport>(sim::SimTransport::Port::kGrpc,
                                                      QuietEnvironment::Get(), reads)) {
    if (info.arrival == 0) info.arrival = test.engine->Now();
    call = std::make_shared<Call>(*test.core, std::move(info), Call::Work::kGenerate,
                                  std::make_unique<sim::SimFormat>(plan, QuietEnvironment::Get()),
                                  transport);
    transport->Attach(call);
    call->Start(/*bytes=*/1);
  }

  // Waits until the transport has let go of the answer.
  absl::Status WaitForEnd() const {
    EXPECT_TRUE(Eventually([this] { return transport->released(); }, /*seconds=*/30));
    return transport->status();
  }
  // The text of one sequence of the first prompt.
  std::string Text(uint32_t sequence = 0) const {
    std::string text, bytes = transport->received();
    sim::Record record;
    while (sim::TakeRecord(&bytes, &record)) {
      if (record.kind == sim::Record::Kind::kText && record.sequence == sequence) {
        text += record.text;
      }
    }
    return text;
  }

  const std::shared_ptr<sim::SimTransport> transport;
  std::shared_ptr<Call> call;
};

}  // namespace fox
