// Samples of whole sequences on the device, with penalties, biases, allowed ids, min_tokens and
// masks of grammars, many beside each other and token after token: the device counts, the host's
// Sampler is the oracle and samples from the same logits with the sequence's own counts and masks.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "engine/schedule/sequence.h"
#include "kernels/cuda/sampling/sample.h"
#include "tests/kernels/cuda/sampling/sample_batch.h"

namespace fox::cuda {
namespace {

using Sequences = std::vector<std::unique_ptr<Sequence>>;
using Enqueue = std::function<cudaError_t(const SampleParams&)>;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Distinct ids where the vocabulary has as many.
std::vector<int32_t> SomeIds(size_t most, int32_t vocabulary, Random& random) {
  std::vector<int32_t> ids(1 + random() % most);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Every parameter is off in half of the requests.
Request DeviceRequest(int32_t vocabulary, Random& random) {
  const auto half = [&] { return random() % 2 == 0; };
  Request request;
  const std::vector<int32_t> ids = SomeIds(200, vocabulary, random);
  request.prompt = ids;
  request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
  SamplingParams& sampling = request.sampling;
  sampling = ToSampling(MakeRow(vocabulary, 0, random));
  if (half()) sampling.repetition_penalty = OneOf<float>(random, {1.3f, 0.5f, 100, 1e-40f});
  if (half()) sampling.presence_penalty = OneOf<float>(random, {0.7f, 2, -2});
  if (half()) sampling.frequency_penalty = OneOf<float>(random, {0.3f, 2, -2});
  if (half()) {
    for (const int32_t id : SomeIds(20, vocabulary, random)) {
      sampling.logit_bias.emplace_back(id, OneOf<float>(random, {-100, 100, 0.3f, 0}));
    }
  }
  if (half()) {
    sampling.allowed_token_ids = SomeIds(random() % 4 == 0 ? 2 : 5000, vocabulary, random);
    sampling.allowed_token_ids.push_back(sampling.allowed_token_ids.front());
  }
  if (half()) {
    request.stop.min_tokens = static_cast<int32_t>(random() % 4);
    request.stop.stop_token_ids = SomeIds(5, vocabulary, random);
    // Sometimes nothing is left to sample.
    if (random() % 4 == 0) request.stop.stop_token_ids = sampling.allowed_token_ids;
  }
  return request;
}

std::unique_ptr<Sequence> MakeSequence(int32_t slot, int32_t vocabulary, Random& random) {
  EngineOptions options;
  options.eos_token_ids = {vocabulary + 3, 0};  // the first id is not in the vocabulary
  auto sequence =
      std::make_unique<Sequence>(DeviceRequest(vocabulary, random), options, 1 << 20, 0, 0.0);
  sequence->slot = slot;
  return sequence;
}

SampleRow NextRow(const Sequence& sequence) {
  SampleRow row =
      SampleRowOf(sequence.request, sequence.stop, sequence.length(), sequence.produced()).value();
  row.slot = sequence.slot;
  return row;
}

// The logits that a sequence's next token is sampled from, in the order of
// engine/request/sampler.h.
std::vector<float> ProcessedLogits(const Sequence& sequence, std::vector<float> row,
                                   const uint32_t* mask) {
  const SamplingParams& sampling = sequence.request.sampling;
  const auto at = [&](int32_t id) -> float& { return row[static_cast<size_t>(id)]; };
  const auto clamp = [](float x) { return std::min(std::max(x, -FLT_MAX), FLT_MAX); };
  const std::vector<float> raw = row;
  for (const auto& [id, bias] : sampling.logit_bias) at(id) = clamp(at(id) + bias);
  for (const TokenCounts::Entry& entry : sequence.counts.entries()) {
    float& x = at(entry.id);
    x = x > 0 ? x / sampling.repetition_penalty : x * sampling.repetition_penalty;
    if (entry.generated > 0) {
      const float frequent = sampling.frequency_penalty * static_cast<float>(entry.generated);
      x = x - frequent;
      x = x - sampling.presence_penalty;
    }
    x = clamp(x);
  }
  if (!sampling.allowed_token_ids.empty()) {
    const std::vector<float> all = row;
    std::fill(row.begin(), row.end(), kMasked);
    for (const int32_t id : sampling.allowed_token_ids) at(id) = all[static_cast<size_t>(id)];
  }
  for (const int32_t id : sequence.stop.MaskedAt(sequence.generated())) {
    if (static_cast<size_t>(id) < row.size()) at(id) = kMasked;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (mask != nullptr && (mask[i / 32] >> (i % 32) & 1) == 0) row[i] = kMasked;
    if (!std::isfinite(raw[i])) row[i] = std::nanf("");
  }
  return row;
}

// NaN equals NaN.
void ExpectSameLogits(const std::vector<float>& want, const float* got) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_EQ(got[i], want[i]) << "logit " << i;
  }
}

// Sets the states of every sequence whose slot lacks them, as the scheduler plans it.
void SetMissingStates(Sequences& sequences, const SampleBatch& batch, cudaStream_t stream) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& sequence = sequences[i];
    if (!batch.rows[i].logits_processor.on || sequence->has_penalty_state) continue;
    const std::vector<PenaltyEntry> states = PenaltyEntriesOf(
        sequence->request, sequence->stop, sequence->counts, sequence->generated());
    const DeviceArray<PenaltyEntry> entries(states);
    ASSERT_EQ(SetPenaltyState({sequence->slot, batch.vocabulary, entries.data(),
                               static_cast<int64_t>(states.size()), batch.penalty_state.data()},
                              stream),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    sequence->has_penalty_state = true;
  }
}

