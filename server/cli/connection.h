// The commands of fox-cli, and what they share: where the server is, how it is known, which client
// calls, how long to wait, how an error is reported. Read generate_command.cc next.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/flag_set.h"
#include "google/protobuf/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"

namespace fox::cli {

// Exit codes of fox-cli.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // the server answered with an error
inline constexpr int kExitUsage = 2;

// One line on standard error with the gRPC code's name. Returns the exit code.
int Report(const grpc::Status& status, const grpc::ClientContext& context);
int UsageError(absl::string_view message);

struct Connection {
  std::string target = "127.0.0.1:50051";
  double timeout_s = 0;  // 0: none

  // How a command begins: parses its arguments by `flags`, to which it adds the connection's and
  // --help, and reads the files they name. An exit code: the command is over; it was reported.
  // `usage`: the command and its arguments; more positional ones than `most` are an error.
  std::optional<int> Begin(const char* usage, const std::vector<std::string>& arguments,
                           FlagSet* flags, size_t most = 0);
  // The same for a command of one argument, which names `text`: itself, a file after `@`, standard
  // input for `-`.
  std::optional<int> BeginText(const char* usage, const std::vector<std::string>& arguments,
                               FlagSet* flags, std::string* text);
  std::shared_ptr<grpc::Channel> Open() const;
  // The context of one call.
  std::unique_ptr<grpc::ClientContext> Call() const;
  // One unary call of a service. Returns the exit code; an error is reported.
  template <class Stub, class Request, class Response>
  int Ask(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
          const Request& request, Response* response) const {
    const std::unique_ptr<grpc::ClientContext> context = Call();
    return Report((stub.*method)(context.get(), request, response), *context);
  }

 private:
  void Register(FlagSet* flags);
  // FlagSet::Parse, without an environment but FOX_API_KEY.
  absl::Status Parse(const std::vector<std::string>& arguments, FlagSet* flags);

  bool tls_ = false;
  std::string authorities_, certificate_, key_, server_name_, api_key_file_;  // files but the name
  grpc::SslCredentialsOptions pem_;                                           // what they hold
  std::string token_;
};

// `text` with control characters, but tabs and line ends, as \xNN: a terminal would obey them, and
// a model or a server may have been talked into them.
std::string Printable(absl::string_view text);
// Writes the text to standard output: Printable for a terminal, as it is for programs.
void PrintText(absl::string_view text);

// On one line, or on many for people.
void PrintJson(const google::protobuf::Message& message, bool indented = false);

using WireIds = google::protobuf::RepeatedField<uint32_t>;
// Ids separated by commas or spaces.
absl::Status ParseIds(const std::string& text, WireIds* ids);
// The prompt of a request: a text, or the ids in it.
template <class Request>
absl::Status SetPrompt(const std::string& text, bool is_ids, Request* request) {
  if (is_ids) return ParseIds(text, request->mutable_token_ids()->mutable_ids());
  request->set_text(text);
  return absl::OkStatus();
}

// The commands. Each takes the arguments after its name and returns an exit code.
int Generate(const std::vector<std::string>& arguments);
int Chat(const std::vector<std::string>& arguments);
int Score(const std::vector<std::string>& arguments);
int Tokenize(const std::vector<std::string>& arguments);
int Detokenize(const std::vector<std::string>& arguments);
int Health(const std::vector<std::string>& arguments);
int Info(const std::vector<std::string>& arguments);
int Drain(const std::vector<std::string>& arguments);
int Undrain(const std::vector<std::string>& arguments);
int FlushCache(const std::vector<std::string>& arguments);

}  // namespace fox::cli
