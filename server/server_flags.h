// ServerFlags: all settings of fox-server, in the options of the part that uses them: engine,
// requests, calls, ports. Read main.cc next.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/flag_set.h"
#include "engine/engine_factory.h"
#include "server/calls/server_core.h"
#include "server/http/port/http_server.h"
#include "server/process/log.h"
#include "server/rpc/grpc_server.h"

namespace fox {

struct ServerFlags {
  std::string model, check_model;
  EngineConfig engine;
  std::string speculative_config;  // JSON; empty: no speculation
  ConversionContext context;       // loading completes it
  bool generation_config = true;   // take sampling defaults from the model's file
  ServerLimits limits;
  int64_t max_connections = 0;  // of the gRPC and of the HTTP port each; 0: the default
  GrpcServerOptions grpc;
  HttpServerOptions http;  // port -1: none
  std::string grpc_services = "inference,tokenizer,info,admin,health,reflection";
  std::string admin_address;  // HOST:PORT; empty: the main port, if that is loopback
  bool allow_insecure_remote = false;
  TlsOptions tls;  // without a certificate: plain text
  std::string ssl_cert_reqs = "auto";
  std::string api_key_file, admin_key_file;
  std::string allowed_hosts, cors_origins;  // separated by commas or spaces
  HttpServerOptions metrics;                // port -1: none
  bool vllm_aliases = true;                 // export the metrics under vLLM's names, too
  double shutdown_timeout = 30;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  std::string trace;
  bool version = false, help = false;
};

// Registers every flag; `flags` must outlive `set`.
void RegisterServerFlags(ServerFlags* flags, FlagSet* set);

// Checks combinations of flags, sets the options that follow from several flags, and resolves the
// names of hosts. InvalidArgument names the flag.
absl::Status CompleteServerFlags(ServerFlags* flags);

// True if a remote client needs neither a token nor a certificate.
bool AllowsUnauthenticated(const ServerFlags& flags);

}  // namespace fox
