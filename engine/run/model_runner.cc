// ModelRunner: submits plans to the model and collects logits, tokens and counters. Read
// model_runner.h first.
#include "engine/run/model_runner.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr int64_t kCpuStepTokens = 512, kGpuStepTokens = 8192, kLogitRows = 128;
constexpr int64_t kGpuPrefillTokensPerDecode = 96;

// Rows that prefill attention computes together on a GPU.
constexpr int64_t kGpuChunkMultiple = 128;
static_assert(kGpuChunkMultiple % kPageTokens == 0);

// True if every sequence brings one token, of which none is scored.
bool IsDecode(const StepPlan& plan) {
  return std::all_of(plan.sequences.begin(), plan.sequences.end(), [](const auto& seq) {
    return seq.token_ids.size() == 1 && seq.scores.empty();
  });
}

bool HasMasks(const StepPlan& plan) {
  return std::any_of(plan.sequences.begin(), plan.sequences.end(),
                     [](const auto& seq) { return seq.masked(); });
}

}  // namespace

// A step must have room, in tokens and in rows of logits, for one token of every sequence, and on a
// GPU for the smallest chunk of one prompt beside the tokens of all others.
RunnerOptions WithStepSizes(RunnerOptions options, bool on_gpu) {
  const auto chosen = [&options, on_gpu](int64_t size, int64_t fallback) {
    return std::max<int64_t>(size > 0 ? size : fallback,
                             options.max_num_seqs + (on_gpu ? kGpuChunkMultiple : 0));
  };
  options.max_num_batched_tokens =
      chosen(options.max_num_batched_tokens, on_gpu ? kGpuStepTokens : kCpuStepTokens);
  options.max_logit_rows = chosen(options.max_logit_rows, kLogitRows);
  if (options.prefill_tokens_per_decode < 0) {
    options.prefill_tokens_per_decode = on_gpu ? kGpuPrefillTokensPerDecode : 0;
  }
  return options;
}

PagedKvShape CacheShape(const ModelConfig& config, const RunnerOptions& options) {
  PagedKvShape shape;
  shape.layers = config.num_layers;
  shape.q_heads = config.num_heads;
  shape.kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.dtype = options.kv_dtype;
  shape.num_pages = options.num_pages;
  shape.max_slots = options.num_slots() + options.snapshot_slots;
  shape.max_pages = PagesFor(options.max_model_len);
  shape.k_shift = config.k_shift;
  shape.v_shift = config.v_shift;
  if (options.max_drafts > 0) {
    shape.history = static_cast<int>(std::bit_ceil(static_cast<uint32_t>(options.max_drafts) + 2));
  }
  shape.poison_free_pages = options.poison_free_pages;
  return shape;
}

Workload WorkloadOf(const ModelConfig& config, const RunnerOptions& options) {
  Workload load;
  load.shape = CacheShape(config, options);
  load.hidden_size = config.hidden_size;
  load.intermediate_size = config.intermediate_size;
  load.vocab_size = config.vocab_size;
  load.max_seqs = DecodeBucket(options.max_num_seqs);
  load.max_rows = std::max(options.max_num_batched_tokens, load.max_seqs);
  load.prunes = options.acp != AcpMode::kOff;
  return load;
}

size_t PenaltyStateBytes(const ModelConfig& config, const RunnerOptions& options) {
  const auto slots = static_cast<size_t>(options.num_slots());
  return slots * (static_cast<size_t>(config.vocab_size) * sizeof(TokenPenaltyState) +
                  static_cast<size_t>(MaskWords(config.vocab_size)) * sizeof(uint32_t));
}

