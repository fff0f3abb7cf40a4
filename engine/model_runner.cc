// Plan in, logits, tokens and counters out. Read model_runner.h first.
#include "engine/model_runner.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

SlotStats FreshStats() {
  SlotStats stats;
  stats.max_log_evicted_mass = -std::numeric_limits<double>::infinity();
  return stats;
}

// One token and one row of logits for each sequence.
bool IsDecode(const StepPlan& plan) {
  return std::all_of(plan.sequences.begin(), plan.sequences.end(), [](const auto& seq) {
    return seq.token_ids.size() == 1 && seq.logit_rows.size() == 1;
  });
}

absl::StatusOr<SampledToken> TokenOf(const SampleRecord& sampled, int32_t logprobs,
                                     int32_t vocab_size) {
  if (sampled.status == SampleStatus::kNotFinite) return absl::InternalError("numerical failure");
  if (sampled.status == SampleStatus::kAllMasked) {
    return absl::InternalError("no token may be sampled");
  }
  SampledToken token;
  token.id = sampled.id;
  if (logprobs < 0) return token;
  token.logprob = sampled.logprob;
  token.rank = sampled.rank;
  for (int32_t i = 0; i < std::min(logprobs, vocab_size); ++i) {
    token.top.push_back({sampled.top_ids[i], sampled.top_logprobs[i], i + 1});
  }
  return token;
}

// A vector on the CPU, pinned memory where copies run behind the host.
Buffer HostBlock(DeviceQueue* queue, size_t bytes) {
  if (queue != nullptr) return queue->AllocatePinned(bytes);
  return {new std::byte[bytes](), bytes,
          [](void* data, size_t) { delete[] static_cast<std::byte*>(data); }};
}

}  // namespace

// One submitted plan and the host memory that belongs to it. Reused.
struct ModelRunner::InFlight {
  std::vector<int32_t> released;
  std::vector<PlannedSequence> sequences;  // their tokens are no longer there
  std::vector<int64_t> ends;               // tokens of each sequence afterwards
  Buffer staging;                          // the batch on its way there
  Buffer entries;                          // PenaltyEntry, as many as any plan had
  Buffer outputs;                          // and the report on its way back
  std::unique_ptr<Event> event;            // null without a queue
  Buffer logits;                           // [rows, V] wide, as far as wanted
  std::vector<float> narrowed;             // of float64 logits
  DType logits_dtype = DType::kF32;
  int64_t vocab_size = 0;
};

PagedKvShape CacheShape(const ModelConfig& config, const RunnerOptions& options) {
  PagedKvShape shape;
  shape.layers = config.num_layers;
  shape.q_heads = config.num_heads;
  shape.kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.dtype = options.kv_dtype;
  shape.num_pages = options.num_pages;
  shape.max_slots = options.max_slots;
  shape.max_pages = PagesFor(options.max_model_len);
  shape.k_shift = config.k_shift;
  shape.v_shift = config.v_shift;
  shape.poison_free_pages = options.poison_free_pages;
  return shape;
}

size_t PenaltyStateBytes(const ModelConfig& config, const RunnerOptions& options) {
  return static_cast<size_t>(options.max_slots * config.vocab_size) * sizeof(TokenPenaltyState);
}

int64_t DecodeBucket(int64_t seqs) {
  if (seqs <= 2) return std::max<int64_t>(seqs, 1);
  if (seqs <= 4) return 4;
  const int64_t multiple = seqs <= 64 ? 8 : 32;
  return (seqs + multiple - 1) / multiple * multiple;
}

