// Auditor: the queue of audits, and the two readings of one. See auditor.h.
#include "server/calls/auditor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/mutex.h"
#include "kernels/paging/paged_kv.h"
#include "server/process/log.h"

namespace fox {
namespace {

// Audits share the queue and the running slots like one client.
constexpr uint64_t kClient = ~uint64_t{0};

constexpr char kServerStops[] = "the server stops";

// A row's distribution, by softmax in float64: kernels/cpu/score.h takes exponentials in float32,
// whose rounding would hide small distances.
class Distribution {
 public:
  explicit Distribution(int64_t size) : shares_(static_cast<size_t>(size)) {}

  // If a logit is not finite, no sum over shares and logarithms is.
  void Set(const float* logits) {
    logits_ = logits;
    const auto size = static_cast<int64_t>(shares_.size());
    const double largest = *std::max_element(logits, logits + size);
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) {
      sum += shares_[static_cast<size_t>(i)] = std::exp(static_cast<double>(logits[i]) - largest);
    }
    for (double& share : shares_) share /= sum;
    log_sum_ = largest + std::log(sum);
  }
  double Share(int64_t i) const { return shares_[static_cast<size_t>(i)]; }
  double Log(int64_t i) const { return static_cast<double>(logits_[i]) - log_sum_; }

 private:
  std::vector<double> shares_;
  const float* logits_ = nullptr;
  double log_sum_ = 0;
};

v1::Audit Skipped(const std::string& why) {
  v1::Audit audit;
  audit.set_skipped(why);
  return audit;
}

}  // namespace

v1::Audit CompareRows(const std::vector<float>& pruned, const std::vector<float>& unpruned,
                      int64_t rows, int64_t vocabulary) {
  double largest = 0, variation = 0, divergence = 0;
  Distribution p(vocabulary), q(vocabulary);
  for (int64_t row = 0; row < rows; ++row) {
    p.Set(pruned.data() + row * vocabulary);
    q.Set(unpruned.data() + row * vocabulary);
    double distance = 0, kl = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
      distance += std::fabs(p.Share(i) - q.Share(i));
      kl += q.Share(i) * (q.Log(i) - p.Log(i));
    }
    if (!std::isfinite(distance) || !std::isfinite(kl)) {
      return Skipped("a logit is not finite");
    }
    largest = std::max(largest, distance / 2);
    variation += distance / 2;
    divergence += std::max(kl, 0.0);
  }
  v1::Audit audit;
  audit.set_tokens(static_cast<uint32_t>(rows));
  audit.set_max_tv(static_cast<float>(largest));
  audit.set_sum_tv(static_cast<float>(variation));
  audit.set_sum_kl(static_cast<float>(divergence));
  return audit;
}

struct Auditor::State : std::enable_shared_from_this<State> {
  State(EngineThread& engine_thread, int64_t logits_of_a_row, const AuditOptions& how,
        CallMetrics& counters)
      : engine(engine_thread), vocabulary(logits_of_a_row), options(how), metrics(counters) {}

  void Start(const Audited& sequence);
  // Begins the next audit, if none runs.
  void BeginNext();
  // The running audit is over.
  void End(const Audited& sequence, const v1::Audit& audit);
  void Report(const Audited& sequence, const v1::Audit& audit);
  // Work for the thread, which neither calls nor the engine wait for; without one it is done at
  // once.
  void Post(std::function<void()> task);
  void Loop();

  EngineThread& engine;
  const int64_t vocabulary;
  const AuditOptions options;
  CallMetrics& metrics;
  std::atomic<int64_t> seen{0};

  Mutex mutex;
  CondVar wake;
  std::deque<Audited> waiting ABSL_GUARDED_BY(mutex);
  bool runs ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::optional<std::function<void()>> work
      ABSL_GUARDED_BY(mutex);  // one audit has one task at most
  std::thread thread;
};

// One audit: its first reading prunes as the sequence did, its second one prunes nothing.
struct Auditor::Reading final : SubmissionListener, std::enable_shared_from_this<Reading> {
  Reading(std::shared_ptr<State> owner, Audited what)
      : state(std::move(owner)), sequence(std::move(what)) {}

  void Allocate() {
    const auto end = static_cast<int64_t>(sequence.tokens.size());
    const int64_t row_bytes = state->vocabulary * static_cast<int64_t>(sizeof(float));
    const int64_t most = std::max<int64_t>(1, state->options.max_bytes / row_bytes);
    count = std::min(end - sequence.prompt_tokens, most);
    for (auto& kept : rows) {
      kept = std::make_shared<PromptRows>();
      kept->first = end - 1 - count;
      kept->logits.resize(static_cast<size_t>(count * state->vocabulary));
    }
  }

