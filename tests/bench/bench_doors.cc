// fox-bench doors: what the way in costs. The same sequences run through the engine alone, through
// fox.v1 and through HTTP, in turns, on one engine in this process; the clients are in it, too.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/engine_factory.h"
#include "engine/eval/eval_command.h"
#include "engine/mutex.h"
#include "fox/v1/inference.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "server/http/openai_service.h"
#include "server/process/log.h"
#include "server/rpc/grpc_server.h"
#include "tests/bench/commands.h"
#include "tests/bench/measurement.h"

namespace fox {
namespace {

struct DoorFlags {
  std::string model = FOX_SOURCE_DIR "/models/demo", device = "auto", json;
  int64_t streams = 16, tokens = 128, rounds = 5, threads = 0;
};

absl::Status Parse(const std::vector<std::string>& arguments, DoorFlags* values) {
  FlagSet flags;
  flags.Group("Doors");
  flags.String("model", "DIR", "a model with a tokenizer", &values->model);
  flags.String("device", "NAME", "cpu, cuda or auto", &values->device);
  flags.Int("threads", "N", "of the CPU backend; 0: one per core", 0, 4096, &values->threads);
  flags.Int("streams", "N", "sequences at once", 1, 256, &values->streams);
  flags.Int("tokens", "N", "tokens of each", 1, 100000, &values->tokens);
  flags.Int("rounds", "N", "turns of each way", 1, 1000, &values->rounds);
  flags.String("json", "FILE", "writes all rows there", &values->json);
  return ParseOrHelp(flags, arguments, "fox-bench doors");
}

std::vector<int32_t> PromptOf(int64_t stream) {
  return {1, 2, 3, static_cast<int32_t>(10 + stream)};
}

// One engine and its doors.
struct Server {
  explicit Server(LoadedEngine loaded, std::unique_ptr<Tokenizer> text)
      : executor(std::move(loaded.executor)),
        tokenizer(std::move(text)),
        engine(std::move(loaded.engine)),
        core(engine, loaded.config, ContextOf(loaded), {"bench", "", "", "", ""}) {}
  ~Server() {
    if (grpc != nullptr) grpc->Stop(0);
    if (http != nullptr) http->Stop(0.1);
    engine.Stop();
  }
  ConversionContext ContextOf(const LoadedEngine& loaded) const {
    ConversionContext context;
    context.tokenizer = tokenizer.get();
    context.served_model_name = "bench";
    context.limits = executor->limits();
    context.engine = loaded.options;
    return context;
  }
  absl::Status Open() {
    auto started = GrpcServer::Start(core, GrpcServerOptions(), nullptr);
    if (!started.ok()) return started.status();
    grpc = *std::move(started);
    auto listening = HttpServer::Listen(HttpServerOptions());
    if (!listening.ok()) return listening.status();
    http = *std::move(listening);
    openai.Register(http.get());
    http->Start();
    return absl::OkStatus();
  }

  std::unique_ptr<StepExecutor> executor;
  std::unique_ptr<Tokenizer> tokenizer;
  EngineThread engine;
  ServerCore core;
  OpenAiService openai{core, [] { return true; }};
  std::unique_ptr<GrpcServer> grpc;
  std::unique_ptr<HttpServer> http;
};

void RunEngine(Server& server, const DoorFlags& flags) {
  Mutex mutex;
  CondVar wake;
  int64_t running = flags.streams;
  for (int64_t i = 0; i < flags.streams; ++i) {
    Request request;
    request.id = server.engine.NextId();
    request.prompt = PromptOf(i);
    request.client = static_cast<uint64_t>(i);
    request.sampling.seed = static_cast<uint64_t>(i);
    request.stop.max_tokens = static_cast<int32_t>(flags.tokens);
    request.stop.ignore_eos = true;
    server.engine.Submit(
        {request},
        [&](const RequestOutput& output) {
          if (!output.finish.has_value()) return;
          const MutexLock lock(mutex);
          if (--running == 0) wake.NotifyOne();
        },
        [](const absl::Status&) {});
  }
  const MutexLock lock(mutex);
  while (running > 0) wake.Wait(mutex);
}

// One stream of fox.v1, read as fast as it comes.
struct GrpcStream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateDelta>> reader;
  v1::GenerateDelta delta;
  grpc::Status status;
  bool ended = false;
};

// All streams on one thread, as an asynchronous client has them.
void RunGrpc(Server& server, const DoorFlags& flags) {
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", server.grpc->port()), grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<GrpcStream>> streams;
  for (int64_t i = 0; i < flags.streams; ++i) {
    v1::GenerateRequest request;
    for (int32_t id : PromptOf(i)) {
      request.mutable_token_ids()->add_ids(static_cast<uint32_t>(id));
    }
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
    request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(flags.tokens));
    request.mutable_stopping()->set_ignore_eos(true);
    auto stream = std::make_unique<GrpcStream>();
    stream->reader = stub->AsyncGenerateStream(&stream->context, request, &queue, stream.get());
    streams.push_back(std::move(stream));
  }
  void* tag = nullptr;
  bool ok = false;
  for (size_t running = streams.size(); running > 0 && queue.Next(&tag, &ok);) {
    auto* stream = static_cast<GrpcStream*>(tag);
    if (stream->ended) {
      --running;
    } else if (ok) {
      stream->reader->Read(&stream->delta, stream);
    } else {
      stream->ended = true;
      stream->reader->Finish(&stream->status, stream);
    }
  }
}

