// fox-cli score, tokenize and detokenize: one text or list of ids in, one answer out.
#include <cmath>
#include <cstdio>

#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/tokenizer.grpc.pb.h"
#include "server/cli/commands.h"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

struct TextFlags {
  Connection connection;
  bool json = false, no_bos = false, ids = false, stats = false, help = false;
};

// Parses the flags and the one argument all three have. Returns true when the command is to run;
// otherwise `exit_code` says how it ended.
bool Prepare(const char* name, const char* what, const std::vector<std::string>& arguments,
             TextFlags* flags, std::string* text, int* exit_code) {
  FlagSet set;
  set.Group("Options");
  set.Bool("json", "print the answer as JSON", &flags->json);
  set.Bool("no-bos", "do not add what the model expects in front", &flags->no_bos);
  set.Bool("prompt-ids", "score: the text is ids, separated by commas", &flags->ids);
  set.Bool("stats", "score: print each token", &flags->stats);
  flags->connection.Register(&set);
  set.Action("help", "print this and exit", &flags->help);
  const absl::Status status = flags->connection.Parse(arguments, &set);
  if (!status.ok()) {
    *exit_code = UsageError(std::string(status.message()));
    return false;
  }
  if (flags->help) {
    std::printf("usage: fox-cli %s %s|@FILE|- [flags]\n\n%s", name, what, set.Help().c_str());
    *exit_code = kExitOk;
    return false;
  }
  if (set.positional().size() != 1) {
    *exit_code = UsageError(std::string(name) + " needs one argument (or @FILE, or -)");
    return false;
  }
  absl::StatusOr<std::string> read = ReadArgument(set.positional()[0]);
  if (!read.ok()) {
    *exit_code = UsageError(std::string(read.status().message()));
    return false;
  }
  *text = *std::move(read);
  return true;
}

}  // namespace

int Score(const std::vector<std::string>& arguments) {
  TextFlags flags;
  std::string text;
  int exit_code = 0;
  if (!Prepare("score", "TEXT", arguments, &flags, &text, &exit_code)) return exit_code;
  v1::ScoreRequest request;
  if (flags.ids) {
    absl::StatusOr<std::vector<uint32_t>> ids = ParseIds(text);
    if (!ids.ok()) return UsageError(std::string(ids.status().message()));
    request.mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  } else {
    request.set_text(text);
  }
  if (flags.no_bos) request.set_add_special_tokens(false);
  v1::ScoreResponse response;
  std::unique_ptr<grpc::ClientContext> context = flags.connection.Call();
  const grpc::Status status =
      v1::Inference::NewStub(flags.connection.Open())->Score(context.get(), request, &response);
  if (!status.ok()) return Report(status, *context);
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
  std::string text;
  int exit_code = 0;
  if (!Prepare("tokenize", "TEXT", arguments, &flags, &text, &exit_code)) return exit_code;
  v1::TokenizeRequest request;
  request.set_text(text);
  if (flags.no_bos) request.set_add_special_tokens(false);
  v1::TokenizeResponse response;
  std::unique_ptr<grpc::ClientContext> context = flags.connection.Call();
  const grpc::Status status =
      v1::Tokenizer::NewStub(flags.connection.Open())->Tokenize(context.get(), request, &response);
  if (!status.ok()) return Report(status, *context);
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
  std::string text;
  int exit_code = 0;
  if (!Prepare("detokenize", "IDS", arguments, &flags, &text, &exit_code)) return exit_code;
  absl::StatusOr<std::vector<uint32_t>> ids = ParseIds(text);
  if (!ids.ok()) return UsageError(std::string(ids.status().message()));
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(ids->begin(), ids->end());
  v1::DetokenizeResponse response;
  std::unique_ptr<grpc::ClientContext> context = flags.connection.Call();
  const grpc::Status status = v1::Tokenizer::NewStub(flags.connection.Open())
                                  ->Detokenize(context.get(), request, &response);
  if (!status.ok()) return Report(status, *context);
  if (flags.json) {
    PrintJson(response);
  } else {
    std::printf("%s\n", response.text().c_str());
  }
  return kExitOk;
}

}  // namespace fox::cli
