// ServerFlags: the flags by group, and the checks of their combinations.
#include "server/server_flags.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/request/sampling_limits.h"
#include "engine/schedule/policy.h"
#include "models/checkpoint/json_reader.h"
#include "server/served_model_name.h"

namespace fox {
namespace {

constexpr int64_t kBillion = 1000000000;
constexpr int64_t kDefaultConnections = 8192;
constexpr int64_t kDefaultTlsConnections = 1024;  // 70 kB each during its handshake
constexpr int64_t kMaxAdminConnections = 32;
static_assert(kDefaultTlsConnections <= kDefaultConnections);
// Descriptors for files, gRPC's event loops and a device's driver; of a small limit, a quarter.
constexpr int64_t kReservedDescriptors = 64;
constexpr int64_t kSmallPortShare = 16;  // the metrics and the admin port have a sixteenth each
constexpr const char* kMainPort = "main";
constexpr const char* kNoTls = "this port speaks plain HTTP";
constexpr double kDay = 86400;
constexpr int64_t kProcessBytes = int64_t{128} << 20;  // code, vocabularies, gRPC, threads
constexpr int64_t kScrapeBytes = 4 << 10;              // limit of a body; a scrape has none

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
  set->DTypeChoice("dtype", "type of weights and pages", &f->engine.dtype);
  f->engine.quantization.reset();  // auto
  AddQuantization(set, &f->engine.quantization);
  AddKvCacheDType(set, &f->engine.kv_cache_dtype);
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
      "pruning: the bound by which blocks are skipped and pages evicted", &f->engine.runner.acp);
  set->OptionalDouble("log-tolerance", "X",
                      "log of the attention mass that a row may lose [the checkpoint's, or -10]",
                      &f->engine.log_tolerance);
}

void RegisterScheduling(ServerFlags* f, FlagSet* set) {
  RunnerOptions* runner = &f->engine.runner;
  EngineOptions* engine = &f->engine.engine;
  set->Group("Memory and scheduling");
  set->Int("max-model-len", "N", "limit of tokens of one sequence; 0: the size of the page pool", 0,
           kBillion, &runner->max_model_len);
  runner->max_num_seqs = 0;
  set->Int("max-num-seqs", "N", "sequences that run at once; 0: chosen by device and memory", 0,
           65536, &runner->max_num_seqs);
  set->Int("max-num-batched-tokens", "N",
           "limit of tokens in one step; 0: 512 on the CPU, 8192 on a GPU, less for a small pool; "
           "raised to --max-num-seqs, on a GPU to 128 more",
           0, 1 << 20, &runner->max_num_batched_tokens);
  set->Int(
      "prefill-tokens-per-decode", "N",
      absl::StrCat("limit of prompt tokens in a step that also decodes, for each of its decodes; "
                   "fewer than ",
                   kLeastDecodes, " decodes count as ", kLeastDecodes,
                   ", and a chunk is always allowed; 0: no limit; -1: 96 on a GPU, no limit on "
                   "the CPU"),
      -1, 1 << 20, &runner->prefill_tokens_per_decode);
  set->Enum("kv-admission",
            {{"expected", KvAdmission::kExpected}, {"worst-case", KvAdmission::kWorstCase}},
            "free pages that a request needs to start: its expected pages, or its whole prompt's",
            &engine->kv_admission);
  set->Double("gpu-memory-utilization", "SHARE", "share of a GPU's memory that may be used", 0, 1,
              &f->engine.gpu_memory_utilization);
  set->Bool("enforce-eager", "run every step without CUDA graphs", &runner->enforce_eager);
  set->Mebibytes("kv-cache-mb", "MiB of the page pool; 0: chosen from free memory", 0, 1 << 30,
                 &f->engine.kv_cache_bytes);
  set->Double("prefix-cache-share", "SHARE",
              "share of the page pool for the prefix cache, which yields pages to requests; 0: no "
              "prefix cache",
              0, 1, &engine->prefix_cache_share);
  AddPrefixStore(set, &f->engine.prefix_store);
  set->Int("max-num-queued-reqs", "N", "limit of waiting requests; more are refused", 1, 1 << 20,
           &engine->max_num_queued_reqs);
  set->Int("max-num-queued-tokens", "N", "limit of waiting prompt tokens; more are refused", 1,
           kBillion, &engine->max_num_queued_tokens);
  set->Double("max-queue-seconds", "SECONDS",
              "limit of a request's expected wait; beyond it is refused; 0: no limit", 0, kDay,
              &engine->max_queue_seconds);
  set->Int("max-paused-reqs", "N", "limit of requests whose readers have stopped; more are ended",
           1, 1 << 20, &engine->max_paused_reqs);
  set->Double("stall-timeout", "SECONDS", "time without progress after which a reader is cut off",
              0.1, kDay, &engine->stall_timeout);
  set->Double("step-timeout", "SECONDS",
              "a step longer than this and than 4 times the slowest step before ends the process",
              0.1, kDay, &f->grpc.step_timeout);
  set->String(
      "speculative-config", "JSON",
      "draft tokens from earlier text: {\"method\": \"ngram\", \"num_speculative_tokens\": 4 (1 to "
      "14), \"prompt_lookup_min\": 5, \"prompt_lookup_max\": 5} [none]",
      &f->speculative_config);
  set->Int("max-logprobs", "N", "largest logprobs of a request", 0, 1024, &engine->max_logprobs);
  set->Enum("scheduling-policy", {{"fcfs", false}, {"priority", true}},
            "order of the queue: by arrival, with clients in turn, or by the requests' priority",
            &engine->priority_scheduling);
  set->Int("min-priority", "N", "most urgent (lowest) priority of a request",
           std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
           &engine->min_priority);
}