int Connect(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return socket;
}

void RunHttp(Server& server, const DoorFlags& flags) {
  std::vector<pollfd> open;
  for (int64_t i = 0; i < flags.streams; ++i) {
    const nlohmann::json body = {{"prompt", PromptOf(i)},
                                 {"seed", i},
                                 {"max_tokens", flags.tokens},
                                 {"ignore_eos", true},
                                 {"stream", true}};
    const std::string text = body.dump();
    const std::string request = absl::StrCat(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: ",
        text.size(), "\r\n\r\n", text);
    open.push_back({Connect(server.http->port()), POLLIN, 0});
    send(open.back().fd, request.data(), request.size(), MSG_NOSIGNAL);
  }
  std::array<char, 1 << 16> buffer{};
  for (size_t running = open.size(); running > 0;) {
    poll(open.data(), open.size(), -1);
    for (pollfd& stream : open) {
      if (stream.fd < 0 || stream.revents == 0) continue;
      if (recv(stream.fd, buffer.data(), buffer.size(), 0) > 0) continue;
      close(stream.fd);
      stream.fd = -1;
      --running;
    }
  }
}

absl::Status Measure(Server& server, const DoorFlags& flags) {
  const std::vector<std::pair<std::string, std::function<void(Server&, const DoorFlags&)>>> ways = {
      {"engine", RunEngine}, {"fox.v1", RunGrpc}, {"http", RunHttp}};
  std::map<std::string, std::vector<double>> seconds, processor;
  for (int64_t round = -1; round < flags.rounds; ++round) {  // the first one warms up
    for (const auto& [name, run] : ways) {
      const double start = Now();
      const std::clock_t used = std::clock();  // by all threads
      run(server, flags);
      if (round < 0) continue;
      seconds[name].push_back(Now() - start);
      processor[name].push_back(static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC);
    }
  }
  const int64_t wanted = static_cast<int64_t>(ways.size()) * (flags.rounds + 1) * flags.streams;
  if (server.engine.stats().generated_tokens != wanted * flags.tokens) {
    return absl::InternalError("not every stream has had its tokens");
  }
  BenchReport report;
  report.facts() = {{"streams", flags.streams}, {"tokens", flags.tokens}};
  report.Section("Doors: the same sequences through the engine alone and through each door",
                 "     way    tokens/s   of the engine's   processor us/token");
  const double alone = Summarize(seconds["engine"]).median;
  for (const auto& [name, run] : ways) {
    const Summary taken = Summarize(seconds[name]);
    const auto tokens = static_cast<double>(flags.streams * flags.tokens);
    const Summary used = Summarize(processor[name]);
    report.Row(absl::StrFormat("%8s %11.1f %16.3f %20.1f", name, tokens / taken.median,
                               alone / taken.median, 1e6 * used.median / tokens),
               {{"bench", "doors"},
                {"way", name},
                {"seconds", ToJson(taken)},
                {"processor_seconds", ToJson(used)}});
  }
  return report.Write(flags.json);
}

}  // namespace

absl::Status BenchDoors(const std::vector<std::string>& arguments) {
  DoorFlags flags;
  if (absl::Status s = Parse(arguments, &flags); !s.ok()) return s;
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  EngineConfig config;
  config.model_dir = flags.model;
  config.device = flags.device;
  config.threads = static_cast<int>(flags.threads);
  config.runner.max_num_seqs = static_cast<int32_t>(flags.streams);
  auto loaded = LoadEngine(config);
  if (!loaded.ok()) return loaded.status();
  auto tokenizer = LoadTokenizer(flags.model, loaded->config.vocab_size);
  if (!tokenizer.ok()) return tokenizer.status();
  Server server(*std::move(loaded), *std::move(tokenizer));
  const absl::Status status = server.Open();
  return status.ok() ? Measure(server, flags) : status;
}

}  // namespace fox
