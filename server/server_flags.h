// ServerFlags: all of fox-server's settings with their defaults, and what they mean for the engine,
// the port and requests. Read main.cc next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/flags/flag_set.h"
#include "server/process/log.h"
#include "server/rpc/grpc_server.h"

namespace fox {

struct ServerFlags {
  std::string model, check_model, served_model_name, generation_config = "auto";
  std::string device = "auto", dtype = "auto";
  int64_t threads = 0, kv_cache_mb = 0;
  bool allow_nonfinite = false;
  std::string acp = "certified";
  std::optional<double> log_tolerance;  // unset: the checkpoint's own, else -10
  int64_t max_model_len = 0, max_num_seqs = 16, max_num_batched_tokens = 0;
  double gpu_memory_utilization = 0.9;
  bool enforce_eager = false;
  int64_t max_num_queued_reqs = 256, max_num_queued_tokens = 1 << 20, max_logprobs = 20;
  int64_t max_paused_reqs = 256, min_priority = 0;
  double stall_timeout = 30, max_queue_seconds = 120, step_timeout = 60;
  std::string scheduling_policy = "fcfs";
  std::string host = "127.0.0.1";
  int64_t grpc_port = 50051, max_message_mb = 5, max_prompt_bytes = 4 << 20;
  int64_t max_calls = 4096, call_memory_mb = 128, max_connections = 0;  // 0: by the descriptors
  int64_t stream_interval = 1, max_connection_age = 0, delivery_threads = 2;
  std::string admin_address;    // HOST:PORT; empty: the main port, if that is loopback
  std::string client_metadata;  // key of a gateway's name for its client; empty: none is believed
  std::string grpc_services = "inference,tokenizer,info,admin,vllm,health,reflection";
  bool allow_insecure_remote = false;
  double shutdown_timeout = 30;
  std::string log_level = "info", log_format = "text", trace;
  bool version = false, help = false;
};

// Registers every flag; `flags` must outlive `set`.
void RegisterServerFlags(ServerFlags* flags, FlagSet* set);

// What no single flag's range says; resolves the hosts' names. InvalidArgument names the flag.
absl::Status CheckServerFlags(const ServerFlags& flags);

// --served-model-name, else the name of the model's directory. InvalidArgument: it is empty, longer
// than 256 bytes, not UTF-8 or has control characters.
absl::StatusOr<std::string> ServedModelName(const ServerFlags& flags, const std::string& model_dir);

// REQUIRES: flags that passed CheckServerFlags.
GrpcServerOptions GrpcOptionsOf(const ServerFlags& flags);
ServerLimits ServerLimitsOf(const ServerFlags& flags);
void ConfigureLogFrom(const ServerFlags& flags);

}  // namespace fox
