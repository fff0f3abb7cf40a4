// fox-bench snapshots: what a further snapshot of one conversation costs beside the first: the
// pages of its own, and a slot's tables and running state, against the conversation's
// prefix without eviction. On the CPU, whose cache can be looked into.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/engine_factory.h"
#include "engine/eval/eval_command.h"
#include "tests/bench/commands.h"
#include "tests/bench/engine_client.h"
#include "tests/bench/measurement.h"

namespace fox {
namespace {

struct SnapshotFlags {
  std::string model = FOX_SOURCE_DIR "/models/demo", text, json;
  std::string behind = "128,512,1024,2048,4096";
  int64_t document = 8192, threads = 0;
  std::vector<int64_t> distances;  // behind
};

absl::Status Parse(const std::vector<std::string>& arguments, SnapshotFlags* values) {
  FlagSet flags;
  flags.Group("Snapshots");
  flags.String("model", "DIR", "a model with a tokenizer", &values->model);
  flags.Int("threads", "N", "0: one per core", 0, 4096, &values->threads);
  flags.String("text", "FILE", "what is read; else MODEL/prompt_long.txt", &values->text);
  flags.Int("document", "N", "tokens of the first snapshot, a multiple of 64", 64, 1 << 20,
            &values->document);
  flags.String("behind", "LIST", "tokens behind them to the second one", &values->behind);
  flags.String("json", "FILE", "writes all rows there", &values->json);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-bench snapshots"); !s.ok()) return s;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(values->behind, ','))) {
    if (!absl::SimpleAtoi(part, &values->distances.emplace_back()) ||
        values->distances.back() < 1 || values->distances.back() % kPageTokens != 0) {
      return absl::InvalidArgumentError(absl::StrCat("--behind: ", part, " is no multiple of 64"));
    }
  }
  if (values->document % kPageTokens == 0) return absl::OkStatus();
  return absl::InvalidArgumentError("--document: no multiple of 64");
}

// The slot of the snapshot with so many tokens; -1: there is none.
int SlotOf(const ModelRunner& runner, const KvCache& cache, int64_t tokens) {
  const ExecutorLimits& limits = runner.limits();
  for (int slot = limits.slots(); slot < limits.slots() + limits.snapshot_slots; ++slot) {
    if (cache.view().length[slot] == tokens) return slot;
  }
  return -1;
}

// Takes a snapshot at the end of the document, another one so many tokens behind it, and nothing
// else, and measures the first.
absl::Status Measure(const SnapshotFlags& flags, int64_t behind, LoadedEngine& loaded,
                     const Prompt& text, BenchReport* report) {
  auto& runner = static_cast<ModelRunner&>(*loaded.executor);
  EngineClient client(*loaded.engine, /*answer=*/1, /*at_once=*/1, Now);
  client.Flush();
  Served served;
  for (const int64_t tokens : {flags.document, flags.document + behind}) {
    absl::Status status = client.Run({TokensOfText(text, 0, tokens)}, &served).status();
    if (!status.ok()) return status;
    while (loaded.engine->HasWork()) loaded.engine->Step(Now());
  }
  const KvCache& cache = runner.cache();
  const int slot = SlotOf(runner, cache, flags.document);
  if (slot < 0 || SlotOf(runner, cache, flags.document + behind) < 0 ||
      loaded.engine->stats().snapshots != 2) {
    return absl::InternalError("there are not two snapshots, one of each length");
  }
  PagedKvShape shape = cache.view().shape;
  const int64_t pages = cache.SolePages(slot), lists = shape.lists_per_slot();
  int64_t kept = 0;  // pages of the first snapshot, shared ones too
  for (const int32_t first : cache.FirstLive(slot)) kept += PagesFor(flags.document) - first;
  const auto page_bytes = static_cast<double>(shape.page_bytes());
  size_t state = KvCache::FixedBytes(shape);
  --shape.max_slots;
  state -= KvCache::FixedBytes(shape);
  const double bytes = static_cast<double>(pages) * page_bytes + static_cast<double>(state);
  const double unpruned = static_cast<double>(lists * PagesFor(flags.document)) * page_bytes;
  report->Row(absl::StrFormat("%8d %8d %12d %11d %10.3f %9.2f%% %9.2f%%", flags.document, behind,
                              kept, pages, static_cast<double>(state) / 1e6, 100 * bytes / unpruned,
                              100 * static_cast<double>(kept) * page_bytes / unpruned),
              {{"bench", "snapshots"},
               {"tokens", flags.document},
               {"behind", behind},
               {"pages", kept},
               {"sole_pages", pages},
               {"state_bytes", state},
               {"bytes", bytes},
               {"unpruned_bytes", unpruned},
               {"share_of_unpruned", bytes / unpruned}});
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchSnapshots(const std::vector<std::string>& arguments) {
  SnapshotFlags flags;
  if (absl::Status s = Parse(arguments, &flags); !s.ok()) return s;
  const int64_t longest =
      flags.document + *std::max_element(flags.distances.begin(), flags.distances.end());
  EngineConfig config;
  config.model_dir = flags.model;
  config.threads = static_cast<int>(flags.threads);
  config.engine.prefix_cache_share = 1;
  config.engine.prefix_cache_interval = 2 * longest;  // ends of prompts alone
  config.kv_cache_tokens = 2 * longest;
  config.runner.max_model_len = std::max<int64_t>(131072, longest + 1);  // a server's, for tables
  auto loaded = LoadEngine(config);
  if (!loaded.ok()) return loaded.status();
  const auto text = EncodeText(flags.model, loaded->config, flags.text);
  if (!text.ok()) return text.status();
  BenchReport report;
  report.facts() = {{"model", flags.model}, {"backend", loaded->backend}};
  report.Section("A further snapshot of a conversation",
                 "  tokens   behind   live pages  alone its  state MB      costs     first one");
  for (const int64_t behind : flags.distances) {
    absl::Status status = Measure(flags, behind, *loaded, *text, &report);
    if (!status.ok()) return status;
  }
  return report.Write(flags.json);
}

}  // namespace fox
