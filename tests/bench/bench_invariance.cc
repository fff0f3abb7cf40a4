// fox-bench invariance: tests that a request's tokens, and the bits of their log-probabilities, do
// not depend on other requests. Runs the same requests, greedy and sampled with seeds, one by one
// and in other ways: many at once, in another order, from the prefix cache, and in a pool so small
// that they are preempted. On the CPU with matrix products whose rows do not depend on each other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

struct InvarianceFlags {
  std::string model = FOX_SOURCE_DIR "/models/demo", device = "auto", acp = "certified", json;
  int64_t requests = 64, shortest = 8, longest = 6000, max_tokens = 128, threads = 0;
};

absl::Status Parse(const std::vector<std::string>& arguments, InvarianceFlags* values) {
  FlagSet flags;
  flags.Group("Invariance");
  flags.String("model", "DIR", "model to run", &values->model);
  flags.Choice("device", {"auto", "cpu", "cuda"}, "where to compute", &values->device);
  flags.Choice("acp", {"off", "paper", "certified"}, "which bound drops pages", &values->acp);
  flags.Int("threads", "N", "threads of the CPU backend; 0: one per core", 0, 4096,
            &values->threads);
  flags.Int("requests", "N", "every second one is sampled with a seed", 2, 4096, &values->requests);
  flags.Int("shortest", "N", "tokens of the shortest prompt", 1, 1 << 20, &values->shortest);
  flags.Int("longest", "N", "tokens of the longest prompt", 1, 1 << 20, &values->longest);
  flags.Int("max-tokens", "N", "tokens of an answer", 1, 1 << 20, &values->max_tokens);
  flags.String("json", "FILE", "writes all rows there", &values->json);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-bench invariance"); !s.ok()) return s;
  if (values->shortest <= values->longest) return absl::OkStatus();
  return absl::InvalidArgumentError("--longest is less than --shortest");
}

// Lengths of prompts are spread evenly in the logarithm.
std::vector<Request> MakeRequests(const InvarianceFlags& flags, const Prompt& text) {
  std::mt19937_64 random(1);
  const double shortest = static_cast<double>(flags.shortest);
  const double ratio = static_cast<double>(flags.longest) / shortest;
  std::vector<Request> requests(static_cast<size_t>(flags.requests));
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    const double place = static_cast<double>(i) / static_cast<double>(requests.size() - 1);
    const auto length = static_cast<int64_t>(std::lround(shortest * std::pow(ratio, place)));
    request.prompt = TokensOfText(text, static_cast<int64_t>(random() >> 16), length);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.sampling.top_p = i % 2 == 0 ? 1.0f : 0.95f;
    request.sampling.seed = i;
    request.sampling.logprobs = 0;
    request.stop.max_tokens = static_cast<int32_t>(flags.max_tokens);
    request.stop.ignore_eos = true;
  }
  std::shuffle(requests.begin(), requests.end(), random);
  return requests;
}

// One way to run the requests.
struct Way {
  std::string name;
  Pace pace;
};

// Counts answers that differ in a token or in a bit of its log-probability.
struct Difference {
  int64_t requests = 0;
  int64_t first = -1;  // the earliest place in an answer; -1: nothing differs
};

Difference DifferenceOf(const Served& run, const Served& alone) {
  const auto same = [](const SampledToken& a, const SampledToken& b) {
    return a.id == b.id && std::memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0;
  };
  Difference difference;
  for (size_t i = 0; i < alone.answers.size(); ++i) {
    const std::vector<SampledToken>&a = run.answers[i], &b = alone.answers[i];
    const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same);
    if (in_a == a.end() && in_b == b.end()) continue;
    const int64_t at = in_a - a.begin();
    difference.first = difference.requests++ == 0 ? at : std::min(difference.first, at);
  }
  return difference;
}

// Runs the requests on engines with different limits and compares the answers with the first run's.
class Comparison {
 public:
  Comparison(const InvarianceFlags& flags, std::vector<Request> requests, BenchReport& report)
      : flags_(flags), requests_(std::move(requests)), report_(report) {
    for (const Request& request : requests_) {
      const int64_t tokens = static_cast<int64_t>(request.prompt.size()) + flags.max_tokens;
      longest_ = std::max(longest_, tokens);
      pool_tokens_ += int64_t{PagesFor(tokens)} * kPageTokens;
    }
  }

  // A pool with room for all requests, and no prefix cache.
  EngineConfig Roomy() const {
    EngineConfig config;
    config.model_dir = flags_.model;
    config.device = flags_.device;
    config.runner.acp = *ParseAcpMode(flags_.acp);
    config.threads = static_cast<int>(flags_.threads);
    config.plain_gemm = true;
    config.engine.prefix_cache_share = 0;
    config.engine.max_num_queued_reqs = flags_.requests;
    config.engine.max_num_queued_tokens = flags_.requests * longest_;
    config.engine.max_queue_seconds = 0;
    config.runner.max_num_seqs = static_cast<int32_t>(flags_.requests);
    config.runner.max_model_len = longest_;
    config.kv_cache_tokens = pool_tokens_;
    return config;
  }