  void Submit() {
    Request request;
    request.id = state->engine.NextId();
    request.prompt = sequence.tokens;
    request.stop.max_tokens = 0;
    request.client = kClient;
    request.priority = std::numeric_limits<int32_t>::max();
    request.log_tolerance = second ? kNoMass : sequence.log_tolerance;
    request.deadline = sequence.deadline;
    request.cache_salt = sequence.cache_salt;
    request.tenant = sequence.tenant;
    request.bypass_prefix_cache = second || sequence.bypass_prefix_cache;
    request.prompt_rows = rows[second ? 1 : 0];
    std::vector<Request> requests;
    requests.push_back(std::move(request));
    state->engine.Submit(std::move(requests), shared_from_this());
  }

  void OnSubmitted(const absl::Status& status) override {
    if (!status.ok()) state->End(sequence, Skipped(std::string(status.message())));
  }
  void OnOutput(RequestOutput output, Seconds /*when*/) override {
    if (!output.finish.has_value()) return;
    const absl::Status& status = output.finish->status;
    if (!status.ok()) return state->End(sequence, Skipped(std::string(status.message())));
    if (!std::exchange(second, true)) return Submit();
    state->Post([self = shared_from_this()] {
      self->state->End(self->sequence, CompareRows(self->rows[0]->logits, self->rows[1]->logits,
                                                   self->count, self->state->vocabulary));
    });
  }

  const std::shared_ptr<State> state;
  const Audited sequence;
  int64_t count = 0;  // rows of each reading
  bool second = false;
  std::shared_ptr<PromptRows> rows[2];
};

void Auditor::State::Start(const Audited& sequence) {
  const char* refusal = nullptr;
  {
    const MutexLock lock(mutex);
    if (stopping) refusal = kServerStops;
    if (waiting.size() >= kMaxWaiting) refusal = "too many audits wait";
    if (refusal == nullptr) waiting.push_back(sequence);
  }
  refusal == nullptr ? BeginNext() : Report(sequence, Skipped(refusal));
}

void Auditor::State::BeginNext() {
  std::shared_ptr<Reading> next;
  {
    const MutexLock lock(mutex);
    if (runs || waiting.empty()) return;
    runs = true;
    next = std::make_shared<Reading>(shared_from_this(), std::move(waiting.front()));
    waiting.pop_front();
  }
  Post([next] {
    if (next->state->engine.draining()) {  // before the memory is taken
      return next->state->End(next->sequence, Skipped(kServerStops));
    }
    next->Allocate();
    next->Submit();
  });
}

void Auditor::State::End(const Audited& sequence, const v1::Audit& audit) {
  Report(sequence, audit);
  {
    const MutexLock lock(mutex);
    runs = false;
  }
  BeginNext();
}

void Auditor::State::Report(const Audited& sequence, const v1::Audit& audit) {
  const bool skipped = !audit.skipped().empty();
  const bool beyond = !skipped && static_cast<double>(audit.max_tv()) > options.limit;
  metrics.OnAudit(skipped, beyond, static_cast<double>(audit.max_tv()));
  std::vector<LogField> fields = {{"request_id", sequence.request_id}};
  if (skipped) {
    fields.emplace_back("skipped", audit.skipped());
  } else {
    fields.emplace_back("tokens", int64_t{audit.tokens()});
    fields.emplace_back("max_tv", static_cast<double>(audit.max_tv()));
    fields.emplace_back("sum_tv", static_cast<double>(audit.sum_tv()));
    fields.emplace_back("sum_kl", static_cast<double>(audit.sum_kl()));
  }
  Log(beyond ? LogLevel::kWarning : LogLevel::kInfo,
      beyond ? "audit beyond --audit-limit" : "audit", fields);
  if (sequence.done) sequence.done(audit);
}

void Auditor::State::Post(std::function<void()> task) {
  {
    const MutexLock lock(mutex);
    if (!stopping && thread.joinable()) {
      work = std::move(task);
      wake.NotifyOne();
      return;
    }
  }
  task();
}

void Auditor::State::Loop() {
  for (;;) {
    std::function<void()> task;
    {
      const MutexLock lock(mutex);
      while (!work.has_value() && !stopping) wake.Wait(mutex);
      if (!work.has_value()) return;
      task = *std::exchange(work, std::nullopt);
    }
    task();
  }
}

Auditor::Auditor(EngineThread& engine, int32_t vocabulary, const AuditOptions& options,
                 CallMetrics& metrics, bool has_thread)
    : state_(std::make_shared<State>(engine, vocabulary, options, metrics)) {
  if (has_thread) state_->thread = std::thread([state = state_] { state->Loop(); });
}

Auditor::~Auditor() {
  std::deque<Audited> waiting;
  {
    const MutexLock lock(state_->mutex);
    state_->stopping = true;
    waiting.swap(state_->waiting);
  }
  for (const Audited& sequence : waiting) state_->Report(sequence, Skipped(kServerStops));
  state_->wake.NotifyAll();
  if (state_->thread.joinable()) state_->thread.join();
}

bool Auditor::Samples() {
  const double share = state_->options.share;
  if (share <= 0) return false;
  const auto every = std::max<int64_t>(1, std::llround(1 / share));
  return state_->seen++ % every == every - 1;
}

void Auditor::Start(const Audited& sequence) { state_->Start(sequence); }

}  // namespace fox
