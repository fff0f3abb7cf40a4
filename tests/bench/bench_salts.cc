// fox-bench salts: whether an answer's time reveals another client's cached prompts. In each round
// one salt's prompt is cached, or being computed; then another salt asks for the same prompt, and
// for one of the same length that is new, in random order. The pairs of times go through
// Wilcoxon's signed-rank test. For comparison, the first salt asks once more.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/strings/str_format.h"
#include "engine/engine_factory.h"
#include "engine/eval/eval_command.h"
#include "tests/bench/commands.h"
#include "tests/bench/engine_client.h"
#include "tests/bench/measurement.h"

namespace fox {
namespace {

struct SaltFlags {
  std::string model = FOX_SOURCE_DIR "/models/demo", device = "auto", text, json;
  int64_t prompt = 600, rounds = 40, threads = 0, seed = 1;
  Clock clock = Now;
};

absl::Status Parse(const std::vector<std::string>& arguments, SaltFlags* values) {
  FlagSet flags;
  flags.Group("Salts");
  flags.String("model", "DIR", "a model with a tokenizer", &values->model);
  flags.String("device", "NAME", "cpu, cuda or auto", &values->device);
  flags.Int("threads", "N", "of the CPU backend; 0: one per core", 0, 4096, &values->threads);
  flags.String("text", "FILE", "what prompts are cut from; else MODEL/prompt_long.txt",
               &values->text);
  flags.Int("prompt", "N", "tokens of a prompt", 65, 1 << 20, &values->prompt);
  flags.Int("rounds", "N", "pairs of times", 5, 100000, &values->rounds);
  RegisterClock(&flags, &values->clock);
  flags.Int("seed", "N", "of the order in a round", 0, 1 << 30, &values->seed);
  flags.String("json", "FILE", "writes all rows there", &values->json);
  return ParseOrHelp(flags, arguments, "fox-bench salts");
}

// The chance that pairs of alike quantities differ so much towards one side: Wilcoxon's signed-rank
// test, both sides, by the normal approximation.
double SignedRankP(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences(a.size());
  std::transform(a.begin(), a.end(), b.begin(), differences.begin(), std::minus<>());
  std::sort(differences.begin(), differences.end(),
            [](double x, double y) { return std::abs(x) < std::abs(y); });
  double positive = 0;
  for (size_t i = 0; i < differences.size(); ++i) {
    if (differences[i] > 0) positive += static_cast<double>(i + 1);
  }
  const auto n = static_cast<double>(differences.size());
  const double mean = n * (n + 1) / 4, deviation = std::sqrt(n * (n + 1) * (2 * n + 1) / 24);
  return std::erfc(std::abs(positive - mean) / deviation / std::sqrt(2.0));
}

// Times of one way in which the first salt was there; seconds to the first token.
struct Times {
  std::vector<double> other, fresh, own;
  int64_t found = 0;  // tokens, by the second salt
};

class Rounds {
 public:
  Rounds(const SaltFlags& flags, Engine& engine, const Prompt& text)
      : flags_(flags),
        text_(text),
        client_(engine, /*answer=*/1, /*at_once=*/2, flags.clock),
        random_(static_cast<uint64_t>(flags.seed)) {}

  // The first salt's prompt is there.
  absl::Status Cached(Times* times) {
    return Round(times, [this](const Prompt& asked, const Prompt& owned, Served* served) {
      Served first;
      absl::Status status = client_.Run({owned}, &first, {"first"}).status();
      if (!status.ok()) return status;
      return client_.Run({asked}, served, {"second"}).status();
    });
  }
  // It is being computed.
  absl::Status InFlight(Times* times) {
    return Round(times, [this](const Prompt& asked, const Prompt& owned, Served* served) {
      Served both;
      absl::Status status = client_.Run({owned, asked}, &both, {"first", "second"}).status();
      served->first_tokens.push_back(both.first_tokens[1]);
      served->cached_tokens += both.cached_tokens;
      return status;
    });
  }

