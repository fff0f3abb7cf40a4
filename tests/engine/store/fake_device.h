// FakeDevice: a device whose memory has every bit inverted, so that what reaches it or leaves it
// without a copy is wrong. A copy can fail.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

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
    ~Copies() override {
      EXPECT_TRUE(begun_.empty()) << "the stream ends before its last copies were waited for";
    }
    bool Begin(const void* from, size_t bytes, void* to) override {
      if (device_.copies++ == device_.fail_at) return false;
      begun_.push_back({static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes});
      return true;
    }
    bool Wait() override {
      for (const Begun& copy : begun_) {
        for (size_t i = 0; i < copy.bytes; ++i) copy.to[i] = ~copy.from[i];
      }
      begun_.clear();
      return true;
    }

   private:
    struct Begun {
      const std::byte* from;
      std::byte* to;
      size_t bytes;
    };
    FakeDevice& device_;
    std::vector<Begun> begun_;  // carried out by Wait, as late as a device may
  };
};

}  // namespace fox
