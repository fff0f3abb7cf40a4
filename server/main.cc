// fox-server: flags, ports, model, signals. The ports open before the model is loaded; clients that
// connect meanwhile wait. Exit codes: 0 after a drain or a signal while loading; 78 for a wrong
// flag or model, a port in use or too little memory (one line says why); 70 after an engine
// failure. Read server_core.h next.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/steady_clock.h"
#include "engine/engine_factory.h"
#include "engine/trace/trace.h"
#include "google/protobuf/stubs/logging.h"
#include "kernels/core/check.h"
#include "models/checkpoint/model_dir.h"
#include "server/calls/access/access.h"
#include "server/calls/server_core.h"
#include "server/http/openai/openai_service.h"
#include "server/http/page/page_assets.h"
#include "server/http/port/http_server.h"
#include "server/loading_log.h"
#include "server/metrics/metrics_collector.h"
#include "server/process/process_end.h"
#include "server/process/process_settings.h"
#include "server/process/tls_files.h"
#include "server/rpc/grpc_server.h"
#include "server/server_flags.h"

namespace fox {
namespace {

constexpr double kFailureGraceSeconds = 0.2;
constexpr double kLastHttpWrites = 0.1;  // after gRPC's last writes
constexpr double kLoadingLogSeconds = 5;
constexpr double kOpenSeconds = 10;  // for starting all ports
constexpr double kStopSeconds =
    0.9;  // after the grace, for the last writes and the ends of threads

constexpr const char* kUsage =
    "fox-server serves a Forgetting Transformer over gRPC (fox.v1) and HTTP (OpenAI's API).\n\n"
    "usage: fox-server --model DIR [flags]\n\n"
    "Each flag may also stand in the environment: --grpc-port as FOX_GRPC_PORT.\n\n";
// README.md's table has the same flags (tests/tidy).
constexpr const char* kCommonFlags[] = {
    "model",         "served-model-name", "check-model",  "device",          "dtype", "acp",
    "log-tolerance", "max-num-seqs",      "kv-cache-mb",  "max-model-len",   "host",  "grpc-port",
    "http-port",     "metrics-port",      "api-key-file", "prefix-cache-dir"};

// The text of --help: with the argument `all` every flag, else kCommonFlags.
std::string HelpText(const FlagSet& set) {
  const bool all = !set.positional().empty() && set.positional()[0] == "all";
  if (all) return kUsage + set.Help();
  return absl::StrCat(kUsage, set.Help({std::begin(kCommonFlags), std::end(kCommonFlags)}),
                      "\nfox-server --help all lists all ", set.Values().size(), " flags.\n");
}

int ExitWithConfigError(const absl::Status& status) {
  const std::string reason(status.message());
  LogText(absl::StrCat("fox-server: ", reason, "\n"));
  if (CurrentLogFormat() == LogFormat::kJson) {
    Log(LogLevel::kError, "cannot start", {{"reason", reason}});
  }
  return kExitConfiguration;
}

// PlanLog: logs every plan of the engine, for `--log-level debug`.
class PlanLog : public StepObserver {
 public:
  void BeforeSubmit(const StepPlan& plan) override {
    Log(LogLevel::kDebug, "step", {{"plan", plan.DebugString()}});
  }
};

using Observers = std::vector<std::unique_ptr<StepObserver>>;

// Makes the observers of the engine that the flags ask for.
absl::StatusOr<Observers> Observe(ServerFlags* flags) {
  Observers observers;
  if (flags->log_level == LogLevel::kDebug) observers.push_back(std::make_unique<PlanLog>());
  if (!flags->trace.empty()) {
    absl::StatusOr<std::unique_ptr<TraceFile>> file =
        TraceFile::Create(flags->trace, [](const char* reason) {
          Log(LogLevel::kWarning, "the trace ends", {{"reason", reason}});
        });
    if (!file.ok()) return file.status();
    observers.push_back(std::make_unique<Trace>(*std::move(file)));
  }
  for (const auto& observer : observers) flags->engine.observers.push_back(observer.get());
  return observers;
}

// A loaded model directory.
struct LoadedModel {
  LoadedEngine engine;
  std::unique_ptr<Tokenizer> tokenizer;       // null: none
  std::unique_ptr<ChatFormat> chat;           // null: none
  std::unique_ptr<GrammarCompiler> grammars;  // null: none
  ConversionContext context;
};

// Adds the tokenizer's eos to the ids that end an answer. Fine-tuned models with added tokens often
// name it there only.
void AddTokenizersEos(LoadedModel* model) {
  if (model->tokenizer == nullptr || !model->tokenizer->info().eos_id.has_value()) return;
  const int32_t eos = *model->tokenizer->info().eos_id;
  std::vector<int32_t>& more = model->context.defaults.eos_token_ids;
  for (const auto* known : {&model->engine.options.eos_token_ids, &more}) {
    if (std::find(known->begin(), known->end(), eos) != known->end()) return;
  }
  more.push_back(eos);
}

absl::StatusOr<LoadedModel> LoadModel(const ServerFlags& flags) {
  LoadedModel out;
  const std::string& dir = flags.engine.model_dir;
  absl::StatusOr<LoadedEngine> engine = LoadEngine(flags.engine);
  if (!engine.ok()) return engine.status();
  out.engine = *std::move(engine);
  FOX_CHECK(out.engine.engine != nullptr && out.engine.executor != nullptr);
  const int64_t vocab_size = out.engine.config.vocab_size;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(dir, vocab_size);
  if (!tokenizer.ok()) return tokenizer.status();
  out.tokenizer = *std::move(tokenizer);

  if (flags.context.add_bos_to_ids &&
      (out.tokenizer == nullptr || out.tokenizer->info().prefix.size() != 1)) {
    return absl::InvalidArgumentError(
        "--add-bos-to-ids: the model's tokenizer puts no bos before a text");
  }
  out.context = flags.context;
  if (out.tokenizer != nullptr) {
    absl::StatusOr<std::optional<ChatFormat>> chat = ChatFormat::Load(dir, *out.tokenizer);
    if (!chat.ok()) return chat.status();
    if (chat->has_value()) out.chat = std::make_unique<ChatFormat>(**std::move(chat));
    const bool calls = out.chat != nullptr && out.chat->tools().has_value();
    out.grammars =
        GrammarCompiler::Create(*out.tokenizer, vocab_size, out.engine.options.eos_token_ids,
                                calls ? out.chat->tools()->call + out.chat->tools()->call_end : "");
  }
  out.context.tokenizer = out.tokenizer.get();
  out.context.chat = out.chat.get();
  out.context.grammars = out.grammars.get();
  out.context.limits = out.engine.executor->limits();
  out.context.engine = out.engine.options;
  if (flags.generation_config) {
    const absl::StatusOr<GenerationConfig> config = LoadGenerationConfig(dir);
    absl::StatusOr<SamplingDefaults> defaults =
        config.ok() ? SamplingDefaultsFrom(*config, vocab_size) : config.status();
    if (!defaults.ok()) {
      return absl::Status(defaults.status().code(),
                          absl::StrCat(defaults.status().message(),
                                       "; --generation-config none leaves this file out"));
    }
    out.context.defaults = *std::move(defaults);
  }
  const absl::StatusOr<std::optional<double>> gain = LoadGain(dir);
  if (!gain.ok()) return gain.status();
  out.context.gain = *gain;
  AddTokenizersEos(&out);
  return out;
}

// Loads the model on a thread of its own, so that a signal ends the process at once, however large
// the model is.
absl::StatusOr<LoadedModel> LoadUnlessSignalled(const ServerFlags& flags, SignalHandler* signals) {
  absl::StatusOr<LoadedModel> model = absl::UnknownError("not loaded");
  std::thread loader([&] {
    model = LoadModel(flags);
    signals->Wake();
  });
  if (const int signal = signals->Wait()) {
    Log(LogLevel::kInfo, "stopped while loading", {{"signal", int64_t{signal}}});
    EndNow(EXIT_SUCCESS);
  }
  loader.join();
  return model;
}

// The model's properties, for the log and for --check-model.
std::vector<LogField> FieldsOf(const LoadedModel& model) {
  const ModelConfig& config = model.engine.config;
  return {{"name", model.context.served_model_name},
          {"layers", int64_t{config.num_layers}},
          {"heads", int64_t{config.num_heads}},
          {"hidden_size", int64_t{config.hidden_size}},
          {"vocabulary", int64_t{config.vocab_size}},
          {"tokenizer", model.tokenizer == nullptr ? "none" : model.tokenizer->info().kind},
          {"chat", model.chat == nullptr ? "none" : "yes"},
          {"backend", model.engine.backend},
          {"dtype", model.engine.dtype},
          {"kv_dtype", model.engine.kv_dtype}};
}

std::string Describe(const LoadedModel& model) {
  std::string lines;
  for (const LogField& field : FieldsOf(model)) {
    absl::StrAppend(&lines, field.key, ": ", field.text, "\n");
  }
  return absl::StrCat(lines, model.engine.memory_plan, "\n");
}

// Ends the process if a thread could not be created. gRPC may hang without it, also in destructors.
void RequireAllThreads() {
  if (FailedThreads() == 0) return;
  EndNow(ExitWithConfigError(absl::ResourceExhaustedError(
      absl::StrCat(FailedThreads(), " threads could not be created (ulimit -u, TasksMax)"))));
}

// Logs the model and the flags that differ from their defaults, as text or as JSON events.
void LogStart(const LoadedModel& model, const FlagSet& set) {
  std::vector<LogField> flags;
  std::string text = Describe(model);
  for (const auto& [name, value] : set.Changed()) {
    flags.emplace_back(name, value);
    absl::StrAppend(&text, "--", name, "=", value, "\n");
  }
  if (CurrentLogFormat() == LogFormat::kText) {
    LogText(text);
  } else {
    std::vector<LogField> fields = FieldsOf(model);
    fields.emplace_back("memory_plan", model.engine.memory_plan);
    Log(LogLevel::kInfo, "model", fields);
    Log(LogLevel::kInfo, "flags", flags);
  }
  if (model.tokenizer == nullptr) {
    Log(LogLevel::kWarning,
        "no tokenizer: prompts and answers are token ids, over gRPC; HTTP has no completions",
        {{"looked_for",
          "tokenizer.model, tokenizer.json, vocab.json with merges.txt; not tekken.json"}});
  }
  FlushLog(/*seconds=*/0.5);  // before the line "listening on"
}

// Prints the port on standard output, for the program that started the server, unless it is a full
// pipe. Also logs it.
void PrintListening(const char* what, const std::string& host, int port) {
  const std::string line = absl::StrCat(what, " ", host, ":", port, "\n");
  pollfd ready{STDOUT_FILENO, POLLOUT, 0};
  int writable = 0;
  do writable = poll(&ready, 1, 0);
  while (writable < 0 && errno == EINTR);
  const bool printed = writable == 1 && write(STDOUT_FILENO, line.data(), line.size()) > 0;
  Log(LogLevel::kInfo, what,
      {{"host", host}, {"port", int64_t{port}}, {"printed", printed ? "yes" : "no"}});
}

// Ends the running calls with UNAVAILABLE, then the process: threads that wait for a hanging step
// never return.
[[noreturn]] void EndHung(ServerCore& core) {
  EndWithin(kStopSeconds);
  AbandonCalls(core, absl::UnavailableError("the engine hangs; the server restarts"));
  for (int i = 0; i < 50 && core.calls().calls() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EndNow(kExitEngineFailed);
}

// Endpoints: the listening ports with their certificates and tokens. They are made before the model
// is loaded, so that an error in them is reported before the minutes that a model takes.
struct Endpoints {
  GrpcListeners grpc;
  std::unique_ptr<HttpServer> http, metrics;  // null: none
  std::shared_ptr<TlsFiles> tls;
  std::shared_ptr<Access> access;
};

absl::StatusOr<Endpoints> PrepareEndpoints(const ServerFlags& flags) {
  Endpoints out;
  if (!flags.tls.certificate.empty()) {
    absl::StatusOr<std::unique_ptr<TlsFiles>> tls = TlsFiles::Load(flags.tls);
    if (!tls.ok()) return tls.status();
    out.tls = *std::move(tls);
  }
  absl::StatusOr<std::shared_ptr<Access>> access =
      Access::Load(flags.api_key_file, flags.admin_key_file);
  if (!access.ok()) return access.status();
  out.access = *std::move(access);
  if (AllowsUnauthenticated(flags)) {
    Log(LogLevel::kWarning, "any client that reaches the port may use it",
        {{"host", flags.grpc.listen.host}});
  }
  auto grpc = GrpcServer::Listen(flags.grpc);
  if (!grpc.ok()) return grpc.status();
  out.grpc = *std::move(grpc);
  if (flags.http.listen.port >= 0) {
    HttpServerOptions options = flags.http;
    options.tls = out.tls;
    auto http = HttpServer::Listen(options);
    if (!http.ok()) return http.status();
    out.http = *std::move(http);
  }
  if (flags.metrics.listen.port >= 0) {
    auto metrics = HttpServer::Listen(flags.metrics);
    if (!metrics.ok()) {
      return absl::UnavailableError(absl::StrCat("--metrics-port: ", metrics.status().message()));
    }
    out.metrics = *std::move(metrics);
  }
  return out;
}

// Adds OpenAI's API and the page at `/`.
void AddRoutes(ServerCore& core, const GrpcServer& server, HttpRoutes* routes) {
  RegisterOpenAiRoutes(
      core, [&server] { return server.serving(); }, routes);
  for (const PageAsset& asset : PageAssets()) {
    routes->AddPage(asset.path, {200, asset.content_type, PageHeaders(), std::string(asset.body)});
  }
}

int Serve(const ServerFlags& flags, const FlagSet& set, LoadedModel model, const StepMetrics& steps,
          SignalHandler* signals, Endpoints endpoints) {
  EngineThread engine(std::move(model.engine.engine));
  ServerLimits limits = flags.limits;
  limits.access = endpoints.access;
  ServerCore core(engine, model.engine.config, model.context,
                  ServerDescription{FOX_VERSION, FOX_GIT_SHA, model.engine.backend,
                                    model.engine.dtype, model.engine.kv_dtype},
                  limits);
  const std::unique_ptr<HttpServer> metrics = std::move(endpoints.metrics);
  if (metrics != nullptr) ExposeMetrics(core, steps, flags.vllm_aliases, metrics.get());
  EndWithin(kOpenSeconds, kExitConfiguration);  // gRPC waits for ever for a missing thread
  GrpcServerOptions port = flags.grpc;
  port.tls = endpoints.tls;
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(
      core, port,
      [&core, signals] {
        if (core.engine.fatal().ok()) EndHung(core);
        signals->Wake();
      },
      std::move(endpoints.grpc));
  if (!server.ok()) {
    engine.Stop();
    return ExitWithConfigError(server.status());
  }
  const std::unique_ptr<HttpServer> http = std::move(endpoints.http);
  if (http != nullptr) {
    AddRoutes(core, **server, &http->routes());
    http->Start();
  }
  RequireAllThreads();
  LogStart(model, set);  // after all checks: a reason not to start is the last line
  CancelEnd();
  EndOnAbort(kExitEngineFailed);
  if (metrics != nullptr) {
    PrintListening("listening for Prometheus on", flags.metrics.listen.host, metrics->port());
  }
  PrintListening("listening on", flags.grpc.listen.host, (*server)->port());
  if (http != nullptr) {
    PrintListening("listening for HTTP on", flags.http.listen.host, http->port());
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
  absl::Status fatal = engine.fatal();  // the drain may have failed, too
  if (!ended) fatal.Update(absl::InternalError("a step hangs"));
  if (!fatal.ok()) {
    Log(LogLevel::kError, "the engine failed", {{"reason", std::string(fatal.message())}});
    EndNow(kExitEngineFailed);  // destructors of a broken device take long
  }
  Log(LogLevel::kInfo, "stopped");
  // Ends the process even if a thread is stuck.
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EndWithin(std::clamp(grace + kStopSeconds - taken.count(), 0.1, kStopSeconds), EXIT_SUCCESS);
  return EXIT_SUCCESS;
}

Environment OwnEnvironment() {
  Environment out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    out.insert(variable);
  }
  return out;
}

int Run(const std::vector<std::string>& arguments, SignalHandler* signals) {
  ServerFlags flags;
  FlagSet set;
  RegisterServerFlags(&flags, &set);
  absl::Status status = set.Parse(arguments, OwnEnvironment());
  ConfigureLog(flags.log_level, flags.log_format);
  for (const std::string& warning : set.warnings()) {
    Log(LogLevel::kWarning, "environment", {{"variable", warning}});
  }
  if (!status.ok()) return ExitWithConfigError(status);
  if (flags.help) return std::fputs(HelpText(set).c_str(), stdout) < 0;
  if (flags.version) return std::printf("fox-server %s %s\n", FOX_VERSION, FOX_GIT_SHA) < 0;
  if (!set.positional().empty()) {
    const std::string argument = set.positional()[0].substr(0, 64);
    return ExitWithConfigError(absl::InvalidArgumentError(
        absl::StrCat("unexpected argument ", argument, "; did you mean --model ", argument, "?")));
  }
  status = CompleteServerFlags(&flags);
  if (!status.ok()) return ExitWithConfigError(status);
  google::protobuf::SetLogHandler(nullptr);  // it would log parts of requests
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);

  StepMetrics steps;
  if (flags.metrics.listen.port >= 0) flags.engine.observers.push_back(&steps);
  const absl::StatusOr<Observers> observers = Observe(&flags);
  if (!observers.ok()) return ExitWithConfigError(observers.status());
  const bool check = !flags.check_model.empty();
  flags.engine.progress = LoadingLog(kLoadingLogSeconds, SteadySeconds);
  if (check) flags.engine.prefix_store.dir.clear();  // a server may use it
  flags.engine.prefix_store.version = absl::StrCat(FOX_VERSION, " ", FOX_GIT_SHA);
  flags.engine.prefix_store.warn = [](const std::string& what) {
    Log(LogLevel::kWarning, "prefix cache on disk", {{"failed", what}});
  };
  status = ModelDir::Open(flags.engine.model_dir).status();
  if (!status.ok()) return ExitWithConfigError(status);
  absl::StatusOr<Endpoints> endpoints = Endpoints();
  if (!check) endpoints = PrepareEndpoints(flags);
  if (!endpoints.ok()) return ExitWithConfigError(endpoints.status());
  absl::StatusOr<LoadedModel> model = LoadUnlessSignalled(flags, signals);
  if (!model.ok()) return ExitWithConfigError(model.status());
  if (check) return std::fputs(Describe(*model).c_str(), stdout) < 0;
  return Serve(flags, set, *std::move(model), steps, signals, *std::move(endpoints));
}

int Main(const std::vector<std::string>& arguments) {
  ApplyProcessSettings();
  SignalHandler signals;
  const int code = Run(arguments, &signals);
  // Longer for the reason why the server did not start: the writing thread may wait for a
  // processor.
  FlushLog(/*seconds=*/code == kExitConfiguration ? 2 : 0.5);
  return code;
}

}  // namespace
}  // namespace fox

int main(int argc, char** argv) {
  fox::EndOnAbort(fox::kExitConfiguration);  // until the server serves
  return fox::Main(std::vector<std::string>(argv + 1, argv + argc));
}
