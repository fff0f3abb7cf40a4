// ServerFlags: see server_flags.h.
#include "server/server_flags.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/sampling_limits.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

constexpr int64_t kBillion = 1000000000;
constexpr const char* kMainPort = "main";
constexpr double kDay = 86400;

void RegisterModel(ServerFlags* f, FlagSet* set) {
  set->Group("Model");
  set->String("model", "DIR", "model directory to serve", &f->model);
  set->String("check-model", "DIR", "load DIR, print a summary and exit", &f->check_model);
  set->String("served-model-name", "NAME", "name clients use [the directory's]",
              &f->context.served_model_name);
  set->Enum("generation-config", {{"auto", true}, {"none", false}},
            "take sampling defaults from generation_config.json", &f->generation_config);
  f->engine.device = "auto";
  set->Choice("device", {"auto", "cpu", "cuda"}, "where to compute; auto: a GPU if there is one",
              &f->engine.device);
  set->Choice("dtype", {"auto", "f64", "f32", "bf16"}, "type of weights and pages",
              &f->engine.dtype);
  set->Int("threads", "N", "threads of the CPU backend; 0: one per core", 0, 4096,
           &f->engine.threads);
  set->Bool("allow-nonfinite", "load weights that hold NaN or infinity",
            &f->engine.allow_nonfinite);
}

void RegisterPruning(ServerFlags* f, FlagSet* set) {
  set->Group("Adaptive computation pruning");
  set->Enum(
      "acp",
      {{"off", AcpMode::kOff}, {"paper", AcpMode::kPaper}, {"certified", AcpMode::kCertified}},
      "which blocks and pages may be dropped", &f->engine.runner.acp);
  set->OptionalDouble("log-tolerance", "X",
                      "log of the mass that may be dropped [the checkpoint's, or -10]",
                      &f->engine.log_tolerance);
}

void RegisterScheduling(ServerFlags* f, FlagSet* set) {
  RunnerOptions* runner = &f->engine.runner;
  EngineOptions* engine = &f->engine.engine;
  set->Group("Memory and scheduling");
  set->Int("max-model-len", "N", "tokens of one sequence; 0: what the page pool holds", 0, kBillion,
           &runner->max_model_len);
  set->Int("max-num-seqs", "N", "sequences that run at once", 1, 65536, &runner->max_num_seqs);
  set->Int("max-num-batched-tokens", "N", "tokens of one step; 0: 512 on the CPU, 8192 on a GPU", 0,
           1 << 20, &runner->max_num_batched_tokens);
  set->Double("gpu-memory-utilization", "SHARE", "of a GPU's memory that may be used", 0, 1,
              &f->engine.gpu_memory_utilization);
  set->Bool("enforce-eager", "run every step without CUDA graphs", &runner->enforce_eager);
  set->Mebibytes("kv-cache-mb", "MiB of the page pool; 0: chosen from free memory", 0, 1 << 30,
                 &f->engine.kv_cache_bytes);
  set->Int("max-num-queued-reqs", "N", "waiting requests; more are refused", 1, 1 << 20,
           &engine->max_num_queued_reqs);
  set->Int("max-num-queued-tokens", "N", "waiting prompt tokens; more are refused", 1, kBillion,
           &engine->max_num_queued_tokens);
  set->Double("max-queue-seconds", "SECONDS",
              "expected wait of a request beyond which it is refused; 0: any", 0, kDay,
              &engine->max_queue_seconds);
  set->Int("max-paused-reqs", "N", "requests whose readers have stopped; more are ended", 1,
           1 << 20, &engine->max_paused_reqs);
  set->Double("stall-timeout", "SECONDS", "a reader that takes nothing for so long is cut off", 0.1,
              kDay, &engine->stall_timeout);
  set->Double("step-timeout", "SECONDS",
              "a step that takes so long, and 4 times the slowest before it, ends the process", 0.1,
              kDay, &f->grpc.step_timeout);
  set->Int("max-logprobs", "N", "largest logprobs a request may ask for", 0, 1024,
           &engine->max_logprobs);
  set->Enum("scheduling-policy", {{"fcfs", false}, {"priority", true}},
            "order of the queue: as they come, or by the priority that requests ask for",
            &engine->priority_scheduling);
  set->Int("min-priority", "N", "most urgent priority that a request may ask for",
           std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
           &engine->min_priority);
}

void RegisterServing(ServerFlags* f, FlagSet* set) {
  set->Group("Serving");
  set->String("host", "ADDRESS", "address to listen on", &f->grpc.listen.host);
  f->grpc.listen.port = 50051;
  set->Int("grpc-port", "PORT", "port to listen on; 0: any free one, which is printed", 0, 65535,
           &f->grpc.listen.port);
  set->Bool("allow-insecure-remote", "permit a host that is not loopback, without encryption",
            &f->allow_insecure_remote);
  set->String("grpc-services", "LIST", "services to offer", &f->grpc_services);
  set->String("admin-address", "HOST:PORT",
              "where alone the admin service is offered; `main`: the main port, though strangers "
              "reach it [the main port, if its host is loopback]",
              &f->admin_address);
  set->Int("max-message-mb", "N", "MiB of one request message", 1, 1024, &f->grpc.max_message_mb);
  set->Int("max-calls", "N", "calls open at once; more are refused", 1, 1 << 20,
           &f->limits.max_calls);
  set->Mebibytes("call-memory-mb", "MiB that calls may hold, from arrival to the last write", 1,
                 1 << 20, &f->limits.max_call_bytes);
  set->Int("max-connections", "N", "connections open at once; 0: what the descriptors allow", 0,
           1 << 20, &f->grpc.listen.max_connections);
  set->String("client-metadata", "KEY",
              "metadata key that names a gateway's client; only behind a trusted gateway [none]",
              &f->limits.client_metadata);
  set->Int("max-prompt-bytes", "N", "bytes of a prompt's text", 1, kBillion,
           &f->context.max_prompt_bytes);
  set->Int("stream-interval", "N", "tokens in a streamed message", 1, 1024,
           &f->context.stream_interval);
  set->Int("delivery-threads", "N", "threads that make text of tokens and write it", 1, 256,
           &f->limits.delivery_threads);
  set->Int("max-connection-age", "SECONDS",
           "close connections that old, so that balancers rebalance; "
           "0: never",
           0, 1 << 20, &f->grpc.max_connection_age_s);
  set->Double("shutdown-timeout", "SECONDS", "time for running requests after SIGTERM", 0, 86400,
              &f->shutdown_timeout);
}