ModelRunner::ModelRunner(std::unique_ptr<Ops> ops, FoxWeights weights, const RunnerOptions& options)
    : ops_(std::move(ops)),
      queue_(ops_->queue()),
      stream_(queue_ != nullptr ? queue_->stream() : nullptr),
      weights_(std::move(weights)),
      options_(WithStepSizes(options, queue_ != nullptr)),
      activations_(weights_, *ops_,
                   std::max(options_.max_num_batched_tokens, DecodeBucket(options_.max_num_seqs)),
                   std::max(options_.max_logit_rows, DecodeBucket(options_.max_num_seqs))),
      model_(weights_, *ops_, activations_),
      batch_(*ops_, activations_.max_rows, DecodeBucket(options_.max_num_seqs),
             activations_.max_logit_rows, CacheShape(weights_.config, options_).max_slots),
      cache_(
          CacheShape(weights_.config, options_), *ops_,
          {batch_.outputs().free_pages, batch_.outputs().pool_fault, batch_.outputs().sole_pages}),
      slots_(static_cast<size_t>(cache().shape.max_slots)) {
  limits_.num_pages = options_.num_pages;
  limits_.lists_per_slot = cache().shape.lists_per_slot();
  limits_.layers = cache().shape.layers;
  limits_.page_bytes = static_cast<int64_t>(cache().shape.page_bytes());
  limits_.max_num_seqs = options_.max_num_seqs;
  limits_.num_slots = options_.num_slots();
  limits_.snapshot_slots = options_.snapshot_slots;
  limits_.staging_buffers = options_.staging_buffers;
  limits_.staging_bytes = options_.staging_bytes;
  limits_.image_state_bytes = static_cast<int64_t>(SlotImageBytes(cache().shape, 0));
  limits_.image_page_bytes =
      static_cast<int64_t>(SlotImageBytes(cache().shape, 1)) - limits_.image_state_bytes;
  for (int32_t i = 0; i < options_.staging_buffers; ++i) {
    staging_.push_back(ops_->Allocate(static_cast<size_t>(options_.staging_bytes)));
  }
  limits_.max_model_len = options_.max_model_len;
  limits_.max_num_batched_tokens = options_.max_num_batched_tokens;
  limits_.max_logit_rows = options_.max_logit_rows;
  limits_.max_drafts = options_.max_drafts;
  limits_.prefill_tokens_per_decode = options_.prefill_tokens_per_decode;
  if (queue_ != nullptr) limits_.chunks = {kGpuChunkMultiple, /*fixed=*/true};
  limits_.vocab_size = static_cast<int32_t>(weights_.config.vocab_size);
  limits_.depth = queue_ != nullptr ? 2 : 1;
  limits_.samples_on_device = queue_ != nullptr;
  limits_.scores = true;
  if (limits_.samples_on_device) {
    penalty_state_ = ops_->Allocate(PenaltyStateBytes(weights_.config, options_));
    masks_ = reinterpret_cast<uint32_t*>(penalty_state_.as<TokenPenaltyState>() +
                                         options_.num_slots() * weights_.config.vocab_size);
  }
  if (queue_ != nullptr && !options_.enforce_eager) {
    graphs_ = std::make_unique<DecodeGraphs>(*queue_);
    std::set<int32_t> sizes;
    for (const DecodeShape& shape : DecodeShapes(options_.max_num_seqs, options_.max_model_len)) {
      sizes.insert(static_cast<int32_t>(shape.bucket));
    }
    limits_.graph_sizes.assign(sizes.begin(), sizes.end());
  }
  ops_->Reserve(WorkloadOf(weights_.config, options_));
  // One more than plans in flight, for the step whose logits are being read.
  for (int i = 0; i <= limits_.depth; ++i) {
    idle_.push_back(std::make_unique<StepReadback>(*ops_, batch_));
  }
}

ModelRunner::~ModelRunner() {
  if (in_flight_.empty()) return;
  in_flight_.back()->Mark();  // masks may be missing
  in_flight_.back()->Wait();
}

absl::Status ModelRunner::Health() const {
  if (queue_ == nullptr || queue_->error() == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("device: ", queue_->error()));
}

absl::Status ModelRunner::Probe() {
  if (queue_ != nullptr) queue_->Probe();
  return Health();
}

absl::Status ModelRunner::Submit(const StepPlan& plan) {
  if (absl::Status status = Health(); !status.ok()) return status;
  FOX_CHECK(static_cast<int>(in_flight_.size()) < limits_.depth);
  if (collected_ != nullptr) idle_.push_back(std::move(collected_));
  FOX_CHECK(!idle_.empty());
  std::unique_ptr<StepReadback> step = std::move(idle_.back());
  idle_.pop_back();
  const bool decode = queue_ != nullptr && IsDecode(plan);
  step->Begin(plan, /*row_each=*/decode);
  MoveSlots(plan);
  SetPenaltyState(plan, *step);
  if (!plan.sequences.empty()) {
    const int64_t planned = static_cast<int64_t>(plan.sequences.size());
    const int64_t bucket = decode ? DecodeBucket(planned) : 0;
    batch_.Build(plan, bucket, step->staging(), stream_);
    logits_ = decode && graphs_ != nullptr
                  ? graphs_->Run({bucket, batch_.batch().small}, [this] { return Forward(); })
                  : Forward();
  }
  if (!HasMasks(plan)) step->Enqueue(logits_, cache());
  in_flight_.push_back(std::move(step));
  return Health();
}

// The rest of Submit for a plan with masks: samples, and copies to the host.
absl::Status ModelRunner::SetMasks(const std::vector<const uint32_t*>& masks) {
  if (absl::Status status = Health(); !status.ok()) return status;
  const auto words = static_cast<size_t>(MaskWords(weights_.config.vocab_size));
  FOX_CHECK(!in_flight_.empty() && masks.size() <= static_cast<size_t>(limits_.max_num_seqs));
  StepReadback& step = *in_flight_.back();
  uint32_t* const staged = step.Masks(masks.size() * words);
  for (size_t i = 0; i < masks.size(); ++i) {
    if (masks[i] != nullptr) std::copy_n(masks[i], words, staged + i * words);
  }
  ops_->CopyToDevice(staged, masks.size() * words * sizeof(uint32_t), masks_, stream_);
  Sample(logits_, masks_);
  step.Enqueue(logits_, cache());
  return Health();
}

