// sentencepiece, gRPC, Protobuf and Abseil in one process: all start, and all work.
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

TEST(GrpcProcessTest, EncodesBesideARunningServer) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  grpc::AsyncGenericService service;
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  EXPECT_TRUE(
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)));

  const auto tokenizer = LoadDemo();
  const auto ids = tokenizer->Encode("Once upon a time", true);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(Detokenize(*tokenizer, *ids, true), "Once upon a time");
  EXPECT_NE(google::protobuf::DescriptorPool::generated_pool(), nullptr);

  server->Shutdown();
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
}

}  // namespace
}  // namespace fox
