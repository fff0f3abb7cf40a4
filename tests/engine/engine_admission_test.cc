// Admission: how many sequences a page pool carries with each kind of admission. Most heads of the
// model keep windows, some keep everything; virtual clock, two steps in flight.
#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "tests/engine/sim/load.h"

namespace fox {
namespace {

using sim::Load;
using sim::LoadCosts;

// A model with 760M parameters and a pool of 20 GB, which holds 8 unpruned sequences of 16k tokens;
// times as measured on an H200.
ExecutorLimits Card() {
  ExecutorLimits limits;
  limits.lists_per_slot = 576;
  limits.num_pages = 20000000000 / 16672;
  limits.max_num_seqs = 128;
  limits.num_slots = 160;
  limits.max_model_len = 131072;
  limits.max_num_batched_tokens = 8192;
  limits.max_logit_rows = 128;
  limits.vocab_size = 8;
  limits.depth = 2;
  limits.samples_on_device = true;
  return limits;
}

struct Model {
  double dense_share = 1;
  int64_t window = 0;
  Seconds context_token = 0;
  double spread = 0;
};
constexpr Model kUnpruned = {1, 131072, 3.3e-8};
// A model that keeps 0.26 of the pages of 16k tokens.
constexpr Model kPruned = {0.25, 192, 0.9e-8, 0.2};

LoadCosts CostsOf(const Model& model) {
  LoadCosts costs;
  costs.step = 0.0006;
  costs.prefill_token = 5e-6;
  costs.decode_token = 3.9e-5;
  costs.context_token = model.context_token;
  costs.dense_share = model.dense_share;
  costs.kept_tokens = model.window;
  costs.spread = model.spread;
  return costs;
}

struct Figures {
  double running = 0;            // sequences that decode, mean over time
  double tokens_per_second = 0;  // of prompts and answers that ended well
  double preempted = 0;          // share of requests
  int64_t ended = 0, lost = 0;
};

// 100 arrivals a second, more than it can serve, with prompts of [shortest, longest] tokens.
Figures Serve(const Model& model, KvAdmission admission, int64_t shortest, int64_t longest,
              int32_t tokens) {
  constexpr double kRate = 100;
  EngineOptions options;
  options.kv_admission = admission;
  options.max_queue_seconds = 0;
  options.max_num_queued_tokens = int64_t{1} << 40;
  Load load(options, Card(), CostsOf(model));
  std::mt19937_64 random(1);
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
  const std::function<void()> arrive = [&] {
    const double length = static_cast<double>(longest - shortest) * unit();
    load.Send(Load::MakeRequest(shortest + static_cast<int64_t>(length), tokens));
    load.At(load.now() - std::log(1 - unit()) / kRate, arrive);
  };
  arrive();
  constexpr Seconds kWarm = 10, kEnd = 40;
  Figures figures;
  double samples = 0;
  const std::function<void()> look = [&] {
    int64_t decoding = 0;
    for (const auto& [id, request] : load.requests()) {
      if (request.admitted && request.first_token < kNever && request.end == kNever) ++decoding;
    }
    figures.running += static_cast<double>(decoding);
    ++samples;
    load.At(load.now() + 0.5, look);
  };
  load.At(kWarm, look);
  load.Run(kEnd);
  figures.running /= samples;
  double preempted = 0;
  for (const auto& [id, request] : load.requests()) {
    if (!request.admitted || request.end == kNever || request.end < kWarm) continue;
    ++figures.ended;
    if (!request.ok() || request.tokens != tokens) ++figures.lost;
    figures.tokens_per_second += static_cast<double>(request.prompt_tokens + request.tokens);
    if (request.finish.stats.preemptions > 0) ++preempted;
  }
  figures.tokens_per_second /= kEnd - kWarm;
  figures.preempted = preempted / static_cast<double>(figures.ended);
  return figures;
}

// 8.3 sequences would fit unpruned; each of them keeps 0.26 of its pages.
TEST(EngineAdmissionTest, ThePoolIsFullOfKeptPages) {
  const Figures unpruned = Serve(kUnpruned, KvAdmission::kExpected, 16384, 16384, 1000);
  const Figures worst = Serve(kPruned, KvAdmission::kWorstCase, 16384, 16384, 1000);
  const Figures expected = Serve(kPruned, KvAdmission::kExpected, 16384, 16384, 1000);
  EXPECT_GE(expected.running, 3.3 * unpruned.running);
  EXPECT_GE(expected.running, 3.3 * 8);
  EXPECT_GE(expected.tokens_per_second, 1.05 * worst.tokens_per_second);
  EXPECT_EQ(unpruned.lost, 0);
  EXPECT_EQ(worst.lost, 0);
  EXPECT_EQ(expected.lost, 0);
  EXPECT_LE(expected.preempted, 0.03);
}

TEST(EngineAdmissionTest, ArrivalsOfManyLengths) {
  for (const int32_t tokens : {64, 256}) {
    SCOPED_TRACE(tokens);
    const Figures worst = Serve(kPruned, KvAdmission::kWorstCase, 4096, 12288, tokens);
    const Figures expected = Serve(kPruned, KvAdmission::kExpected, 4096, 12288, tokens);
    EXPECT_GE(expected.tokens_per_second, 0.98 * worst.tokens_per_second);
    EXPECT_LE(expected.preempted, 0.03);
    EXPECT_EQ(expected.lost, 0);
  }
}

}  // namespace
}  // namespace fox
