// FinishGradients against sums in float64 over scratch that a test has filled. (backward_test
// compares the other kernels around backward together with it.)
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cuda/attention/varlen/kernels.h"
#include "tests/kernels/cuda/attention/varlen/device_varlen.h"

namespace fox::cuda::testing {
namespace {

std::vector<float> RandomFloats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

// Fills scratch as backward kernels would, and compares with sums in float64: d_log_fgate, whose
// gradients are sums of up to `length` numbers around 1, up to the float32 sums inside its tile and
// the rounding of the result.
void ExpectFinished(const VarlenCase& shape) {
  VarlenInputs inputs(shape);
  DeviceVarlen device(inputs);
  device.Schedule();
  const HostState host = device.ToHost();
  const auto max_tiles = static_cast<size_t>(device.state().max_tiles);
  const size_t rows = static_cast<size_t>(shape.q_heads) * max_tiles * kVarlenTile;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const std::vector<float> dq = RandomFloats(rows * dim, 1), row_sum = RandomFloats(rows, 2),
                           col_sum = RandomFloats(rows, 3);
  CopyToDevice(dq, device.gradients().dq);
  CopyToDevice(row_sum, device.gradients().row_sum);
  CopyToDevice(col_sum, device.gradients().col_sum);
  ASSERT_EQ(FinishGradients(device.params(), device.state(), device.gradients(), nullptr),
            cudaSuccess);
  const VarlenArray<double> got_dq = device.Dq(), got_gates = device.DLogFgate();
  for (int h = 0; h < shape.q_heads; ++h) {
    double sum = 0;
    for (int t = host.num_tiles - 1; t >= 0; --t) {
      SCOPED_TRACE(::testing::Message() << "head " << h << " tile " << t);
      const VarlenTile& tile = host.tiles[static_cast<size_t>(t)];
      if (t == tile.seq_last) sum = 0;
      double in_tile = 0;
      for (int i = tile.count - 1; i >= 0; --i) {
        SCOPED_TRACE(::testing::Message() << "row " << i);
        const size_t row =
            (static_cast<size_t>(h) * max_tiles + static_cast<size_t>(t)) * kVarlenTile +
            static_cast<size_t>(i);
        const double own = static_cast<double>(row_sum[row]) - static_cast<double>(col_sum[row]);
        sum += own;
        in_tile += std::fabs(own);
        const double got = got_gates.At(tile.batch, tile.first_token + i, h);
        if (tile.position + i == 0) {
          EXPECT_EQ(got, 0);
        } else {
          // A tile's sums pass through 8 additions at most; errors of later tiles add up.
          const int tiles = tile.seq_last - t + 1;
          ASSERT_NEAR(got, sum, 8 * 0x1p-24 * (in_tile + 300 * tiles) + 0x1p-23 * std::fabs(sum))
              << "tile " << t << " row " << i;
        }
        for (size_t m = 0; m < dim; ++m) {
          const float want = dq[row * dim + m] * static_cast<float>(inputs.scale);
          ASSERT_EQ(got_dq.At(tile.batch, tile.first_token + i, h, static_cast<int64_t>(m)),
                    static_cast<double>(static_cast<float>(BFloat16(want))))
              << "dimension " << m;
        }
      }
    }
  }
}

// Runs of several tiles a thread.
TEST(GradientsTest, LongSequence) {
  ExpectFinished(WithHeads(PackedCase({100, 150000, 3}), 1, 1, 32, {2}));
}

}  // namespace
}  // namespace fox::cuda::testing
