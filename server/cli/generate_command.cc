// fox-cli generate and chat: streams answers to standard output, and prints their statistics on
// standard error.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>

#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

struct GenerateFlags {
  Connection connection;
  std::string prompt;
  int64_t max_tokens = 256, seed = 0;
  double temperature = 1, top_p = 1, log_tolerance = 0;
  std::vector<std::string> stop;
  v1::AcpMode acp = v1::ACP_MODE_UNSPECIFIED;  // the server's
  bool prompt_ids = false, json = false, stats = false, audit = false, ignore_eos = false;
};

void Register(bool chat, GenerateFlags* f, FlagSet* set) {
  set->Group(chat ? "Sampling (unset: as the model's maker recommends, else 0.7 and 0.9)"
                  : "Sampling (unset: the server's default)");
  set->Double("temperature", "X", "0 is greedy", 0, 100, &f->temperature);
  set->Double("top-p", "X", "sample from the smallest set of tokens with this probability", 0, 1,
              &f->top_p);
  set->Int("seed", "N", "seed of the random numbers", 0, INT64_MAX, &f->seed);
  set->Group("End");
  set->Int("max-tokens", "N", "largest number of tokens to generate", 1, INT32_MAX, &f->max_tokens);
  set->Strings("stop", "TEXT", "text that ends the completion", &f->stop);
  set->Bool("ignore-eos", "continue after the model's end of the text", &f->ignore_eos);
  set->Group("Pruning");
  set->Enum("acp",
            {{"server", v1::ACP_MODE_UNSPECIFIED},
             {"off", v1::OFF},
             {"paper", v1::PAPER},
             {"certified", v1::CERTIFIED}},
            "pruning of this request; the server's mode or off", &f->acp);
  set->Double("log-tolerance", "X", "log of the mass that may be lost; at most the server's", -1e6,
              0, &f->log_tolerance);
  set->Bool("audit",
            "at the end, compute the answer once more with pruning and without, and print how far "
            "both differ",
            &f->audit);
  set->Group("Input and output");
  if (!chat) set->Bool("prompt-ids", "the prompt is ids, separated by commas", &f->prompt_ids);
  set->Bool("stats", "print times, pages and the certificate on standard error", &f->stats);
  set->Bool("json", "print every message as JSON", &f->json);
}

// The request without its prompt.
v1::GenerateRequest BuildRequest(const GenerateFlags& f, const FlagSet& set) {
  v1::GenerateRequest request;
  v1::Sampling* sampling = request.mutable_sampling();
  if (set.IsSet("temperature")) sampling->set_temperature(static_cast<float>(f.temperature));
  if (set.IsSet("top-p")) sampling->set_top_p(static_cast<float>(f.top_p));
  if (set.IsSet("seed")) sampling->set_seed(static_cast<uint64_t>(f.seed));
  v1::Stopping* stopping = request.mutable_stopping();
  if (set.IsSet("max-tokens")) stopping->set_max_tokens(static_cast<uint32_t>(f.max_tokens));
  stopping->set_ignore_eos(f.ignore_eos);
  for (const std::string& stop : f.stop) stopping->add_stop(stop);
  request.mutable_output()->set_perf_metrics(f.stats);
  request.mutable_output()->set_acp_stats(f.stats);
  if (f.acp != v1::ACP_MODE_UNSPECIFIED) request.mutable_acp()->set_mode(f.acp);
  if (set.IsSet("log-tolerance")) {
    request.mutable_acp()->set_log_tolerance(static_cast<float>(f.log_tolerance));
  }
  if (f.audit) request.mutable_acp()->set_audit(true);
  return request;
}

void PrintAudit(const v1::Audit& audit) {
  if (!audit.skipped().empty()) {
    std::fprintf(stderr, "    audit: none, %s\n", audit.skipped().c_str());
    return;
  }
  std::fprintf(stderr,
               "    audit: total variation of a token at most %.2g, %.2g in all %u; divergence "
               "%.2g nats\n",
               static_cast<double>(audit.max_tv()), static_cast<double>(audit.sum_tv()),
               audit.tokens(), static_cast<double>(audit.sum_kl()));
}

void PrintStats(const v1::Finish& finish) {
  const v1::Usage& usage = finish.usage();
  const v1::PerfMetrics& perf = finish.perf();
  const v1::AcpStats& acp = finish.acp();
  const uint32_t decoded = std::max(usage.completion_tokens(), 1U) - 1;
  std::fprintf(stderr, "%s, %u prompt + %u generated tokens\n",
               v1::FinishReason_Name(finish.reason()).c_str(), usage.prompt_tokens(),
               usage.completion_tokens());
  std::fprintf(stderr, "    ttft %.1f ms (queue %.1f ms), %.1f tokens/s, prompt %.1f tokens/s\n",
               1e3 * perf.ttft_s(), 1e3 * perf.queue_s(),
               perf.decode_s() > 0 ? decoded / perf.decode_s() : 0.0,
               perf.prefill_s() > 0 ? usage.prompt_tokens() / perf.prefill_s() : 0.0);
  const auto blocks = static_cast<double>(std::max<uint64_t>(acp.blocks_total(), 1));
  std::fprintf(stderr,
               "    pages: %llu allocated, %llu evicted, %llu at the peak; %.1f %% of the "
               "attention blocks pruned\n",
               static_cast<unsigned long long>(acp.pages_allocated()),
               static_cast<unsigned long long>(acp.pages_evicted()),
               static_cast<unsigned long long>(acp.peak_pages()),
               100 * static_cast<double>(acp.blocks_pruned()) / blocks);
  if (std::isinf(acp.max_log_evicted_mass())) {
    std::fprintf(stderr, "    certificate: nothing was evicted\n");
  } else {
    std::fprintf(stderr,
                 "    certificate: at most e^%.2f of any row's attention mass was evicted "
                 "(tolerance e^%.2f)\n",
                 static_cast<double>(acp.max_log_evicted_mass()),
                 static_cast<double>(acp.log_tolerance()));
  }
  for (const v1::LostMass* lost : {&acp.prompt_lost(), &acp.answer_lost()}) {
    if (lost->ByteSizeLong() == 0) continue;
    std::fprintf(stderr, "    lost by rows of the %s: at most e^%.2f each, e^%.2f in all\n",
                 lost == &acp.prompt_lost() ? "prompt" : "answer",
                 static_cast<double>(lost->max_log()), static_cast<double>(lost->log_sum()));
  }
}

