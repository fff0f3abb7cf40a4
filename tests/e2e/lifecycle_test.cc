// The life of a server from opening its port to closing it: health, reflection, drain and stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "grpc/health/v1/health.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

// 1: SERVING, 2: NOT_SERVING; -1: the call failed.
int HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  std::string bytes;
  const grpc::Status status =
      Exchange(channel, "/grpc.health.v1.Health/Check", request.SerializeAsString(), &bytes);
  grpc::health::v1::HealthCheckResponse response;
  if (!status.ok() || !response.ParseFromString(bytes)) return -1;
  return response.status();
}

const char* const kServices[] = {"", "fox.v1.Inference", "fox.v1.Tokenizer", "fox.v1.Info",
                                 "fox.v1.Admin"};

grpc::StatusCode GenerateCode(TestServer& server) {
  grpc::ClientContext context;
  SetTimeout(&context);
  v1::GenerateResponse response;
  return server.inference->Generate(&context, GreedyRequest("x", 2), &response).error_code();
}

// The HTTP endpoint outlives the gRPC server and asks for its health.
TEST(LifecycleTest, ServingMayBeCalledDuringAStop) {
  TestServer server;
  std::atomic<bool> stopped{false};
  std::thread asks([&] {
    while (!stopped) server.server->serving();
  });
  EXPECT_TRUE(server.server->Stop(0));
  stopped = true;
  asks.join();
  EXPECT_FALSE(server.server->serving());
}

// grpcurl describes and calls a listed service by the file that reflection has of it.
TEST(LifecycleTest, ReflectionListsAndDescribesTheServices) {
  TestServer server;
  const auto ask = [&](const std::string& request) {
    std::string response;
    const grpc::Status status =
        Exchange(server.channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                 request, &response);
    return status.ok() ? response : status.error_message();
  };
  // ServerReflectionRequest: list_services is field 7, file_containing_symbol field 4.
  const std::string list = ask("\x3a\x01*");
  for (const auto& [service, message] :
       std::map<std::string, std::string>{{"fox.v1.Inference", "GenerateRequest"},
                                          {"fox.v1.Tokenizer", "TokenizeRequest"},
                                          {"fox.v1.Info", "GetLoadRequest"},
                                          {"fox.v1.Admin", "DrainRequest"},
                                          {"grpc.health.v1.Health", "HealthCheckRequest"}}) {
    EXPECT_THAT(list, testing::HasSubstr(service));
    EXPECT_THAT(ask("\x22" + std::string(1, static_cast<char>(service.size())) + service),
                testing::HasSubstr(message));
  }
}