void RegisterServing(ServerFlags* f, FlagSet* set) {
  set->Group("Serving");
  set->String("host", "ADDRESS", "address to listen on", &f->grpc.listen.host);
  f->grpc.listen.port = 50051;
  set->Int("grpc-port", "PORT", "port of gRPC; 0: any free one, which is printed", 0, 65535,
           &f->grpc.listen.port);
  f->http.listen.host.clear();
  f->http.listen.port = -1;
  set->Int("http-port", "PORT", "port of OpenAI's API over HTTP; 0: any free one; -1: none", -1,
           65535, &f->http.listen.port);
  set->String("http-host", "ADDRESS", "address of the HTTP port [that of --host]",
              &f->http.listen.host);
  set->String("grpc-services", "LIST", "services to offer", &f->grpc_services);
  set->String("admin-address", "HOST:PORT",
              "address of the admin service; `main`: the gRPC port, even if it is open to others "
              "[the gRPC port, if its host is loopback]",
              &f->admin_address);
  set->Int("max-message-mb", "N", "limit of a request message in MiB", 1, 1024,
           &f->grpc.max_message_mb);
  set->Int("max-calls", "N", "limit of open calls; more are refused", 1, 1 << 20,
           &f->limits.max_calls);
  set->Mebibytes("call-memory-mb", "limit of MiB that calls hold, from arrival to the last write",
                 1, 1 << 20, &f->limits.max_call_bytes);
  set->Int("max-connections", "N",
           "limit of open connections of the gRPC and of the HTTP port; 0: 8192, with TLS 1024; "
           "fewer if there are too few descriptors",
           0, 1 << 20, &f->max_connections);
  set->String(
      "client-metadata", "KEY",
      "header or metadata key in which a trusted gateway names its client; only if no client "
      "can reach the port directly [none]",
      &f->limits.client_metadata);
  set->Double("audit-share", "SHARE",
              "share of answers that are computed once more with pruning and without, in the "
              "background, and compared",
              0, 1, &f->limits.audit.share);
  set->Double("audit-limit", "TV",
              "total variation of a token's two distributions beyond which an audit logs a warning",
              0, 1, &f->limits.audit.limit);
  set->Int("max-prompt-bytes", "N", "limit of bytes of a prompt's text", 1, kBillion,
           &f->context.max_prompt_bytes);
  set->Bool("add-bos-to-ids",
            "add bos to prompts of token ids without it, as to texts: for evaluation programs that "
            "send ids",
            &f->context.add_bos_to_ids);
  set->Int("stream-interval", "N", "tokens in a streamed message", 1, 1024,
           &f->context.stream_interval);
  set->Int("delivery-threads", "N", "threads that turn tokens into text and write it", 1, 256,
           &f->limits.delivery_threads);
  set->Int("max-connection-age", "SECONDS",
           "age at which connections are closed, so that balancers rebalance; 0: never", 0, 1 << 20,
           &f->grpc.max_connection_age_s);
  set->Int("max-connection-idle", "SECONDS",
           "time without a call after which connections are closed; 0: never", 0, 1 << 20,
           &f->grpc.max_connection_idle_s);
  f->metrics.listen.port = -1;
  f->metrics.listen.max_connections = 256;
  f->metrics.port.max_body_bytes = f->metrics.port.receive_memory_bytes = kScrapeBytes;
  set->Int("metrics-port", "PORT",
           "port of /metrics for Prometheus; 0: any free one, which is logged; -1: none", -1, 65535,
           &f->metrics.listen.port);
  set->String("metrics-host", "ADDRESS", "address of the metrics port", &f->metrics.listen.host);
  set->Enum<bool>("metrics-compat", {{"vllm", true}, {"none", false}},
                  "also export metrics under vLLM's names", &f->vllm_aliases);
  set->Double("shutdown-timeout", "SECONDS", "time for running requests after SIGTERM", 0, 86400,
              &f->shutdown_timeout);
}

