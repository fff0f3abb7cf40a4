// Matrix products by oneDNN, 2.x and 3.x. Weights are reordered once into the library's layout.
// Creating a primitive costs 0.3 ms (several with AMX), so primitives are cached by shape, as many
// as a server needs from step to step: prompts have all lengths, and each primitive holds code of
// its own, 50 KB (130 KB with AMX).
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/load_element.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa/isa_kernels.h"

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

// The whole weight, for many rows; and slices of its outputs, one per thread, for few rows.
class OneDnnWeight : public PackedWeight {
 public:
  struct Slice {
    int64_t first;  // output
    int64_t count;
    memory packed;  // part of the whole if the layout allows it
  };
  OneDnnWeight(int64_t out, int64_t in, memory whole, std::vector<Slice> slices)
      : PackedWeight(out, in, whole.get_desc().get_size()),
        whole_(std::move(whole)),
        slices_(std::move(slices)) {}
  const memory& whole() const { return whole_; }
  const std::vector<Slice>& slices() const { return slices_; }

 private:
  memory whole_;
  std::vector<Slice> slices_;
};

// rows, in, out, input row stride, accumulate, weight in panels; outputs are contiguous.
using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool>;

// One thread's state. oneDNN runs on that thread alone, so that only our own pool waits: libgomp's
// barriers make short steps slow on a machine that does anything else.
struct Workspace {
  Workspace() : stream(CpuEngine()) {}
  struct Prepared {
    dnnl::matmul primitive;
    memory::desc scratchpad;
    int64_t used;  // the workspace's count of uses at the last use
  };
  dnnl::stream stream;
  std::map<Shape, Prepared> primitives;
  int64_t uses = 0;
  memory scratchpad;           // the largest so far
  std::vector<float> product;  // of outputs that are not contiguous
  std::vector<uint16_t> tile;  // panels of a weight
};

class OneDnnGemm : public Gemm {
 public:
  OneDnnGemm(DType dtype, ThreadPool& pool)
      : dtype_(dtype), pool_(pool), workspaces_(static_cast<size_t>(pool.threads())) {
    // The library caches primitives, too; workspaces that need the same one at the same time share
    // it there.
    dnnl::set_primitive_cache_capacity(kSharedPrimitives);
  }

  std::string Name() const override { return std::string("oneDNN ") + NameOf(dtype_); }

  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override {
    const int64_t out = weight.rows, in = weight.cols;
    memory whole = Reordered(weight);
    const int64_t count = std::clamp<int64_t>(out / kSliceUnit, 1, pool_.threads());
    const int64_t width = (out + count * kSliceUnit - 1) / (count * kSliceUnit) * kSliceUnit;
    std::vector<OneDnnWeight::Slice> slices;
    size_t offset = 0;
    for (int64_t first = 0; first < out; first += width) {
      const int64_t outputs = std::min(width, out - first);
      memory slice = Reordered(weight.Rows(first, outputs));
      // Blocks of outputs usually follow one another, so the slice is a part of the whole.
      auto* inside = static_cast<std::byte*>(whole.get_data_handle()) + offset;
      const size_t bytes = slice.get_desc().get_size();
      offset += bytes;
      if (offset <= whole.get_desc().get_size() &&
          std::memcmp(inside, slice.get_data_handle(), bytes) == 0) {
        slice = memory(slice.get_desc(), CpuEngine(), inside);
      }
      slices.push_back({first, outputs, std::move(slice)});
    }
    return std::make_unique<OneDnnWeight>(out, in, std::move(whole), std::move(slices));
  }

  void Multiply(const MatrixView& in, const PackedWeight& weight, const void* bias, bool accumulate,
                const MatrixView& out) override {
    FOX_CHECK(in.cols == weight.in() && out.cols == weight.out() && in.rows == out.rows);
    FOX_CHECK(out.row_stride == out.cols);
    const MatrixView input = dtype_ == DType::kBF16 ? Narrowed(in) : in;
    const auto& packed = static_cast<const OneDnnWeight&>(weight);
    const auto* row_bias = static_cast<const float*>(bias);
    if (in.rows >= kManyRows) {
      MultiplyByRows(input, packed, row_bias, accumulate, out);
    } else {
      MultiplyBySlices(input, packed, row_bias, accumulate, out);
    }
  }

