// The CUDA backend's paging, Append, Attention and Evict together, against naive float64 attention
// and against the CPU backend: every shape and chunking, both attention kernels.
#include "kernels/cuda/cuda_ops.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/cuda/device_kv.h"
#include "tests/kernels/cuda/test_matrix.h"
#include "tests/kernels/head_sequence.h"

namespace fox::testing {
namespace {

std::unique_ptr<CudaOps> MakeOps(bool portable) {
  std::string error;
  auto ops = CudaOps::Create({portable}, &error);
  EXPECT_NE(ops, nullptr) << error;
  return ops;
}

HeadOutputs RunOnGpu(const HeadInputs& inputs, RunOptions options, bool portable,
                     DType pages = DType::kBF16) {
  options.dtype = pages;
  const auto ops = MakeOps(portable);
  PagedKvStorage storage(ShapeFor(inputs.shape, inputs.length, pages), *ops);
  HeadOutputs result = RunHeads(*ops, storage, inputs, options);
  EXPECT_EQ(ops->queue()->error(), nullptr) << ops->queue()->error();
  int32_t free = 0;
  ops->CopyToHost(storage.view().free_count, sizeof(free), &free, nullptr);
  EXPECT_EQ(free, storage.view().shape.num_pages) << "pages left after the release";
  return result;
}

HeadOutputs RunOnCpu(const HeadInputs& inputs, RunOptions options) {
  options.dtype = DType::kBF16;
  CpuOps ops({DType::kF32, true, 2});
  return RunHeads(ops, inputs, options);
}

HeadInputs Inputs(const HeadShape& shape, int64_t length, uint64_t seed,
                  const std::vector<double>& gate_means) {
  HeadInputs inputs = RandomInputs(shape, length, seed, gate_means);
  RoundToBFloat16(inputs);
  return inputs;
}

// Rounding to bf16 errs by at most 2^-8 relative, 2^-8 / sqrt(3) = 2.3e-3 in the mean square. A
// logit q.k / sqrt(d) of unit vectors times sqrt(d) sums d products with two such errors each: off
// by 3.2e-3 times its spread of up to 3; weights, values and outputs round once each. Together
// sqrt(9.6^2 + 3 * 2.3^2) = 1.04e-2 in the norm, were every product as large as the largest.
constexpr double kTolerance = 1.2e-2;

void ExpectMatchesNaive(const HeadInputs& inputs) {
  const HeadOutputs want = NaiveAttention(inputs);
  for (bool portable : {false, true}) {
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{}, {1}, {37}, {64, 1, 1, 200}, {128}}) {
      SCOPED_TRACE(::testing::Message()
                   << (portable ? "portable" : "native") << ", " << chunks.size() << " chunks");
      if (chunks == std::vector<int64_t>{1} && inputs.length > 300) continue;
      RunOptions options;
      options.chunks = chunks;
      const HeadOutputs got = RunOnGpu(inputs, options, portable);
      EXPECT_LT(RelativeError(got.out, want.out), kTolerance)
          << (portable ? "portable" : "native") << ", chunk " << (chunks.empty() ? 0 : chunks[0]);
      EXPECT_LT(LargestError(got.lse, want.lse), 0.1) << "log-sum-exp";
      EXPECT_EQ(got.blocks_pruned, 0);
    }
  }
}

TEST(CudaOpsTest, MatchesNaiveAttention) {
  for (HeadInputs& inputs : AttentionCases({16, 32, 64, 128})) {
    SCOPED_TRACE(::testing::Message() << inputs.length << " x " << inputs.shape.head_dim);
    RoundToBFloat16(inputs);
    ExpectMatchesNaive(inputs);
  }
}

