// TestServer: a whole server in the test's process: a TestCore, its port on loopback, and a channel
// to it.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fox/v1/admin.grpc.pb.h"
#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "fox/v1/tokenizer.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "server/rpc/grpc_server.h"
#include "tests/e2e/test_core.h"

namespace fox {

class TestServer : public TestCore {
 public:
  explicit TestServer(const TestCoreOptions& options = {});
  TestServer(const TestCoreOptions& options, const GrpcServerOptions& port);
  ~TestServer();

  // A new connection; the window is small so that a reader that does not read is noticed soon.
  std::shared_ptr<grpc::Channel> Connect() const;
  v1::Load Load();

  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference;
};

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

// One message each way, unary or over a stream, with any service; `request` and `response` are the
// messages' bytes, `response` null: of no interest.
grpc::Status Exchange(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                      const std::string& request, std::string* response = nullptr);

// Sets a deadline so that no test can hang.
void SetTimeout(grpc::ClientContext* context, int milliseconds = 20000);

// A stream that runs on a thread of its own until it ends or is cancelled.
class BackgroundStream {
 public:
  // `client`: its name for --client-metadata x-client.
  BackgroundStream(TestServer& server, const v1::GenerateRequest& request,
                   const std::string& client = "")
      : stub_(v1::Inference::NewStub(server.channel)) {
    SetTimeout(&context);
    if (!client.empty()) context.AddMetadata("x-client", client);
    thread_ = std::thread([this, request] { result = ReadStream(*stub_, request, &context); });
  }
  ~BackgroundStream() { Join(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  grpc::ClientContext context;
  StreamResult result;

 private:
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::thread thread_;
};

}  // namespace fox