absl::Status CheckHost(const char* flag, const std::string& host, bool allow_remote) {
  if (allow_remote || IsLoopback(host)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag,
      ": not a loopback address; there is no encryption, so put a proxy in front or give "
      "--allow-insecure-remote"));
}

// HOST:PORT; the host of an IPv6 address stands in brackets.
absl::Status CheckAdminAddress(const ServerFlags& flags) {
  if (flags.admin_address.empty() || flags.admin_address == kMainPort) return absl::OkStatus();
  const size_t colon = flags.admin_address.rfind(':');
  int32_t port = -1;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(flags.admin_address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError("--admin-address: must be HOST:PORT or main");
  }
  return CheckHost("--admin-address", flags.admin_address.substr(0, colon),
                   flags.allow_insecure_remote);
}

// What the list names. Who reaches the main port from afar is no operator, unless that is said.
absl::Status SetServices(ServerFlags* flags) {
  std::set<std::string>& services = flags->grpc.services;
  const std::set<std::string> known = std::exchange(
      services, absl::StrSplit(flags->grpc_services, absl::ByAnyChar(", "), absl::SkipEmpty()));
  if (services.empty()) {
    return absl::InvalidArgumentError("--grpc-services: must name at least one service");
  }
  for (const std::string& service : services) {
    if (known.count(service) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--grpc-services: unknown service ", service.substr(0, 64)));
    }
  }
  if (flags->admin_address == kMainPort) return absl::OkStatus();
  flags->grpc.admin_address = flags->admin_address;
  if (!IsLoopback(flags->grpc.listen.host)) services.erase("admin");
  return absl::OkStatus();
}

}  // namespace

void RegisterServerFlags(ServerFlags* flags, FlagSet* set) {
  RegisterModel(flags, set);
  RegisterPruning(flags, set);
  RegisterScheduling(flags, set);
  RegisterServing(flags, set);
  set->Group("Other");
  set->Enum("log-level",
            {{"debug", LogLevel::kDebug},
             {"info", LogLevel::kInfo},
             {"warning", LogLevel::kWarning},
             {"error", LogLevel::kError}},
            "least level logged", &flags->log_level);
  set->Enum("log-format", {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
            "form of log lines", &flags->log_format);
  set->String("trace", "FILE",
              "write a Chrome trace of requests, steps and operations, at most 256 MiB [none]",
              &flags->trace);
  set->Action("version", "print the version and exit", &flags->version);
  set->Action("help", "print this and exit", &flags->help);
}

absl::Status CompleteServerFlags(ServerFlags* flags) {
  EngineConfig& engine = flags->engine;
  engine.model_dir = flags->check_model.empty() ? flags->model : flags->check_model;
  if (engine.model_dir.empty()) {
    return absl::InvalidArgumentError("--model: must name a model directory");
  }
  absl::StatusOr<std::string> name =
      ServedModelName(flags->context.served_model_name, engine.model_dir);
  if (!name.ok()) return name.status();
  flags->context.served_model_name = *std::move(name);
  if (engine.runner.max_model_len == 1) {
    return absl::InvalidArgumentError(
        "--max-model-len: at least 2, one token of a prompt and one of an answer");
  }
  if (engine.log_tolerance) {
    absl::Status status = CheckRange("--log-tolerance", *engine.log_tolerance, kLogTolerance);
    if (!status.ok()) return status;
  }
  if (engine.engine.min_priority != 0 && !engine.engine.priority_scheduling) {
    return absl::InvalidArgumentError("--min-priority: needs --scheduling-policy priority");
  }
  flags->limits.stall_timeout = engine.engine.stall_timeout;
  flags->grpc.max_streams = static_cast<int>(flags->limits.max_calls);
  flags->grpc.receive_memory_bytes = 2 * flags->limits.max_call_bytes;
  absl::Status status = SetServices(flags);
  status.Update(CheckHost("--host", flags->grpc.listen.host, flags->allow_insecure_remote));
  status.Update(CheckAdminAddress(*flags));
  return status;
}

absl::StatusOr<std::string> ServedModelName(std::string name, const std::string& model_dir) {
  if (name.empty()) {
    namespace fs = std::filesystem;
    name = fs::path(model_dir + "/").lexically_normal().parent_path().filename();
    if (name.empty() || name == "." || name == "..") {
      std::error_code error;  // a directory that does not exist is told by who opens it
      name = fs::weakly_canonical(model_dir, error).filename();
    }
  }
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (name.empty() || name.size() > 256 || control || !IsValidUtf8(name)) {
    return absl::InvalidArgumentError(
        "--served-model-name: must be 1 to 256 bytes of UTF-8 without control characters");
  }
  return name;
}

}  // namespace fox
