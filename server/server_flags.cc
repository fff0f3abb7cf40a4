// ServerFlags: see server_flags.h.
#include "server/server_flags.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <vector>

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
              &f->served_model_name);
  set->Choice("generation-config", {"auto", "none"},
              "take sampling defaults from generation_config.json", &f->generation_config);
  set->Choice("device", {"auto", "cpu", "cuda"}, "where to compute; auto: a GPU if there is one",
              &f->device);
  set->Choice("dtype", {"auto", "f64", "f32", "bf16"}, "type of weights and pages", &f->dtype);
  set->Int("threads", "N", "threads of the CPU backend; 0: one per core", 0, 4096, &f->threads);
  set->Bool("allow-nonfinite", "load weights that hold NaN or infinity", &f->allow_nonfinite);
}

void RegisterPruning(ServerFlags* f, FlagSet* set) {
  set->Group("Adaptive computation pruning");
  set->Choice("acp", {"off", "paper", "certified"}, "which blocks and pages may be dropped",
              &f->acp);
  set->OptionalDouble("log-tolerance", "X",
                      "log of the mass that may be dropped [the checkpoint's, or -10]",
                      &f->log_tolerance);
}

void RegisterScheduling(ServerFlags* f, FlagSet* set) {
  set->Group("Memory and scheduling");
  set->Int("max-model-len", "N", "tokens of one sequence; 0: what the page pool holds", 0, kBillion,
           &f->max_model_len);
  set->Int("max-num-seqs", "N", "sequences that run at once", 1, 65536, &f->max_num_seqs);
  set->Int("max-num-batched-tokens", "N", "tokens of one step; 0: 512 on the CPU, 8192 on a GPU", 0,
           1 << 20, &f->max_num_batched_tokens);
  set->Double("gpu-memory-utilization", "SHARE", "of a GPU's memory that may be used", 0, 1,
              &f->gpu_memory_utilization);
  set->Bool("enforce-eager", "run every step without CUDA graphs", &f->enforce_eager);
  set->Int("kv-cache-mb", "N", "MiB of the page pool; 0: chosen from free memory", 0, 1 << 30,
           &f->kv_cache_mb);
  set->Int("max-num-queued-reqs", "N", "waiting requests; more are refused", 1, 1 << 20,
           &f->max_num_queued_reqs);
  set->Int("max-num-queued-tokens", "N", "waiting prompt tokens; more are refused", 1, kBillion,
           &f->max_num_queued_tokens);
  set->Double("max-queue-seconds", "SECONDS",
              "expected wait of a request beyond which it is refused; 0: any", 0, kDay,
              &f->max_queue_seconds);
  set->Int("max-paused-reqs", "N", "requests whose readers have stopped; more are ended", 1,
           1 << 20, &f->max_paused_reqs);
  set->Double("stall-timeout", "SECONDS", "a reader that takes nothing for so long is cut off", 0.1,
              kDay, &f->stall_timeout);
  set->Double("step-timeout", "SECONDS",
              "a step that takes so long, and 4 times the slowest before it, ends the process", 0.1,
              kDay, &f->step_timeout);
  set->Int("max-logprobs", "N", "largest logprobs a request may ask for", 0, 1024,
           &f->max_logprobs);
  set->Choice("scheduling-policy", {"fcfs", "priority"},
              "order of the queue: as they come, or by the priority that requests ask for",
              &f->scheduling_policy);
  set->Int("min-priority", "N", "most urgent priority that a request may ask for",
           std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
           &f->min_priority);
}

void RegisterServing(ServerFlags* f, FlagSet* set) {
  set->Group("Serving");
  set->String("host", "ADDRESS", "address to listen on", &f->host);
  set->Int("grpc-port", "PORT", "port to listen on; 0: any free one, which is printed", 0, 65535,
           &f->grpc_port);
  set->Int("http-port", "PORT", "port of OpenAI's API over HTTP; 0: any free one; -1: none", -1,
           65535, &f->http_port);
  set->String("http-host", "ADDRESS", "address of the HTTP port [that of --host]", &f->http_host);
  set->Bool("allow-insecure-remote", "permit a host that is not loopback, without encryption",
            &f->allow_insecure_remote);
  set->String("grpc-services", "LIST", "services to offer", &f->grpc_services);
  set->String("admin-address", "HOST:PORT",
              "where alone the admin service is offered; `main`: the main port, though strangers "
              "reach it [the main port, if its host is loopback]",
              &f->admin_address);
  set->Int("max-message-mb", "N", "MiB of one request message", 1, 1024, &f->max_message_mb);
  set->Int("max-calls", "N", "calls open at once; more are refused", 1, 1 << 20, &f->max_calls);
  set->Int("call-memory-mb", "N", "MiB that calls may hold, from arrival to the last write", 1,
           1 << 20, &f->call_memory_mb);
  set->Int("max-connections", "N", "connections open at once; 0: what the descriptors allow", 0,
           1 << 20, &f->max_connections);
  set->String("client-metadata", "KEY",
              "metadata key that names a gateway's client; only behind a trusted gateway [none]",
              &f->client_metadata);
  set->Int("max-prompt-bytes", "N", "bytes of a prompt's text", 1, kBillion, &f->max_prompt_bytes);
  set->Int("stream-interval", "N", "tokens in a streamed message", 1, 1024, &f->stream_interval);
  set->Int("delivery-threads", "N", "threads that make text of tokens and write it", 1, 256,
           &f->delivery_threads);
  set->Int("max-connection-age", "SECONDS",
           "close connections that old, so that balancers rebalance; "
           "0: never",
           0, 1 << 20, &f->max_connection_age);
  set->Int("metrics-port", "PORT",
           "where Prometheus scrapes /metrics; 0: any free port, which is logged; -1: nowhere", -1,
           65535, &f->metrics_port);
  set->String("metrics-host", "ADDRESS", "address of the metrics port", &f->metrics_host);
  set->Choice("metrics-compat", {"vllm", "none"}, "whose names the metrics have beside their own",
              &f->metrics_compat);
  set->Double("shutdown-timeout", "SECONDS", "time for running requests after SIGTERM", 0, 86400,
              &f->shutdown_timeout);
}

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (address.sa_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

// Whether every address that `host` stands for is loopback. False: also when it has none.
bool IsLoopback(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() || getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool loopback = true;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    loopback = loopback && IsLoopback(*a->ai_addr);
  }
  freeaddrinfo(found);
  return loopback;
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

std::set<std::string> Split(const std::string& list) {
  return absl::StrSplit(list, absl::ByAnyChar(", "), absl::SkipEmpty());
}

}  // namespace

