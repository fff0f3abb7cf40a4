// Varlen attention from end to end, forward and backward, by both families of kernels: independence
// of neighbours, ranges, refusals. Against float64: prefill/sm90/varlen_test.cc, backward_test.
#include "kernels/cuda/attention/varlen_attention.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/cuda/attention/varlen/device_varlen.h"

namespace fox::cuda::testing {
namespace {

class VarlenAttentionTest : public ::testing::TestWithParam<VarlenKernels> {
 protected:
  void Run(DeviceVarlen& device) {
    device.Allocate();
    device.PoisonOutputs();
    ASSERT_EQ(VarlenForward(device.params(), device.state_memory(), nullptr, GetParam()),
              cudaSuccess);
    ASSERT_EQ(VarlenBackward(device.params(), device.state_memory(), device.gradient_memory(),
                             nullptr, GetParam()),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
};

// A sequence's results do not depend on its neighbours: equal bits forward, and backward where sums
// have one order.
TEST_P(VarlenAttentionTest, PackingChangesNoBit) {
  VarlenInputs inputs(BatchCase({200, 333})), packed(PackedCase({200, 333}));
  for (const auto member : {&VarlenInputs::q, &VarlenInputs::k, &VarlenInputs::v,
                            &VarlenInputs::d_out, &VarlenInputs::log_fgate}) {
    inputs.ForEachToken([&](int s, int b, int t, int) {
      for (int h = 0; h < 2; ++h) {
        std::copy_n(&(inputs.*member).At(b, t, h), (inputs.*member).head_dim,
                    &(packed.*member).At(0, packed.begin[static_cast<size_t>(s)] + t, h));
      }
    });
  }
  DeviceVarlen apart(inputs), together(packed);
  for (DeviceVarlen* device : {&apart, &together}) {
    device->params().deterministic = true;
    Run(*device);
  }
  const auto expect_equal = [&](const VarlenArray<double>& a, const VarlenArray<double>& b) {
    inputs.ForEachToken([&](int s, int row, int t, int) {
      for (int h = 0; h < 2; ++h) {
        const double *one = &a.At(row, t, h),
                     *other = &b.At(0, packed.begin[static_cast<size_t>(s)] + t, h);
        ASSERT_TRUE(std::equal(one, one + a.head_dim, other)) << "sequence " << s << " token " << t;
      }
    });
  };
  for (const auto of : {&DeviceVarlen::Out, &DeviceVarlen::Dq, &DeviceVarlen::Dk, &DeviceVarlen::Dv,
                        &DeviceVarlen::DLogFgate}) {
    expect_equal((apart.*of)(), (together.*of)());
  }
}

TEST_P(VarlenAttentionTest, WholeRowsNeedNoRanges) {
  for (const std::vector<int>& lengths : {std::vector<int>{200, 200}, std::vector<int>{200, 0}}) {
    SCOPED_TRACE(::testing::Message() << lengths[0] << " and " << lengths[1]);
    VarlenInputs inputs(WithHeads(BatchCase(lengths), 2, 1, 64, {2, 5}));
    DeviceVarlen device(inputs, AcpMode::kPaper);
    device.params().deterministic = true;
    Run(device);
    const std::vector<uint8_t> wanted = device.OutputBits();
    device.params().seqs = {.count = lengths[1] == 0 ? 1 : 2};
    Run(device);
    EXPECT_EQ(device.OutputBits(), wanted);
  }
}

// Lists are not checked. A falling list has more tiles than there is room for, so each tile's
// sequence ends with the list. It gives meaningless numbers, and nothing outside of the arrays is
// read or written (gpu-test --sanitize runs this under memcheck).
TEST_P(VarlenAttentionTest, AFallingListStaysInsideTheArrays) {
  VarlenInputs inputs(PackedCase({400, 300, 300}));
  DeviceVarlen device(inputs);
  const DeviceArray<int32_t> begin(std::vector<int32_t>{0, 1000, 0}),
      end(std::vector<int32_t>{1000, 0, 1000});
  device.params().seqs.begin = begin.data();
  device.params().seqs.end = end.data();
  Run(device);
  const HostState host = device.ToHost();
  EXPECT_EQ(host.num_tiles, device.state().max_tiles);
  for (int t = 0; t < host.num_tiles; ++t) {
    const VarlenTile& tile = host.tiles[static_cast<size_t>(t)];
    EXPECT_TRUE(tile.seq_first <= t && t <= tile.seq_last && tile.seq_last < host.num_tiles) << t;
  }
}

// Rows of a batch may be more than a grid has in its second dimension.
TEST_P(VarlenAttentionTest, ClearsThePaddingOfManyRows) {
  std::vector<int> lengths(70'000);
  for (size_t row = 0; row < lengths.size(); ++row) lengths[row] = static_cast<int>(row % 3 % 2);
  VarlenInputs inputs(WithHeads(BatchCase(lengths), 1, 1, 32, {2}));
  DeviceVarlen device(inputs);
  Run(device);
  const VarlenArray<double> out = device.Out(), dk = device.Dk();
  for (int row = 0; row < std::ssize(lengths); ++row) {
    if (lengths[static_cast<size_t>(row)] > 0) continue;
    ASSERT_EQ(out.At(row, 0, 0), 0) << row;
    ASSERT_EQ(dk.At(row, 0, 0), 0) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, VarlenAttentionTest,
                         ::testing::Values(VarlenKernels::kFastest, VarlenKernels::kPortable),
                         [](const auto& kernels) {
                           return std::string(
                               kernels.param == VarlenKernels::kFastest ? "Fastest" : "Portable");
                         });

TEST(VarlenAttentionErrorsTest, RefusesWhatKernelsCannotDo) {
  VarlenInputs inputs(BatchCase({100, 90}));
  DeviceVarlen device(inputs, AcpMode::kCertified);
  device.Allocate();
  char* state = static_cast<char*>(device.state_memory());
  const VarlenAttentionParams good = device.params();
  const auto forward = [&](const auto& change) {
    VarlenAttentionParams params = good;
    change(params);
    return VarlenForward(params, state, nullptr);
  };
  EXPECT_EQ(forward([](auto&) {}), cudaSuccess);
  EXPECT_EQ(forward([](auto& p) { p.head_dim = 48; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.kv_heads = 3; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.log_eps = 0; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.max_query_norm = nullptr; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.seqs.count = 3; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.seqs.end = nullptr; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.seqs = {.count = 1, .packed = true}; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.v.data = nullptr; }), cudaErrorInvalidValue);
  EXPECT_EQ(forward([](auto& p) { p.k.token_stride += 4; }), cudaErrorMisalignedAddress);
  EXPECT_EQ(forward([](auto& p) { p.q.data = static_cast<char*>(p.q.data) + 8; }),
            cudaErrorMisalignedAddress);
  EXPECT_EQ(VarlenForward(good, state + 128, nullptr), cudaErrorMisalignedAddress);
  EXPECT_EQ(VarlenBackward(good, state, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace fox::cuda::testing