  // A pool with room for the longest request or for a 24th of all tokens, whichever is more. Pruned
  // sequences need about a tenth of their pages, so this is too little for all.
  EngineConfig Small() const {
    EngineConfig config = Roomy();
    const int64_t longest = int64_t{PagesFor(longest_) + 1} * kPageTokens;
    config.kv_cache_tokens = std::max(longest, pool_tokens_ / 24);
    return config;
  }

  absl::Status Load(const EngineConfig& config) {
    loaded_.engine.reset();
    loaded_ = {};
    auto loaded = LoadEngine(config);
    if (!loaded.ok()) return loaded.status();
    loaded_ = *std::move(loaded);
    report_.facts() = {
        {"model", flags_.model}, {"dtype", loaded_.dtype}, {"backend", loaded_.backend}};
    return absl::OkStatus();
  }

  // Runs the requests in one way. The first call makes the answers that others are compared with.
  absl::Status Compare(const Way& way) {
    const auto run = RunRequests(*loaded_.engine, requests_, way.pace);
    if (!run.ok()) return run.status();
    if (first_.answers.empty()) first_ = *run;
    const Difference difference = DifferenceOf(*run, first_);
    differ_ += difference.requests;
    report_.Row(absl::StrFormat("%-34s %8d %7d %6d %10d %8d %8.1f", way.name, flags_.requests,
                                difference.requests, difference.first, run->preemptions,
                                run->cached_tokens, run->seconds),
                {{"bench", "invariance"},
                 {"way", way.name},
                 {"requests", flags_.requests},
                 {"bits_differ", difference.requests},
                 {"first_difference", difference.first},
                 {"preemptions", run->preemptions},
                 {"cached_tokens", run->cached_tokens},
                 {"seconds", run->seconds}});
    return absl::OkStatus();
  }

  // Answers that differ from the first run's, summed over all ways.
  int64_t differ() const { return differ_; }

 private:
  const InvarianceFlags& flags_;
  const std::vector<Request> requests_;
  BenchReport& report_;
  int64_t longest_ = 0, pool_tokens_ = 0;
  LoadedEngine loaded_;
  Served first_;
  int64_t differ_ = 0;
};

absl::Status RunAllWays(const InvarianceFlags& flags, Comparison& comparison) {
  EngineConfig cached = comparison.Roomy();
  cached.kv_cache_tokens *= 2;
  cached.engine.prefix_cache_share = 0.5;
  cached.engine.prefix_cache_interval = 256;
  const Pace all{.at_once = flags.requests};
  const std::vector<std::pair<EngineConfig, std::vector<Way>>> ways = {
      {comparison.Roomy(),
       {{"alone", {}},
        {"8 at once", {.at_once = 8}},
        {absl::StrCat(flags.requests, " at once"), all},
        {"again, one every 3 steps, reversed",
         {.at_once = flags.requests, .gap = 2, .reversed = true}}}},
      // Of few at once, prompts with a cached prefix make many steps of few rows that are no
      // graphs.
      {cached,
       {{"beside a prefix cache", all},
        {"from the prefix cache", all},
        {"from the prefix cache, 16 at once", {.at_once = 16}}}},
      {comparison.Small(), {{"small pool", all}}}};
  for (const auto& [config, some] : ways) {
    if (absl::Status s = comparison.Load(config); !s.ok()) return s;
    for (const Way& way : some) {
      if (absl::Status s = comparison.Compare(way); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchInvariance(const std::vector<std::string>& arguments) {
  InvarianceFlags flags;
  if (absl::Status s = Parse(arguments, &flags); !s.ok()) return s;
  const auto config = ReadConfig(flags.model);
  if (!config.ok()) return config.status();
  const auto text = TextOf(flags.model, *config, /*path=*/"");
  if (!text.ok()) return text.status();
  BenchReport report;
  report.Section(
      absl::StrFormat("%d requests of %d to %d tokens, %d of answer, half of them sampled",
                      flags.requests, flags.shortest, flags.longest, flags.max_tokens),
      "way                                requests  differ  first  preempted    "
      "found  seconds");
  Comparison comparison(flags, MakeRequests(flags, *text), report);
  absl::Status status = RunAllWays(flags, comparison);
  status.Update(report.Write(flags.json));
  if (!status.ok() || comparison.differ() == 0) return status;
  return absl::InternalError(absl::StrCat(comparison.differ(), " answers differ"));
}

}  // namespace fox