// Reflection blocks a thread for each stream.
TEST(LifecycleTest, OpenReflectionStreamsTakeFewThreads) {
  TestServer server;
  const auto threads = [] {
    std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  grpc::GenericStub stub(server.channel);
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> streams;
  const auto before = threads();
  for (int i = 0; i < 100; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(
        stub.PrepareCall(contexts.back().get(),
                         "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue));
    streams.back()->StartCall(nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  }
  EXPECT_EQ(GenerateCode(server), grpc::OK);
  EXPECT_EQ(HealthOf(server.channel, ""), 1);
  EXPECT_LE(threads(), before + 20);
  for (size_t i = 0; i < streams.size(); ++i) {
    contexts[i]->TryCancel();
    grpc::Status status;
    streams[i]->Finish(&status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  }
}

TEST(LifecycleTest, UndrainTakesRequestsAgainUntilTheServerShutsDown) {
  TestServer server;
  std::unique_ptr<v1::Admin::Stub> admin = v1::Admin::NewStub(server.channel);
  v1::DrainResponse drained;
  v1::UndrainResponse undrained;
  grpc::ClientContext first, second, third;
  ASSERT_TRUE(admin->Drain(&first, {}, &drained).ok());
  EXPECT_EQ(HealthOf(server.channel, ""), 2);
  EXPECT_EQ(GenerateCode(server), grpc::UNAVAILABLE);
  ASSERT_TRUE(admin->Undrain(&second, {}, &undrained).ok());
  EXPECT_EQ(HealthOf(server.channel, ""), 1);
  EXPECT_EQ(GenerateCode(server), grpc::OK);
  server.core->ShutDown();
  EXPECT_EQ(admin->Undrain(&third, {}, &undrained).error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(GenerateCode(server), grpc::UNAVAILABLE);
}

TEST(LifecycleTest, AnAdminAddressIsTheOnlyOneWithAdmin) {
  GrpcServerOptions port;
  port.admin = AcceptorOptions();
  TestServer server({}, port);
  v1::DrainResponse drained;
  grpc::ClientContext first, second, third;
  EXPECT_EQ(v1::Admin::NewStub(server.channel)->Drain(&first, {}, &drained).error_code(),
            grpc::UNIMPLEMENTED);
  const auto operators =
      grpc::CreateChannel("127.0.0.1:" + std::to_string(server.server->admin_port()),
                          grpc::InsecureChannelCredentials());
  v1::Load load;  // complete, with the fields that concern all clients
  EXPECT_TRUE(v1::Info::NewStub(operators)->GetLoad(&second, {}, &load).ok());
  EXPECT_FALSE(load.partial());
  EXPECT_GT(load.num_pages(), 0u);
  load = server.Load();
  EXPECT_TRUE(load.partial());
  EXPECT_EQ(load.num_pages(), 0u);
  EXPECT_EQ(GenerateCode(server), grpc::OK);
  EXPECT_TRUE(v1::Admin::NewStub(operators)->Drain(&third, {}, &drained).ok());
  EXPECT_EQ(GenerateCode(server), grpc::UNAVAILABLE);
}

// An answer that is generated but not yet read has the grace, too.
TEST(LifecycleTest, AStopWaitsForTheReaderOfAFinishedAnswer) {
  TestServer server;
  v1::GenerateRequest request = GreedyRequest("slow", 2000);
  request.mutable_output()->set_logprobs(20);  // half a megabyte: more than the connection holds
  UnreadAnswer answer(server.Connect(), request);
  while (server.engine->stats().finished == 0) std::this_thread::yield();
  std::thread stop([&] { server.server->Stop(20); });
  // Longer than a stop that waits for the engine alone.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  v1::GenerateResponse response;
  const grpc::Status status = answer.Read(&response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.ByteSizeLong(), 300000u);
  const auto read = std::chrono::steady_clock::now();
  stop.join();
  EXPECT_LT(std::chrono::steady_clock::now() - read, std::chrono::seconds(2));
}

TEST(LifecycleTest, DrainLetsRunningRequestsFinish) {
  TestServer server;
  server.script->step_delay_us = 5000;
  for (const char* service : kServices) EXPECT_EQ(HealthOf(server.channel, service), 1) << service;
  OpenStream stream(server.channel, GreedyRequest("drain", 100));
  while (server.engine->stats().running == 0) std::this_thread::yield();

  v1::DrainResponse drained;
  grpc::ClientContext drain_context;
  SetTimeout(&drain_context);
  ASSERT_TRUE(v1::Admin::NewStub(server.channel)->Drain(&drain_context, {}, &drained).ok());
  EXPECT_EQ(drained.running(), 1u);
  for (const char* service : kServices) EXPECT_EQ(HealthOf(server.channel, service), 2) << service;
  EXPECT_EQ(GenerateCode(server), grpc::UNAVAILABLE);
  EXPECT_TRUE(stream.End().ok());
  EXPECT_EQ(stream.text, ExpectedText("drain", 100));
}

TEST(LifecycleTest, AStopEndsRequestsAfterTheGraceOrWhenForcedWithUnavailable) {
  for (const bool forced : {false, true}) {
    SCOPED_TRACE(forced);
    TestServer server;
    server.script->step_delay_us = 10000;
    OpenStream stream(server.channel, GreedyRequest("long", 4000));
    while (server.engine->stats().generated_tokens < 2) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    server.server->Stop(forced ? 60 : 0.2, [&] { return forced; });
    EXPECT_EQ(stream.End().error_code(), grpc::UNAVAILABLE);
    EXPECT_FALSE(stream.text.empty());
    EXPECT_EQ(stream.text, ExpectedText("long", stream.text.size()));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  }
}

// Such calls come on connections that were open before. When gRPC has begun to shut down it would
// end them with CANCELLED, and clients do not repeat cancelled calls.
TEST(LifecycleTest, CallsUntilTheVeryEndAreUnavailable) {
  std::mutex mutex;
  std::map<grpc::StatusCode, int> codes;
  for (int round = 0; round < 10; ++round) {
    TestServer server;
    server.script->step_delay_us = 2000;
    std::atomic<bool> over{false};
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) {
      callers.emplace_back([&, channel = server.Connect()] {
        const std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(channel);
        while (!over) {
          grpc::ClientContext context;
          SetTimeout(&context);
          v1::GenerateResponse response;
          const auto code = stub->Generate(&context, GreedyRequest("x", 5), &response).error_code();
          const std::lock_guard<std::mutex> lock(mutex);
          ++codes[code];
        }
      });
    }
    ASSERT_TRUE(Eventually([&] { return server.engine->stats().finished > 20; }));
    server.server->Stop(0.02);
    over = true;
    for (std::thread& caller : callers) caller.join();
  }
  EXPECT_GT(codes[grpc::UNAVAILABLE], 100);
  for (const auto& [code, count] : codes) {
    EXPECT_TRUE(code == grpc::OK || code == grpc::UNAVAILABLE || code == grpc::RESOURCE_EXHAUSTED)
        << count << " times " << code;
  }
}

}  // namespace
}  // namespace fox