// Counts the outcomes of a test's samples.
struct Seen {
  int processed = 0, plain = 0, not_finite = 0, all_masked = 0, followed = 0;
};

// Compares one sample of each sequence with the host's and appends it; a sequence whose sample
// failed, and now and then another, makes room for a new one in its slot.
void TakeSamples(const SampleBatch& batch, Sequences& sequences, Random& random, Seen* seen) {
  const std::vector<SampleRecord> sampled = batch.sampled.ToHost();
  const std::vector<float> left = batch.device_logits.ToHost();
  Sampler sampler(batch.vocabulary);
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    SCOPED_TRACE(::testing::Message()
                 << "sequence " << i << " of " << sequences.size() << " vocabulary "
                 << batch.vocabulary << " generated " << sequence.generated());
    const float* raw = batch.row_logits(i);
    const bool processes_logits = batch.rows[i].logits_processor.on;
    ++(processes_logits ? seen->processed : seen->plain);
    std::vector<float> logits(raw, raw + batch.vocabulary);
    const uint32_t* mask = batch.mask(i);
    if (processes_logits) logits = ProcessedLogits(sequence, std::move(logits), mask);
    ExpectSameLogits(logits, left.data() + i * static_cast<size_t>(batch.stride));
    const absl::StatusOr<SampledToken> want =
        sampler.Sample(raw, sequence.request.sampling, sequence.counts,
                       sequence.stop.MaskedAt(sequence.generated()), sequence.tokens.size(), mask);
    seen->followed += mask != nullptr && want.ok() ? 1 : 0;
    ExpectSample(sampled[i], want, batch.rows[i]);
    if (::testing::Test::HasFatalFailure()) return;
    if (!want.ok()) {
      ++(sampled[i].status == SampleStatus::kNotFinite ? seen->not_finite : seen->all_masked);
    }
    SampledToken token;
    token.id = sampled[i].id;
    sequence.Append(token);
    if (!want.ok() || random() % 6 == 0) {
      sequences[i] = MakeSequence(sequence.slot, batch.vocabulary, random);
    }
  }
}

