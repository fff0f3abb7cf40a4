// The matrix products of the CPU backend, out = in W^T. Gemm has two makers: oneDNN (fast), and a
// plain one in which no row depends on how many rows there are (float64, invariance tests, no
// oneDNN). BlockGemm multiplies weights in blocks of 8 or 4 bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/matrix_view.h"
#include "kernels/core/thread_pool.h"
#include "kernels/core/weight_format.h"
#include "kernels/interface/ops.h"

namespace fox {

// One thread calls; work is spread over the pool, which must outlive the product.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual std::string Name() const = 0;
  virtual std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) = 0;
  // The contract of Ops::Linear.
  virtual void Multiply(const MatrixView& in, const PackedWeight& weight, const void* bias,
                        bool accumulate, const MatrixView& out) = 0;

  // Writes panels [first, first + count) of 32 outputs of a weight in bf16: for each panel
  // [ceil(in / 32), 16, 32, 2], pairs of inputs side by side.
  using WidenPanels = std::function<void(int64_t first, int64_t count, uint16_t* bf16)>;
  // Multiply, of a weight that exists as panels alone. False: nothing is done, because the product
  // would gain nothing from bf16.
  virtual bool MultiplyPanels(const MatrixView& /*in*/, const WidenPanels& /*widen*/,
                              const float* /*bias*/, bool /*accumulate*/,
                              const MatrixView& /*out*/) {
    return false;
  }
};

// A weight whose first rows are in blocks (weight_format.h), in the panels of BlockPanel
// (isa_kernels.h). The others, few, are float32.
class BlockWeight : public PackedWeight {
 public:
  // Zeroed memory for the panels.
  using Allocate = std::function<std::shared_ptr<uint8_t>(size_t bytes)>;
  BlockWeight(const MatrixView& weight, int64_t rounded_rows, WeightFormat format, Gemm& plain,
              ThreadPool& pool, const Allocate& allocate);

  int64_t rounded() const { return rounded_; }
  int bits() const { return bits_; }
  int64_t blocks() const { return blocks_; }
  int64_t panels() const;
  const uint8_t* Panel(int64_t p) const { return data_.get() + p * panel_bytes_; }
  const PackedWeight* others() const { return others_.get(); }
  // Row `row` of the weight. REQUIRES: row < rounded().
  void Unpack(int64_t row, float* out) const;

 private:
  void PackPanel(const MatrixView& rows, int64_t panel, WeightFormat format);

  int64_t rounded_, blocks_, panel_bytes_;
  int bits_;
  std::shared_ptr<uint8_t> data_;
  std::unique_ptr<PackedWeight> others_;
};

// Rows do not depend on one another unless `wide` is oneDNN's, which multiplies many rows.
class BlockGemm {
 public:
  BlockGemm(Gemm& wide, ThreadPool& pool);
  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight, int64_t rounded_rows,
                                     WeightFormat format);
  // The contract of Ops::Linear. REQUIRES: in and out are float32.
  void Multiply(const MatrixView& in, const BlockWeight& weight, const float* bias, bool accumulate,
                const MatrixView& out);

 private:
  void RoundInputs(const MatrixView& in, int64_t blocks);
  std::shared_ptr<uint8_t> Take(size_t bytes);

  Gemm& wide_;
  std::unique_ptr<Gemm> plain_;
  ThreadPool& pool_;
  std::shared_ptr<uint8_t> chunk_;  // of weights; the last bytes are free
  size_t chunk_left_ = 0;
  // The inputs as BlockPanel has them.
  std::vector<int16_t> codes_;
  std::vector<float> scales_;
  std::vector<int32_t> sums_;
};

// `weight_dtype`: f64 or f32; bf16 weights are rounded to bf16 and multiplied in f32.
std::unique_ptr<Gemm> MakePlainGemm(DType weight_dtype, ThreadPool& pool);

// `weight_dtype`: f32, or bf16 (inputs rounded to bf16, float32 sums) where OneDnnHasBf16().
std::unique_ptr<Gemm> MakeOneDnnGemm(DType weight_dtype, ThreadPool& pool);
bool OneDnnHasBf16();

}  // namespace fox
