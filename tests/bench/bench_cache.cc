// fox-bench cache: what the prefix cache saves, and what it costs where nothing is shared. Three
// loads of the model's own text through the engine alone, each with the cache and without it:
// questions on one document, the turns of conversations, and prompts that share nothing.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/engine_factory.h"
#include "engine/tools/eval_command.h"
#include "engine/tools/text_tokens.h"
#include "tests/bench/commands.h"
#include "tests/bench/measurement.h"

namespace fox {
namespace {

struct CacheFlags {
  std::string model = FOX_SOURCE_DIR "/models/demo", device = "auto", text, json;
  int64_t document = 6000, question = 100, answer = 16, requests = 8, at_once = 4, turns = 4;
  int64_t rounds = 3, threads = 0;
  double share = 0.3;
};

absl::Status Parse(const std::vector<std::string>& arguments, CacheFlags* values) {
  FlagSet flags;
  flags.Group("Cache");
  flags.String("model", "DIR", "a model with a tokenizer", &values->model);
  flags.String("device", "NAME", "cpu, cuda or auto", &values->device);
  flags.Int("threads", "N", "of the CPU backend; 0: one per core", 0, 4096, &values->threads);
  flags.String("text", "FILE", "what prompts are cut from; else MODEL/prompt_long.txt",
               &values->text);
  flags.Int("document", "N", "tokens that prompts share", 64, 1 << 20, &values->document);
  flags.Int("question", "N", "tokens behind them, or of a turn", 1, 1 << 20, &values->question);
  flags.Int("answer", "N", "tokens of an answer", 1, 1 << 20, &values->answer);
  flags.Int("requests", "N", "questions, conversations, or prompts that share nothing", 2, 4096,
            &values->requests);
  flags.Int("at-once", "N", "of them that run at once", 1, 4096, &values->at_once);
  flags.Int("turns", "N", "of a conversation", 2, 1000, &values->turns);
  flags.Int("rounds", "N", "of each load, with the cache and without in turns", 1, 1000,
            &values->rounds);
  flags.Double("share", "SHARE", "--prefix-cache-share of a server", 0.01, 1, &values->share);
  flags.String("json", "FILE", "writes all rows there", &values->json);
  return ParseOrHelp(flags, arguments, "fox-bench cache");
}

// What one load was for its clients.
struct Served {
  double seconds = 0;
  std::vector<double> first_tokens;  // seconds from a request to its first token
  int64_t tokens = 0;                // of prompts and answers
  EngineStats stats;
};

// An engine whose requests come one after the other, `at_once` in it at any time.
class Client {
 public:
  Client(Engine& engine, const CacheFlags& flags) : engine_(engine), flags_(flags) {}

  // Runs the prompts; gives their answers.
  std::vector<std::vector<int32_t>> Run(const std::vector<std::vector<int32_t>>& prompts,
                                        Served* served) {
    std::vector<std::vector<int32_t>> answers(prompts.size());
    const RequestId base = next_id_;
    size_t ended = 0;
    submitted_.clear();
    while (ended < prompts.size()) {
      while (next_id_ - base < prompts.size() &&
             static_cast<int64_t>(next_id_ - base - ended) < flags_.at_once) {
        Submit(prompts[next_id_ - base]);
      }
      for (const RequestOutput& output : engine_.Step(Now())) {
        std::vector<int32_t>& answer = answers[output.id - base];
        if (answer.empty() && !output.tokens.empty()) {
          served->first_tokens.push_back(Now() - submitted_[output.id - base]);
        }
        for (const SampledToken& token : output.tokens) answer.push_back(token.id);
        if (!output.finish) continue;
        const RequestStats& stats = output.finish->stats;
        served->tokens += stats.prompt_tokens + stats.completion_tokens;
        ++ended;
      }
    }
    return answers;
  }

 private:
  void Submit(std::vector<int32_t> prompt) {
    Request request;
    request.id = next_id_++;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.stop.max_tokens = static_cast<int32_t>(flags_.answer);
    request.stop.ignore_eos = true;
    submitted_.push_back(Now());
    const absl::Status status = engine_.Submit(std::move(request), submitted_.back());
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }

