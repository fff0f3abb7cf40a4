// fox-bench cache: the gain of the prefix cache for questions on one document, and its cost for
// prompts that share nothing. Both loads go through the engine alone, in turns without and with the
// cache.
#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

struct CacheFlags {
  std::string model = FOX_SOURCE_DIR "/models/demo", device = "auto", json;
  std::string loads = "questions,strangers";
  int64_t document = 6000, question = 100, answer = 16, requests = 8, at_once = 4;
  int64_t rounds = 3, threads = 0, kv_cache_bytes = 0;

  // Upper bound of a sequence's tokens.
  int64_t longest() const { return document + question + answer + 2 * kPageTokens; }
};

absl::Status Parse(const std::vector<std::string>& arguments, CacheFlags* values) {
  FlagSet flags;
  flags.Group("Cache");
  flags.String("model", "DIR", "that computes them", &values->model);
  flags.String("device", "NAME", "cpu, cuda or auto", &values->device);
  flags.Int("threads", "N", "of the CPU backend; 0: one per core", 0, 4096, &values->threads);
  flags.Mebibytes("kv-cache-mb", "MiB of the page pool; 0: room for all without eviction", 0,
                  1 << 30, &values->kv_cache_bytes);
  flags.String("loads", "LIST", "which are run", &values->loads);
  flags.Int("document", "N", "tokens that prompts share", 64, 1 << 20, &values->document);
  flags.Int("question", "N", "tokens behind them", 1, 1 << 20, &values->question);
  flags.Int("answer", "N", "tokens of an answer", 1, 1 << 20, &values->answer);
  flags.Int("requests", "N", "questions, or prompts that share nothing", 2, 4096,
            &values->requests);
  flags.Int("at-once", "N", "of them that run at once", 1, 4096, &values->at_once);
  flags.Int("rounds", "N", "of each load, without the cache and with it in turns", 1, 1000,
            &values->rounds);
  flags.String("json", "FILE", "writes all rows there", &values->json);
  return ParseOrHelp(flags, arguments, "fox-bench cache");
}

// `share`: the cache's share of the pool.
absl::StatusOr<LoadedEngine> Load(const CacheFlags& flags, double share) {
  EngineConfig config;
  config.model_dir = flags.model;
  config.device = flags.device;
  config.threads = static_cast<int>(flags.threads);
  config.engine.prefix_cache_share = share;
  config.engine.max_num_queued_tokens = flags.longest() * flags.at_once;
  config.runner.max_num_seqs = static_cast<int32_t>(flags.at_once);
  config.runner.max_model_len = flags.longest();
  config.kv_cache_bytes = flags.kv_cache_bytes;
  if (flags.kv_cache_bytes == 0) {
    config.kv_cache_tokens = flags.longest() * std::max(flags.at_once, flags.requests);
  }
  return LoadEngine(config);
}

absl::StatusOr<Served> Answer(Engine& engine, const CacheFlags& flags,
                              std::vector<Prompt> prompts) {
  std::vector<Request> requests;
  for (Prompt& prompt : prompts) {
    Request& request = requests.emplace_back();
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.stop.max_tokens = static_cast<int32_t>(flags.answer);
    request.stop.ignore_eos = true;
  }
  return RunRequests(engine, std::move(requests), {.at_once = flags.at_once});
}

// Requests that ask a question on one document. The first one computes the document and is not
// timed.
absl::StatusOr<Served> RunQuestions(Engine& engine, const CacheFlags& flags, const Prompt& text) {
  const auto ask = [&](int64_t i) {
    Prompt prompt = TokensOfText(text, 0, flags.document);
    const Prompt question = TokensOfText(text, flags.document + i * 977, flags.question);
    prompt.push_back(static_cast<int32_t>(3 + i % 4000));  // the first token that differs
    prompt.insert(prompt.end(), question.begin(), question.end());
    return prompt;
  };
  // The cache learns where the prompts differ when the second one comes.
  for (const int64_t i : {0, 1}) {
    if (absl::Status s = Answer(engine, flags, {ask(i)}).status(); !s.ok()) return s;
  }
  std::vector<Prompt> prompts;
  for (int64_t i = 2; i < flags.requests + 2; ++i) prompts.push_back(ask(i));
  return Answer(engine, flags, std::move(prompts));
}

