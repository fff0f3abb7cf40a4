// TestServer: see test_server.h.
#include "tests/e2e/test_server.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"

namespace fox {

TestServer::TestServer(const TestCoreOptions& options) : TestServer(options, GrpcServerOptions()) {}

TestServer::TestServer(const TestCoreOptions& options, const GrpcServerOptions& port)
    : TestCore(options), stall_timeout_(options.limits.stall_timeout) {
  Start(port, HttpServerOptions());
}

TestServer::TestServer(const TestCoreOptions& options, const HttpServerOptions& http_port)
    : TestCore(options), stall_timeout_(options.limits.stall_timeout) {
  Start(GrpcServerOptions(), http_port);
}

void TestServer::Start(const GrpcServerOptions& port, HttpServerOptions http_port) {
  google::protobuf::SetLogHandler(nullptr);  // malformed requests are sent on purpose
  absl::StatusOr<std::unique_ptr<GrpcServer>> started = GrpcServer::Start(*core, port, nullptr);
  EXPECT_TRUE(started.ok()) << started.status();
  server = *std::move(started);
  http_port.port.stall_timeout = stall_timeout_;
  auto listening = HttpServer::Listen(http_port);
  EXPECT_TRUE(listening.ok()) << listening.status();
  http = *std::move(listening);
  service.Register(http.get());
  http->Start();
  channel = Connect();
  inference = v1::Inference::NewStub(channel);
}

TestServer::~TestServer() {
  engine->Stop();
  server->Stop(0);
  http->Stop(1);
}

std::shared_ptr<grpc::Channel> TestServer::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server->port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

v1::Load TestServer::Load() {
  grpc::ClientContext context;
  SetTimeout(&context);
  v1::Load load;
  EXPECT_TRUE(v1::Info::NewStub(channel)->GetLoad(&context, {}, &load).ok());
  return load;
}

StreamResult ReadStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                        grpc::ClientContext* context) {
  StreamResult out;
  std::unique_ptr<grpc::ClientReader<v1::GenerateDelta>> reader =
      stub.GenerateStream(context, request);
  v1::GenerateDelta event;
  while (reader->Read(&event)) {
    if (event.has_prompt()) {
      out.prompt.MergeFrom(event.prompt());
    } else if (event.has_finish()) {
      out.finish.push_back(event.finish());
    } else {
      const size_t index = event.delta().index();
      if (out.text.size() <= index) out.text.resize(index + 1), out.ids.resize(index + 1);
      out.text[index] += event.delta().text();
      for (uint32_t id : event.delta().token_ids()) out.ids[index].push_back(id);
    }
  }
  out.status = reader->Finish();
  return out;
}

void SetTimeout(grpc::ClientContext* context, int milliseconds) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(milliseconds));
}

}  // namespace fox