// Where keys are copied, only gates and sums are rounded, and the device evicts exactly the pages
// that the CPU evicts, in any chunks. (Other keys: append_test, paging_test.)
TEST(CudaOpsTest, EvictsExactlyWhatTheCpuEvictsOfCopiedKeys) {
  HeadShape shape{8, 8, 64, false, false, false};
  HeadInputs inputs = Inputs(shape, 1300, 29, {-1, 0, 1, 2, 3, 4, 5, 9});
  // Norm weights bound these keys and queries, which are not normed, as if they were: the test
  // compares only the rule.
  inputs.q_norm.assign(static_cast<size_t>(shape.hidden()), 1.0);
  inputs.k_norm.assign(static_cast<size_t>(shape.kv()), 1.0);
  SetBounds(inputs);
  inputs.q_norm.clear();
  inputs.k_norm.clear();
  const HeadOutputs full = RunOnGpu(inputs, {}, false);
  for (AcpMode acp : {AcpMode::kPaper, AcpMode::kCertified}) {
    SCOPED_TRACE(::testing::Message() << "mode " << static_cast<int>(acp));
    RunOptions options;
    options.acp = acp;
    options.chunks = {64};
    const HeadOutputs cpu = RunOnCpu(inputs, options);
    EXPECT_GT(cpu.pages_evicted, 0);
    // No decision of this run is closer than the rounding.
    for (const double nearby : {-10 - 0x1p-14, -10 + 0x1p-14}) {
      options.log_tolerance = nearby;
      ASSERT_EQ(RunOnCpu(inputs, options).first_live, cpu.first_live) << nearby;
    }
    options.log_tolerance = -10;
    for (const bool portable : {false, true}) {
      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>{}, {256}, {1}, {700, 1, 1, 1}}) {
        SCOPED_TRACE(::testing::Message()
                     << (portable ? "portable" : "native") << ", " << chunks.size() << " chunks");
        options.chunks = chunks;
        const HeadOutputs got = RunOnGpu(inputs, options, portable);
        EXPECT_EQ(got.first_live, cpu.first_live) << chunks.size();
        for (const double mass : got.max_log_evicted_mass) EXPECT_LE(mass, -10);
        // Weights of rows that lost e^-10 at most, values of a few units.
        EXPECT_LT(RelativeError(got.out, full.out), kTolerance);
        EXPECT_GT(got.blocks_pruned, 0);
        EXPECT_EQ(got.blocks_total, cpu.blocks_total);
      }
    }
  }
}

// What rows lost, of copied keys, whose evictions are the CPU's: the device's own allowance for
// weights that tensor cores add, and what these weigh in fact. Of a row's shift also what rounding
// does to a small output.
TEST(CudaOpsTest, RowsLoseWhatTheCpuSays) {
  for (const int head_dim : {32, 64, 128}) {
    SCOPED_TRACE(head_dim);
    HeadShape shape{8, 4, head_dim, false, false, false};
    shape.output_norm = true;
    shape.sink = head_dim == 64;
    HeadInputs inputs = Inputs(shape, 1300, 29, {-1, 0, 1, 2, 3, 4, 5, 9});
    inputs.q_norm.assign(static_cast<size_t>(shape.hidden()), 1.0);  // as above
    inputs.k_norm.assign(static_cast<size_t>(shape.kv()), 1.0);
    SetBounds(inputs);
    inputs.q_norm.clear();
    inputs.k_norm.clear();
    for (AcpMode acp : {AcpMode::kPaper, AcpMode::kCertified}) {
      SCOPED_TRACE(::testing::Message() << "mode " << static_cast<int>(acp));
      RunOptions options{.acp = acp, .chunks = {64}};
      const HeadOutputs cpu = RunOnCpu(inputs, options);
      ASSERT_GT(cpu.lost_mass.sum, 0);
      for (const double nearby : {-10 - 0x1p-14, -10 + 0x1p-14}) {  // no close decision
        options.log_tolerance = nearby;
        ASSERT_EQ(RunOnCpu(inputs, options).first_live, cpu.first_live) << nearby;
      }
      options.log_tolerance = -10;
      for (const bool portable : {false, true}) {
        for (const std::vector<int64_t>& chunks :
             {std::vector<int64_t>{}, {256}, {1}, {700, 1, 1, 1}, {37}}) {
          SCOPED_TRACE(::testing::Message()
                       << (portable ? "portable" : "native") << ", " << chunks.size() << " chunks");
          options.chunks = chunks;
          const HeadOutputs got = RunOnGpu(inputs, options, portable);
          EXPECT_EQ(got.first_live, cpu.first_live);
          const LostMass &lost = got.lost_mass, &want = cpu.lost_mass;
          const double allowed = kWeightSumRounding, error = 0x1p-7;
          EXPECT_NEAR(lost.max_log, want.max_log + allowed, error);
          EXPECT_NEAR(std::log(lost.sum), std::log(want.sum) + allowed, error);
          EXPECT_NEAR(lost.max_log_shift, want.max_log_shift + allowed, error + 4 * kTolerance);
          EXPECT_NEAR(std::log(lost.shift_sum), std::log(want.shift_sum) + allowed,
                      error + 4 * kTolerance);
        }
      }
    }
  }
}

