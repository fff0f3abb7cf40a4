// GetTokenizer, read, not read, and left before there is anything to read.
#include "server/rpc/archive_reactor.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/e2e/test_server.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace fox {
namespace {

using Engine = ::vllm::grpc::engine::VllmEngine;
using TokenizerChunk = smg::grpc::common::GetTokenizerChunk;

TEST(ArchiveReactorTest, TheTokenizerComesInPieces) {
  TestServer server;
  for (int time = 0; time < 2; ++time) {
    grpc::ClientContext context;
    SetTimeout(&context);
    const auto reader = Engine::NewStub(server.channel)->GetTokenizer(&context, {});
    std::string bytes;
    TokenizerChunk chunk;
    for (TokenizerChunk next; reader->Read(&next); chunk = next) {
      EXPECT_LE(next.data().size(), size_t{64} << 10);
      EXPECT_TRUE(chunk.sha256().empty());  // of those before the last
      bytes += next.data();
    }
    EXPECT_TRUE(reader->Finish().ok());
    const auto archive = MakeTokenizerArchive(&server.tokenizer);
    EXPECT_EQ(bytes, archive->bytes);
    EXPECT_EQ(chunk.sha256(), archive->sha256);
  }
  EXPECT_TRUE(server.WaitIdle());

  TestCoreOptions options;
  options.with_tokenizer = false;
  TestServer without(options);
  grpc::ClientContext context;
  const auto reader = Engine::NewStub(without.channel)->GetTokenizer(&context, {});
  TokenizerChunk chunk;
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_EQ(reader->Finish().error_code(), grpc::FAILED_PRECONDITION);
}

TEST(ArchiveReactorTest, WhoDoesNotReadTheTokenizerIsCutOff) {
  TestCoreOptions options;
  options.limits.stall_timeout = 0.2;
  TestServer server(options);
  for (bool cancel : {false, true}) {
    grpc::ClientContext context;
    SetTimeout(&context);
    const auto reader = Engine::NewStub(server.channel)->GetTokenizer(&context, {});
    EXPECT_TRUE(Eventually([&] { return server.core->calls().calls() == 1; }));
    if (cancel) context.TryCancel();
    EXPECT_TRUE(server.WaitIdle());
    TokenizerChunk chunk;
    while (reader->Read(&chunk)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), cancel ? grpc::CANCELLED : grpc::ABORTED);
  }
}

TEST(ArchiveReactorTest, WhoLeavesBeforeTheTokenizerIsMadeIsLetGo) {
  TestServer server;
  std::promise<void> busy;
  server.core->tokenizing().Post(1, 0, [done = busy.get_future().share()] { done.wait(); });
  grpc::ClientContext context;
  SetTimeout(&context);
  const auto reader = Engine::NewStub(server.channel)->GetTokenizer(&context, {});
  EXPECT_TRUE(Eventually([&] { return server.core->calls().calls() == 1; }));
  context.TryCancel();
  EXPECT_TRUE(server.WaitIdle());
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  busy.set_value();
}

}  // namespace
}  // namespace fox
