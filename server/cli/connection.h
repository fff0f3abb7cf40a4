// The commands of fox-cli and their shared parts: address and certificate of the server, token of
// the client, deadline, errors. Read generate_command.cc next.
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

// Prints an error in one line on standard error, with the name of its gRPC code. Returns the exit
// code.
int Report(const grpc::Status& status, const grpc::ClientContext& context);
int UsageError(absl::string_view message);

struct Connection {
  std::string target = "127.0.0.1:50051";
  double timeout_s = 0;  // 0: none

  // Begins a command: adds the connection's flags and --help to `flags`, parses `arguments`, and
  // reads the files that the flags name. `usage` is the command with its arguments. More than
  // `max_arguments` positional arguments are an error. Returns an exit code if the command is over:
  // help was printed or an error reported.
  std::optional<int> Begin(const char* usage, const std::vector<std::string>& arguments,
                           FlagSet* flags, size_t max_arguments = 0);
  // Begins a command with exactly one argument, and sets `text`: to the argument, to the contents
  // of a file after `@`, or to standard input for `-`. Returns as Begin does.
  std::optional<int> BeginText(const char* usage, const std::vector<std::string>& arguments,
                               FlagSet* flags, std::string* text);
  std::shared_ptr<grpc::Channel> Open() const;
  // Makes the context of one call, with its deadline and token.
  std::unique_ptr<grpc::ClientContext> Call() const;
  // Makes a unary call of a service. Reports an error. Returns the exit code.
  template <class Stub, class Request, class Response>
  int Ask(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
          const Request& request, Response* response) const {
    const std::unique_ptr<grpc::ClientContext> context = Call();
    return Report((stub.*method)(context.get(), request, response), *context);
  }

 private:
  void Register(FlagSet* flags);
  // Parses the arguments and FOX_API_KEY, the only variable of the environment that counts.
  absl::Status Parse(const std::vector<std::string>& arguments, FlagSet* flags);

  bool tls_ = false;
  std::string authorities_, certificate_, key_, api_key_file_;  // names of files
  std::string server_name_;
  grpc::SslCredentialsOptions pem_;  // contents of the files
  std::string token_;
};

// Returns `text` with control characters, except tabs and line ends, as \xNN. A terminal would obey
// control characters, and a prompt may have led the model to write them.
std::string Printable(absl::string_view text);
// Writes the text to standard output: Printable(text) to a terminal, unchanged to a program.
void PrintText(absl::string_view text);

// Prints a message as JSON: on one line, or indented for people.
void PrintJson(const google::protobuf::Message& message, bool indented = false);

using WireIds = google::protobuf::RepeatedField<uint32_t>;
// Parses ids that are separated by commas or spaces.
absl::Status ParseIds(const std::string& text, WireIds* ids);
// Sets the prompt of a request: to `text`, or to the ids in it if `is_ids`.
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