  Engine& engine_;
  const CacheFlags& flags_;
  RequestId next_id_ = 1;
  std::vector<double> submitted_;  // in the order of their ids, of this run
};

using Prompt = std::vector<int32_t>;

Prompt TokensAt(const Prompt& text, int64_t first, int64_t count) {
  Prompt tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = text[(static_cast<size_t>(first) + i) % text.size()];
  }
  return tokens;
}

// A document, computed by the first request, and questions on it; only these are timed.
void RunQuestions(Client& client, const CacheFlags& flags, const Prompt& text, Served* served) {
  const auto ask = [&](int64_t i) {
    Prompt prompt = TokensAt(text, 0, flags.document);
    const Prompt question = TokensAt(text, flags.document + i * 977, flags.question);
    prompt.push_back(static_cast<int32_t>(3 + i % 4000));  // from here on they part
    prompt.insert(prompt.end(), question.begin(), question.end());
    return prompt;
  };
  Served unused;
  // Where two of them part is known when the second comes.
  for (const int64_t i : {0, 1}) client.Run({ask(i)}, &unused);
  std::vector<Prompt> prompts;
  for (int64_t i = 2; i < flags.requests + 2; ++i) prompts.push_back(ask(i));
  const double start = Now();
  client.Run(prompts, served);
  served->seconds = Now() - start;
}

// Conversations that grow by a question and an answer in each turn; the first turn, a document, is
// not timed.
void RunTurns(Client& client, const CacheFlags& flags, const Prompt& text, Served* served) {
  std::vector<Prompt> histories;
  for (int64_t i = 0; i < flags.requests; ++i) {
    histories.push_back(TokensAt(text, i * 1999, flags.document / 2));
  }
  for (int64_t turn = 0; turn < flags.turns; ++turn) {
    Served unused;
    const double start = Now();
    const std::vector<Prompt> answers = client.Run(histories, turn == 0 ? &unused : served);
    if (turn > 0) served->seconds += Now() - start;
    for (size_t i = 0; i < histories.size(); ++i) {
      histories[i].insert(histories[i].end(), answers[i].begin(), answers[i].end());
      const Prompt question =
          TokensAt(text, static_cast<int64_t>(i) * 1999 + turn * 311, flags.question);
      histories[i].insert(histories[i].end(), question.begin(), question.end());
    }
  }
}

void RunStrangers(Client& client, const CacheFlags& flags, const Prompt& text, Served* served) {
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < flags.requests; ++i) {
    prompts.push_back(TokensAt(text, i * 1999 + 7, flags.document / 4));
    prompts.back().front() = static_cast<int32_t>(3 + i % 4000);
  }
  const double start = Now();
  client.Run(prompts, served);
  served->seconds = Now() - start;
}

struct Load {
  const char* name;
  void (*run)(Client&, const CacheFlags&, const Prompt&, Served*);
};

absl::StatusOr<Served> RunLoad(const Load& load, const CacheFlags& flags, double share) {
  EngineConfig config;
  config.model_dir = flags.model;
  config.device = flags.device;
  config.threads = static_cast<int>(flags.threads);
  config.engine.prefix_cache_share = share;
  config.runner.max_num_seqs = static_cast<int32_t>(flags.at_once);
  const int64_t longest = flags.document + flags.turns * (flags.question + flags.answer) + 64;
  config.kv_cache_tokens = longest * std::max(flags.at_once, flags.requests);
  auto loaded = LoadEngine(config);
  if (!loaded.ok()) return loaded.status();
  const auto text = EncodeTextFile(
      flags.model, loaded->config,
      flags.text.empty() ? absl::StrCat(flags.model, "/prompt_long.txt") : flags.text, -1);
  if (!text.ok()) return text.status();
  Served served;
  Client client(*loaded->engine, flags);
  load.run(client, flags, text->ids, &served);
  served.stats = loaded->engine->stats();
  loaded->engine.reset();
  return served;
}

}  // namespace

absl::Status BenchCache(const std::vector<std::string>& arguments) {
  CacheFlags flags;
  if (absl::Status s = Parse(arguments, &flags); !s.ok()) return s;
  BenchReport report;
  report.facts() = {{"document", flags.document}, {"question", flags.question},
                    {"answer", flags.answer},     {"requests", flags.requests},
                    {"at_once", flags.at_once},   {"turns", flags.turns}};
  report.Section("Prefix cache: the same load without it and with it",
                 "      load   cache   TTFT ms    tokens/s   found   snapshots       pages");
  constexpr Load kLoads[] = {
      {"questions", RunQuestions}, {"turns", RunTurns}, {"strangers", RunStrangers}};
  for (const Load& load : kLoads) {
    std::vector<double> first[2], pace[2];
    Served last[2];
    for (int64_t round = 0; round < flags.rounds; ++round) {
      for (const int on : {0, 1}) {
        absl::StatusOr<Served> served = RunLoad(load, flags, on == 1 ? flags.share : 0);
        if (!served.ok()) return served.status();
        first[on].push_back(Summarize(served->first_tokens).median);
        pace[on].push_back(static_cast<double>(served->tokens) / served->seconds);
        last[on] = *std::move(served);
      }
    }
    for (const int on : {0, 1}) {
      const Summary ttft = Summarize(first[on]), tokens = Summarize(pace[on]);
      const EngineStats& stats = last[on].stats;
      const double found = stats.prefix_queried_tokens == 0
                               ? 0
                               : static_cast<double>(stats.prefix_found_tokens) /
                                     static_cast<double>(stats.prefix_queried_tokens);
      report.Row(absl::StrFormat("%10s %7s %9.1f %11.1f %7.3f %11d %11d", load.name,
                                 on == 1 ? "on" : "off", 1e3 * ttft.median, tokens.median, found,
                                 stats.snapshots, stats.snapshot_pages),
                 {{"bench", "cache"},
                  {"load", load.name},
                  {"cache", on == 1},
                  {"first_token_seconds", ToJson(ttft)},
                  {"tokens_per_second", ToJson(tokens)},
                  {"found", found},
                  {"snapshots", stats.snapshots},
                  {"snapshot_pages", stats.snapshot_pages}});
    }
  }
  return report.Write(flags.json);
}

}  // namespace fox
