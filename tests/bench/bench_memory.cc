// fox-bench memory: bytes of live KV pages of one sequence over its context, by bound, against the
// unpruned cache.
#include "absl/strings/str_format.h"
#include "tests/bench/bench_session.h"

namespace fox {

absl::Status BenchMemory(BenchSession& session) {
  session.report.Section("Memory: KV pages of one sequence",
                         "context  acp        live pages    live MiB    peak MiB  of unpruned");
  for (AcpMode mode : session.flags.modes) {
    auto model = session.Load(mode, 1, session.flags.contexts.back());
    if (!model.ok()) return model.status();
    const PagedKvShape& shape = model->runner->cache().view().shape;
    const auto page = static_cast<double>(shape.page_bytes());
    int64_t position = 0;
    for (int64_t context : session.flags.contexts) {
      const auto stats = Prefill(session, *model, 0, position, context - position);
      if (!stats.ok()) return stats.status();
      position = context;
      const double unpruned =
          static_cast<double>(shape.lists_per_slot() * PagesFor(context)) * page;
      const double live = static_cast<double>(stats->live_pages()) * page;
      const double peak = static_cast<double>(stats->peak_pages) * page;
      session.report.Row(absl::StrFormat("%7d  %-9s %11d %11.2f %11.2f %10.1f%%", context,
                                         NameOf(mode), stats->live_pages(), live / (1 << 20),
                                         peak / (1 << 20), 100 * live / unpruned),
                         {{"bench", "memory"},
                          {"context", context},
                          {"acp", NameOf(mode)},
                          {"live_pages", stats->live_pages()},
                          {"live_bytes", live},
                          {"peak_bytes", peak},
                          {"unpruned_bytes", unpruned},
                          {"max_log_evicted_mass", stats->max_log_evicted_mass}});
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
