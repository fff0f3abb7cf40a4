// fox-server: flags, the port, the model, signals. Who connects while the model is loaded waits.
// Exit codes: 0 after a drain, 78 for a wrong flag or model or a taken port (one line says why), 70
// after an engine failure. Read server_core.h next.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_factory.h"
#include "google/protobuf/stubs/logging.h"
#include "server/grpc_server.h"
#include "server/plan_log.h"
#include "server/server_core.h"
#include "server/server_flags.h"
#include "server/signal_handler.h"
#include "server/trace.h"

namespace fox {
namespace {

constexpr int kExitEngineFailed = 70;   // EX_SOFTWARE
constexpr int kExitConfiguration = 78;  // EX_CONFIG
constexpr double kFailureGraceSeconds = 0.5;

constexpr const char* kUsage =
    "fox-server serves a Forgetting Transformer over gRPC (fox.v1).\n\n"
    "usage: fox-server --model DIR [flags]\n\n"
    "Each flag may also stand in the environment: --grpc-port as FOX_GRPC_PORT.\n\n";

int ExitWithConfigError(const absl::Status& status) {
  std::fprintf(stderr, "fox-server: %s\n", std::string(status.message()).c_str());
  return kExitConfiguration;
}

// What looks into the engine; null: not asked for.
struct Observers {
  std::unique_ptr<PlanLog> plan_log;
  std::unique_ptr<Trace> trace;
};

absl::StatusOr<Observers> MakeObservers(const ServerFlags& flags) {
  Observers out;
  if (flags.log_level == "debug") out.plan_log = std::make_unique<PlanLog>();
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
  config.engine.priority_scheduling = flags.scheduling_policy == "priority";
  config.engine.max_logprobs = static_cast<int32_t>(flags.max_logprobs);
  if (observers.plan_log != nullptr) config.observers.push_back(observers.plan_log.get());
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
  context.served_model_name = flags.served_model_name;
  if (context.served_model_name.empty()) {
    const std::filesystem::path path = std::filesystem::path(dir + "/").lexically_normal();
    context.served_model_name = path.parent_path().filename().string();
  }
  context.limits = out.engine.executor->limits();
  context.engine = out.engine.options;
  context.max_prompt_bytes = static_cast<size_t>(flags.max_prompt_bytes);
  context.stream_interval = static_cast<int32_t>(flags.stream_interval);
  return out;
}

void PrintModel(const LoadedModel& model, std::FILE* out) {
  const ModelConfig& config = model.engine.config;
  std::fprintf(out, "model: %s, %d layers, %d heads, hidden size %lld, vocabulary %lld\n",
               model.context.served_model_name.c_str(), config.num_layers, config.num_heads,
               static_cast<long long>(config.hidden_size),
               static_cast<long long>(config.vocab_size));
  std::fprintf(out, "tokenizer: %s\n",
               model.tokenizer == nullptr ? "none" : model.tokenizer->info().kind.c_str());
  std::fprintf(out, "backend: %s, dtype %s\n", model.engine.backend.c_str(),
               model.engine.dtype.c_str());
  std::fprintf(out, "%s\n", model.engine.memory_plan.c_str());
}

int Serve(const ServerFlags& flags, LoadedModel model, SignalHandler* signals,
          std::unique_ptr<ConnectionAcceptor> acceptor) {
  EngineThread engine(std::move(model.engine.engine));
  ServerCore core(engine, model.engine.config, model.context,
                  ServerDescription{FOX_VERSION, FOX_GIT_SHA, model.engine.backend,
                                    model.engine.dtype, model.engine.dtype},
                  ServerLimitsOf(flags));
  std::atomic<bool> failed{false};
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(
      core, GrpcOptionsOf(flags),
      [&failed, signals] {
        failed = true;
        signals->Wake();
      },
      std::move(acceptor));
  if (!server.ok()) {
    engine.Stop();
    return ExitWithConfigError(server.status());
  }
  std::printf("listening on %s:%d\n", flags.host.c_str(), (*server)->port());
  std::fflush(stdout);

  const int signal = signals->Wait();
  if (failed) {
    Log(LogLevel::kError, "the engine failed", {{"reason", std::string(engine.fatal().message())}});
    (*server)->Stop(kFailureGraceSeconds);
    return kExitEngineFailed;
  }
  Log(LogLevel::kInfo, "shutting down", {{"signal", int64_t{signal}}});
  (*server)->Stop(flags.shutdown_timeout, [signals] { return signals->Again(); });
  Log(LogLevel::kInfo, "stopped");
  return EXIT_SUCCESS;
}

int Main(const std::vector<std::string>& arguments) {
  ServerFlags flags;
  FlagSet set;
  RegisterServerFlags(&flags, &set);
  const std::string help = kUsage + set.Help();
  absl::Status status =
      set.Parse(arguments, [](const std::string& name) { return std::getenv(name.c_str()); });
  if (!status.ok()) return ExitWithConfigError(status);
  if (flags.help) return std::fputs(help.c_str(), stdout) < 0;
  if (flags.version) return std::printf("fox-server %s %s\n", FOX_VERSION, FOX_GIT_SHA) < 0;
  if (!set.positional().empty()) {
    return ExitWithConfigError(absl::InvalidArgumentError(
        absl::StrCat("unexpected argument ", set.positional()[0].substr(0, 64))));
  }
  status = CheckServerFlags(flags);
  if (!status.ok()) return ExitWithConfigError(status);
  ConfigureLogFrom(flags);
  google::protobuf::SetLogHandler(nullptr);  // it would log what clients send
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);

  SignalHandler signals;
  const absl::StatusOr<Observers> observers = MakeObservers(flags);
  if (!observers.ok()) return ExitWithConfigError(observers.status());
  const bool check = !flags.check_model.empty();
  std::unique_ptr<ConnectionAcceptor> acceptor;
  if (!check) {  // a taken port is told before the minutes that a model takes
    auto listening = ConnectionAcceptor::Listen(GrpcOptionsOf(flags).listen);
    if (!listening.ok()) return ExitWithConfigError(listening.status());
    acceptor = *std::move(listening);
  }
  absl::StatusOr<LoadedModel> model =
      LoadModel(flags, check ? flags.check_model : flags.model, *observers);
  if (!model.ok()) return ExitWithConfigError(model.status());
  if (check) {
    PrintModel(*model, stdout);
    return EXIT_SUCCESS;
  }
  PrintModel(*model, stderr);
  std::fprintf(stderr, "%s", set.Effective().c_str());
  return Serve(flags, *std::move(model), &signals, std::move(acceptor));
}

}  // namespace
}  // namespace fox

int main(int argc, char** argv) {
  return fox::Main(std::vector<std::string>(argv + 1, argv + argc));
}
