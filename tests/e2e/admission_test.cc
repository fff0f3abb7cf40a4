// Admission of gRPC messages: budgets and refusals before a message is parsed, and cancellations
// and stops while messages wait.
#include <gtest/gtest.h>
#include <malloc.h>

#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "google/protobuf/any.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

// Holds both pools of admission until it is opened or destroyed.
class Gate {
 public:
  explicit Gate(ServerCore& core) {
    for (AdmissionPool* pool : {&core.admission(), &core.tokenizing()}) {
      for (const int64_t bytes : {0, 1 << 30})
        pool->Post(0, bytes, [open = open_] { open.wait(); });
      // Its threads wait here, before another task comes, which would be served first.
      EXPECT_TRUE(Eventually([pool] { return pool->queued() == 0; })) << pool->queued();
    }
  }
  ~Gate() { Open(); }
  void Open() {
    if (!opened_) gate_.set_value();
    opened_ = true;
  }

 private:
  std::promise<void> gate_;
  std::shared_future<void> open_ = gate_.get_future().share();
  bool opened_ = false;
};

// A message of one mebibyte whose parsed form takes thirty.
v1::GenerateRequest Bomb() {
  v1::GenerateRequest request = GreedyRequest("boom", 2);
  for (int i = 0; i < 1 << 19; ++i) request.mutable_stopping()->add_stop("");
  return request;
}

TEST(AdmissionTest, CompressedMessagesAreUnimplemented) {
  TestServer server;
  for (grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    SCOPED_TRACE(algorithm);
    grpc::ClientContext context;
    SetTimeout(&context);
    context.set_compression_algorithm(algorithm);
    v1::GenerateResponse response;
    const v1::GenerateRequest request = GreedyRequest(std::string(1000, 'x'), 2);
    EXPECT_EQ(server.inference->Generate(&context, request, &response).error_code(),
              grpc::UNIMPLEMENTED);
  }
}

TEST(AdmissionTest, MessagesAreHeldToTheBudgetBeforeTheyAreParsed) {
  TestCoreOptions options;
  options.limits.max_call_bytes = 10 << 20;  // two messages of a mebibyte, one for a client
  TestServer server(options);
  Gate gate(*server.core);
  const v1::GenerateRequest bomb = Bomb();
  OpenStream first(server.channel, bomb);
  ASSERT_TRUE(Eventually([&] { return server.core->calls().calls() == 1; }));
  EXPECT_GE(server.core->calls().bytes(), 4 << 20);
  OpenStream second(server.channel, bomb);  // on the same connection: on loopback, one client
  EXPECT_EQ(second.End().error_code(), grpc::RESOURCE_EXHAUSTED);
  OpenStream other(server.Connect(), GreedyRequest("polite", 2));
  ASSERT_TRUE(Eventually([&] { return server.core->calls().calls() == 2; }));
  // No message has been parsed, and gRPC's threads are free.
  EXPECT_EQ(server.Load().calls(), 3u);
  EXPECT_EQ(server.Load().requests_rejected(), 1u);
  gate.Open();
  EXPECT_TRUE(other.End().ok());
  EXPECT_EQ(first.End().error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return server.core->calls().bytes() == 0; }));
}

TEST(AdmissionTest, ARefusalSaysWhenToRetry) {
  TestCoreOptions options;
  options.limits.max_call_bytes = 9000;  // two messages of 800 bytes, one for a client
  TestServer server(options);
  Gate gate(*server.core);
  OpenStream first(server.channel, GreedyRequest(std::string(800, 'x'), 2));
  ASSERT_TRUE(Eventually([&] { return server.core->calls().calls() == 1; }));
  grpc::ClientContext context;
  SetTimeout(&context);
  v1::GenerateResponse response;
  const grpc::Status status =
      server.inference->Generate(&context, GreedyRequest(std::string(800, 'x'), 2), &response);
  gate.Open();
  ASSERT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("retry-after-ms"), 1u);
  // google.rpc.Status: code, message, then the details from field 3 on.
  const std::string head = absl::StrCat(
      std::string("\x08\x08\x12"), std::string(1, static_cast<char>(status.error_message().size())),
      status.error_message(), "\x1a");
  const std::string& details = status.error_details();
  ASSERT_EQ(details.substr(0, head.size()), head);
  google::protobuf::Any detail;
  ASSERT_TRUE(detail.ParseFromString(details.substr(head.size() + 1)));
  EXPECT_EQ(detail.type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  EXPECT_FALSE(detail.value().empty());
}

TEST(AdmissionTest, ACancelledTextIsFreedBeforeItsTurn) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the memory of the program";
#endif
  constexpr size_t kCalls = 20, kBytes = 1 << 20;
  const auto in_use = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  TestCoreOptions options;
  options.limits.max_call_bytes = int64_t{1} << 30;
  TestServer server(options);
  Gate gate(*server.core);
  v1::TokenizeRequest request;
  request.set_text(std::string(kBytes, 'x'));
  const size_t before = in_use();
  std::shared_ptr<grpc::Channel> connection = server.Connect();
  auto contexts = std::make_unique<grpc::ClientContext[]>(kCalls);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kCalls; ++i) {
    clients.emplace_back([&, i] {
      v1::TokenizeResponse response;
      const auto stub = v1::Tokenizer::NewStub(connection);
      EXPECT_FALSE(stub->Tokenize(&contexts[i], request, &response).ok()) << i;
    });
  }
  EXPECT_TRUE(Eventually([&] { return server.core->tokenizing().queued() == kCalls; }));
  EXPECT_GT(in_use(), before + kCalls * kBytes);
  for (size_t i = 0; i < kCalls; ++i) contexts[i].TryCancel();
  for (std::thread& client : clients) client.join();
  // Until its connection closes, gRPC keeps buffers as large as its largest read.
  contexts.reset();
  connection.reset();
  EXPECT_TRUE(Eventually([&] { return in_use() < before + kCalls * kBytes / 2; }));
  EXPECT_EQ(server.core->tokenizing().queued(), kCalls);
}

TEST(AdmissionTest, AStopDoesNotWaitForTextsInAdmission) {
  TestServer server;
  Gate gate(*server.core);
  OpenStream prompt(server.channel, GreedyRequest("waits", 2));
  grpc::ClientContext context;
  SetTimeout(&context);
  std::thread client([&] {
    v1::TokenizeRequest request;
    request.set_text("waits too");
    v1::TokenizeResponse response;
    EXPECT_FALSE(
        v1::Tokenizer::NewStub(server.channel)->Tokenize(&context, request, &response).ok());
  });
  ASSERT_TRUE(Eventually([&] { return server.core->calls().calls() == 2; }));
  const auto start = std::chrono::steady_clock::now();
  server.server->Stop(0.1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1100));
  client.join();
}

}  // namespace
}  // namespace fox
