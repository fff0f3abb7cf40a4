// RunScenario: see scenario.h.
#include "tests/faults/scenario.h"

#include <chrono>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/tokenizer.grpc.pb.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/faults/client_streams.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr int kTokens = 12;

// A call's context and its deadline.
struct Call {
  Call() { context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20)); }
  grpc::ClientContext context;
};

ScenarioStep Stream(const ServerProcess& server, const StreamRequest& request) {
  Call call;
  const AnswerEnd end = ReadAnswer(server.grpc_port(), server.http_port(), request, &call.context);
  return {request.http ? "a stream by HTTP" : "a stream", end.status, end.text};
}

ScenarioStep Score(const std::shared_ptr<grpc::Channel>& channel) {
  Call call;
  v1::ScoreRequest request;
  request.set_text("Once upon a time there was");
  v1::ScoreResponse response;
  const grpc::Status status =
      v1::Inference::NewStub(channel)->Score(&call.context, request, &response);
  response.clear_request_id();
  response.clear_perf();
  return {"score", status, status.ok() ? response.SerializeAsString() : ""};
}

ScenarioStep Tokenize(const std::shared_ptr<grpc::Channel>& channel) {
  Call call;
  v1::TokenizeRequest request;
  request.set_text("A cat sat on the mat.");
  v1::TokenizeResponse response;
  const grpc::Status status =
      v1::Tokenizer::NewStub(channel)->Tokenize(&call.context, request, &response);
  return {"tokenize", status, absl::StrJoin(response.token_ids(), ",")};
}

ScenarioStep Refuse(const std::shared_ptr<grpc::Channel>& channel) {
  Call call;
  v1::GenerateRequest request;
  request.set_text("x");
  request.mutable_sampling()->set_temperature(-1);
  v1::GenerateResponse response;
  const grpc::Status status =
      v1::Inference::NewStub(channel)->Generate(&call.context, request, &response);
  const bool refused = status.error_code() == grpc::StatusCode::INVALID_ARGUMENT;
  return {"a wrong request", refused ? grpc::Status::OK : status,
          refused ? status.error_message() : ""};
}

ScenarioStep Complete(const ServerProcess& server, const Json& body) {
  const HttpText answer = PostJson(server.http_port(), "/v1/completions", body.dump());
  ScenarioStep step{"a completion by HTTP", StatusOf(answer), ""};
  if (!step.status.ok()) return step;
  Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) step.answer = json["choices"].dump();
  return step;
}

}  // namespace

std::vector<ScenarioStep> RunScenario(const ServerProcess& server) {
  const auto channel = ConnectTo(server.grpc_port());
  const std::function<ScenarioStep()> kSteps[] = {
      [&] { return Tokenize(channel); },
      [&] {
        return Stream(server, {"Once upon a time", kTokens, false});
      },
      [&] { return Score(channel); },
      [&] { return Refuse(channel); },
      [&] {
        return Complete(server, {{"prompt", {"Once upon a time", "The king"}},
                                 {"max_tokens", kTokens},
                                 {"temperature", 0},
                                 {"logprobs", 2}});
      },
      [&] {
        return Stream(server, {"Once upon a time", kTokens, true});
      },
  };
  std::vector<ScenarioStep> steps;
  for (const auto& step : kSteps) {
    steps.push_back(step());
    if (steps.back().status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) break;  // it hangs
  }
  return steps;
}

void ExpectSoundOrRefused(const std::vector<ScenarioStep>& steps,
                          const std::vector<ScenarioStep>& sound) {
  ASSERT_LE(steps.size(), sound.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const ScenarioStep& step = steps[i];
    const std::string told = absl::StrCat(step.name, ": ", step.status.error_message());
    if (step.status.ok()) {
      EXPECT_EQ(step.answer, sound[i].answer) << told;
      continue;
    }
    EXPECT_TRUE(absl::StartsWith(sound[i].answer, step.answer)) << told << " " << step.answer;
    const grpc::StatusCode code = step.status.error_code();
    EXPECT_TRUE(code == grpc::StatusCode::UNAVAILABLE ||
                code == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << code << " " << told;
  }
}

}  // namespace fox