void RegisterSecurity(ServerFlags* f, FlagSet* set) {
  set->Group("Security");
  set->Bool("allow-insecure-remote",
            "permit other hosts than loopback without encryption, or without tokens and required "
            "client certificates",
            &f->allow_insecure_remote);
  set->String("ssl-certfile", "FILE",
              "serve TLS on the gRPC, HTTP and admin ports with this certificate chain, PEM "
              "[plain text]",
              &f->tls.certificate);
  set->String("ssl-keyfile", "FILE", "the certificate's key, PEM without a passphrase",
              &f->tls.key);
  set->String("ssl-ca-certs", "FILE",
              "authorities of client certificates, PEM [no client certificates]",
              &f->tls.authorities);
  set->Choice("ssl-cert-reqs", {"auto", "none", "optional", "required"},
              "whether clients need a certificate; auto: required with --ssl-ca-certs",
              &f->ssl_cert_reqs);
  set->String(
      "allowed-hosts", "LIST",
      "names allowed in the Host of a request to the HTTP and metrics ports, beside "
      "addresses, localhost and this machine's name; *: any [any; on loopback without tokens: "
      "none]",
      &f->allowed_hosts);
  set->String("cors-origins", "LIST",
              "origins whose pages may use the HTTP port, as https://chat.example; *: any [none]",
              &f->cors_origins);
  set->String("api-key-file", "FILE",
              "file with bearer tokens of clients, one per line [clients need none]",
              &f->api_key_file);
  set->String("admin-key-file", "FILE",
              "file with bearer tokens of administrators, which also permit the calls of clients "
              "[administrators need none at --admin-address]",
              &f->admin_key_file);
}

absl::Status CheckHost(const char* flag, const std::string& host, bool allow_remote,
                       const char* tls = "give --ssl-certfile and --ssl-keyfile") {
  const absl::Status resolved = Resolves(host);
  if (!resolved.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", resolved.message()));
  }
  if (allow_remote || IsLoopback(host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": not a loopback address; ", tls,
                   ", put a proxy in front or give --allow-insecure-remote"));
}

// Parses HOST:PORT, with an IPv6 address in brackets. nullopt: malformed.
std::optional<AcceptorOptions> ParseAddress(const std::string& address) {
  AcceptorOptions out;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &out.port) ||
      out.port < 0 || out.port > 65535) {
    return std::nullopt;
  }
  out.host = address.substr(0, colon);
  return out;
}

absl::Status CheckAdminAddress(const ServerFlags& flags) {
  if (flags.admin_address == kMainPort && !flags.api_key_file.empty() &&
      flags.admin_key_file.empty()) {
    return absl::InvalidArgumentError(
        "--admin-address: main, where clients need --api-key-file's tokens, needs "
        "--admin-key-file, too");
  }
  if (flags.admin_address.empty() || flags.admin_address == kMainPort) return absl::OkStatus();
  const std::optional<AcceptorOptions> address = ParseAddress(flags.admin_address);
  if (!address.has_value()) {
    return absl::InvalidArgumentError("--admin-address: must be HOST:PORT or main");
  }
  const bool encrypted = !flags.tls.certificate.empty();
  const bool known =
      !flags.admin_key_file.empty() || flags.tls.clients == ClientCertificate::kRequired;
  absl::Status status =
      CheckHost("--admin-address", address->host, flags.allow_insecure_remote || encrypted);
  if (status.ok() && !known && !flags.allow_insecure_remote && !IsLoopback(address->host)) {
    status = absl::InvalidArgumentError(
        "--admin-address: not a loopback address, and any client would be an administrator; "
        "give --admin-key-file or --ssl-ca-certs");
  }
  return status;
}

