// fox-cli score, tokenize and detokenize: one text or list of ids in, one answer out.
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/tokenizer.grpc.pb.h"
#include "server/cli/commands.h"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

struct TextFlags {
  FlagSet set;
  Connection connection;
  bool json = false, no_bos = false, ids = false, stats = false;
};

// Parses the flags and the one argument that all three have. An exit code: the command is over.
std::optional<int> Begin(const std::string& name, const char* what,
                         const std::vector<std::string>& arguments, TextFlags* flags) {
  FlagSet& set = flags->set;
  set.Group("Options");
  set.Bool("json", "print the answer as JSON", &flags->json);
  set.Bool("no-bos", "do not add what the model expects in front", &flags->no_bos);
  set.Bool("prompt-ids", "score: the text is ids, separated by commas", &flags->ids);
  set.Bool("stats", "score: print each token", &flags->stats);
  const std::string usage = name + " " + what + "|@FILE|-";
  const std::optional<int> over =
      flags->connection.Begin(usage.c_str(), arguments, &set, /*most=*/SIZE_MAX);
  if (over.has_value() || set.positional().size() == 1) return over;
  return UsageError(name + " needs one argument (or @FILE, or -)");
}

}  // namespace

int Score(const std::vector<std::string>& arguments) {
  TextFlags flags;
  const std::optional<int> over = Begin("score", "TEXT", arguments, &flags);
  if (over.has_value()) return *over;
  v1::ScoreRequest request;
  const absl::Status read = SetPrompt(flags.set.positional()[0], flags.ids, &request);
  if (!read.ok()) return UsageError(read.message());
  if (flags.no_bos) request.set_add_special_tokens(false);
  v1::ScoreResponse response;
  const int code = flags.connection.Ask(*v1::Inference::NewStub(flags.connection.Open()),
                                        &v1::Inference::Stub::Score, request, &response);
  if (code != kExitOk) return code;
  if (flags.json) {
    PrintJson(response);
    return kExitOk;
  }
  if (flags.stats) {
    for (const v1::TokenLogprobs& position : response.logprobs()) {
      std::printf("%u\t%.5f\t%u\n", position.token().token_id(),
                  static_cast<double>(position.token().logprob()), position.token().rank());
    }
  }
  const int count = response.logprobs_size();
  const double mean = count > 0 ? response.total_logprob() / count : 0.0;
  std::printf("tokens %d  total logprob %.5f  mean %.5f  perplexity %.4f\n", count,
              response.total_logprob(), mean, std::exp(-mean));
  return kExitOk;
}

int Tokenize(const std::vector<std::string>& arguments) {
  TextFlags flags;
  const std::optional<int> over = Begin("tokenize", "TEXT", arguments, &flags);
  if (over.has_value()) return *over;
  const absl::StatusOr<std::string> text = ReadArgument(flags.set.positional()[0]);
  if (!text.ok()) return UsageError(text.status().message());
  v1::TokenizeRequest request;
  request.set_text(*text);
  if (flags.no_bos) request.set_add_special_tokens(false);
  v1::TokenizeResponse response;
  const int code = flags.connection.Ask(*v1::Tokenizer::NewStub(flags.connection.Open()),
                                        &v1::Tokenizer::Stub::Tokenize, request, &response);
  if (code != kExitOk) return code;
  if (flags.json) {
    PrintJson(response);
    return kExitOk;
  }
  for (int i = 0; i < response.token_ids_size(); ++i) {
    std::printf("%s%u", i == 0 ? "" : ",", response.token_ids(i));
  }
  std::printf("\n");
  return kExitOk;
}

int Detokenize(const std::vector<std::string>& arguments) {
  TextFlags flags;
  const std::optional<int> over = Begin("detokenize", "IDS", arguments, &flags);
  if (over.has_value()) return *over;
  const absl::StatusOr<std::string> text = ReadArgument(flags.set.positional()[0]);
  if (!text.ok()) return UsageError(text.status().message());
  v1::DetokenizeRequest request;
  const absl::Status parsed = ParseIds(*text, request.mutable_token_ids());
  if (!parsed.ok()) return UsageError(parsed.message());
  v1::DetokenizeResponse response;
  const int code = flags.connection.Ask(*v1::Tokenizer::NewStub(flags.connection.Open()),
                                        &v1::Tokenizer::Stub::Detokenize, request, &response);
  if (code != kExitOk) return code;
  if (flags.json) {
    PrintJson(response);
  } else {
    std::printf("%s\n", response.text().c_str());
  }
  return kExitOk;
}

}  // namespace fox::cli
