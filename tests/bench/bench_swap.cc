// fox-bench swap: one sequence's live pages and state to host memory and back, by context and
// bound, against one plain copy of as many bytes each way, and against computing them again.
#include "absl/strings/str_format.h"
#include "kernels/swap.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

Buffer HostMemory(Ops& ops, size_t bytes) {
  return ops.queue() != nullptr ? ops.queue()->AllocatePinned(bytes) : ops.Allocate(bytes);
}

struct SwapRun {
  Summary out, in, copy_out, copy_in, prefill;
  int64_t pages = 0;
  double bytes = 0;
};

// Seconds until the device has done `work`.
template <typename Work>
double Seconds(KvCache& cache, const Work& work) {
  const double start = Now();
  work();
  cache.FreePages();  // waits
  return Now() - start;
}

absl::StatusOr<SwapRun> Measure(const BenchSession& session, BenchModel& model, int64_t context) {
  KvCache& cache = model.runner->cache();
  Ops& ops = model.runner->ops();
  std::vector<double> prefill;
  SwapRun run;
  for (int64_t i = 0; i <= session.flags.repeat; ++i) {
    const double start = Now();
    const auto stats = Prefill(session, model, 0, 0, context);
    if (!stats.ok()) return stats.status();
    if (i > 0) prefill.push_back(Now() - start);  // the first run warms up
    run.pages = stats->live_pages();
  }
  const size_t bytes = SwapBytes(cache.view().shape, run.pages);
  const Buffer range = HostMemory(ops, bytes), plain = HostMemory(ops, bytes);
  const Buffer device = ops.Allocate(bytes);
  const HostSlot slot{range.as<std::byte>(), run.pages};
  const auto fetch = [&] {
    if (ops.queue() != nullptr) {
      ops.queue()->CopyToPinned(device.data(), bytes, plain.data(), ops.queue()->stream());
    } else {
      ops.CopyToHost(device.data(), bytes, plain.data(), nullptr);
    }
  };
  const auto send = [&] { ops.CopyToDevice(plain.data(), bytes, device.data(), nullptr); };
  std::vector<double> out, in, copy_out, copy_in;
  for (int64_t i = 0; i <= 4 * session.flags.repeat; ++i) {
    const double seconds_out = Seconds(cache, [&] { cache.SwapOut(0, slot); });
    Seconds(cache, [&] { cache.Release({0}); });
    const double seconds_in = Seconds(cache, [&] { cache.SwapIn(slot, 0); });
    const double seconds_fetch = Seconds(cache, fetch), seconds_send = Seconds(cache, send);
    if (i == 0) continue;
    out.push_back(seconds_out), in.push_back(seconds_in);
    copy_out.push_back(seconds_fetch), copy_in.push_back(seconds_send);
  }
  if (absl::Status audit = cache.Audit(); !audit.ok()) return audit;
  run.bytes = static_cast<double>(bytes);
  run.out = Summarize(std::move(out)), run.in = Summarize(std::move(in));
  run.copy_out = Summarize(std::move(copy_out)), run.copy_in = Summarize(std::move(copy_in));
  run.prefill = Summarize(std::move(prefill));
  return run;
}

void Report(BenchSession& session, AcpMode mode, int64_t context, const SwapRun& run) {
  const double out = run.out.median, in = run.in.median;
  session.report.Row(
      absl::StrFormat("%7d  %-9s %9.2f %9.3f (%5.1f GB/s, %3.0f%%) %9.3f (%5.1f GB/s, %3.0f%%) "
                      "%9.2f %7.1fx",
                      context, NameOf(mode), run.bytes / (1 << 20), out * 1e3,
                      run.bytes / out / 1e9, 100 * run.copy_out.median / out, in * 1e3,
                      run.bytes / in / 1e9, 100 * run.copy_in.median / in, run.prefill.median * 1e3,
                      run.prefill.median / (out + in)),
      {{"bench", "swap"},
       {"context", context},
       {"acp", NameOf(mode)},
       {"pages", run.pages},
       {"bytes", run.bytes},
       {"out_seconds", ToJson(run.out)},
       {"in_seconds", ToJson(run.in)},
       {"copy_out_seconds", ToJson(run.copy_out)},
       {"copy_in_seconds", ToJson(run.copy_in)},
       {"prefill_seconds", ToJson(run.prefill)},
       {"speedup_over_prefill", run.prefill.median / (out + in)}});
}

}  // namespace

absl::Status BenchSwap(BenchSession& session) {
  session.report.Section("Swap: one sequence to host memory and back (share of a plain copy)",
                         "context  acp             MiB    out ms                         in ms"
                         "                   prefill ms  over both");
  for (AcpMode mode : session.flags.modes) {
    auto model = session.Load(mode, 1, session.flags.contexts.back());
    if (!model.ok()) return model.status();
    for (int64_t context : session.flags.contexts) {
      const auto run = Measure(session, *model, context);
      if (!run.ok()) return run.status();
      Report(session, mode, context, *run);
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
