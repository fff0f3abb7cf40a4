// The row-independent matrix product: weights in panels of 32 outputs, each output one running sum
// of multiply-adds over the inputs in order. See gemm.h for when it is used.
#include <algorithm>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/load_element.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa/isa_kernels.h"

namespace fox {
namespace {

template <typename T>
class PanelWeight : public PackedWeight {
 public:
  PanelWeight(int64_t out, int64_t in)
      : PackedWeight(out, in, static_cast<size_t>(Panels(out) * kPanelColumns * in) * sizeof(T)),
        data_(static_cast<size_t>(Panels(out) * kPanelColumns * in)) {}
  static int64_t Panels(int64_t out) { return (out + kPanelColumns - 1) / kPanelColumns; }
  T* Panel(int64_t p) { return data_.data() + p * kPanelColumns * in(); }
  const T* Panel(int64_t p) const { return data_.data() + p * kPanelColumns * in(); }

 private:
  std::vector<T> data_;
};

template <typename T>
class PlainGemm : public Gemm {
 public:
  PlainGemm(DType weight_dtype, ThreadPool& pool) : weight_dtype_(weight_dtype), pool_(pool) {}

  std::string Name() const override {
    return std::string("plain ") + NameOf(weight_dtype_) + " (" + SelectIsaKernels().name + ")";
  }

  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override {
    auto packed = std::make_unique<PanelWeight<T>>(weight.rows, weight.cols);
    std::vector<T> row(static_cast<size_t>(weight.cols));
    for (int64_t n = 0; n < weight.rows; ++n) {
      LoadElements(weight, n, row.data());
      T* column = packed->Panel(n / kPanelColumns) + n % kPanelColumns;
      for (int64_t k = 0; k < weight.cols; ++k) {
        T value = row[static_cast<size_t>(k)];
        if (weight_dtype_ == DType::kBF16) {
          value = static_cast<T>(static_cast<float>(BFloat16(static_cast<float>(value))));
        }
        column[k * kPanelColumns] = value;
      }
    }
    return packed;
  }

  void Multiply(const MatrixView& in, const PackedWeight& weight, const void* bias, bool accumulate,
                const MatrixView& out) override {
    const auto& packed = static_cast<const PanelWeight<T>&>(weight);
    FOX_CHECK(in.cols == weight.in() && out.cols == weight.out() && in.rows == out.rows);
    const int64_t panels = PanelWeight<T>::Panels(weight.out());
    const bool parallel = weight.out() * weight.in() * in.rows > kParallelElements;
    pool_.ForEach(panels, parallel, [&](int64_t p) {
      GemmPanel<T> call = {};
      call.in = static_cast<const T*>(in.data);
      call.in_stride = in.row_stride;
      call.rows = in.rows;
      call.depth = in.cols;
      call.panel = packed.Panel(p);
      call.bias = bias == nullptr ? nullptr : static_cast<const T*>(bias) + p * kPanelColumns;
      call.accumulate = accumulate;
      call.out = static_cast<T*>(out.data) + p * kPanelColumns;
      call.out_stride = out.row_stride;
      call.columns = std::min<int64_t>(kPanelColumns, weight.out() - p * kPanelColumns);
      Run(call);
    });
  }

 private:
  static void Run(const GemmPanel<float>& call) { SelectIsaKernels().gemm_panel_f32(call); }
  static void Run(const GemmPanel<double>& call) { SelectIsaKernels().gemm_panel_f64(call); }

  DType weight_dtype_;
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Gemm> MakePlainGemm(DType weight_dtype, ThreadPool& pool) {
  if (weight_dtype == DType::kF64) return std::make_unique<PlainGemm<double>>(weight_dtype, pool);
  return std::make_unique<PlainGemm<float>>(weight_dtype, pool);
}

}  // namespace fox
