// TestServer: see test_server.h.
#include "tests/e2e/test_server.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "server/log.h"

namespace fox {

TestServer::TestServer(const TestServerOptions& options) {
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  google::protobuf::SetLogHandler(nullptr);  // malformed requests are sent on purpose
  ExecutorLimits limits;
  limits.num_pages = 4096;
  limits.lists_per_slot = 2;
  limits.max_num_seqs = options.max_num_seqs;
  limits.max_model_len = options.max_model_len;
  limits.max_num_batched_tokens = 256;
  limits.max_logit_rows = 256;
  limits.vocab_size = CharacterTokenizer::kVocabSize;
  executor = std::make_unique<ScriptedExecutor>(limits, script);

  ConversionContext context;
  context.engine.acp = options.acp;
  context.engine.max_num_queued_reqs = options.max_num_queued_reqs;
  context.engine.eos_token_ids = {CharacterTokenizer::kEos};
  context.limits = limits;
  context.tokenizer = options.with_tokenizer ? &tokenizer : nullptr;
  context.served_model_name = "scripted";
  context.max_prompt_bytes = 64 << 10;
  engine = std::make_unique<EngineThread>(std::make_unique<Engine>(context.engine, *executor));

  ModelConfig model;
  model.vocab_size = limits.vocab_size;
  model.eos_token_ids = context.engine.eos_token_ids;
  core = std::make_unique<ServerCore>(*engine, model, context,
                                      ServerDescription{"0.0", "", "none", "f32", "f32"});
  absl::StatusOr<std::unique_ptr<GrpcServer>> started =
      GrpcServer::Start(*core, GrpcServerOptions(), nullptr);
  EXPECT_TRUE(started.ok()) << started.status();
  server = *std::move(started);
  channel = Connect();
  inference = v1::Inference::NewStub(channel);
}

TestServer::~TestServer() {
  server->Stop(0);
  engine->Stop();
}

std::shared_ptr<grpc::Channel> TestServer::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server->port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

bool TestServer::WaitIdle() {
  for (int i = 0; i < 500; ++i) {
    const EngineStats stats = engine->stats();
    if (core->Idle() && stats.running == 0 && stats.waiting == 0 &&
        stats.free_pages == stats.num_pages) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

v1::Load TestServer::Load() {
  grpc::ClientContext context;
  SetTimeout(&context);
  v1::Load load;
  EXPECT_TRUE(v1::Info::NewStub(channel)->GetLoad(&context, {}, &load).ok());
  return load;
}

v1::GenerateRequest GreedyRequest(const std::string& prompt, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

std::string ExpectedText(const std::string& prompt, int tokens) {
  int32_t last = static_cast<unsigned char>(prompt.back());
  auto position = static_cast<int64_t>(prompt.size());  // of the last prompt token, after bos
  std::string text;
  for (int i = 0; i < tokens; ++i) {
    last = ScriptedExecutor::NextToken(last, position++);
    text.push_back(static_cast<char>(last));
  }
  return text;
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
