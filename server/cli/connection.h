// Connection: what every fox-cli command shares: where the server is, how it is known and who
// calls, how long to wait, how an error is reported. Read generate_command.cc next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/flags/flag_set.h"
#include "google/protobuf/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"

namespace fox::cli {

// Exit codes of fox-cli.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // the server answered with an error
inline constexpr int kExitUsage = 2;

struct Connection {
  std::string target = "127.0.0.1:50051";
  double timeout_s = 0;  // 0: none

  void Register(FlagSet* flags);
  // FlagSet::Parse, without an environment but FOX_API_KEY, and the files that the flags name.
  absl::Status Parse(const std::vector<std::string>& arguments, FlagSet* flags);
  std::shared_ptr<grpc::Channel> Open() const;
  // The context of one call.
  std::unique_ptr<grpc::ClientContext> Call() const;

 private:
  bool tls_ = false;
  std::string authorities_, certificate_, key_, server_name_, api_key_file_;  // files but the name
  grpc::SslCredentialsOptions pem_;                                           // what they hold
  std::string token_;
};

// One line on standard error with the gRPC code's name. Returns the exit code.
int Report(const grpc::Status& status, const grpc::ClientContext& context);
int UsageError(const std::string& message);

void PrintJson(const google::protobuf::Message& message);

// The text an argument stands for: itself, a file after `@`, standard input for `-`.
absl::StatusOr<std::string> ReadArgument(const std::string& argument);
// Ids separated by commas or spaces.
absl::StatusOr<std::vector<uint32_t>> ParseIds(const std::string& text);

}  // namespace fox::cli
