// grpc.health.v1 over a real port: what Check and Watch say, and what calls may hold that send no
// message.
#include "server/rpc/health_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

// A call that has sent its headers, and nothing else yet.
class OpenCall {
 public:
  OpenCall(const std::shared_ptr<grpc::Channel>& channel, const char* method,
           const std::string& client = "")
      : stub_(channel) {
    SetTimeout(&context_);
    if (!client.empty()) context_.AddMetadata("x-client", client);
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Wait();
  }
  ~OpenCall() {
    context_.TryCancel();
    if (!ended_) End();
  }

  void Send(const std::string& service) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    const grpc::Slice slice(request.SerializeAsString());
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    Wait();
  }
  // The next status; 0: there will be none.
  int Read() {
    grpc::ByteBuffer bytes;
    call_->Read(&bytes, nullptr);
    grpc::Slice slice;
    grpc::health::v1::HealthCheckResponse response;
    if (!Wait() || !bytes.DumpToSingleSlice(&slice).ok()) return 0;
    EXPECT_TRUE(response.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    return response.status();
  }
  // Waits for the call's end.
  grpc::Status End() {
    grpc::Status status;
    ended_ = true;
    call_->Finish(&status, nullptr);
    Wait();
    return status;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool ended_ = false;
};

int Check(const std::shared_ptr<grpc::Channel>& channel) {
  OpenCall call(channel, kCheck);
  call.Send("");
  return call.Read();
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(HealthServiceTest, WhatIsNotKnownOrNoMessageIsToldSo) {
  const TestServer server;
  OpenCall unknown(server.channel, kCheck);
  unknown.Send("fox.v1.Nothing");
  EXPECT_EQ(unknown.End().error_code(), grpc::NOT_FOUND);
  for (const char* method : {kCheck, kWatch}) {
    EXPECT_EQ(Exchange(server.channel, method, "\xff\xff").error_code(), grpc::INVALID_ARGUMENT)
        << method;
  }
}

TEST(HealthServiceTest, AWatchTellsEachChangeAndNothingElse) {
  const TestServer server;
  OpenCall all(server.channel, kWatch), one(server.channel, kWatch), none(server.channel, kWatch);
  all.Send("");
  one.Send("fox.v1.Info");
  none.Send("fox.v1.Nothing");
  EXPECT_EQ(all.Read(), 1);
  EXPECT_EQ(one.Read(), 1);
  EXPECT_EQ(none.Read(), 3);
  for (int i = 0; i < 3; ++i) {
    server.server->Drain();
    EXPECT_EQ(all.Read(), 2);
    EXPECT_EQ(one.Read(), 2);
    ASSERT_TRUE(server.core->Undrain().ok());  // told at the next tick
    EXPECT_EQ(all.Read(), 1);
    EXPECT_EQ(one.Read(), 1);
  }
  EXPECT_EQ(server.core->calls().calls(), 0);  // a stop does not wait for them
  one.Cancel();
  EXPECT_EQ(one.End().error_code(), grpc::CANCELLED);
  server.server->Drain();
  EXPECT_EQ(all.Read(), 2);
  server.server->Stop(0);  // without a drain, the end of the call may come before the status
  EXPECT_EQ(all.Read(), 0);
}

TEST(HealthServiceTest, ACheckWithoutAMessageEndsInTwoSeconds) {
  const TestServer server;
  const auto start = std::chrono::steady_clock::now();
  OpenCall silent(server.channel, kCheck);
  const grpc::Status status = silent.End();
  EXPECT_EQ(status.error_code(), grpc::ABORTED);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("for 2 s"));
  EXPECT_GE(SecondsSince(start), 2);
  EXPECT_LT(SecondsSince(start), 6);
}

TEST(HealthServiceTest, AConnectionHasFewChecks) {
  const TestServer server;
  const std::shared_ptr<grpc::Channel> other = server.Connect();
  std::vector<std::unique_ptr<OpenCall>> silent;
  for (int i = 0; i < 2 * PublicCallLimit::kMaxOfAClient; ++i) {
    silent.push_back(std::make_unique<OpenCall>(server.channel, kCheck));
  }
  OpenCall refused(server.channel, kCheck);
  EXPECT_EQ(refused.End().error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Check(other), 1);
  silent.clear();
  EXPECT_TRUE(Eventually([&] { return Check(server.channel) == 1; }));
  for (int i = 0; i < 10 * PublicCallLimit::kMaxOfAClient; ++i) {  // they leave again
    ASSERT_EQ(Check(server.channel), 1);
  }
}

// Behind a proxy clients share connections.
TEST(HealthServiceTest, ANamedClientHasFewChecksOnAllConnections) {
  TestCoreOptions options;
  options.limits.client_metadata = "x-client";
  const TestServer server(options);
  const std::shared_ptr<grpc::Channel> channels[] = {server.channel, server.Connect()};
  std::vector<std::unique_ptr<OpenCall>> silent;
  for (int i = 0; i < 2 * PublicCallLimit::kMaxOfAClient; ++i) {
    silent.push_back(std::make_unique<OpenCall>(channels[i % 2], kCheck, "mallory"));
  }
  EXPECT_EQ(silent.back()->End().error_code(), grpc::RESOURCE_EXHAUSTED);
  OpenCall other(server.channel, kCheck, "alice");
  other.Send("");
  EXPECT_EQ(other.Read(), 1);
}

// 64 silent calls of many connections stay. Clients with few calls are not the first to go.
TEST(HealthServiceTest, AllConnectionsTogetherHaveFewChecks) {
  const TestServer server;
  const std::shared_ptr<grpc::Channel> polite = server.Connect();
  ASSERT_EQ(Check(polite), 1);
  OpenCall early(polite, kCheck);
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::unique_ptr<OpenCall>> silent;
  for (int i = 0; i < 8; ++i) channels.push_back(server.Connect());
  for (int i = 0; i < 80; ++i) {
    silent.push_back(std::make_unique<OpenCall>(channels[static_cast<size_t>(i) % 8], kCheck));
  }
  EXPECT_THAT(silent.front()->End().error_message(), ::testing::HasSubstr("too many calls"));
  EXPECT_THAT(silent.back()->End().error_message(), ::testing::HasSubstr("for 2 s"));
  EXPECT_EQ(Check(polite), 1);
  early.Send("");
}

TEST(HealthServiceTest, WatchesHaveABudget) {
  const TestServer server;
  std::vector<std::unique_ptr<OpenCall>> open;
  grpc::Status status;
  for (int i = 0; i < 1100 && status.ok(); ++i) {
    open.push_back(std::make_unique<OpenCall>(server.channel, kWatch));
    open.back()->Send("");
    if (open.back()->Read() == 0) status = open.back()->End();
  }
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_LT(open.size(), 1025u);  // a 64th is for other clients
  OpenCall other(server.Connect(), kWatch);
  other.Send("");
  EXPECT_EQ(other.Read(), 1);
}

}  // namespace
}  // namespace fox