  bool MultiplyPanels(const MatrixView& in, const WidenPanels& widen, const float* bias,
                      bool accumulate, const MatrixView& out) override {
    if (dtype_ != DType::kBF16 || in.rows < kManyRows) return false;
    const MatrixView input = Narrowed(in);
    const int64_t panels = (out.cols + kPanelColumns - 1) / kPanelColumns;
    const int64_t panel_elements =
        kPanelColumns * ((in.cols + kBlockColumns - 1) / kBlockColumns * kBlockColumns);
    const int64_t count = std::clamp(kTileElements / panel_elements, int64_t{1}, panels);
    const int64_t width = count * kPanelColumns, shares = pool_.threads();
    const memory::desc desc({in.cols, width}, memory::data_type::bf16,
                            memory::format_tag::BA16a32b2a);
    FOX_CHECK(desc.get_size() == static_cast<size_t>(count * panel_elements) * sizeof(uint16_t));
    pool_.ForEach(shares, true, [&](int64_t i) {
      Workspace& workspace = workspaces_[static_cast<size_t>(i)];
      workspace.tile.resize(static_cast<size_t>(count * panel_elements));
      for (int64_t p = i * count; p < panels; p += shares * count) {
        widen(p, std::min(count, panels - p), workspace.tile.data());
        const int64_t first = p * kPanelColumns;
        const MatrixView part = out.Columns(first, std::min(width, out.cols - first));
        ExecuteApart(workspace, input, memory(desc, CpuEngine(), workspace.tile.data()), width,
                     accumulate, part, true);
        if (bias != nullptr) AddTo(part, bias + first, 0);
      }
    });
    return true;
  }

 private:
  memory::desc SrcDesc(const Shape& s) const {
    return {{std::get<0>(s), std::get<1>(s)}, TypeOf(dtype_), memory::dims{std::get<3>(s), 1}};
  }
  static memory::desc DstDesc(const Shape& s) {
    return {
        {std::get<0>(s), std::get<2>(s)}, memory::data_type::f32, memory::dims{std::get<2>(s), 1}};
  }

  // The layout the library picks for many rows serves single rows as well.
  memory::desc WeightDesc(int64_t in, int64_t out) const {
    constexpr int64_t kTypicalRows = 256;
    const Shape shape(kTypicalRows, in, out, in, false, false);
    const memory::desc any({in, out}, TypeOf(dtype_), memory::format_tag::any);
    return MatmulDesc(SrcDesc(shape), any, DstDesc(shape), {}).weights_desc();
  }

  // OpenMP keeps its thread count per calling thread.
  static void RunAlone() {
    if (omp_get_max_threads() != 1) omp_set_num_threads(1);
  }

  memory Reordered(const MatrixView& rows) {
    RunAlone();
    const int64_t in = rows.cols;
    // A copy would cost more than the reordering: fresh memory is slow to touch.
    const bool as_is = rows.row_stride == in && (rows.dtype == DType::kF32 || rows.dtype == dtype_);
    const memory::desc desc({in, rows.rows}, as_is ? TypeOf(rows.dtype) : memory::data_type::f32,
                            memory::dims{1, in});
    memory plain = as_is ? memory(desc, CpuEngine(), rows.data) : memory(desc, CpuEngine());
    float* to = static_cast<float*>(plain.get_data_handle());
    for (int64_t n = 0; !as_is && n < rows.rows; ++n) LoadElements(rows, n, to + n * in);
    memory packed(WeightDesc(in, rows.rows), CpuEngine());
    std::memset(packed.get_data_handle(), 0, packed.get_desc().get_size());
    dnnl::stream& stream = workspaces_[0].stream;
    dnnl::reorder(plain, packed).execute(stream, plain, packed);
    stream.wait();
    return packed;
  }

  // Each thread computes a share of the rows, with the whole weight.
  void MultiplyByRows(const MatrixView& in, const OneDnnWeight& weight, const float* bias,
                      bool accumulate, const MatrixView& out) {
    const int64_t shares = static_cast<int64_t>(workspaces_.size());
    const int64_t width = (in.rows + shares - 1) / shares;
    pool_.ForEach(shares, true, [&](int64_t i) {
      const int64_t first = std::min(i * width, in.rows), count = std::min(width, in.rows - first);
      if (count == 0) return;
      const MatrixView part = out.Rows(first, count);
      Execute(workspaces_[static_cast<size_t>(i)], in.Rows(first, count), weight.whole(),
              accumulate, part);
      if (bias != nullptr) AddTo(part, bias, 0);
    });
  }

  // Each thread computes a share of the outputs, so that the weight is read once.
  void MultiplyBySlices(const MatrixView& in, const OneDnnWeight& weight, const float* bias,
                        bool accumulate, const MatrixView& out) {
    const auto& slices = weight.slices();
    pool_.ForEach(static_cast<int64_t>(slices.size()), true, [&](int64_t i) {
      const OneDnnWeight::Slice& slice = slices[static_cast<size_t>(i)];
      Workspace& workspace = workspaces_[static_cast<size_t>(i)];
      const MatrixView part = out.Columns(slice.first, slice.count);
      if (in.rows == 1 || slices.size() == 1) {
        Execute(workspace, in, slice.packed, accumulate,
                {part.data, part.dtype, in.rows, part.cols, part.cols});
      } else {
        ExecuteApart(workspace, in, slice.packed, slice.count, accumulate, part, false);
      }
      if (bias != nullptr) AddTo(part, bias + slice.first, 0);
    });
  }

