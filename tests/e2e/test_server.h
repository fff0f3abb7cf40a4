// TestServer: a whole server in the test's process: a TestCore, its ports on loopback, and a
// channel to that of gRPC.
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
#include "grpcpp/completion_queue.h"
#include "server/http/http_server.h"
#include "server/http/openai_service.h"
#include "server/rpc/grpc_server.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/raw_call.h"
#include "tests/e2e/test_core.h"

namespace fox {

class TestServer : public TestCore {
 public:
  explicit TestServer(const TestCoreOptions& options = {});
  TestServer(const TestCoreOptions& options, const GrpcServerOptions& port);
  TestServer(const TestCoreOptions& options, const HttpServerOptions& http_port);
  ~TestServer();

  // A new connection; the window is small so that a reader that does not read is noticed soon.
  std::shared_ptr<grpc::Channel> Connect() const;
  HttpClient ConnectHttp() const { return HttpClient(http->port()); }
  v1::Load Load();

  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<HttpServer> http;
  OpenAiService service{*core, [this] { return server->serving(); }};
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference;

 private:
  void Start(const GrpcServerOptions& port, HttpServerOptions http_port);
  const double stall_timeout_;
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

// Sets a deadline so that no test can hang.
void SetTimeout(grpc::ClientContext* context, int milliseconds = 20000);

// A stream that was started and is read when the test wants it; cancelled at the end.
class OpenStream {
 public:
  OpenStream(const std::shared_ptr<grpc::Channel>& channel, const v1::GenerateRequest& request,
             const std::string& authorization = "")
      : stub_(v1::Inference::NewStub(channel)) {
    SetTimeout(&context);
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    reader_ = stub_->GenerateStream(&context, request);
  }
  ~OpenStream() {
    context.TryCancel();
    if (!ended_) End();
  }
  bool Read(v1::GenerateDelta* event) { return reader_->Read(event); }
  // Reads what comes; how it ended.
  grpc::Status End() {
    ended_ = true;
    for (v1::GenerateDelta event; reader_->Read(&event);) {
      text += event.delta().text();
      if (event.has_finish()) reason = event.finish().reason();
    }
    return reader_->Finish();
  }

  grpc::ClientContext context;
  std::string text;              // read by End
  v1::FinishReason reason = {};  // of the last sequence

 private:
  const std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateDelta>> reader_;
  bool ended_ = false;
};

// An answer as a whole that is taken off the connection when the test wants it.
class UnreadAnswer {
 public:
  UnreadAnswer(const std::shared_ptr<grpc::Channel>& channel, const v1::GenerateRequest& request)
      : stub_(v1::Inference::NewStub(channel)) {
    SetTimeout(&context_);
    call_ = stub_->AsyncGenerate(&context_, request, &queue_);
    call_->ReadInitialMetadata(nullptr);  // sends the request and asks for nothing more
  }
  grpc::Status Read(v1::GenerateResponse* response) {
    grpc::Status status;
    call_->Finish(response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    for (int i = 0; i < 2; ++i) queue_.Next(&tag, &ok);
    return status;
  }

 private:
  const std::unique_ptr<v1::Inference::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::GenerateResponse>> call_;
};

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
