// fox-server: flags, the port, the model, signals. Who connects while the model is loaded waits.
// Exit codes: 0 after a drain and for a signal while loading, 78 for a wrong flag or model, a taken
// port and too little memory (one line says why), 70 after an engine failure. Read server_core.h
// next.
#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_factory.h"
#include "google/protobuf/stubs/logging.h"
#include "server/calls/plan_log.h"
#include "server/calls/server_core.h"
#include "server/calls/trace.h"
#include "server/http/openai_service.h"
#include "server/http/page/page_assets.h"
#include "server/process/process_end.h"
#include "server/process/signal_handler.h"
#include "server/rpc/grpc_server.h"
#include "server/server_flags.h"

namespace fox {
namespace {

constexpr double kFailureGraceSeconds = 0.2;
constexpr double kLastHttpWrites = 0.1;  // beside the time that gRPC's take
constexpr double kStopSeconds = 0.9;     // after the grace: the last writes, threads that end

constexpr const char* kUsage =
    "fox-server serves a Forgetting Transformer over gRPC (fox.v1) and HTTP (OpenAI's API).\n\n"
    "usage: fox-server --model DIR [flags]\n\n"
    "Each flag may also stand in the environment: --grpc-port as FOX_GRPC_PORT.\n\n";

int ExitWithConfigError(const absl::Status& status) {
  const std::string reason(status.message());
  LogText(absl::StrCat("fox-server: ", reason, "\n"));
  if (CurrentLogFormat() == LogFormat::kJson) {
    Log(LogLevel::kError, "cannot start", {{"reason", reason}});
  }
  return kExitConfiguration;
}

// What looks into the engine; null: not asked for.
struct Observers {
  std::unique_ptr<PlanLog> plan_log;
  std::unique_ptr<Trace> trace;
  std::unique_ptr<StepMetrics> steps;
};

absl::StatusOr<Observers> MakeObservers(const ServerFlags& flags) {
  Observers out;
  if (flags.log_level == "debug") out.plan_log = std::make_unique<PlanLog>();
  if (flags.metrics_port >= 0) out.steps = std::make_unique<StepMetrics>();
  if (flags.trace.empty()) return out;
  absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create(flags.trace);
  if (!file.ok()) return file.status();
  out.trace = std::make_unique<Trace>(*std::move(file));
  return out;
}

EngineConfig EngineConfigOf(const ServerFlags& flags, const std::string& model_dir,
                            const Observers& observers) {
  EngineConfig config;
  config.model_dir = model_dir;
  config.device = flags.device;
  config.dtype = flags.dtype;
  config.log_tolerance = flags.log_tolerance;
  config.threads = static_cast<int>(flags.threads);
  config.kv_cache_bytes = flags.kv_cache_mb << 20;
  config.gpu_memory_utilization = flags.gpu_memory_utilization;
  config.allow_nonfinite = flags.allow_nonfinite;
  config.runner.acp = *ParseAcpMode(flags.acp);
  config.runner.max_num_seqs = static_cast<int32_t>(flags.max_num_seqs);
  config.runner.max_model_len = flags.max_model_len;
  config.runner.max_num_batched_tokens = flags.max_num_batched_tokens;
  config.runner.enforce_eager = flags.enforce_eager;
  config.engine.max_num_queued_reqs = flags.max_num_queued_reqs;
  config.engine.max_num_queued_tokens = flags.max_num_queued_tokens;
  config.engine.max_queue_seconds = flags.max_queue_seconds;
  config.engine.max_paused_reqs = flags.max_paused_reqs;
  config.engine.stall_timeout = flags.stall_timeout;
  config.engine.min_priority = static_cast<int32_t>(flags.min_priority);
  config.engine.priority_scheduling = flags.scheduling_policy == "priority";
  config.engine.max_logprobs = static_cast<int32_t>(flags.max_logprobs);
  if (observers.plan_log != nullptr) config.observers.push_back(observers.plan_log.get());
  if (observers.steps != nullptr) config.observers.push_back(observers.steps.get());
  if (observers.trace != nullptr) {
    config.observers.push_back(observers.trace.get());
    config.op_clock = observers.trace->OperationClock();
  }
  return config;
}

// A model directory, loaded.
struct LoadedModel {
  LoadedEngine engine;
  std::unique_ptr<Tokenizer> tokenizer;  // null: none
  ConversionContext context;
};

absl::StatusOr<LoadedModel> LoadModel(const ServerFlags& flags, const std::string& dir,
                                      const Observers& observers) {
  LoadedModel out;
  absl::StatusOr<std::string> name = ServedModelName(flags, dir);
  if (!name.ok()) return name.status();
  absl::StatusOr<LoadedEngine> engine = LoadEngine(EngineConfigOf(flags, dir, observers));
  if (!engine.ok()) return engine.status();
  out.engine = *std::move(engine);
  const int64_t vocab_size = out.engine.config.vocab_size;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(dir, vocab_size);
  if (!tokenizer.ok()) return tokenizer.status();
  out.tokenizer = *std::move(tokenizer);

  ConversionContext& context = out.context;
  if (flags.generation_config == "auto") {
    const absl::StatusOr<GenerationConfig> config = LoadGenerationConfig(dir);
    if (!config.ok()) return config.status();
    absl::StatusOr<SamplingDefaults> defaults = SamplingDefaultsFrom(*config, vocab_size);
    if (!defaults.ok()) return defaults.status();
    context.defaults = *std::move(defaults);
  }
  context.tokenizer = out.tokenizer.get();
  context.served_model_name = *std::move(name);
  context.limits = out.engine.executor->limits();
  context.engine = out.engine.options;
  context.max_prompt_bytes = static_cast<size_t>(flags.max_prompt_bytes);
  context.stream_interval = static_cast<int32_t>(flags.stream_interval);
  return out;
}

// On a thread of its own, so that a signal ends the process at once, however large the model is.
absl::StatusOr<LoadedModel> LoadUnlessSignalled(const ServerFlags& flags, const std::string& dir,
                                                const Observers& observers,
                                                SignalHandler* signals) {
  absl::StatusOr<LoadedModel> model = absl::UnknownError("not loaded");
  std::thread loader([&] {
    model = LoadModel(flags, dir, observers);
    signals->Wake();
  });
  if (const int signal = signals->Wait()) {
    Log(LogLevel::kInfo, "stopped while loading", {{"signal", int64_t{signal}}});
    EndNow(EXIT_SUCCESS);
  }
  loader.join();
  return model;
}

std::string Describe(const LoadedModel& model) {
  const ModelConfig& config = model.engine.config;
  return absl::StrCat("model: ", model.context.served_model_name, ", ", config.num_layers,
                      " layers, ", config.num_heads, " heads, hidden size ", config.hidden_size,
                      ", vocabulary ", config.vocab_size, "\ntokenizer: ",
                      model.tokenizer == nullptr ? "none" : model.tokenizer->info().kind,
                      "\nbackend: ", model.engine.backend, ", dtype ", model.engine.dtype, "\n",
                      model.engine.memory_plan, "\n");
}

// What the server runs with: text for people, or events.
void LogStart(const LoadedModel& model, const FlagSet& set) {
  if (CurrentLogFormat() == LogFormat::kText) return LogText(Describe(model) + set.Effective());
  const ModelConfig& config = model.engine.config;
  Log(LogLevel::kInfo, "model",
      {{"name", model.context.served_model_name},
       {"layers", int64_t{config.num_layers}},
       {"heads", int64_t{config.num_heads}},
       {"hidden_size", int64_t{config.hidden_size}},
       {"vocabulary", int64_t{config.vocab_size}},
       {"tokenizer", model.tokenizer == nullptr ? "none" : model.tokenizer->info().kind},
       {"backend", model.engine.backend},
       {"dtype", model.engine.dtype},
       {"memory_plan", model.engine.memory_plan}});
  std::vector<LogField> fields;
  for (const auto& [name, value] : set.Values()) fields.emplace_back(name, value);
  Log(LogLevel::kInfo, "flags", fields);
}

// On standard output, for whoever started the server; it may be a pipe that nobody reads.
void PrintListening(const char* what, const std::string& host, int port) {
  const std::string line = absl::StrCat(what, " ", host, ":", port, "\n");
  pollfd ready{STDOUT_FILENO, POLLOUT, 0};
  const bool printed =
      poll(&ready, 1, 0) == 1 && write(STDOUT_FILENO, line.data(), line.size()) > 0;
  Log(LogLevel::kInfo, what,
      {{"host", host}, {"port", int64_t{port}}, {"printed", printed ? "yes" : "no"}});
}

// The ports, from before the model is loaded.
struct Doors {
  std::unique_ptr<ConnectionAcceptor> grpc;
  std::unique_ptr<HttpServer> http;        // null: none
  std::unique_ptr<MetricsServer> metrics;  // likewise
};

absl::StatusOr<Doors> Listen(const ServerFlags& flags) {
  Doors doors;
  auto grpc = ConnectionAcceptor::Listen(GrpcOptionsOf(flags).listen);
  if (!grpc.ok()) return grpc.status();
  doors.grpc = *std::move(grpc);
  if (flags.http_port >= 0) {
    auto http = HttpServer::Listen(HttpOptionsOf(flags));
    if (!http.ok()) return http.status();
    doors.http = *std::move(http);
  }
  if (flags.metrics_port >= 0) {
    auto metrics = MetricsServer::Listen(MetricsOptionsOf(flags));
    if (!metrics.ok()) return metrics.status();
    doors.metrics = *std::move(metrics);
  }
  return doors;
}

// No thread that waits for a hanging step ever returns: what runs is told, and the process ends.
[[noreturn]] void EndHung(ServerCore& core) {
  EndWithin(kStopSeconds);
  core.AbandonAll(absl::UnavailableError("the engine hangs; the server restarts"));
  for (int i = 0; i < 50 && core.calls().calls() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EndNow(kExitEngineFailed);
}

int Serve(const ServerFlags& flags, LoadedModel model, const Observers& observers,
          SignalHandler* signals, Doors doors) {
  EngineThread engine(std::move(model.engine.engine));
  ServerCore core(engine, model.engine.config, model.context,
                  ServerDescription{FOX_VERSION, FOX_GIT_SHA, model.engine.backend,
                                    model.engine.dtype, model.engine.dtype},
                  ServerLimitsOf(flags));
  const std::unique_ptr<MetricsServer> metrics = std::move(doors.metrics);
  if (metrics != nullptr) metrics->Expose(core, *observers.steps);
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(
      core, GrpcOptionsOf(flags),
      [&core, signals] {
        if (core.engine.fatal().ok()) EndHung(core);
        signals->Wake();
      },
      std::move(doors.grpc));
  if (!server.ok()) {
    engine.Stop();
    return ExitWithConfigError(server.status());
  }
  EndOnAbort(kExitEngineFailed);
  if (metrics != nullptr) {
    PrintListening("listening for Prometheus on", flags.metrics_host, metrics->port());
  }
  PrintListening("listening on", flags.host, (*server)->port());
  OpenAiService openai(core, [&server] { return (*server)->serving(); });
  const std::unique_ptr<HttpServer> http = std::move(doors.http);
  if (http != nullptr) {
    openai.Register(http.get());
    for (const PageAsset& asset : PageAssets()) {
      http->AddPage(asset.path, {200, asset.content_type, PageHeaders(), std::string(asset.body)});
    }
    http->Start();
    PrintListening("listening for HTTP on", HttpOptionsOf(flags).listen.host, http->port());
  }

  const int signal = signals->Wait();
  const double grace = signal == 0 ? kFailureGraceSeconds : flags.shutdown_timeout;
  if (signal != 0) Log(LogLevel::kInfo, "shutting down", {{"signal", int64_t{signal}}});
  const auto begin = std::chrono::steady_clock::now();
  EndWithin(grace + kStopSeconds);
  if (http != nullptr) http->Drain();
  const bool ended = (*server)->Stop(grace, [signals] {
    const bool again = signals->Again();
    if (again) EndWithin(kStopSeconds);
    return again;
  });
  if (http != nullptr) http->Stop(kLastHttpWrites);
  absl::Status fatal = engine.fatal();  // it may have failed in the drain, too
  if (!ended) fatal.Update(absl::InternalError("a step hangs"));
  if (fatal.ok()) {
    Log(LogLevel::kInfo, "stopped");
  } else {
    Log(LogLevel::kError, "the engine failed", {{"reason", std::string(fatal.message())}});
  }
  const int code = fatal.ok() ? EXIT_SUCCESS : kExitEngineFailed;
  // Whatever a thread still does.
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EndWithin(std::clamp(grace + kStopSeconds - taken.count(), 0.1, kStopSeconds), code);
  return code;
}

int Run(const std::vector<std::string>& arguments, SignalHandler* signals) {
  ServerFlags flags;
  FlagSet set;
  RegisterServerFlags(&flags, &set);
  const std::string help = kUsage + set.Help();
  absl::Status status =
      set.Parse(arguments, [](const std::string& name) { return std::getenv(name.c_str()); });
  ConfigureLogFrom(flags);
  for (const std::string& warning : set.warnings()) {
    Log(LogLevel::kWarning, "environment", {{"variable", warning}});
  }
  if (!status.ok()) return ExitWithConfigError(status);
  if (flags.help) return std::fputs(help.c_str(), stdout) < 0;
  if (flags.version) return std::printf("fox-server %s %s\n", FOX_VERSION, FOX_GIT_SHA) < 0;
  if (!set.positional().empty()) {
    return ExitWithConfigError(absl::InvalidArgumentError(
        absl::StrCat("unexpected argument ", set.positional()[0].substr(0, 64))));
  }
  status = CheckServerFlags(flags);
  if (!status.ok()) return ExitWithConfigError(status);
  google::protobuf::SetLogHandler(nullptr);  // it would log what clients send
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);

  const absl::StatusOr<Observers> observers = MakeObservers(flags);
  if (!observers.ok()) return ExitWithConfigError(observers.status());
  const bool check = !flags.check_model.empty();
  Doors doors;
  if (!check) {  // a taken port is told before the minutes that a model takes
    absl::StatusOr<Doors> listening = Listen(flags);
    if (!listening.ok()) return ExitWithConfigError(listening.status());
    doors = *std::move(listening);
  }
  absl::StatusOr<LoadedModel> model =
      LoadUnlessSignalled(flags, check ? flags.check_model : flags.model, *observers, signals);
  if (!model.ok()) return ExitWithConfigError(model.status());
  if (check) return std::fputs(Describe(*model).c_str(), stdout) < 0;
  LogStart(*model, set);
  return Serve(flags, *std::move(model), *observers, signals, std::move(doors));
}

// Large messages go back to the system when they are freed, and what one thread has freed another
// one uses: what clients send and leave must not stay resident.
void LimitHeap() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_ARENA_MAX, 4);
}

int Main(const std::vector<std::string>& arguments) {
  LimitHeap();
  SignalHandler signals;
  EndOnAbort(kExitConfiguration);  // until it serves
  const int code = Run(arguments, &signals);
  FlushLog(/*seconds=*/0.5);
  return code;
}

}  // namespace
}  // namespace fox

int main(int argc, char** argv) {
  return fox::Main(std::vector<std::string>(argv + 1, argv + argc));
}