// The paper's bound drops nothing without a bound on logits, as on the CPU.
TEST(CudaOpsTest, PaperDropsNothingWithoutQkNorm) {
  HeadShape shape{8, 4, 64};
  shape.qk_norm = false;
  const HeadInputs inputs = Inputs(shape, 1000, 31, {-1, 0, 1, 2, 3, 4, 5, 9});
  RunOptions options;
  options.acp = AcpMode::kPaper;
  options.chunks = {700, 1, 1, 50};
  const HeadOutputs want = NaiveAttention(inputs), cpu = RunOnCpu(inputs, options);
  EXPECT_EQ(cpu.blocks_pruned, 0);
  for (const bool portable : {false, true}) {
    SCOPED_TRACE(portable ? "portable" : "native");
    const HeadOutputs got = RunOnGpu(inputs, options, portable);
    EXPECT_LT(RelativeError(got.out, want.out), kTolerance);
    EXPECT_EQ(got.pages_evicted, 0);
    EXPECT_EQ(got.blocks_pruned, 0);
    EXPECT_EQ(got.blocks_total, cpu.blocks_total);
  }
}

// Values whose magnitudes differ from token to token by up to 2^40, and queries and keys far from
// one, with the same products.
void Spread(HeadInputs& inputs) {
  const int64_t hidden = inputs.shape.hidden(), keys = inputs.shape.kv();
  for (int64_t row = 0; row < inputs.length; ++row) {
    for (int64_t m = 0; m < hidden; ++m) inputs.at(row, m) *= 0x1p-40;
    for (int64_t m = 0; m < keys; ++m) {
      inputs.at(row, hidden + m) *= 0x1p40;
      inputs.at(row, hidden + keys + m) *= std::ldexp(1.0, static_cast<int>(row * 7 % 41) - 20);
    }
  }
}

// Pages in 8 bits give the same bits of outputs, sums and decisions as pages in bf16, which hold
// the rounded keys and values exactly. (Computed keys: cuda_ops_chunks_test.)
TEST(CudaOpsTest, PagesOf8BitsEqualOthersOfRoundedKeysAndValues) {
  for (const int head_dim : {16, 32, 64, 128}) {
    for (const int kv_heads : {1, 2, 4}) {
      HeadInputs inputs =
          Inputs({4, kv_heads, head_dim, false, false, false}, 1100, 41, {0, 2, 4, 9});
      Spread(inputs);
      HeadInputs rounded = inputs;
      RoundToE4M3(rounded);
      const RunOptions options{.chunks = {300, 1, 1, 1, 256, 64, 1}};
      SCOPED_TRACE(::testing::Message() << head_dim << ' ' << kv_heads << ", spread");
      EXPECT_EQ(RunOnGpu(inputs, options, false, DType::kE4M3).bits(),
                RunOnGpu(rounded, options, false).bits());
    }
  }
  for (const int head_dim : {16, 32, 64, 128}) {
    for (const int kv_heads : {1, 2, 4}) {
      HeadShape shape{4, kv_heads, head_dim, false, false, false};
      shape.sink = kv_heads == 2;
      HeadInputs inputs = Inputs(shape, 1100, 37, {0, 2, 4, 9});
      inputs.bound_diagonal = std::vector<float>(static_cast<size_t>(shape.hidden()),
                                                 1 / std::sqrt(static_cast<float>(head_dim)));
      HeadInputs rounded = inputs;
      RoundToE4M3(rounded);
      for (AcpMode acp : {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified}) {
        for (const bool portable : {false, true}) {
          RunOptions options{.acp = acp, .chunks = {300, 1, 1, 1, 256, 64, 1}};
          const HeadOutputs got = RunOnGpu(inputs, options, portable, DType::kE4M3);
          const HeadOutputs want = RunOnGpu(rounded, options, portable);
          SCOPED_TRACE(::testing::Message() << head_dim << ' ' << kv_heads << ' ' << portable);
          EXPECT_EQ(got.bits(), want.bits());
          EXPECT_EQ(got.pages_evicted > 0, acp == AcpMode::kCertified && shape.sink);
        }
      }
    }
  }
}

