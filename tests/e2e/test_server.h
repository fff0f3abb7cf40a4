// TestServer: a whole server in the test's process: engine over a ScriptedExecutor, core, port on
// loopback, and a channel to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fox/v1/admin.grpc.pb.h"
#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "fox/v1/tokenizer.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "server/grpc_server.h"
#include "tests/e2e/character_tokenizer.h"
#include "tests/e2e/scripted_executor.h"

namespace fox {

struct TestServerOptions {
  int32_t max_num_seqs = 4;
  int64_t max_model_len = 4096;
  int64_t max_num_queued_reqs = 64;
  bool with_tokenizer = true;
  AcpMode acp = AcpMode::kCertified;
};

class TestServer {
 public:
  explicit TestServer(const TestServerOptions& options = {});
  ~TestServer();

  // A new connection; the window is small so that a reader that does not read is noticed soon.
  std::shared_ptr<grpc::Channel> Connect() const;
  // Waits until nothing runs and every page is free; false after five seconds.
  bool WaitIdle();
  v1::Load Load();

  std::shared_ptr<ExecutorScript> script = std::make_shared<ExecutorScript>();
  CharacterTokenizer tokenizer;
  std::unique_ptr<ScriptedExecutor> executor;
  std::unique_ptr<EngineThread> engine;
  std::unique_ptr<ServerCore> core;
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference;
};

// A request for `max_tokens` greedy tokens after `prompt`.
v1::GenerateRequest GreedyRequest(const std::string& prompt, uint32_t max_tokens);
// What the scripted executor generates after bos and `prompt`.
std::string ExpectedText(const std::string& prompt, int tokens);

// A whole stream, joined.
struct StreamResult {
  grpc::Status status;
  v1::PromptInfo prompt;
  std::vector<std::string> text;  // by index
  std::vector<std::vector<uint32_t>> ids;
  std::vector<v1::Finish> finish;  // in order of arrival
};
StreamResult ReadStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                        grpc::ClientContext* context);

// Sets a deadline so that no test can hang.
void SetTimeout(grpc::ClientContext* context, int milliseconds = 20000);

}  // namespace fox