ModelRunner::ModelRunner(std::unique_ptr<Ops> ops, FoxWeights weights, const RunnerOptions& options)
    : ops_(std::move(ops)),
      queue_(ops_->queue()),
      stream_(queue_ != nullptr ? queue_->stream() : nullptr),
      weights_(std::move(weights)),
      options_(options),
      activations_(weights_, *ops_,
                   std::max(options.max_batch_tokens, DecodeBucket(options.max_slots)),
                   std::max(options.max_logit_rows, DecodeBucket(options.max_slots))),
      model_(weights_, *ops_, activations_),
      batch_(*ops_, activations_.max_rows, DecodeBucket(options.max_slots),
             activations_.max_logit_rows, options.max_slots),
      cache_(CacheShape(weights_.config, options), *ops_,
             {batch_.outputs().free_pages, batch_.outputs().pool_fault}),
      slots_(static_cast<size_t>(options.max_slots), FreshStats()) {
  limits_.num_pages = options.num_pages;
  limits_.lists_per_slot = cache_.view().shape.lists_per_slot();
  limits_.max_slots = options.max_slots;
  limits_.max_model_len = options.max_model_len;
  limits_.max_batch_tokens = options.max_batch_tokens;
  limits_.max_logit_rows = options.max_logit_rows;
  limits_.vocab_size = static_cast<int32_t>(weights_.config.vocab_size);
  limits_.depth = queue_ != nullptr ? 2 : 1;
  limits_.samples_on_device = queue_ != nullptr;
  if (limits_.samples_on_device)
    penalty_state_ = ops_->Allocate(PenaltyStateBytes(weights_.config, options));
  ops_->Reserve(activations_.max_rows, static_cast<int>(DecodeBucket(options.max_slots)),
                cache_.view().shape);
  // One more than may be in flight: the one whose logits are being read.
  for (int i = 0; i <= limits_.depth; ++i) {
    auto step = std::make_unique<InFlight>();
    step->staging = HostBlock(queue_, batch_.bytes());
    step->outputs = HostBlock(queue_, batch_.report_bytes());
    if (queue_ != nullptr) step->event = queue_->MakeEvent();
    idle_.push_back(std::move(step));
  }
}

ModelRunner::~ModelRunner() {
  for (auto& step : in_flight_) {
    if (step->event != nullptr) step->event->Wait();
  }
}

absl::Status ModelRunner::Health() const {
  if (queue_ == nullptr || queue_->error() == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("device: ", queue_->error()));
}

absl::Status ModelRunner::Submit(const StepPlan& plan) {
  if (absl::Status status = Health(); !status.ok()) return status;
  FOX_CHECK(static_cast<int>(in_flight_.size()) < limits_.depth);
  if (collected_ != nullptr) idle_.push_back(std::move(collected_));
  std::unique_ptr<InFlight> step = std::move(idle_.back());
  idle_.pop_back();
  step->released = plan.release_slots;
  step->sequences.clear();
  step->ends.clear();
  for (const PlannedSequence& seq : plan.sequences) {
    PlannedSequence& kept = step->sequences.emplace_back();
    kept.slot = seq.slot;
    kept.logit_rows = seq.logit_rows;
    kept.sample = seq.sample;
    step->ends.push_back(seq.position + static_cast<int64_t>(seq.token_ids.size()));
  }
  cache_.Release(plan.release_slots);
  SetPenaltyState(plan, *step);
  if (!plan.sequences.empty()) {
    const int64_t planned = static_cast<int64_t>(plan.sequences.size());
    const bool decode = queue_ != nullptr && IsDecode(plan);
    const int64_t bucket = decode ? DecodeBucket(planned) : 0;
    batch_.Build(plan, bucket, step->staging.as<std::byte>(), stream_);
    if (decode) {
      RunDecode(bucket);
    } else {
      Forward(options_.acp);
    }
  }
  ReadBack(*step);
  in_flight_.push_back(std::move(step));
  return Health();
}

