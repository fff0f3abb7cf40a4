// Connection: flags, channel and calls; output for people and for programs.
#include "server/cli/connection.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/create_channel.h"

namespace fox::cli {
namespace {

constexpr int kMaxReceiveBytes = 256 << 20;

// Reads a file. An error begins with `prefix`.
absl::Status ReadFile(const char* prefix, const std::string& path, std::string* content) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::InvalidArgumentError(absl::StrCat(prefix, "cannot read ", path));
  content->assign(std::istreambuf_iterator<char>(in), {});
  return absl::OkStatus();
}

}  // namespace

void Connection::Register(FlagSet* flags) {
  flags->Group("Connection");
  flags->String("target", "[HOST][:PORT]",
                "the server's gRPC port; without HOST: this machine; without PORT: 50051", &target);
  flags->Double("timeout", "SECONDS", "deadline of the call; 0: none", 0, 1e6, &timeout_s);
  flags->Bool("tls", "encrypt, and check the server's certificate", &tls_);
  flags->String("ca", "FILE",
                "authorities of the server's certificate, PEM; implies --tls "
                "[the system's]",
                &authorities_);
  flags->String("cert", "FILE", "the client's certificate, PEM; implies --tls", &certificate_);
  flags->String("key", "FILE", "the key of --cert, PEM", &key_);
  flags->String("server-name", "NAME", "name in the server's certificate [the target's]",
                &server_name_);
  flags->String("api-key-file", "FILE", "file whose first token is sent [the token in FOX_API_KEY]",
                &api_key_file_);
}

absl::Status Connection::Parse(const std::vector<std::string>& arguments, FlagSet* flags) {
  absl::Status status = flags->Parse(arguments);
  if (!status.ok()) return status;
  absl::string_view address = target;
  if (absl::ConsumePrefix(&address, "https://")) tls_ = true;
  absl::ConsumePrefix(&address, "http://");
  absl::ConsumeSuffix(&address, "/");
  const std::string local = absl::StrCat("127.0.0.1", address);
  if (absl::StartsWith(address, ":")) address = local;
  const bool has_port = absl::StrContains(address, ':') && !absl::EndsWith(address, "]");
  target = absl::StrCat(address, has_port ? "" : ":50051");
  if (certificate_.empty() != key_.empty()) {
    return absl::InvalidArgumentError("--cert: needs --key, and the other way");
  }
  tls_ = tls_ || !authorities_.empty() || !certificate_.empty();
  const char* variable = std::getenv("FOX_API_KEY");
  std::string tokens = variable == nullptr ? "" : variable;
  const std::tuple<const char*, const std::string&, std::string*> files[] = {
      {"--ca: ", authorities_, &pem_.pem_root_certs},
      {"--cert: ", certificate_, &pem_.pem_cert_chain},
      {"--key: ", key_, &pem_.pem_private_key},
      {"--api-key-file: ", api_key_file_, &tokens}};
  for (const auto& [flag, path, content] : files) {
    if (!path.empty()) status.Update(ReadFile(flag, path, content));
  }
  for (absl::string_view line : absl::StrSplit(tokens, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (token_.empty() && !absl::StartsWith(line, "#")) token_ = std::string(line);
  }
  return status;
}

std::optional<int> Connection::Begin(const char* usage, const std::vector<std::string>& arguments,
                                     FlagSet* flags, size_t max_arguments) {
  bool help = false;
  Register(flags);
  flags->Action("help", "print this and exit", &help);
  const absl::Status status = Parse(arguments, flags);
  if (!status.ok()) return UsageError(status.message());
  if (help) {
    std::printf("usage: fox-cli %s [flags]\n\n%s", usage, flags->Help().c_str());
    return kExitOk;
  }
  if (flags->positional().size() > max_arguments) {
    return UsageError("unexpected argument " + flags->positional()[max_arguments].substr(0, 64));
  }
  return std::nullopt;
}

std::optional<int> Connection::BeginText(const char* usage,
                                         const std::vector<std::string>& arguments, FlagSet* flags,
                                         std::string* text) {
  const std::optional<int> over = Begin(usage, arguments, flags, /*max_arguments=*/SIZE_MAX);
  if (over.has_value()) return over;
  if (flags->positional().size() != 1) {
    const std::string name(usage, std::strcspn(usage, " "));
    return UsageError(absl::StrCat(name, " needs one argument (or @FILE, or -)"));
  }
  const std::string& argument = flags->positional()[0];
  *text = argument;
  absl::Status read;
  if (argument == "-") {
    text->assign(std::istreambuf_iterator<char>(std::cin), {});
  } else if (absl::StartsWith(argument, "@")) {
    read = ReadFile("", argument.substr(1), text);
  }
  if (read.ok()) return std::nullopt;
  return UsageError(read.message());
}

std::shared_ptr<grpc::Channel> Connection::Open() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  if (!server_name_.empty()) arguments.SetSslTargetNameOverride(server_name_);
  return grpc::CreateCustomChannel(
      target, tls_ ? grpc::SslCredentials(pem_) : grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<grpc::ClientContext> Connection::Call() const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (timeout_s > 0) {
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_s)));
  }
  if (!token_.empty()) context->AddMetadata("authorization", "Bearer " + token_);
  return context;
}

int Report(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return kExitOk;
  const auto code = static_cast<absl::StatusCode>(status.error_code());  // the same numbers
  static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) == grpc::UNAUTHENTICATED &&
                static_cast<int>(absl::StatusCode::kDeadlineExceeded) == grpc::DEADLINE_EXCEEDED);
  std::string line =
      absl::StrCat("fox-cli: ", absl::StatusCodeToString(code), ": ", status.error_message());
  if (absl::StrContains(line, "http1.x server")) {
    absl::StrAppend(&line, "; this is an HTTP port, and gRPC has the server's --grpc-port");
  }
  if (status.error_code() == grpc::RESOURCE_EXHAUSTED) {
    const auto& trailers = context.GetServerTrailingMetadata();
    auto it = trailers.find("retry-after-ms");
    if (it != trailers.end()) {
      absl::StrAppend(&line, " (retry after ", std::string(it->second.data(), it->second.size()),
                      " ms)");
    }
  }
  for (char& c : line) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  std::fprintf(stderr, "%s\n", Printable(line).c_str());
  return kExitFailed;
}

int UsageError(absl::string_view message) {
  std::fprintf(stderr, "fox-cli: %s\n", Printable(message).c_str());
  return kExitUsage;
}

std::string Printable(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool pair = byte == 0xc2 && i + 1 < text.size();  // U+0080 to U+009F are two bytes
    const auto next = static_cast<unsigned char>(pair ? text[i + 1] : 0);
    if (pair && next >= 0x80 && next < 0xa0) {
      absl::StrAppend(&out, "\\x", absl::Hex(next, absl::kZeroPad2));
      ++i;
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      absl::StrAppend(&out, "\\x", absl::Hex(byte, absl::kZeroPad2));
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

void PrintText(absl::string_view text) {
  const std::string shown = isatty(STDOUT_FILENO) != 0 ? Printable(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

void PrintJson(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = indented;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  if (google::protobuf::util::MessageToJsonString(message, &json, options).ok()) {
    std::printf("%s%s", json.c_str(), indented ? "" : "\n");  // indented, it ends its last line
    std::fflush(stdout);
  }
}

absl::Status ParseIds(const std::string& text, WireIds* ids) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::ByAnyChar(", \n\t"), absl::SkipEmpty());
  for (const std::string& part : parts) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(part, &id)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is not a token id"));
    }
    ids->Add(id);
  }
  return absl::OkStatus();
}

}  // namespace fox::cli