// Checks the combination of TLS flags, and sets whether clients need certificates.
absl::Status CompleteTls(const std::string& cert_reqs, TlsOptions* tls) {
  if (tls->certificate.empty() != tls->key.empty()) {
    return absl::InvalidArgumentError("--ssl-certfile: needs --ssl-keyfile, and the other way");
  }
  if (!tls->authorities.empty() && tls->certificate.empty()) {
    return absl::InvalidArgumentError("--ssl-ca-certs: needs --ssl-certfile and --ssl-keyfile");
  }
  if (tls->authorities.empty()) {
    if (cert_reqs == "auto" || cert_reqs == "none") return absl::OkStatus();
    return absl::InvalidArgumentError("--ssl-cert-reqs: needs --ssl-ca-certs");
  }
  if (cert_reqs == "none") {
    tls->authorities.clear();
  } else {
    tls->clients =
        cert_reqs == "optional" ? ClientCertificate::kOptional : ClientCertificate::kRequired;
  }
  return absl::OkStatus();
}

// Sets the services of --grpc-services. The admin service is left out of a gRPC port that is not on
// loopback, or whose clients need tokens while administrators have none, unless --admin-address is
// `main`.
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
          absl::StrCat("--grpc-services: unknown service ", service.substr(0, 64),
                       service == "vllm" ? " (gateways use OpenAI's API: --http-port)" : ""));
    }
  }
  if (flags->admin_address == kMainPort) return absl::OkStatus();
  flags->grpc.admin = ParseAddress(flags->admin_address);
  const bool clients_only = !flags->api_key_file.empty() && flags->admin_key_file.empty();
  if (clients_only || !IsLoopback(flags->grpc.listen.host)) services.erase("admin");
  return absl::OkStatus();
}

// Checks the name of --client-metadata and makes it lower case, because headers are looked up in
// lower case. Libraries hide binary headers and pseudo-headers: such a name would silently match no
// client.
absl::Status CompleteClientMetadata(std::string* key) {
  absl::AsciiStrToLower(key);
  const bool name = std::all_of(key->begin(), key->end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  if (name && !absl::EndsWith(*key, "-bin")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--client-metadata: must be the name of a header: letters, digits, -, _ and ., and not one "
      "that ends with -bin");
}

// Sets the HTTP port's options: its limits are the gRPC port's, if it has none of its own.
absl::Status CompleteHttp(ServerFlags* flags) {
  HttpServerOptions& http = flags->http;
  if (http.listen.host.empty()) http.listen.host = flags->grpc.listen.host;
  http.port.max_body_bytes = int64_t{flags->grpc.max_message_mb} << 20;
  http.port.receive_memory_bytes = flags->grpc.receive_memory_bytes;
  http.port.stall_timeout = flags->limits.stall_timeout;
  http.allowed_hosts = absl::StrSplit(absl::AsciiStrToLower(flags->allowed_hosts),
                                      absl::ByAnyChar(", "), absl::SkipEmpty());
  flags->metrics.allowed_hosts = http.allowed_hosts;
  http.cors_origins = absl::StrSplit(absl::AsciiStrToLower(flags->cors_origins),
                                     absl::ByAnyChar(", "), absl::SkipEmpty());
  if (http.listen.port < 0) return absl::OkStatus();
  return CheckHost("--http-host", http.listen.host,
                   flags->allow_insecure_remote || !flags->tls.certificate.empty());
}

// Sets the limit of connections of each port. Together they stay below the limit of descriptors, so
// that a flood of one port takes no descriptor from another.
void DivideDescriptors(ServerFlags* flags) {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  const auto limit = static_cast<int64_t>(std::min<rlim_t>(descriptors.rlim_cur, 1 << 30));
  int64_t left = limit - std::min(kReservedDescriptors, limit / 4);
  const int64_t small = std::max<int64_t>(left / kSmallPortShare, 1);
  const auto limit_port = [&](AcceptorOptions* port, int64_t max) {
    port->max_connections = std::min(max, small);
    left -= port->max_connections;
  };
  AcceptorOptions* const metrics = &flags->metrics.listen;
  if (metrics->port >= 0) limit_port(metrics, metrics->max_connections);
  if (flags->grpc.admin.has_value()) limit_port(&*flags->grpc.admin, kMaxAdminConnections);
  if (flags->http.listen.port >= 0) left /= 2;
  const int64_t wanted = flags->max_connections > 0       ? flags->max_connections
                         : flags->tls.certificate.empty() ? kDefaultConnections
                                                          : kDefaultTlsConnections;
  flags->grpc.listen.max_connections = flags->http.listen.max_connections =
      std::clamp<int64_t>(left, 1, wanted);
}

// Parses --speculative-config as vLLM does: either of the two lengths is the default of the other.
absl::Status CompleteSpeculation(const std::string& text, Speculation* speculation) {
  if (text.empty()) return absl::OkStatus();
  const auto config = ReadJsonObject(text, {1 << 10, 2, 16}, "--speculative-config");
  if (!config.ok()) return config.status();
  KeyReader keys(*config, "--speculative-config");
  for (const auto& [key, value] : config->items()) {
    static const std::set<std::string> known = {"method", "num_speculative_tokens",
                                                "prompt_lookup_min", "prompt_lookup_max"};
    if (known.count(key) == 0) keys.Invalid(key, "is not known");
  }
  if (keys.String("method", "") != "ngram") keys.Invalid("method", "must be ngram");
  speculation->tokens =
      static_cast<int32_t>(keys.Integer("num_speculative_tokens", 0, 1, kMaxDrafts));
  if (!keys.Has("num_speculative_tokens")) keys.Invalid("num_speculative_tokens", "is missing");
  const auto min = keys.OptionalInteger("prompt_lookup_min", 1, 64);
  const auto max = keys.OptionalInteger("prompt_lookup_max", min.value_or(1), 64);
  speculation->lookup_max = static_cast<int32_t>(max.value_or(min.value_or(5)));
  speculation->lookup_min = static_cast<int32_t>(min.value_or(speculation->lookup_max));
  return keys.status();
}

}  // namespace