// The backend reads the entries where they lie.
void ModelRunner::SetPenaltyState(const StepPlan& plan, InFlight& step) {
  if (plan.penalty_state.empty()) return;
  size_t count = 0;
  for (const SlotTokens& states : plan.penalty_state) count += states.entries.size();
  // Pinned memory is dear to get, so it grows seldom.
  constexpr size_t kLeast = 4096;
  const size_t bytes = std::bit_ceil(std::max(count, kLeast) * sizeof(PenaltyEntry));
  if (step.entries.bytes() < bytes) step.entries = HostBlock(queue_, bytes);
  PenaltyEntry* entries = step.entries.as<PenaltyEntry>();
  for (const SlotTokens& states : plan.penalty_state) {
    PenaltyEntry* const end = std::copy(states.entries.begin(), states.entries.end(), entries);
    ops_->SetPenaltyState({states.slot, weights_.config.vocab_size, entries, end - entries,
                           penalty_state_.as<TokenPenaltyState>()},
                          stream_);
    entries = end;
  }
}

void ModelRunner::Forward(AcpMode acp) {
  const StepOutputs& outputs = batch_.outputs();
  const ForwardCounters counters{outputs.blocks_total, outputs.blocks_pruned, outputs.pages_evicted,
                                 outputs.max_log_evicted_mass};
  logits_ = model_.Forward(batch_.batch(), batch_.logit_rows(), batch_.num_logit_rows(), acp,
                           cache_.view(), counters, stream_);
  if (!limits_.samples_on_device || logits_.rows == 0) return;
  ops_->Sample({logits_, batch_.sample_rows(), outputs.sampled, batch_.sampled_tokens(),
                penalty_state_.as<TokenPenaltyState>()},
               stream_);
}

// The first step of a kind runs eagerly, the second is captured.
void ModelRunner::RunDecode(int64_t bucket) {
  last_graph_ = {bucket, batch_.batch().small};
  DecodeGraph& decode = graphs_[last_graph_];
  if (options_.enforce_eager || !decode.warm) {
    decode.warm = true;
    return Forward(options_.acp);
  }
  if (decode.graph == nullptr) {
    decode.graph = queue_->Capture(stream_, [this] { Forward(options_.acp); });
    decode.logits = logits_;
    if (decode.graph == nullptr) return;  // Health tells
  }
  logits_ = decode.logits;
  decode.graph->Launch(stream_);
}