 private:
  // Prompts part at their first token, and are otherwise the same: the same work.
  Prompt Next() {
    Prompt prompt = TokensOfText(text_, 0, flags_.prompt);
    prompt.front() = 3 + next_++ % 4000;
    return prompt;
  }

  template <typename Ask>
  absl::Status Round(Times* times, const Ask& ask) {
    const bool other_first = random_() % 2 == 0;
    for (const bool other : {other_first, !other_first}) {
      client_.Flush();
      const Prompt owned = Next();
      Served served;
      absl::Status status = ask(other ? owned : Next(), owned, &served);
      if (!status.ok()) return status;
      (other ? times->other : times->fresh).push_back(served.first_tokens.back());
      times->found += served.cached_tokens;
      if (!other) continue;
      Served own;
      if (status = client_.Run({owned}, &own, {"first"}).status(); !status.ok()) return status;
      times->own.push_back(own.first_tokens.back());
    }
    return absl::OkStatus();
  }

  const SaltFlags& flags_;
  const Prompt& text_;
  EngineClient client_;
  std::mt19937_64 random_;
  int32_t next_ = 0;
};

void Report(const char* name, const Times& times, BenchReport* report) {
  std::vector<double> ratios(times.other.size());
  std::transform(times.other.begin(), times.other.end(), times.fresh.begin(), ratios.begin(),
                 std::divides<>());
  const Summary other = Summarize(times.other), fresh = Summarize(times.fresh),
                own = Summarize(times.own);
  const double p = SignedRankP(times.other, times.fresh), ratio = Summarize(ratios).median;
  // The same test sees a difference where there is one.
  const double p_own = SignedRankP(times.own, times.fresh);
  report->Row(absl::StrFormat("%12s %7d %10.3f %10.3f %10.4f %9.3f %10.3f %9.2g %6d", name,
                              times.other.size(), 1e3 * other.median, 1e3 * fresh.median, ratio, p,
                              1e3 * own.median, p_own, times.found),
              {{"bench", "salts"},
               {"while", name},
               {"rounds", times.other.size()},
               {"other_seconds", ToJson(other)},
               {"fresh_seconds", ToJson(fresh)},
               {"own_seconds", ToJson(own)},
               {"ratio", ratio},
               {"p", p},
               {"p_own", p_own},
               {"found_tokens", times.found}});
}

}  // namespace

absl::Status BenchSalts(const std::vector<std::string>& arguments) {
  SaltFlags flags;
  if (absl::Status s = Parse(arguments, &flags); !s.ok()) return s;
  EngineConfig config;
  config.model_dir = flags.model;
  config.device = flags.device;
  config.threads = static_cast<int>(flags.threads);
  config.runner.max_num_seqs = 2;
  config.runner.max_model_len = flags.prompt + 2;
  config.kv_cache_tokens = 8 * flags.prompt;
  auto loaded = LoadEngine(config);
  if (!loaded.ok()) return loaded.status();
  const auto text = EncodeText(flags.model, loaded->config, flags.text);
  if (!text.ok()) return text.status();
  BenchReport report;
  report.facts() = {{"backend", loaded->backend},
                    {"prompt_tokens", flags.prompt},
                    {"clock", flags.clock == Now ? "wall" : "processor"}};
  report.Section("Two salts: milliseconds to the first token of what the other one has",
                 "  the other    pairs   its text      fresh      ratio         p        own "
                 "    p(own)  found");
  Rounds rounds(flags, *loaded->engine, *text);
  Times cached, in_flight;
  for (int64_t round = 0; round < flags.rounds; ++round) {
    absl::Status status = rounds.Cached(&cached);
    status.Update(rounds.InFlight(&in_flight));
    if (!status.ok()) return status;
  }
  Report("has it", cached, &report);
  Report("computes it", in_flight, &report);
  return report.Write(flags.json);
}

}  // namespace fox
