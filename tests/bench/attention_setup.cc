// Random projections through BeginStep, Append and Evict. See attention_setup.h.
#include "tests/bench/attention_setup.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/acp.h"
#include "kernels/core/check.h"
#include "tests/bench/random_values.h"

namespace fox {
namespace {

constexpr float kLogFOffset = 1, kGlobalGate = 9;

PagedKvShape ShapeOf(const AttentionCase& c) {
  PagedKvShape shape;
  shape.layers = c.layers;
  shape.q_heads = shape.kv_heads = c.heads;
  shape.head_dim = c.head_dim;
  shape.dtype = DType::kBF16;
  shape.max_slots = c.batch;
  shape.max_pages = PagesFor(c.tokens);
  shape.num_pages = static_cast<int>(c.batch * shape.lists_per_slot() * shape.max_pages);
  return shape;
}

}  // namespace

AttentionSetup::AttentionSetup(CudaOps& ops, const AttentionCase& shape, AcpMode acp)
    : ops_(ops), case_(shape), acp_(acp) {
  const PagedKvShape pages = ShapeOf(case_);
  ops_.Reserve({.shape = pages, .max_rows = case_.max_rows, .max_seqs = case_.batch});
  storage_ = std::make_unique<PagedKvStorage>(pages, ops_);
  const int64_t columns = static_cast<int64_t>(case_.heads) * case_.head_dim;
  stride_ = (3 * columns + case_.heads + 7) / 8 * 8;
  std::vector<BFloat16> values(static_cast<size_t>(case_.max_rows * stride_));
  FillNormal(values.data(), static_cast<int64_t>(values.size()), 7, 0, 1);
  Send(values, projection_);
  out_ = ops_.Allocate(static_cast<size_t>(case_.max_rows * columns) * SizeOf(DType::kBF16));
  MakeWeights();
  const auto seqs = static_cast<size_t>(case_.batch);
  std::vector<int32_t> slots(seqs);
  std::iota(slots.begin(), slots.end(), 0);
  Send(slots, slot_);
  Send(std::vector<double>(seqs, case_.log_tolerance), tolerance_);
  Send(std::vector<int64_t>(seqs, 0), total_);
  Send(std::vector<int64_t>(seqs, 0), skipped_);
}

template <typename T>
void AttentionSetup::Send(const std::vector<T>& values, Buffer& buffer) {
  const size_t bytes = values.size() * sizeof(T);
  if (buffer.bytes() < bytes) buffer = ops_.Allocate(bytes);
  ops_.CopyToDevice(values.data(), bytes, buffer.data(), nullptr);
}

// Norm weights are one, so B and U are sqrt(d) but for rounding.
void AttentionSetup::MakeWeights() {
  const auto heads = static_cast<size_t>(case_.heads);
  const size_t columns = heads * static_cast<size_t>(case_.head_dim);
  Send(std::vector<float>(columns, 1), norm_);
  Send(std::vector<float>(columns, 1), diagonal_);
  std::vector<float> gates(heads, kLogFOffset);
  for (size_t head = 3; head < heads; head += 4) gates[head] = kGlobalGate;
  Send(gates, fgate_bias_);
  self_logit_bound_ = kProductInflation * std::sqrt(case_.head_dim);
  Send(std::vector<double>(heads * static_cast<size_t>(case_.layers), self_logit_bound_), logit_);
  bound_.diagonal = diagonal_.as<float>();
  bound_.scale = kKeyNormInflation;
  bound_.self_logit_bound = bound_.max_logit_bound = logit_.as<double>();
}

void AttentionSetup::BeginStep(int64_t rows_each) {
  const auto seqs = static_cast<size_t>(case_.batch);
  std::vector<int64_t> row_begin(seqs + 1);
  for (size_t i = 0; i <= seqs; ++i) row_begin[i] = static_cast<int64_t>(i) * rows_each;
  Send(row_begin, row_begin_);
  Send(std::vector<int64_t>(seqs, length_), position_);
  rows_ = row_begin.back();
  batch_.num_seqs = case_.batch;
  batch_.num_rows = rows_;
  batch_.num_decodes = rows_ == case_.batch ? case_.batch : 0;
  batch_.slot = slot_.as<int32_t>();
  batch_.row_begin = row_begin_.as<int64_t>();
  batch_.position = position_.as<int64_t>();
  batch_.log_tolerance = tolerance_.as<double>();
  ops_.BeginStep(batch_, storage_->view(), nullptr);
  AppendParams append;
  const int64_t columns = static_cast<int64_t>(case_.heads) * case_.head_dim;
  append.projection = {projection_.data(), DType::kBF16, rows_, 3 * columns + case_.heads, stride_};
  append.k_column = columns;
  append.v_column = 2 * columns;
  append.fgate_column = 3 * columns;
  append.fgate_bias = fgate_bias_.data();
  append.min_log_gate = MinLogGate(self_logit_bound_);
  append.q_norm = append.k_norm = norm_.data();
  append.bound = bound_;
  append.acp = acp_;
  for (append.layer = 0; append.layer < case_.layers; ++append.layer) {
    ops_.Append(batch_, append, storage_->view(), nullptr);
  }
  length_ += rows_each;
}

void AttentionSetup::Append(int64_t rows, bool evict) {
  EvictParams params;
  params.acp = acp_;
  params.self_logit_bound = params.max_logit_bound = logit_.as<double>();
  while (rows > 0) {
    const int64_t some = std::min(rows, case_.max_rows / case_.batch);
    BeginStep(some);
    rows -= some;
    if (evict) ops_.Evict(batch_, params, storage_->view(), nullptr);
  }
}

AttentionParams AttentionSetup::Params(int layer) const {
  const int64_t columns = static_cast<int64_t>(case_.heads) * case_.head_dim;
  AttentionParams params;
  params.layer = layer;
  params.q = {projection_.data(), DType::kBF16, rows_, columns, stride_};
  params.out = {out_.data(), DType::kBF16, rows_, columns, columns};
  params.acp = acp_;
  params.bound = bound_;
  params.blocks_total = total_.as<int64_t>();
  params.blocks_pruned = skipped_.as<int64_t>();
  return params;
}

void AttentionSetup::Attend(int call) {
  const AttentionParams params = Params(call % case_.layers);
  // As in a step, where Append comes first: what attention reads early is not written here either.
  const bool decodes = batch_.num_rows == batch_.num_seqs;
  ops_.state().unfinished =
      decodes ? UnfinishedWrites(params.q.data, storage_->view().cum_log_f) : UnfinishedWrites();
  ops_.Attention(batch_, params, storage_->view(), nullptr);
}

double AttentionSetup::VisitedShare() {
  const auto seqs = static_cast<size_t>(case_.batch);
  const auto sum = [&](const Buffer& counts) {
    std::vector<int64_t> values(seqs);
    ops_.CopyToHost(counts.data(), seqs * sizeof(int64_t), values.data(), nullptr);
    return static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0}));
  };
  Send(std::vector<int64_t>(seqs, 0), total_);
  Send(std::vector<int64_t>(seqs, 0), skipped_);
  Attend(0);
  return 1 - sum(skipped_) / sum(total_);
}

double AttentionSetup::LivePageBytes() const {
  const PagedKv& kv = storage_->view();
  std::vector<int32_t> first(static_cast<size_t>(case_.batch * kv.shape.lists_per_slot()));
  ops_.CopyToHost(kv.first_live, first.size() * sizeof(int32_t), first.data(), nullptr);
  int64_t pages = 0;
  for (int32_t page : first) pages += PagesFor(length_) - page;
  return static_cast<double>(pages) * static_cast<double>(kv.shape.page_bytes()) / case_.layers;
}

}  // namespace fox