absl::Status ModelRunner::CaptureGraphs() {
  if (queue_ == nullptr || options_.enforce_eager) return absl::OkStatus();
  std::vector<int64_t> buckets;
  for (int64_t n = 1; n <= options_.max_slots; ++n) {
    if (buckets.empty() || buckets.back() != DecodeBucket(n)) buckets.push_back(DecodeBucket(n));
  }
  for (int64_t bucket : buckets) {
    if (absl::Status status = CaptureGraph({}, bucket); !status.ok()) return status;
    if (bucket > kSmallBatchRows || options_.max_model_len <= kSmallBatchTokens) continue;
    StepPlan longer;
    longer.sequences.push_back(PaddingSequence(kSmallBatchTokens));
    if (absl::Status status = CaptureGraph(longer, bucket); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::CaptureGraph(const StepPlan& padding, int64_t bucket) {
  batch_.Build(padding, bucket, idle_.back()->staging.as<std::byte>(), stream_);
  RunDecode(bucket);
  RunDecode(bucket);
  idle_.back()->event->Record(stream_);
  idle_.back()->event->Wait();
  return Health();
}

absl::Status ModelRunner::ReplayLastGraph(int count) {
  const auto found = graphs_.find(last_graph_);
  if (found == graphs_.end() || found->second.graph == nullptr) {
    return absl::FailedPreconditionError("no decode graph was captured");
  }
  for (int i = 0; i < count; ++i) found->second.graph->Launch(stream_);
  idle_.back()->event->Record(stream_);
  idle_.back()->event->Wait();
  return Health();
}

// Enqueues what the host will want of the step.
void ModelRunner::ReadBack(InFlight& step) {
  const auto fetch = [this](const void* device, size_t bytes, void* host) {
    if (queue_ != nullptr) return queue_->CopyToPinned(device, bytes, host, stream_);
    ops_->CopyToHost(device, bytes, host, stream_);
  };
  const bool wanted = std::any_of(step.sequences.begin(), step.sequences.end(),
                                  [](const auto& s) { return !s.logit_rows.empty() && !s.sample; });
  fetch(batch_.output_buffer(),
        step.sequences.empty() ? BatchBuilder::kPoolBytes : batch_.report_bytes(),
        step.outputs.data());
  if (wanted) {
    const size_t row = static_cast<size_t>(logits_.cols) * SizeOf(logits_.dtype);
    const size_t bytes = static_cast<size_t>(logits_.rows) * row;
    if (step.logits.bytes() < bytes) step.logits = HostBlock(queue_, bytes);
    step.logits_dtype = logits_.dtype;
    step.vocab_size = logits_.cols;
    fetch(logits_.data, bytes, step.logits.data());
  }
  if (step.event != nullptr) step.event->Record(stream_);
}

absl::StatusOr<StepResult> ModelRunner::Collect() {
  FOX_CHECK(!in_flight_.empty());
  std::unique_ptr<InFlight> step = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (step->event != nullptr) step->event->Wait();
  StepResult result;
  for (int32_t slot : step->released) slots_[static_cast<size_t>(slot)] = FreshStats();
  if (!step->sequences.empty()) {
    Deliver(*step, result);
    Count(*step, result);
  }
  const StepOutputs outputs = batch_.OutputsAt(step->outputs.as<std::byte>());
  result.free_pages = *outputs.free_pages;
  if (collected_ != nullptr) idle_.push_back(std::move(collected_));
  collected_ = std::move(step);
  if (absl::Status status = Health(); !status.ok()) return status;
  if (*outputs.pool_fault != PoolFault::kNone) {
    return absl::UnavailableError(absl::StrCat("page pool: ", Describe(*outputs.pool_fault)));
  }
  return result;
}

// Points each sequence at its rows of logits, as float32 on the host, or gives its token.
void ModelRunner::Deliver(InFlight& step, StepResult& result) {
  const float* logits = step.logits.as<float>();
  if (step.logits_dtype == DType::kF64) {
    const double* wide = step.logits.as<double>();
    step.narrowed.assign(wide, wide + step.logits.bytes() / sizeof(double));
    logits = step.narrowed.data();
  }
  const StepOutputs outputs = batch_.OutputsAt(step.outputs.as<std::byte>());
  int64_t row = 0;
  for (const PlannedSequence& seq : step.sequences) {
    const auto rows = static_cast<int64_t>(seq.logit_rows.size());
    result.logits.push_back(rows == 0 || seq.sample ? nullptr : logits + row * step.vocab_size);
    row += rows;
    result.sampled.push_back(
        seq.sample ? TokenOf(outputs.sampled[row - 1], seq.sample->logprobs, limits_.vocab_size)
                   : SampledToken{});
  }
}

void ModelRunner::Count(const InFlight& step, StepResult& result) {
  const StepOutputs outputs = batch_.OutputsAt(step.outputs.as<std::byte>());
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    SlotStats& stats = slots_[static_cast<size_t>(step.sequences[i].slot)];
    stats.blocks_total += outputs.blocks_total[i];
    stats.blocks_pruned += outputs.blocks_pruned[i];
    stats.pages_allocated = limits_.lists_per_slot * PagesFor(step.ends[i]);
    stats.pages_evicted += outputs.pages_evicted[i];
    stats.live_pages = stats.pages_allocated - stats.pages_evicted;
    stats.peak_pages = std::max(stats.peak_pages, stats.live_pages);
    stats.max_log_evicted_mass =
        std::max(stats.max_log_evicted_mass, outputs.max_log_evicted_mass[i]);
    result.stats.push_back(stats);
  }
}

}  // namespace fox