void RegisterServerFlags(ServerFlags* flags, FlagSet* set) {
  RegisterModel(flags, set);
  RegisterPruning(flags, set);
  RegisterScheduling(flags, set);
  RegisterServing(flags, set);
  RegisterSecurity(flags, set);
  set->Group("Other");
  set->Enum("log-level",
            {{"debug", LogLevel::kDebug},
             {"info", LogLevel::kInfo},
             {"warning", LogLevel::kWarning},
             {"error", LogLevel::kError}},
            "lowest level that is logged", &flags->log_level);
  set->Enum("log-format", {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
            "form of log lines", &flags->log_format);
  set->String("trace", "FILE", "write a Chrome trace of requests and steps, at most 256 MiB [none]",
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
  engine.host_bytes_beside = 3 * flags->limits.max_call_bytes + kProcessBytes;
  const bool encrypted = !flags->tls.certificate.empty();
  absl::Status status = CompleteTls(flags->ssl_cert_reqs, &flags->tls);
  status.Update(CompleteSpeculation(flags->speculative_config, &engine.engine.speculation));
  status.Update(CompleteClientMetadata(&flags->limits.client_metadata));
  status.Update(SetServices(flags));
  status.Update(
      CheckHost("--host", flags->grpc.listen.host, flags->allow_insecure_remote || encrypted));
  status.Update(CheckAdminAddress(*flags));
  status.Update(CompleteHttp(flags));
  if (flags->metrics.listen.port >= 0) {
    status.Update(CheckHost("--metrics-host", flags->metrics.listen.host,
                            flags->allow_insecure_remote, kNoTls));
  }
  if (!flags->allow_insecure_remote && AllowsUnauthenticated(*flags)) {
    status.Update(absl::InvalidArgumentError(
        "--host: not a loopback address, and any client would be served; give --api-key-file "
        "or --ssl-ca-certs, put a proxy in front or give --allow-insecure-remote"));
  }
  DivideDescriptors(flags);
  return status;
}

bool AllowsUnauthenticated(const ServerFlags& flags) {
  if (!flags.api_key_file.empty()) return false;
  if (flags.tls.clients == ClientCertificate::kRequired) return false;
  const AcceptorOptions& http = flags.http.listen;
  return !IsLoopback(flags.grpc.listen.host) || (http.port >= 0 && !IsLoopback(http.host));
}

}  // namespace fox