// Rows of logits, for one, begin anywhere that four bytes may.
TEST(CudaOpsTest, PinnedCopiesMayBeginAnywhere) {
  constexpr size_t kFloats = 64;
  const auto ops = MakeOps(false);
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), 1.0f);
  const Buffer device = ops->Allocate(kFloats * sizeof(float));
  ops->CopyToDevice(values.data(), kFloats * sizeof(float), device.data(), nullptr);
  const Buffer host = ops->queue()->AllocatePinned(kFloats * sizeof(float));
  const auto done = ops->queue()->MakeEvent();
  for (const size_t from : {0, 1, 2, 4}) {
    for (const size_t to : {0, 2, 4}) {
      for (const size_t count : {4, 7, 8}) {
        SCOPED_TRACE(::testing::Message() << from << " " << to << " " << count);
        std::fill_n(host.as<float>(), kFloats, 0.0f);
        ops->queue()->CopyPinned(device.as<float>() + from, count * sizeof(float),
                                 host.as<float>() + to, ops->queue()->stream());
        done->Record(ops->queue()->stream());
        done->Wait();
        ASSERT_EQ(ops->queue()->error(), nullptr) << ops->queue()->error();
        std::vector<float> want(kFloats);
        std::copy_n(values.data() + from, count, want.data() + to);
        EXPECT_EQ(std::vector<float>(host.as<float>(), host.as<float>() + kFloats), want);
      }
    }
  }
}

TEST(CudaOpsTest, EmptyBatchTouchesNothing) {
  const auto ops = MakeOps(false);
  const HeadInputs inputs = Inputs({}, 64, 29, {3});
  PagedKvStorage storage(ShapeFor(inputs.shape, 64, DType::kBF16), *ops);
  ops->Reserve({.shape = storage.view().shape, .max_rows = 64, .max_seqs = 4});
  RunOptions options;
  options.acp = AcpMode::kCertified;
  HeadRun run(*ops, storage.view(), inputs, options);
  const auto columns = static_cast<size_t>(inputs.columns());
  run.Step(std::vector<StepRows>(4, {.slot = -1}), std::vector<double>(4 * columns));
  int32_t free = 0;
  ops->CopyToHost(storage.view().free_count, sizeof(free), &free, nullptr);
  EXPECT_EQ(free, storage.view().shape.num_pages);
  EXPECT_EQ(ops->queue()->error(), nullptr) << ops->queue()->error();
}

// The graph of what `work` enqueues: its kernels do not run, so no array is read.
size_t CapturedKernels(const std::function<void(cudaStream_t)>& work) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  size_t nodes = 0;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  work(stream);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  return nodes;
}

// Kernels of one layer's attention.
size_t AttentionKernels(CudaOps& ops, const PagedKv& kv,
                        const std::vector<cuda::testing::BatchEntry>& entries) {
  const cuda::testing::HostBatch batch(entries);
  const int64_t rows = batch.view.num_rows;
  const int64_t hidden = int64_t{kv.shape.q_heads} * kv.shape.head_dim;
  const auto bytes = static_cast<size_t>(rows * hidden) * SizeOf(DType::kBF16);
  const Buffer q = ops.Allocate(bytes), out = ops.Allocate(bytes);
  AttentionParams params;
  params.q = {q.data(), DType::kBF16, rows, hidden, hidden};
  params.out = {out.data(), DType::kBF16, rows, hidden, hidden};
  // BeginStep sets decode attention's number of blocks; without blocks nothing would be launched.
  CapturedKernels([&](cudaStream_t on) { ops.BeginStep(batch.view, kv, on); });
  const size_t kernels =
      CapturedKernels([&](cudaStream_t on) { ops.Attention(batch.view, params, kv, on); });
  EXPECT_EQ(ops.queue()->error(), nullptr) << ops.queue()->error();
  return kernels;
}

