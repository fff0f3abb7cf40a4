// Products with weights in blocks of 8 or 4 bits. Few rows are bound by memory: integers are
// multiplied as they are stored. Many rows are bound by arithmetic: oneDNN multiplies them with
// panels that are widened to bf16 while they are in the cache.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/core/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa/isa_kernels.h"

namespace fox {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // of weights that a thread takes at once
constexpr size_t kHugePage = 2 << 20, kChunkBytes = 64 << 20;

// Place of a code in a block: of its byte, and of its nibble there if it has 4 bits.
struct CodePlace {
  int64_t byte;
  int shift;
};

CodePlace PlaceOf(int bits, int64_t n, int64_t k) {
  const int64_t pair = k / 2, lane = 2 * n + k % 2;
  if (bits == 8) return {pair * 2 * kPanelColumns + lane, 0};
  const int64_t word = pair / 4 * 2 * kPanelColumns + lane;
  return {2 * word + pair % 4 / 2, static_cast<int>(pair % 2 * 4)};
}

}  // namespace

BlockWeight::BlockWeight(const MatrixView& weight, int64_t rounded_rows, WeightFormat format,
                         Gemm& plain, ThreadPool& pool, const Allocate& allocate)
    : PackedWeight(weight.rows, weight.cols, 0),
      rounded_(rounded_rows),
      blocks_((weight.cols + kBlockColumns - 1) / kBlockColumns),
      panel_bytes_(blocks_ * BlockBytes(format == WeightFormat::kQ8 ? 8 : 4)),
      bits_(format == WeightFormat::kQ8 ? 8 : 4),
      data_(allocate(static_cast<size_t>(panels() * panel_bytes_))) {
  FOX_CHECK(rounded_rows >= 0 && rounded_rows <= weight.rows && format != WeightFormat::kE4M3);
  pool.ForEach(panels(), true, [&](int64_t p) { PackPanel(weight, p, format); });
  if (rounded_ < weight.rows) {
    others_ = plain.Pack(weight.Rows(rounded_, weight.rows - rounded_));
  }
  set_bytes(static_cast<size_t>(panels() * panel_bytes_) + (others_ ? others_->bytes() : 0));
}

int64_t BlockWeight::panels() const { return (rounded_ + kPanelColumns - 1) / kPanelColumns; }

void BlockWeight::PackPanel(const MatrixView& weight, int64_t panel, WeightFormat format) {
  const int64_t first = panel * kPanelColumns;
  std::vector<float> row(static_cast<size_t>(blocks_ * kBlockColumns));
  for (int64_t n = 0; n < std::min<int64_t>(kPanelColumns, rounded_ - first); ++n) {
    LoadElements(weight, first + n, row.data());
    uint8_t* block = data_.get() + panel * panel_bytes_;
    for (int64_t b = 0; b < blocks_; ++b, block += BlockBytes(bits_)) {
      int8_t codes[kBlockColumns];
      const uint16_t scale = RoundBlock(format, row.data() + b * kBlockColumns, codes);
      std::memcpy(block + 2 * n, &scale, sizeof(scale));
      for (int64_t k = 0; k < kBlockColumns; ++k) {
        const CodePlace place = PlaceOf(bits_, n, k);
        const int code = bits_ == 8 ? codes[k] & 0xff : codes[k] + 8;
        uint8_t& byte = block[2 * kPanelColumns + place.byte];
        byte = static_cast<uint8_t>(byte | code << place.shift);
      }
    }
  }
}

void BlockWeight::Unpack(int64_t row, float* out) const {
  FOX_CHECK(row >= 0 && row < rounded_);
  const int64_t n = row % kPanelColumns;
  const uint8_t* block = Panel(row / kPanelColumns);
  for (int64_t k = 0; k < in(); ++k) {
    if (k > 0 && k % kBlockColumns == 0) block += BlockBytes(bits_);
    uint16_t scale;
    std::memcpy(&scale, block + 2 * n, sizeof(scale));
    const CodePlace place = PlaceOf(bits_, n, k % kBlockColumns);
    const int byte = block[2 * kPanelColumns + place.byte];
    const int code = bits_ == 8 ? static_cast<int8_t>(byte) : (byte >> place.shift & 15) - 8;
    out[k] = HalfToFloat(scale) * static_cast<float>(code);
  }
}

