// FakeDevice: a device whose memory has every bit inverted, so that what reaches it or leaves it
// without a copy is wrong. A copy can fail.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "tests/engine/null_queue.h"

namespace fox {

class FakeDevice final : public NullQueue {
 public:
  Buffer AllocatePinned(size_t bytes) override {
    return {new std::byte[bytes], bytes,
            [](void* data, size_t) { delete[] static_cast<std::byte*>(data); }};
  }
  std::unique_ptr<CopyStream> MakeCopyStream() override { return std::make_unique<Copies>(*this); }

  std::atomic<int64_t> copies{0};
  std::atomic<int64_t> fail_at{-1};  // the copy that fails

 private:
  class Copies final : public CopyStream {
   public:
    explicit Copies(FakeDevice& device) : device_(device) {}
    bool Copy(const void* from, size_t bytes, void* to) override {
      if (device_.copies++ == device_.fail_at) return false;
      for (size_t i = 0; i < bytes; ++i) {
        static_cast<std::byte*>(to)[i] = ~static_cast<const std::byte*>(from)[i];
      }
      return true;
    }

   private:
    FakeDevice& device_;
  };
};

}  // namespace fox
