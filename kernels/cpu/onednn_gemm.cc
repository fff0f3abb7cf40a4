// Matrix products by oneDNN, 2.x and 3.x. Weights are reordered once into the layout the library
// asks for; primitives cost 0.1-0.3 ms to make, so they are kept by shape.
#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/load_element.h"
#include "kernels/cpu/parallel.h"

namespace fox {
namespace {

using dnnl::memory;

dnnl::engine& CpuEngine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::matmul::primitive_desc MatmulDesc(const memory::desc& src, const memory::desc& weight,
                                        const memory::desc& dst, const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(CpuEngine(), src, weight, dst, attr);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(src, weight, dst), attr, CpuEngine());
#endif
}

memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

class OneDnnWeight : public PackedWeight {
 public:
  OneDnnWeight(int64_t out, int64_t in, memory packed)
      : PackedWeight(out, in, packed.get_desc().get_size()), packed_(std::move(packed)) {}
  const memory& packed() const { return packed_; }

 private:
  memory packed_;
};

// rows, in, out, input row stride, output row stride, accumulate
using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool>;

class OneDnnGemm : public Gemm {
 public:
  explicit OneDnnGemm(DType dtype) : dtype_(dtype), stream_(CpuEngine()) {}

  std::string Name() const override { return std::string("oneDNN ") + NameOf(dtype_); }

  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override {
    const int64_t out = weight.rows, in = weight.cols;
    memory plain(memory::desc({in, out}, memory::data_type::f32, memory::dims{1, in}), CpuEngine());
    float* rows = static_cast<float*>(plain.get_data_handle());
    for (int64_t n = 0; n < out; ++n) LoadElements(weight, n, rows + n * in);
    // The layout the library picks for many rows serves single rows as well.
    memory packed(WeightDesc(in, out), CpuEngine());
    dnnl::reorder(plain, packed).execute(stream_, plain, packed);
    stream_.wait();
    return std::make_unique<OneDnnWeight>(out, in, std::move(packed));
  }

  void Multiply(const MatrixView& in, const PackedWeight& weight, const void* bias, bool accumulate,
                const MatrixView& out) override {
    FOX_CHECK(in.cols == weight.in() && out.cols == weight.out() && in.rows == out.rows);
    const void* input = in.data;
    int64_t stride = in.row_stride;
    if (dtype_ == DType::kBF16) {
      input = Narrowed(in);
      stride = in.cols;
    }
    const Shape shape(in.rows, in.cols, out.cols, stride, out.row_stride, accumulate);
    const dnnl::matmul& primitive = Primitive(shape);
    const auto& packed = static_cast<const OneDnnWeight&>(weight).packed();
    memory src(SrcDesc(shape), CpuEngine(), const_cast<void*>(input));
    memory dst(DstDesc(shape), CpuEngine(), out.data);
    primitive.execute(stream_,
                      {{DNNL_ARG_SRC, src}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, dst}});
    stream_.wait();
    if (bias != nullptr) AddBias(static_cast<const float*>(bias), out);
  }

 private:
  memory::desc SrcDesc(const Shape& s) const {
    return {{std::get<0>(s), std::get<1>(s)}, TypeOf(dtype_), memory::dims{std::get<3>(s), 1}};
  }
  static memory::desc DstDesc(const Shape& s) {
    return {
        {std::get<0>(s), std::get<2>(s)}, memory::data_type::f32, memory::dims{std::get<4>(s), 1}};
  }

  memory::desc WeightDesc(int64_t in, int64_t out) {
    constexpr int64_t kTypicalRows = 256;
    const Shape shape(kTypicalRows, in, out, in, out, false);
    const memory::desc any({in, out}, TypeOf(dtype_), memory::format_tag::any);
    return MatmulDesc(SrcDesc(shape), any, DstDesc(shape), {}).weights_desc();
  }

  const dnnl::matmul& Primitive(const Shape& shape) {
    auto found = primitives_.find(shape);
    if (found != primitives_.end()) return found->second;
    if (primitives_.size() >= kMaxPrimitives) primitives_.clear();
    const std::pair<int64_t, int64_t> dims(std::get<1>(shape), std::get<2>(shape));
    auto desc = weight_descs_.find(dims);
    if (desc == weight_descs_.end()) {
      desc = weight_descs_.emplace(dims, WeightDesc(dims.first, dims.second)).first;
    }
    dnnl::primitive_attr attr;
    if (std::get<5>(shape)) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attr.set_post_ops(sum);
    }
    const auto pd = MatmulDesc(SrcDesc(shape), desc->second, DstDesc(shape), attr);
    return primitives_.emplace(shape, dnnl::matmul(pd)).first->second;
  }

  const void* Narrowed(const MatrixView& in) {
    narrowed_.resize(static_cast<size_t>(in.rows * in.cols));
    const auto& isa = SelectIsaKernels();
    ParallelFor(in.rows, in.rows * in.cols > kParallelElements, [&](int64_t r) {
      isa.narrow(static_cast<const float*>(in.data) + r * in.row_stride, in.cols,
                 narrowed_.data() + r * in.cols);
    });
    return narrowed_.data();
  }

  static void AddBias(const float* bias, const MatrixView& out) {
    for (int64_t r = 0; r < out.rows; ++r) {
      float* row = static_cast<float*>(out.data) + r * out.row_stride;
      for (int64_t n = 0; n < out.cols; ++n) row[n] += bias[n];
    }
  }

  static constexpr size_t kMaxPrimitives = 1024;
  DType dtype_;
  dnnl::stream stream_;
  std::map<Shape, dnnl::matmul> primitives_;
  std::map<std::pair<int64_t, int64_t>, memory::desc> weight_descs_;
  std::vector<uint16_t> narrowed_;
};

}  // namespace

bool OneDnnHasBf16() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

std::unique_ptr<Gemm> MakeOneDnnGemm(DType weight_dtype) {
  return std::make_unique<OneDnnGemm>(weight_dtype);
}

}  // namespace fox
