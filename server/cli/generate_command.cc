// fox-cli generate: a streamed completion, its text on standard output as it arrives, what it cost
// on standard error.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>

#include "fox/v1/inference.grpc.pb.h"
#include "server/cli/commands.h"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

struct GenerateFlags {
  Connection connection;
  int64_t max_tokens = 256, min_tokens = 0, top_k = 0, seed = 0, n = 1, logprobs = 0;
  int64_t priority = 0, queue_timeout_ms = 0;
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1, log_tolerance = 0;
  std::vector<std::string> stop;
  v1::AcpMode acp = v1::ACP_MODE_UNSPECIFIED;  // the server's
  std::string request_id;
  bool ids_in = false, ids_out = false, json = false, stats = false, ignore_eos = false;
  bool echo = false;
};

void Register(GenerateFlags* f, FlagSet* set) {
  set->Group("Sampling (unset: the server's default)");
  set->Double("temperature", "X", "0 is greedy", 0, 100, &f->temperature);
  set->Double("top-p", "X", "smallest set with that much probability", 0, 1, &f->top_p);
  set->Int("top-k", "N", "likeliest tokens; 0: off", 0, INT32_MAX, &f->top_k);
  set->Double("min-p", "X", "least relative probability", 0, 1, &f->min_p);
  set->Double("repetition-penalty", "X", "over prompt and generated tokens", 0, 100,
              &f->repetition_penalty);
  set->Int("seed", "N", "of the random numbers", 0, INT64_MAX, &f->seed);
  set->Int("n", "N", "completions", 1, 16, &f->n);
  set->Group("End");
  set->Int("max-tokens", "N", "most tokens to generate", 1, INT32_MAX, &f->max_tokens);
  set->Int("min-tokens", "N", "least tokens to generate", 0, INT32_MAX, &f->min_tokens);
  set->Strings("stop", "TEXT", "text that ends the completion", &f->stop);
  set->Bool("ignore-eos", "go on past the end of the text", &f->ignore_eos);
  set->Group("Pruning");
  set->Enum("acp",
            {{"server", v1::ACP_MODE_UNSPECIFIED},
             {"off", v1::OFF},
             {"paper", v1::PAPER},
             {"certified", v1::CERTIFIED}},
            "stricter than the server's mode", &f->acp);
  set->Double("log-tolerance", "X", "stricter than the server's", -1e6, 0, &f->log_tolerance);
  set->Group("Output");
  set->Bool("stats", "times, pages and the certificate, on standard error", &f->stats);
  set->Bool("token-ids", "print ids instead of text", &f->ids_out);
  set->Bool("prompt-ids", "the prompt is ids, separated by commas", &f->ids_in);
  set->Int("logprobs", "N", "log-probabilities and N alternatives for each token", 0, 1024,
           &f->logprobs);
  set->Bool("echo", "print the prompt first", &f->echo);
  set->Bool("json", "print every message as JSON", &f->json);
  set->Group("Request");
  set->String("request-id", "ID", "name of the request [a UUID]", &f->request_id);
  set->Int("priority", "N", "lower runs earlier", INT32_MIN, INT32_MAX, &f->priority);
  set->Int("queue-timeout-ms", "N", "longest wait; 0: none", 0, UINT32_MAX, &f->queue_timeout_ms);
}

void FillSampling(const GenerateFlags& f, const FlagSet& set, v1::Sampling* out) {
  if (set.IsSet("temperature")) out->set_temperature(static_cast<float>(f.temperature));
  if (set.IsSet("top-p")) out->set_top_p(static_cast<float>(f.top_p));
  if (set.IsSet("top-k")) out->set_top_k(static_cast<uint32_t>(f.top_k));
  if (set.IsSet("min-p")) out->set_min_p(static_cast<float>(f.min_p));
  if (set.IsSet("repetition-penalty")) {
    out->set_repetition_penalty(static_cast<float>(f.repetition_penalty));
  }
  if (set.IsSet("seed")) out->set_seed(static_cast<uint64_t>(f.seed));
  if (set.IsSet("n")) out->set_n(static_cast<uint32_t>(f.n));
}

absl::StatusOr<v1::GenerateRequest> BuildRequest(const GenerateFlags& f, const FlagSet& set) {
  v1::GenerateRequest request;
  absl::Status status = SetPrompt(set.positional()[0], f.ids_in, &request);
  if (!status.ok()) return status;
  FillSampling(f, set, request.mutable_sampling());
  v1::Stopping* stopping = request.mutable_stopping();
  if (set.IsSet("max-tokens")) stopping->set_max_tokens(static_cast<uint32_t>(f.max_tokens));
  if (set.IsSet("min-tokens")) stopping->set_min_tokens(static_cast<uint32_t>(f.min_tokens));
  if (f.ignore_eos) stopping->set_ignore_eos(true);
  for (const std::string& stop : f.stop) stopping->add_stop(stop);
  v1::Output* output = request.mutable_output();
  if (f.ids_out) output->set_text(false), output->set_token_ids(true);
  if (set.IsSet("logprobs")) output->set_logprobs(static_cast<int32_t>(f.logprobs));
  if (f.echo) output->set_echo(true);
  if (f.stats) output->set_perf_metrics(true), output->set_acp_stats(true);
  if (f.acp != v1::ACP_MODE_UNSPECIFIED) request.mutable_acp()->set_mode(f.acp);
  if (set.IsSet("log-tolerance")) {
    request.mutable_acp()->set_log_tolerance(static_cast<float>(f.log_tolerance));
  }
  if (!f.request_id.empty()) request.set_request_id(f.request_id);
  if (set.IsSet("priority")) request.set_priority(static_cast<int32_t>(f.priority));
  if (f.queue_timeout_ms > 0) {
    request.set_queue_timeout_ms(static_cast<uint32_t>(f.queue_timeout_ms));
  }
  return request;
}