// Prints an answer while it arrives, and appends it to `answer`. Reports an error. Returns the exit
// code.
int PrintAnswer(const GenerateFlags& flags, const std::shared_ptr<grpc::Channel>& channel,
                const v1::GenerateRequest& request, std::string* answer) {
  const std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(channel);
  const std::unique_ptr<grpc::ClientContext> context = flags.connection.Call();
  auto reader = stub->GenerateStream(context.get(), request);
  v1::GenerateDelta event;  // the last one is the finish
  while (reader->Read(&event)) {
    *answer += event.delta().text();
    if (flags.json) {
      PrintJson(event);
    } else {
      PrintText(event.delta().text());
    }
  }
  const grpc::Status result = reader->Finish();
  if (!flags.json) {
    std::printf("\n");
    std::fflush(stdout);  // standard error may be the same pipe
    if (flags.stats && event.has_finish()) PrintStats(event.finish());
    if (flags.audit && event.finish().acp().has_audit()) PrintAudit(event.finish().acp().audit());
  }
  return Report(result, *context);
}

void AddTurn(const char* role, const std::string& content, v1::ChatMessages* messages) {
  v1::ChatMessage* turn = messages->add_turns();
  turn->set_role(role);
  turn->set_content(content);
}

// Runs a conversation, in which each line of standard input is a turn. Returns the exit code.
int Talk(const GenerateFlags& flags, const std::shared_ptr<grpc::Channel>& channel,
         v1::GenerateRequest* request) {
  v1::ChatMessages* const messages = request->mutable_messages();
  const int first = messages->turns_size();
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) std::fputs("/reset begins anew, /exit or Ctrl-D ends\n", stderr);
  std::string line;
  for (;;) {
    if (terminal) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line) || line == "/exit") return kExitOk;
    if (line.empty()) continue;
    if (line == "/reset") {
      messages->mutable_turns()->DeleteSubrange(first, messages->turns_size() - first);
      continue;
    }
    AddTurn("user", line, messages);
    std::string answer;
    const int code = PrintAnswer(flags, channel, *request, &answer);
    if (code == kExitOk) {
      AddTurn("assistant", answer, messages);
    } else if (terminal) {
      messages->mutable_turns()->RemoveLast();
    } else {
      return code;
    }
  }
}

// Whether the model has no generation_config.json that changes how it samples: at temperature 1
// small chat models babble.
bool RecommendsNothing(const v1::ModelInfo& model) {
  const auto known = nlohmann::json::parse(model.default_sampling_params_json(), nullptr, false);
  return !known.is_object() ||
         (known.value("temperature", 1.0) == 1 && known.value("top_p", 1.0) == 1);
}

}  // namespace

int Generate(const std::vector<std::string>& arguments) {
  GenerateFlags flags;
  FlagSet set;
  Register(/*chat=*/false, &flags, &set);
  const std::optional<int> over =
      flags.connection.BeginText("generate PROMPT|@FILE|-", arguments, &set, &flags.prompt);
  if (over.has_value()) return *over;
  v1::GenerateRequest request = BuildRequest(flags, set);
  const absl::Status status = SetPrompt(flags.prompt, flags.prompt_ids, &request);
  if (!status.ok()) return UsageError(status.message());
  std::string answer;
  return PrintAnswer(flags, flags.connection.Open(), request, &answer);
}

int Chat(const std::vector<std::string>& arguments) {
  GenerateFlags flags;
  FlagSet set;
  std::string system;
  flags.max_tokens = 1024;  // a model that does not end fills the context otherwise
  Register(/*chat=*/true, &flags, &set);
  set.String("system", "TEXT", "system message before the first turn [the model's own]", &system);
  const std::optional<int> over = flags.connection.Begin("chat", arguments, &set);
  if (over.has_value()) return *over;
  const std::shared_ptr<grpc::Channel> channel = flags.connection.Open();
  v1::ModelInfo model;
  const int code = flags.connection.Ask(*v1::Info::NewStub(channel), &v1::Info::Stub::GetModelInfo,
                                        v1::GetModelInfoRequest(), &model);
  if (code != kExitOk) return code;
  if (!model.chat()) {
    std::fputs("fox-cli: the model has no chat format; use fox-cli generate\n", stderr);
    return kExitFailed;
  }
  v1::GenerateRequest request = BuildRequest(flags, set);
  if (RecommendsNothing(model)) {
    if (!set.IsSet("temperature")) request.mutable_sampling()->set_temperature(0.7F);
    if (!set.IsSet("top-p")) request.mutable_sampling()->set_top_p(0.9F);
  }
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(flags.max_tokens));
  if (set.IsSet("system")) AddTurn("system", system, request.mutable_messages());
  return Talk(flags, channel, &request);
}

}  // namespace fox::cli