// `steps` tokens for each of `count` sequences.
void SampleMany(size_t count, int steps, int32_t vocabulary, cudaStream_t stream,
                const std::function<cudaError_t(const SampleParams&)>& enqueue, Random& random,
                Seen* seen) {
  SampleBatch batch(count, vocabulary, static_cast<int32_t>(random() % 5));
  Sequences sequences;
  for (size_t i = 0; i < count; ++i) {
    sequences.push_back(MakeSequence(SlotOf(i), vocabulary, random));
  }
  for (int step = 0; step < steps; ++step) {
    for (size_t i = 0; i < count; ++i) {
      const auto kinds = static_cast<uint64_t>(Logits::kCount);
      const Logits kind =
          random() % 2 == 0 ? Logits::kNormal : static_cast<Logits>(random() % kinds);
      batch.SetLogits(i, MakeLogits(kind, vocabulary, random));
      batch.rows[i] = NextRow(*sequences[i]);
      if (random() % 2 == 0) batch.SetMask(i, random);
    }
    batch.Upload();
    SetMissingStates(sequences, batch, stream);
    ASSERT_EQ(enqueue(batch.params()), cudaSuccess);
    ASSERT_EQ(Sample(batch.params(/*masked=*/true), stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    TakeSamples(batch, sequences, random, seen);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class SequenceSamplesTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(SequenceSamplesTest, AreThoseOfTheSampler) {
  const int32_t vocabulary = GetParam();
  Random random(static_cast<uint64_t>(vocabulary) + 1);
  Seen seen;
  const auto enqueue = [](const SampleParams& params) { return Sample(params, nullptr); };
  for (const size_t count : {1, 3, 32, 48, 100, 200}) {  // every number of blocks a row
    SampleMany(count, 6, vocabulary, nullptr, enqueue, random, &seen);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(seen.processed, 0);
  EXPECT_GT(seen.plain, 0);
  EXPECT_GT(seen.followed, 0);
  EXPECT_GT(seen.not_finite, 0);
  EXPECT_GT(seen.all_masked, 0);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SequenceSamplesTest,
                         ::testing::Values(1, 2, 7, 1000, 4097, 50277));

// Samples with the present parameters of the rows, as one graph.
class SampleGraph {
 public:
  explicit SampleGraph(cudaStream_t stream) : stream_(stream) {}
  ~SampleGraph() {
    EXPECT_EQ(cudaGraphExecDestroy(exec_), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  }

  cudaError_t operator()(const SampleParams& params) {
    if (exec_ == nullptr) {
      EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      EXPECT_EQ(Sample(params, stream_), cudaSuccess);
      EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
      EXPECT_EQ(cudaGraphInstantiate(&exec_, graph_, 0), cudaSuccess);
    }
    return cudaGraphLaunch(exec_, stream_);
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

TEST(SequenceSamplesInAGraphTest, AreThoseOfTheSampler) {
  Random random(11);
  Seen seen;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  for (const size_t count : {8, 40}) {
    SampleGraph graph(stream);
    SampleMany(count, 8, 50277, stream, std::ref(graph), random, &seen);
  }
  EXPECT_GT(seen.processed, 0);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// The effect of each entry; the neighbouring slots stay as they are.
TEST(PenaltyStateTest, AreZeroAndThenTheEntries) {
  constexpr int32_t kVocabulary = 1500, kSlots = 3;
  const std::vector<PenaltyEntry> host = {{7, {0.5f, 0}},
                                          {7, {0, kTokenAllowed}},
                                          {7, {0, kTokenAllowed}},
                                          {7, {0, 12}},
                                          {0, {0, kTokenStops}},
                                          {kVocabulary - 1, {-2, 0}},
                                          {-1, {9, 9}},
                                          {kVocabulary, {9, 9}},
                                          {1 << 30, {9, 9}},
                                          {3, {0, kTokenInPrompt}}};
  const DeviceArray<PenaltyEntry> entries(host);
  DeviceArray<TokenPenaltyState> states(static_cast<size_t>(kVocabulary * kSlots));  // poisoned
  const auto set = [&](int64_t count) {
    return SetPenaltyState({1, kVocabulary, entries.data(), count, states.data()}, nullptr);
  };
  ASSERT_EQ(set(static_cast<int64_t>(host.size())), cudaSuccess);
  std::vector<TokenPenaltyState> want(kVocabulary);
  want[7] = {0.5f, kTokenAllowed | 12};
  want[0] = {0, kTokenStops};
  want[kVocabulary - 1] = {-2, 0};
  want[3] = {0, kTokenInPrompt};
  const auto expect = [&] {
    const std::vector<TokenPenaltyState> got = states.ToHost();
    for (int32_t i = 0; i < kVocabulary * kSlots; ++i) {
      const TokenPenaltyState& state = got[static_cast<size_t>(i)];
      if (i / kVocabulary != 1) {
        ASSERT_EQ(state.bits, ~uint32_t{0}) << "slot " << i / kVocabulary;
        continue;
      }
      ASSERT_EQ(state.bias, want[static_cast<size_t>(i % kVocabulary)].bias) << i % kVocabulary;
      ASSERT_EQ(state.bits, want[static_cast<size_t>(i % kVocabulary)].bits) << i % kVocabulary;
    }
  };
  expect();
  ASSERT_EQ(set(0), cudaSuccess);
  want.assign(kVocabulary, {});
  expect();
}

}  // namespace
}  // namespace fox::cuda
