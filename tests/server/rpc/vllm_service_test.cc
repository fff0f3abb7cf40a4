// What a gateway gets from a running server: registration, answers, what it leaves behind.
#include "server/rpc/vllm_service.h"

#include <gtest/gtest.h>

#include "tests/e2e/test_server.h"

namespace fox {
namespace {

using VllmApi = vllm_wire::VllmEngine;

class Gateway {
 public:
  explicit Gateway(const TestCoreOptions& options = {})
      : server(options), stub(VllmApi::NewStub(server.channel)) {}

  template <class Request, class Response>
  Response Ask(grpc::Status (VllmApi::Stub::*method)(grpc::ClientContext*, const Request&,
                                                     Response*)) {
    grpc::ClientContext context;
    SetTimeout(&context);
    Response response;
    const grpc::Status status = (stub.get()->*method)(&context, Request(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  TestServer server;
  std::unique_ptr<VllmApi::Stub> stub;
};

vllm_wire::GenerateRequest Greedy(const std::string& prompt, uint32_t max_tokens, bool stream) {
  vllm_wire::GenerateRequest request;
  for (char c : prompt) request.mutable_tokenized()->add_input_ids(static_cast<uint8_t>(c));
  request.mutable_sampling_params()->set_temperature(0);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.set_stream(stream);
  return request;
}

struct Answer {
  grpc::Status status;
  std::vector<vllm_wire::GenerateResponse> messages;
  std::string text;  // of index 0; ids are characters
};

Answer Generate(const Gateway& gateway, const vllm_wire::GenerateRequest& request) {
  grpc::ClientContext context;
  SetTimeout(&context);
  Answer out;
  const auto reader = gateway.stub->Generate(&context, request);
  for (vllm_wire::GenerateResponse message; reader->Read(&message);) {
    if (message.chunk().index() == 0) {
      for (uint32_t id : message.chunk().token_ids()) out.text.push_back(static_cast<char>(id));
    }
    if (message.complete().index() == 0) {
      for (uint32_t id : message.complete().output_ids()) out.text.push_back(static_cast<char>(id));
    }
    out.messages.push_back(message);
  }
  out.status = reader->Finish();
  return out;
}

TEST(VllmServiceTest, StreamsAndAnswersAreThoseOfFoxV1) {
  Gateway gateway;
  for (bool stream : {true, false}) {
    const Answer answer = Generate(gateway, Greedy("hello", 40, stream));
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.text, ExpectedText("hello", 40));
    EXPECT_EQ(answer.messages.size() == 1, !stream);
    const vllm_wire::GenerateComplete& end = answer.messages.back().complete();
    EXPECT_EQ(end.finish_reason(), "length");
    EXPECT_EQ(end.prompt_tokens(), 6u);  // with bos
    EXPECT_EQ(end.completion_tokens(), 40u);
  }
  EXPECT_TRUE(gateway.server.WaitIdle());
}

TEST(VllmServiceTest, AStopStringEndsTheIds) {
  Gateway gateway;
  const std::string whole = ExpectedText("stop here", 40), stop = whole.substr(10, 6);
  vllm_wire::GenerateRequest request = Greedy("stop here", 40, true);
  request.mutable_sampling_params()->add_stop(stop);
  const Answer answer = Generate(gateway, request);
  EXPECT_EQ(answer.text, whole.substr(0, whole.find(stop) + stop.size()));
  EXPECT_EQ(answer.messages.back().complete().matched_stop_str(), stop);
}

TEST(VllmServiceTest, SeveralSequencesHaveAnEndEach) {
  Gateway gateway;
  vllm_wire::GenerateRequest request = Greedy("many", 8, false);
  request.mutable_sampling_params()->set_n(3);
  const Answer answer = Generate(gateway, request);
  ASSERT_EQ(answer.messages.size(), 3u);
  for (const auto& message : answer.messages) EXPECT_EQ(message.complete().output_ids_size(), 8);
}

TEST(VllmServiceTest, RefusalsHaveTheStatusThatShutsNobodyOut) {
  Gateway gateway;
  EXPECT_EQ(Generate(gateway, Greedy("a", 0, true)).status.error_code(), grpc::INVALID_ARGUMENT);
  vllm_wire::GenerateRequest request = Greedy("a", 4, true);
  request.mutable_sampling_params()->set_json_schema("{}");
  EXPECT_EQ(Generate(gateway, request).status.error_code(), grpc::UNIMPLEMENTED);
  EXPECT_EQ(Generate(gateway, Greedy(std::string(5000, 'a'), 4, true)).status.error_code(),
            grpc::OUT_OF_RANGE);
}

// Leaves a request that runs; `leave` says how.
void Leave(bool stream, void (*leave)(Gateway*, grpc::ClientContext*)) {
  Gateway gateway;
  gateway.server.script->step_delay_us = 2000;
  grpc::ClientContext context;
  SetTimeout(&context);
  vllm_wire::GenerateRequest request = Greedy("for long", 4000, stream);
  request.set_request_id("cmpl-1");
  const auto reader = gateway.stub->Generate(&context, request);
  ASSERT_TRUE(Eventually([&] { return gateway.server.engine->stats().running == 1; }));
  leave(&gateway, &context);
  EXPECT_TRUE(gateway.server.WaitIdle());
  vllm_wire::GenerateResponse last;
  while (reader->Read(&last)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.error_code() == grpc::CANCELLED || last.complete().finish_reason() == "abort");
}

TEST(VllmServiceTest, AResetFreesThePagesWithoutAbort) {
  const auto reset = [](Gateway*, grpc::ClientContext* context) { context->TryCancel(); };
  Leave(/*stream=*/true, reset);
  Leave(/*stream=*/false, reset);
}

TEST(VllmServiceTest, AbortFreesThePages) {
  const auto abort = [](Gateway* gateway, grpc::ClientContext*) {
    grpc::ClientContext context;
    SetTimeout(&context);
    vllm_wire::AbortRequest request;
    request.add_request_ids("gone long since");
    request.add_request_ids("cmpl-1");
    vllm_wire::AbortResponse response;
    EXPECT_TRUE(gateway->stub->Abort(&context, request, &response).ok());
  };
  Leave(/*stream=*/true, abort);
  Leave(/*stream=*/false, abort);
}

TEST(VllmServiceTest, WhatAnAnswerCollectsCountsAgainstTheBudget) {
  TestCoreOptions options;
  options.limits.max_call_bytes = 64 << 10;
  Gateway gateway(options);
  const Answer whole = Generate(gateway, Greedy("much", 4000, false));
  EXPECT_EQ(whole.status.error_code(), grpc::RESOURCE_EXHAUSTED);
  // Its client knows before what it held is free.
  const auto all_free = [&] { return gateway.server.core->calls().bytes() == 0; };
  EXPECT_TRUE(Eventually(all_free));
  const Answer streamed = Generate(gateway, Greedy("much", 4000, true));
  EXPECT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_TRUE(gateway.server.WaitIdle());
  EXPECT_TRUE(Eventually(all_free));
}

TEST(VllmServiceTest, ADrainIsHealthAndRefusals) {
  Gateway gateway;
  EXPECT_TRUE(gateway.Ask(&VllmApi::Stub::HealthCheck).healthy());
  gateway.server.server->Drain();
  const vllm_wire::HealthCheckResponse health = gateway.Ask(&VllmApi::Stub::HealthCheck);
  EXPECT_FALSE(health.healthy());
  EXPECT_EQ(health.message(), "draining");
  EXPECT_EQ(Generate(gateway, Greedy("a", 1, true)).status.error_code(), grpc::UNAVAILABLE);
}

TEST(VllmServiceTest, WhatItIs) {
  Gateway gateway;
  const vllm_wire::GetModelInfoResponse model = gateway.Ask(&VllmApi::Stub::GetModelInfo);
  EXPECT_EQ(model.model_path(), "/foxserve/scripted");
  EXPECT_EQ(model.tokenizer_path(), "/foxserve/scripted");
  EXPECT_EQ(model.served_model_name(), "scripted");
  EXPECT_TRUE(model.is_generation());
  EXPECT_EQ(model.max_context_length(), 4096u);
  EXPECT_EQ(model.max_req_input_len(), 4095);
  EXPECT_EQ(model.eos_token_ids_size(), 1);
  EXPECT_NE(model.default_sampling_params_json().find("\"temperature\":1.0"), std::string::npos);
  const vllm_wire::GetServerInfoResponse server = gateway.Ask(&VllmApi::Stub::GetServerInfo);
  EXPECT_EQ(server.server_type(), "foxserve");
  EXPECT_EQ(server.max_num_seqs(), 4);
}

TEST(VllmServiceTest, LoadsAreTheEngines) {
  Gateway gateway;
  gateway.server.script->step_delay_us = 2000;
  grpc::ClientContext context;
  SetTimeout(&context);
  vllm_wire::GenerateRequest request = Greedy("for long", 4000, false);
  request.mutable_sampling_params()->set_n(6);  // of which four run at once
  const auto reader = gateway.stub->Generate(&context, request);
  EXPECT_TRUE(Eventually([&] {
    const vllm_wire::SchedulerLoad load = gateway.Ask(&VllmApi::Stub::GetLoads).loads(0);
    return load.num_running_reqs() == 4 && load.num_waiting_reqs() == 2 &&
           load.num_total_reqs() == 6 && load.token_usage() > 0 && load.token_usage() < 1 &&
           load.num_waiting_uncached_tokens() == 18;
  }));
  context.TryCancel();
  EXPECT_TRUE(gateway.server.WaitIdle());
  EXPECT_EQ(gateway.Ask(&VllmApi::Stub::GetLoads).loads(0).token_usage(), 0);
}

}  // namespace
}  // namespace fox