absl::StatusOr<Served> RunStrangers(Engine& engine, const CacheFlags& flags, const Prompt& text) {
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < flags.requests; ++i) {
    prompts.push_back(TokensOfText(text, i * 1999 + 7, flags.document / 4));
    prompts.back().front() = static_cast<int32_t>(3 + i % 4000);
  }
  return Answer(engine, flags, std::move(prompts));
}

// Results of one load on one engine, a value for each round.
struct Measured {
  std::vector<double> first, pace;
  int64_t prompt_tokens = 0, cached_tokens = 0;
};

absl::Status RunRound(const std::string& load, const CacheFlags& flags, const Prompt& text,
                      Engine& engine, Measured* measured) {
  engine.FlushPrefixCache();
  while (engine.HasWork()) engine.Step(Now());
  const auto served =
      load == "questions" ? RunQuestions(engine, flags, text) : RunStrangers(engine, flags, text);
  if (!served.ok()) return served.status();
  measured->first.push_back(Summarize(served->first_tokens).median);
  measured->pace.push_back(static_cast<double>(served->prompt_tokens + served->answer_tokens) /
                           served->seconds);
  measured->prompt_tokens += served->prompt_tokens;
  measured->cached_tokens += served->cached_tokens;
  return absl::OkStatus();
}

Summary Ratios(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> ratios(over.size());
  std::transform(over.begin(), over.end(), under.begin(), ratios.begin(), std::divides<>());
  return Summarize(ratios);
}

void Report(const std::string& load, const CacheFlags& flags, const Measured (&measured)[2],
            BenchReport* report) {
  for (const int on : {0, 1}) {
    const Measured& m = measured[on];
    const Summary ttft = Summarize(m.first), pace = Summarize(m.pace);
    const double found =
        static_cast<double>(m.cached_tokens) / static_cast<double>(m.prompt_tokens);
    nlohmann::ordered_json row = {{"bench", "cache"},
                                  {"load", load},
                                  {"document", flags.document},
                                  {"cache", on == 1},
                                  {"first_token_seconds", ToJson(ttft)},
                                  {"tokens_per_second", ToJson(pace)},
                                  {"found", found}};
    if (on == 1) {
      // Ratios of a round with the cache and the round without it just before.
      row["sooner"] = ToJson(Ratios(measured[0].first, m.first));
      row["tokens_per_second_over_off"] = ToJson(Ratios(m.pace, measured[0].pace));
    }
    report->Row(absl::StrFormat("%10s %7s %9.2f %11.1f %7.3f", load, on == 1 ? "on" : "off",
                                1e3 * ttft.median, pace.median, found),
                std::move(row));
  }
}

}  // namespace

absl::Status BenchCache(const std::vector<std::string>& arguments) {
  CacheFlags flags;
  if (absl::Status s = Parse(arguments, &flags); !s.ok()) return s;
  const std::vector<std::string> loads = absl::StrSplit(flags.loads, ',');
  for (const std::string& load : loads) {
    if (load == "questions" || load == "strangers") continue;
    return absl::InvalidArgumentError(absl::StrCat("--loads: there is no load \"", load, "\""));
  }
  absl::StatusOr<LoadedEngine> engines[2] = {Load(flags, 0), Load(flags, 0.3)};
  for (const auto& loaded : engines) {
    if (!loaded.ok()) return loaded.status();
  }
  const auto text = TextOf(flags.model, engines[0]->config, /*path=*/"");
  if (!text.ok()) return text.status();
  BenchReport report;
  report.facts() = {{"backend", engines[0]->backend}, {"document", flags.document},
                    {"question", flags.question},     {"answer", flags.answer},
                    {"requests", flags.requests},     {"at_once", flags.at_once},
                    {"rounds", flags.rounds}};
  report.Section("Prefix cache: the same load without it and with it",
                 "      load   cache   TTFT ms    tokens/s   found");
  for (const std::string& load : loads) {
    Measured measured[2];
    for (int64_t round = 0; round < flags.rounds; ++round) {
      for (const int on : {0, 1}) {
        absl::Status s = RunRound(load, flags, *text, *engines[on]->engine, &measured[on]);
        if (!s.ok()) return s;
      }
    }
    Report(load, flags, measured, &report);
    if (absl::Status s = report.Write(flags.json); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace fox