  // Computes `width` outputs apart and leaves the first ones in `out`: the library's fast paths
  // require contiguous outputs.
  void ExecuteApart(Workspace& workspace, const MatrixView& in, const memory& weight, int64_t width,
                    bool accumulate, const MatrixView& out, bool panels) const {
    workspace.product.resize(static_cast<size_t>(in.rows * width));
    Execute(workspace, in, weight, false,
            {workspace.product.data(), DType::kF32, in.rows, width, width}, panels);
    if (accumulate) return AddTo(out, workspace.product.data(), width);
    for (int64_t r = 0; r < out.rows; ++r) {
      std::copy_n(workspace.product.data() + r * width, out.cols, out.Row<float>(r));
    }
  }

  // REQUIRES: contiguous out.
  void Execute(Workspace& workspace, const MatrixView& in, const memory& weight, bool accumulate,
               const MatrixView& out, bool panels = false) const {
    RunAlone();
    const Shape shape(in.rows, in.cols, out.cols, in.row_stride, accumulate, panels);
    const Workspace::Prepared& prepared = Prepare(workspace, shape, weight.get_desc());
    memory src(SrcDesc(shape), CpuEngine(), in.data);
    memory dst(DstDesc(shape), CpuEngine(), out.data);
    memory scratchpad(
        prepared.scratchpad, CpuEngine(),
        prepared.scratchpad.get_size() > 0 ? workspace.scratchpad.get_data_handle() : nullptr);
    prepared.primitive.execute(workspace.stream, {{DNNL_ARG_SRC, src},
                                                  {DNNL_ARG_WEIGHTS, weight},
                                                  {DNNL_ARG_DST, dst},
                                                  {DNNL_ARG_SCRATCHPAD, scratchpad}});
    workspace.stream.wait();
  }

  const Workspace::Prepared& Prepare(Workspace& workspace, const Shape& shape,
                                     const memory::desc& weight) const {
    const int64_t use = ++workspace.uses;
    const auto found = workspace.primitives.find(shape);
    if (found != workspace.primitives.end()) {
      found->second.used = use;
      return found->second;
    }
    if (workspace.primitives.size() >= kMaxPrimitives) {
      workspace.primitives.erase(std::min_element(
          workspace.primitives.begin(), workspace.primitives.end(),
          [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    dnnl::primitive_attr attr;
    // The library's own scratch memory belongs to the thread that made the primitive.
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (std::get<4>(shape)) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attr.set_post_ops(sum);
    }
    const auto pd = MatmulDesc(SrcDesc(shape), weight, DstDesc(shape), attr);
    const memory::desc scratchpad = pd.scratchpad_desc();
    const size_t have = workspace.scratchpad ? workspace.scratchpad.get_desc().get_size() : 0;
    if (scratchpad.get_size() > have) workspace.scratchpad = memory(scratchpad, CpuEngine());
    return workspace.primitives
        .emplace(shape, Workspace::Prepared{dnnl::matmul(pd), scratchpad, use})
        .first->second;
  }

  MatrixView Narrowed(const MatrixView& in) {
    narrowed_.resize(static_cast<size_t>(in.rows * in.cols));
    const auto& isa = SelectIsaKernels();
    pool_.ForEach(in.rows, in.rows * in.cols > kParallelElements, [&](int64_t r) {
      isa.narrow(in.Row<const float>(r), in.cols, narrowed_.data() + r * in.cols);
    });
    return {narrowed_.data(), DType::kBF16, in.rows, in.cols, in.cols};
  }

  // out[r] += rows[r * stride]; stride 0 adds one row to all.
  static void AddTo(const MatrixView& out, const float* rows, int64_t stride) {
    for (int64_t r = 0; r < out.rows; ++r) {
      float* to = out.Row<float>(r);
      for (int64_t n = 0; n < out.cols; ++n) to[n] += rows[r * stride + n];
    }
  }

  static constexpr size_t kMaxPrimitives = 256;  // of a workspace
  static constexpr int kSharedPrimitives = 16;  // two shapes per product: full shares, and the last
  static constexpr int64_t kManyRows = 64;      // from here on a thread's rows fill its tiles
  static constexpr int64_t kSliceUnit = 64;     // outputs that the library computes at once
  static constexpr int64_t kTileElements = 1
                                           << 16;  // of a widened weight, beside its product in L2
  DType dtype_;
  ThreadPool& pool_;
  std::vector<Workspace> workspaces_;  // by share of a product
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

std::unique_ptr<Gemm> MakeOneDnnGemm(DType weight_dtype, ThreadPool& pool) {
  return std::make_unique<OneDnnGemm>(weight_dtype, pool);
}

}  // namespace fox