TEST(CudaOpsTest, StepsOfPromptsLaunchNoDecodeAttention) {
  for (const bool portable : {false, true}) {
    SCOPED_TRACE(::testing::Message() << (portable ? "portable" : "native"));
    const auto ops = MakeOps(portable);
    PagedKvStorage storage(ShapeFor({}, 256, DType::kBF16), *ops);
    ops->Reserve({.shape = storage.view().shape, .max_rows = 256, .max_seqs = 3});
    const size_t prompts =
        AttentionKernels(*ops, storage.view(), {{.slot = 0, .rows = 70}, {.slot = 1, .rows = 2}});
    const size_t mixed = AttentionKernels(
        *ops, storage.view(), {{.slot = 0}, {.slot = 1, .rows = 70}, {.slot = 2, .rows = 2}});
    const size_t decodes = AttentionKernels(*ops, storage.view(), {{.slot = 0}});
    EXPECT_EQ(decodes, 1u);
    EXPECT_EQ(prompts + decodes, mixed);
  }
}

// A few layers, as a model has them, and steps of one row of each sequence, all the same graph.
class LayerSteps {
 public:
  LayerSteps(const HeadShape& shape, int seqs, bool overlap)
      : rows_(seqs), hidden_(shape.hidden()), constants_(RandomInputs(shape, 1, 5, {3})) {
    std::string error;
    ops_ = CudaOps::Create({.overlap = overlap}, &error);
    EXPECT_NE(ops_, nullptr) << error;
    PagedKvShape kv_shape = ShapeFor(shape, kSteps, DType::kBF16, seqs);
    kv_shape.layers = kLayers;
    kv_shape.num_pages *= kLayers;
    storage_ = std::make_unique<PagedKvStorage>(kv_shape, *ops_);
    ops_->Reserve({.shape = kv_shape,
                   .hidden_size = hidden_,
                   .intermediate_size = kInner,
                   .max_rows = rows_,
                   .max_seqs = rows_,
                   .prunes = false});
    for (int n = 0; n < kLayers; ++n) {
      layers_.push_back({Weight(columns_, hidden_), Weight(hidden_, hidden_),
                         Weight(2 * kInner, hidden_), Weight(hidden_, kInner)});
    }
    MakeParameters(shape);
    std::vector<int64_t> row_begin(static_cast<size_t>(seqs) + 1);
    std::iota(row_begin.begin(), row_begin.end(), 0);
    batch_ = {.num_seqs = seqs,
              .num_rows = rows_,
              .token_ids = memory_.Copy(std::vector<int32_t>(row_begin.begin(), row_begin.end())),
              .slot = slot_.data(),
              .row_begin = memory_.Copy(row_begin),
              .position = position_.data(),
              .num_decodes = seqs,
              .max_tokens = kSteps};
  }

  // The residual rows after each step. The sequences join one after another.
  std::vector<std::vector<float>> Run() {
    std::vector<std::vector<float>> results;
    std::unique_ptr<Graph> graph;
    const Stream stream = ops_->queue()->stream();
    for (int n = 0; n < kSteps; ++n) {
      std::vector<int32_t> slots;
      std::vector<int64_t> positions;
      for (int s = 0; s < batch_.num_seqs; ++s) {
        slots.push_back(n < s % 5 ? -1 : s);
        positions.push_back(std::max(n - s % 5, 0));
      }
      slot_.CopyFrom(slots);
      position_.CopyFrom(positions);
      if (n == 1) graph = ops_->queue()->Capture(stream, [&] { Step(stream); });
      graph == nullptr ? Step(stream) : graph->Launch(stream);
      x_.Download();
      results.push_back(x_.host());
      for (int s = 0; s < batch_.num_seqs; ++s) {  // padding's rows are garbage
        const auto row = results.back().begin() + s * hidden_;
        if (n < s % 5) std::fill(row, row + hidden_, 0.0f);
      }
      EXPECT_TRUE(std::ranges::none_of(results.back(), [](float y) { return std::isnan(y); })) << n;
    }
    EXPECT_EQ(ops_->queue()->error(), nullptr) << ops_->queue()->error();
    return results;
  }

 private:
  using Matrix = cuda::testing::TestMatrix;
  static constexpr int kLayers = 4, kSteps = 150;
  static constexpr int64_t kInner = 1024;

  struct Layer {
    std::unique_ptr<PackedWeight> projection, o, gate_up, down;
  };