BlockGemm::BlockGemm(Gemm& wide, ThreadPool& pool)
    : wide_(wide), plain_(MakePlainGemm(DType::kF32, pool)), pool_(pool) {}

std::unique_ptr<PackedWeight> BlockGemm::Pack(const MatrixView& weight, int64_t rounded_rows,
                                              WeightFormat format) {
  return std::make_unique<BlockWeight>(weight, rounded_rows, format, *plain_, pool_,
                                       [this](size_t bytes) { return Take(bytes); });
}

// Weights lie one after another in huge pages: with pages of 4 KiB, products of 4 bits take 1.4
// times as long.
std::shared_ptr<uint8_t> BlockGemm::Take(size_t bytes) {
  const size_t size = (bytes + 63) / 64 * 64;
  if (size > chunk_left_) {
    chunk_left_ = (std::max(size, kChunkBytes) + kHugePage - 1) / kHugePage * kHugePage;
    void* memory = std::aligned_alloc(kHugePage, chunk_left_);
    if (memory == nullptr) throw std::bad_alloc();
    chunk_.reset(static_cast<uint8_t*>(memory), std::free);
    madvise(memory, chunk_left_, MADV_HUGEPAGE);  // a wish: without it products are slower
  }
  std::shared_ptr<uint8_t> taken(chunk_, chunk_.get());
  std::memset(taken.get(), 0, bytes);
  chunk_ = std::shared_ptr<uint8_t>(chunk_, chunk_.get() + size);
  chunk_left_ -= size;
  return taken;
}

void BlockGemm::RoundInputs(const MatrixView& in, int64_t blocks) {
  const auto count = static_cast<size_t>(in.rows * blocks);
  codes_.resize(count * kBlockColumns);
  scales_.resize(count);
  sums_.resize(count);
  const auto& isa = SelectIsaKernels();
  pool_.ForEach(in.rows, in.rows * in.cols > kParallelElements, [&](int64_t r) {
    const int64_t at = r * blocks;
    isa.round_row(in.Row<const float>(r), in.cols, codes_.data() + at * kBlockColumns,
                  scales_.data() + at, sums_.data() + at);
  });
}

void BlockGemm::Multiply(const MatrixView& in, const BlockWeight& weight, const float* bias,
                         bool accumulate, const MatrixView& out) {
  FOX_CHECK(in.cols == weight.in() && out.cols == weight.out() && in.rows == out.rows);
  FOX_CHECK(in.dtype == DType::kF32 && out.dtype == DType::kF32);
  const auto& isa = SelectIsaKernels();
  const bool q8 = weight.bits() == 8;
  const int64_t rounded = weight.rounded(), blocks = weight.blocks();
  if (weight.others() != nullptr) {
    plain_->Multiply(in, *weight.others(), bias == nullptr ? nullptr : bias + rounded, accumulate,
                     out.Columns(rounded, out.cols - rounded));
  }
  const MatrixView columns = out.Columns(0, rounded);
  const auto widen = [&](int64_t first, int64_t count, uint16_t* bf16) {
    for (int64_t p = first; p < first + count; ++p) {
      (q8 ? isa.widen_q8 : isa.widen_q4)(weight.Panel(p), blocks, bf16);
      bf16 += kPanelColumns * blocks * kBlockColumns;
    }
  };
  if (wide_.MultiplyPanels(in, widen, bias, accumulate, columns)) return;
  RoundInputs(in, blocks);
  const int64_t panels = weight.panels();
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / (blocks * BlockBytes(weight.bits())));
  const auto multiply = [&](int64_t p) {
    BlockPanel call = {};
    call.codes = codes_.data();
    call.scales = scales_.data();
    call.sums = sums_.data();
    call.rows = in.rows;
    call.blocks = blocks;
    call.panel = weight.Panel(p);
    call.bias = bias == nullptr ? nullptr : bias + p * kPanelColumns;
    call.accumulate = accumulate;
    call.out = static_cast<float*>(out.data) + p * kPanelColumns;
    call.out_stride = out.row_stride;
    call.columns = std::min<int64_t>(kPanelColumns, rounded - p * kPanelColumns);
    (q8 ? isa.multiply_q8 : isa.multiply_q4)(call);
  };
  pool_.ForEach((panels + grain - 1) / grain, true, [&](int64_t i) {
    for (int64_t p = i * grain; p < std::min(panels, (i + 1) * grain); ++p) multiply(p);
  });
}

}  // namespace fox
