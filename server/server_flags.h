// ServerFlags: all of fox-server's settings, each where it is used: in the options of the engine,
// of requests, of calls and of the port. Read main.cc next.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/flag_set.h"
#include "engine/engine_factory.h"
#include "server/calls/server_core.h"
#include "server/http/http_server.h"
#include "server/process/log.h"
#include "server/rpc/grpc_server.h"

namespace fox {

struct ServerFlags {
  std::string model, check_model;
  EngineConfig engine;
  std::string speculative_config;  // JSON; empty: no speculation
  ConversionContext context;       // loading fills in the rest
  bool generation_config = true;   // sampling defaults come from the model's file
  ServerLimits limits;
  int64_t max_connections = 0;  // of the gRPC and of the HTTP port; 0: by default
  GrpcServerOptions grpc;
  HttpServerOptions http;  // its port is -1: none
  std::string grpc_services = "inference,tokenizer,info,admin,health,reflection";
  std::string admin_address;  // HOST:PORT; empty: the main port, if that is loopback
  bool allow_insecure_remote = false;
  TlsOptions tls;  // no certificate: plain text
  std::string ssl_cert_reqs = "auto";
  std::string api_key_file, admin_key_file;
  std::string allowed_hosts;  // a list
  HttpServerOptions metrics;  // likewise
  bool vllm_aliases = true;   // the metrics under the names of vLLM, too
  double shutdown_timeout = 30;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  std::string trace;
  bool version = false, help = false;
};

// Registers every flag; `flags` must outlive `set`.
void RegisterServerFlags(ServerFlags* flags, FlagSet* set);

// Checks what no single flag's range says, and sets what follows from several flags; resolves the
// hosts' names. InvalidArgument names the flag.
absl::Status CompleteServerFlags(ServerFlags* flags);

// True if unauthenticated remote clients are allowed.
bool StrangersMayCall(const ServerFlags& flags);

// `name`, else the name of the model's directory. InvalidArgument: it is empty, longer than 256
// bytes, not UTF-8 or has control characters.
absl::StatusOr<std::string> ServedModelName(std::string name, const std::string& model_dir);

}  // namespace fox