// Prints events as they come. One completion is printed raw; several are kept and printed in order.
class Printer {
 public:
  explicit Printer(const GenerateFlags& flags) : flags_(flags) {}

  void Print(const v1::GenerateDelta& event) {
    if (flags_.json) return PrintJson(event);
    if (event.has_prompt()) {
      Write(0, flags_.ids_out ? "" : event.prompt().text());
    } else if (event.has_delta()) {
      PrintDelta(event.delta());
    } else if (event.has_finish()) {
      finishes_[event.finish().index()] = event.finish();
    }
  }

  void End() {
    if (flags_.json) return;
    for (const auto& [index, text] : kept_) std::printf("[%u] %s\n", index, text.c_str());
    if (flags_.n == 1) std::printf("\n");
    std::fflush(stdout);  // standard error may be the same pipe
    for (const auto& [index, finish] : finishes_) {
      if (flags_.stats) PrintStats(finish);
    }
  }

 private:
  void Write(uint32_t index, const std::string& text) {
    if (flags_.n > 1) {
      kept_[index] += text;
    } else {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
  }

  void PrintDelta(const v1::TokenDelta& delta) {
    std::string text = delta.text();
    if (flags_.ids_out) {
      for (uint32_t id : delta.token_ids()) text += std::to_string(id) + " ";
    }
    Write(delta.index(), text);
    for (const v1::TokenLogprobs& token : delta.logprobs()) {
      std::fprintf(stderr, "[%u] token %u logprob %.4f rank %u", delta.index(),
                   token.token().token_id(), static_cast<double>(token.token().logprob()),
                   token.token().rank());
      for (const v1::TokenLogprob& top : token.top()) {
        std::fprintf(stderr, "  %u:%.4f", top.token_id(), static_cast<double>(top.logprob()));
      }
      std::fprintf(stderr, "\n");
    }
  }

  static void PrintStats(const v1::Finish& finish) {
    const v1::Usage& usage = finish.usage();
    const v1::PerfMetrics& perf = finish.perf();
    const v1::AcpStats& acp = finish.acp();
    const uint32_t decoded = usage.completion_tokens() > 1 ? usage.completion_tokens() - 1 : 0;
    std::fprintf(stderr, "[%u] %s, %u prompt + %u generated tokens\n", finish.index(),
                 v1::FinishReason_Name(finish.reason()).c_str(), usage.prompt_tokens(),
                 usage.completion_tokens());
    std::fprintf(stderr, "    ttft %.1f ms (queue %.1f ms), %.1f tokens/s, prompt %.1f tokens/s\n",
                 1e3 * perf.ttft_s(), 1e3 * perf.queue_s(),
                 perf.decode_s() > 0 ? decoded / perf.decode_s() : 0.0,
                 perf.prefill_s() > 0 ? usage.prompt_tokens() / perf.prefill_s() : 0.0);
    const double pruned = acp.blocks_total() == 0
                              ? 0.0
                              : 100.0 * static_cast<double>(acp.blocks_pruned()) /
                                    static_cast<double>(acp.blocks_total());
    std::fprintf(stderr,
                 "    pages: %llu allocated, %llu evicted, %llu at the peak; %.1f %% of the "
                 "attention blocks pruned\n",
                 static_cast<unsigned long long>(acp.pages_allocated()),
                 static_cast<unsigned long long>(acp.pages_evicted()),
                 static_cast<unsigned long long>(acp.peak_pages()), pruned);
    if (std::isinf(acp.max_log_evicted_mass())) {
      std::fprintf(stderr, "    certificate: nothing was evicted\n");
    } else {
      std::fprintf(stderr,
                   "    certificate: at most e^%.2f of any row's attention mass was evicted "
                   "(tolerance e^%.2f)\n",
                   static_cast<double>(acp.max_log_evicted_mass()),
                   static_cast<double>(acp.log_tolerance()));
    }
  }

  const GenerateFlags& flags_;
  std::map<uint32_t, std::string> kept_;
  std::map<uint32_t, v1::Finish> finishes_;
};

}  // namespace

int Generate(const std::vector<std::string>& arguments) {
  GenerateFlags flags;
  FlagSet set;
  Register(&flags, &set);
  const std::optional<int> over =
      flags.connection.Begin("generate PROMPT|@FILE|-", arguments, &set, /*most=*/SIZE_MAX);
  if (over.has_value()) return *over;
  if (set.positional().size() != 1) return UsageError("generate needs one prompt (or @FILE, or -)");
  absl::StatusOr<v1::GenerateRequest> request = BuildRequest(flags, set);
  if (!request.ok()) return UsageError(request.status().message());

  std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(flags.connection.Open());
  std::unique_ptr<grpc::ClientContext> context = flags.connection.Call();
  auto reader = stub->GenerateStream(context.get(), *request);
  Printer printer(flags);
  v1::GenerateDelta event;
  while (reader->Read(&event)) printer.Print(event);
  const grpc::Status result = reader->Finish();
  printer.End();
  return Report(result, *context);
}

}  // namespace fox::cli