  std::unique_ptr<PackedWeight> Weight(int64_t out, int64_t in) {
    std::vector<float> values(static_cast<size_t>(out * in));
    for (float& x : values) x = uniform_(0.1f);
    return ops_->Pack({values.data(), DType::kF32, out, in, in});
  }

  void MakeParameters(const HeadShape& shape) {
    const auto copy = [&](const std::vector<double>& values) {
      return memory_.Copy(std::vector<float>(values.begin(), values.end()));
    };
    append_.projection = projection_.view();
    append_.k_column = hidden_;
    append_.v_column = hidden_ + shape.kv();
    if (shape.k_shift) append_.k_shift_column = constants_.k_shift_column();
    if (shape.v_shift) append_.v_shift_column = constants_.v_shift_column();
    append_.fgate_column = constants_.gate_column();
    append_.q_norm = copy(constants_.q_norm);
    append_.k_norm = copy(constants_.k_norm);
    append_.rope_frequency = memory_.Copy(constants_.rope_frequency);
    attention_.q = projection_.view().Columns(0, hidden_);
    attention_.out = o_.view();
  }

  void Multiply(LinearParams params, Stream stream) {
    params.decode_rows = rows_;
    ops_->Linear(params, stream);
  }

  void Step(Stream stream) {
    const PagedKv& kv = storage_->view();
    const MatrixView x = x_.view(), o = o_.view(), inner = inner_.view();
    const RmsNorm norm = cuda::testing::NormBy(norm_);
    ops_->BeginStep(batch_, kv, stream);
    ops_->Embed(batch_, table_.view(), x, stream);
    for (int n = 0; n < kLayers; ++n) {
      const Layer& w = layers_[static_cast<size_t>(n)];
      append_.layer = attention_.layer = n;
      Multiply({.in = x, .norm = norm, .weight = *w.projection, .out = projection_.view()}, stream);
      ops_->Append(batch_, append_, kv, stream);
      ops_->Attention(batch_, attention_, kv, stream);
      Multiply({.in = o, .weight = *w.o, .accumulate = true, .next_norm = norm, .out = x}, stream);
      Multiply(
          {.in = x, .norm = norm, .weight = *w.gate_up, .gate = Activation::kSilu, .out = inner},
          stream);
      Multiply({.in = inner, .weight = *w.down, .accumulate = true, .next_norm = norm, .out = x},
               stream);
    }
  }

  const int64_t rows_, hidden_;
  const HeadInputs constants_;
  const int64_t columns_ = (constants_.columns() + 7) / 8 * 8;
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<PagedKvStorage> storage_;
  std::vector<Layer> layers_;
  cuda::testing::Uniform uniform_{9};
  cuda::testing::DeviceMemory memory_;
  const Matrix table_{DType::kBF16, rows_, hidden_, 0, uniform_, 1};
  const Matrix norm_{DType::kF32, 1, hidden_, 0, uniform_, 2};
  Matrix x_{DType::kF32, rows_, hidden_, 0};
  const Matrix projection_{DType::kBF16, rows_, columns_, 0}, o_{DType::kBF16, rows_, hidden_, 0},
      inner_{DType::kBF16, rows_, kInner, 0};
  cuda::testing::DeviceArray<int32_t> slot_{static_cast<size_t>(rows_)};
  cuda::testing::DeviceArray<int64_t> position_{static_cast<size_t>(rows_)};
  AppendParams append_;
  AttentionParams attention_;
  BatchView batch_;
};

// Append reads a layer's state while the kernels before it still run (UnfinishedWrites): those of
// the layer before behind more than four rows, the projection alone behind up to four.
TEST(CudaOpsTest, OverlappingLayersGiveTheSameBits) {
  for (const HeadShape& shape :
       {HeadShape{12, 12, 64, true, true}, HeadShape{12, 4, 64, false, false, false, true}}) {
    for (const int seqs : {2, 8, 32}) {
      SCOPED_TRACE(::testing::Message() << shape.kv_heads << " kv heads, " << seqs << " rows");
      const auto want = LayerSteps(shape, seqs, false).Run();
      for (int repeat = 0; repeat < 5; ++repeat) {
        ASSERT_TRUE(LayerSteps(shape, seqs, true).Run() == want) << "repetition " << repeat;
      }
    }
  }
}

}  // namespace
}  // namespace fox::testing
