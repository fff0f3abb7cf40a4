// fox-cli score, tokenize and detokenize: one call with a text or a list of ids.
#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/tokenizer.grpc.pb.h"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

struct TextFlags {
  Connection connection;
  std::string text;
  bool json = false, no_bos = false, ids = false, stats = false;
};

// Parses the flags and the argument, which are the same for all three commands. Returns an exit
// code if the command is over.
std::optional<int> Begin(const char* usage, const std::vector<std::string>& arguments,
                         TextFlags* flags) {
  FlagSet set;
  set.Group("Options");
  set.Bool("json", "print the answer as JSON", &flags->json);
  set.Bool("no-bos", "do not add the tokens that the model expects before a text", &flags->no_bos);
  set.Bool("prompt-ids", "score: the text is ids, separated by commas", &flags->ids);
  set.Bool("stats", "score: print each token", &flags->stats);
  return flags->connection.BeginText(usage, arguments, &set, &flags->text);
}

// Makes a call and prints its answer, as JSON or by `print`. Returns the exit code.
template <class Service, class Request, class Response, class Print>
int Answer(const TextFlags& flags,
           grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Response*),
           std::unique_ptr<Service> stub, const Request& request, const Print& print) {
  Response response;
  const int code = flags.connection.Ask(*stub, method, request, &response);
  if (code != kExitOk) return code;
  if (flags.json) {
    PrintJson(response);
  } else {
    PrintText(print(response));
  }
  return kExitOk;
}

std::string ScoreText(const v1::ScoreResponse& response, bool each_token) {
  std::string out;
  for (const v1::TokenLogprobs& position : response.logprobs()) {
    if (!each_token) break;
    absl::StrAppendFormat(&out, "%d\t%.5f\t%d\n", position.token().token_id(),
                          position.token().logprob(), position.token().rank());
  }
  const int count = response.logprobs_size();
  const double mean = count > 0 ? response.total_logprob() / count : 0.0;
  return out + absl::StrFormat("tokens %d  total logprob %.5f  mean %.5f  perplexity %.4f\n", count,
                               response.total_logprob(), mean, std::exp(-mean));
}

}  // namespace

int Score(const std::vector<std::string>& arguments) {
  TextFlags flags;
  const std::optional<int> over = Begin("score TEXT|@FILE|-", arguments, &flags);
  if (over.has_value()) return *over;
  v1::ScoreRequest request;
  const absl::Status read = SetPrompt(flags.text, flags.ids, &request);
  if (!read.ok()) return UsageError(read.message());
  if (flags.no_bos) request.set_add_special_tokens(false);
  return Answer(flags, &v1::Inference::Stub::Score, v1::Inference::NewStub(flags.connection.Open()),
                request, [&](const auto& response) { return ScoreText(response, flags.stats); });
}

int Tokenize(const std::vector<std::string>& arguments) {
  TextFlags flags;
  const std::optional<int> over = Begin("tokenize TEXT|@FILE|-", arguments, &flags);
  if (over.has_value()) return *over;
  v1::TokenizeRequest request;
  request.set_text(flags.text);
  if (flags.no_bos) request.set_add_special_tokens(false);
  return Answer(flags, &v1::Tokenizer::Stub::Tokenize,
                v1::Tokenizer::NewStub(flags.connection.Open()), request, [](const auto& response) {
                  return absl::StrJoin(response.token_ids(), ",") + "\n";
                });
}

int Detokenize(const std::vector<std::string>& arguments) {
  TextFlags flags;
  const std::optional<int> over = Begin("detokenize IDS|@FILE|-", arguments, &flags);
  if (over.has_value()) return *over;
  v1::DetokenizeRequest request;
  const absl::Status parsed = ParseIds(flags.text, request.mutable_token_ids());
  if (!parsed.ok()) return UsageError(parsed.message());
  return Answer(flags, &v1::Tokenizer::Stub::Detokenize,
                v1::Tokenizer::NewStub(flags.connection.Open()), request,
                [](const auto& response) { return response.text() + "\n"; });
}

}  // namespace fox::cli