void ModelRunner::MoveSlots(const StepPlan& plan) {
  const auto release = [this](const std::vector<int32_t>& slots) {
    ops_->Release(slots.data(), static_cast<int>(slots.size()), cache(), stream_);
  };
  const auto share = [this](const SharedSlot& shared) {
    ops_->Share(shared.from, shared.to, cache(), stream_);
  };
  const auto image = [this](const SlotTransfer& transfer) {
    return SlotImage{StagingBuffer(transfer.buffer), transfer.pages};
  };
  for (const SlotTransfer& save : plan.saves) {
    ops_->SaveSlot(save.slot, image(save), cache(), stream_);
  }
  release(plan.drop_snapshots);
  for (const SharedSlot& snapshot : plan.snapshots) share(snapshot);
  release(plan.release_slots);
  for (const SlotTransfer& load : plan.loads) {
    ops_->LoadSlot(image(load), load.slot, cache(), stream_);
  }
  for (const SharedSlot& start : plan.starts) share(start);
}

// The backend reads the entries in the host memory of `step`.
void ModelRunner::SetPenaltyState(const StepPlan& plan, StepReadback& step) {
  if (plan.penalty_state.empty()) return;
  size_t count = 0;
  for (const SlotTokens& states : plan.penalty_state) count += states.entries.size();
  PenaltyEntry* entries = step.Entries(count);
  for (const SlotTokens& states : plan.penalty_state) {
    PenaltyEntry* const end = std::copy(states.entries.begin(), states.entries.end(), entries);
    ops_->SetPenaltyState({states.slot, weights_.config.vocab_size, entries, end - entries,
                           penalty_state_.as<TokenPenaltyState>()},
                          stream_);
    entries = end;
  }
}

MatrixView ModelRunner::Forward() {
  const StepOutputs& outputs = batch_.outputs();
  const ForwardCounters counters{outputs.blocks_total, outputs.blocks_pruned, outputs.pages_evicted,
                                 outputs.max_log_evicted_mass, outputs.lost_mass};
  const BatchView& batch = batch_.batch();
  const int64_t rows = batch_.num_logit_rows();
  model_.Forward(batch, options_.acp, cache(), counters, stream_);
  Score();
  const MatrixView logits = model_.Logits(batch, batch_.logit_rows(), rows, rows, stream_);
  Sample(logits, nullptr);
  return logits;
}

// Scores in slices, because the logits of a long prompt's rows take more memory than its pages. A
// slice is computed as prefill rows, whose products are the fast ones for hundreds of rows and need
// two rows or more.
void ModelRunner::Score() {
  const int64_t all = batch_.num_scored_rows(), most = activations_.max_logit_rows;
  FOX_CHECK(all == 0 || most > 2);
  for (int64_t first = 0, count = 0; first < all; first += count) {
    const int64_t left = std::max<int64_t>(2, all - first);
    count = left == most + 1 ? most - 1 : std::min(most, left);
    const MatrixView logits = model_.Logits(batch_.batch(), batch_.scored_rows() + first, count,
                                            /*decode_rows=*/0, stream_);
    ops_->Score({logits, batch_.score_rows() + first, batch_.scores() + first}, stream_);
  }
}

void ModelRunner::Sample(const MatrixView& logits, const uint32_t* masks) {
  if (!limits_.samples_on_device || logits.rows == 0) return;
  ops_->Sample({logits, batch_.sample_rows(), batch_.outputs().sampled, batch_.sampled_tokens(),
                penalty_state_.as<TokenPenaltyState>(), masks},
               stream_);
}

absl::Status ModelRunner::CaptureGraphs() {
  if (graphs_ == nullptr) return absl::OkStatus();
  StepReadback& step = *idle_.back();
  for (const DecodeShape& shape : DecodeShapes(options_.max_num_seqs, options_.max_model_len)) {
    // A batch of padding touches no slot.
    StepPlan padding;
    const bool longer = !shape.small && shape.bucket == 1;
    if (longer) padding.sequences.push_back(PaddingSequence(kSmallBatchTokens));
    batch_.Build(padding, shape.bucket, step.staging(), stream_);
    for (int run = 0; run < 2; ++run) {
      logits_ = graphs_->Run({shape.bucket, batch_.batch().small}, [this] { return Forward(); });
    }
    step.Mark();
    step.Wait();
    if (absl::Status status = Health(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> ModelRunner::Collect() {
  FOX_CHECK(!in_flight_.empty());
  std::unique_ptr<StepReadback> step = std::move(in_flight_.front());
  in_flight_.pop_front();
  step->Wait();
  StepResult result = step->Deliver(limits_, &slots_);
  if (collected_ != nullptr) idle_.push_back(std::move(collected_));
  collected_ = std::move(step);
  if (absl::Status status = Health(); !status.ok()) return status;
  if (const PoolFault fault = collected_->pool_fault(); fault != PoolFault::kNone) {
    return absl::UnavailableError(absl::StrCat("page pool: ", Describe(fault)));
  }
  return result;
}

}  // namespace fox