void RegisterServerFlags(ServerFlags* flags, FlagSet* set) {
  RegisterModel(flags, set);
  RegisterPruning(flags, set);
  RegisterScheduling(flags, set);
  RegisterServing(flags, set);
  set->Group("Other");
  set->Choice("log-level", {"debug", "info", "warning", "error"}, "least level logged",
              &flags->log_level);
  set->Choice("log-format", {"text", "json"}, "form of log lines", &flags->log_format);
  set->String("trace", "FILE",
              "write a Chrome trace of requests, steps and operations, at most 256 MiB [none]",
              &flags->trace);
  set->Action("version", "print the version and exit", &flags->version);
  set->Action("help", "print this and exit", &flags->help);
}

absl::Status CheckServerFlags(const ServerFlags& flags) {
  if (flags.model.empty() && flags.check_model.empty()) {
    return absl::InvalidArgumentError("--model: must name a model directory");
  }
  if (flags.max_model_len == 1) {
    return absl::InvalidArgumentError(
        "--max-model-len: at least 2, one token of a prompt and one of an answer");
  }
  if (flags.log_tolerance) {
    absl::Status status = CheckRange("--log-tolerance", *flags.log_tolerance, kLogTolerance);
    if (!status.ok()) return status;
  }
  if (flags.min_priority != 0 && flags.scheduling_policy != "priority") {
    return absl::InvalidArgumentError("--min-priority: needs --scheduling-policy priority");
  }
  const std::set<std::string> known = GrpcServerOptions().services;
  const std::set<std::string> services = Split(flags.grpc_services);
  if (services.empty()) {
    return absl::InvalidArgumentError("--grpc-services: must name at least one service");
  }
  for (const std::string& service : services) {
    if (known.count(service) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--grpc-services: unknown service ", service.substr(0, 64)));
    }
  }
  absl::Status status = CheckHost("--host", flags.host, flags.allow_insecure_remote);
  if (!flags.http_host.empty()) {
    status.Update(CheckHost("--http-host", flags.http_host, flags.allow_insecure_remote));
  }
  status.Update(CheckAdminAddress(flags));
  if (flags.metrics_port >= 0) {
    status.Update(CheckHost("--metrics-host", flags.metrics_host, flags.allow_insecure_remote));
  }
  return status;
}

absl::StatusOr<std::string> ServedModelName(const ServerFlags& flags,
                                            const std::string& model_dir) {
  std::string name = flags.served_model_name;
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

GrpcServerOptions GrpcOptionsOf(const ServerFlags& flags) {
  GrpcServerOptions out;
  out.listen.host = flags.host;
  out.listen.port = static_cast<int>(flags.grpc_port);
  out.listen.max_connections = flags.max_connections;
  out.max_message_mb = static_cast<int>(flags.max_message_mb);
  out.max_streams = static_cast<int>(flags.max_calls);
  out.receive_memory_bytes = 2 * flags.call_memory_mb << 20;
  out.max_connection_age_s = static_cast<int>(flags.max_connection_age);
  out.step_timeout = flags.step_timeout;
  out.services = Split(flags.grpc_services);
  // Who reaches the main port from afar is no operator, unless that is said.
  if (flags.admin_address == kMainPort) return out;
  out.admin_address = flags.admin_address;
  if (!IsLoopback(flags.host)) out.services.erase("admin");
  return out;
}

HttpServerOptions HttpOptionsOf(const ServerFlags& flags) {
  HttpServerOptions out;
  out.listen.host = flags.http_host.empty() ? flags.host : flags.http_host;
  out.listen.port = static_cast<int>(flags.http_port);
  out.listen.max_connections = flags.max_connections;
  out.port.max_body_bytes = flags.max_message_mb << 20;
  out.port.receive_memory_bytes = 2 * flags.call_memory_mb << 20;
  out.port.stall_timeout = flags.stall_timeout;
  return out;
}

ServerLimits ServerLimitsOf(const ServerFlags& flags) {
  ServerLimits out;
  out.max_calls = flags.max_calls;
  out.max_call_bytes = flags.call_memory_mb << 20;
  out.delivery_threads = static_cast<int>(flags.delivery_threads);
  out.stall_timeout = flags.stall_timeout;
  out.client_metadata = flags.client_metadata;
  return out;
}

MetricsOptions MetricsOptionsOf(const ServerFlags& flags) {
  MetricsOptions out;
  out.host = flags.metrics_host;
  out.port = static_cast<int>(flags.metrics_port);
  out.vllm_aliases = flags.metrics_compat == "vllm";
  return out;
}

void ConfigureLogFrom(const ServerFlags& flags) {
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(flags.log_level, &level);
  ConfigureLog(level, flags.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
}

}  // namespace fox
