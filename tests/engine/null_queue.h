// NullQueue: a DeviceQueue that does nothing and has no memory; a test overrides the methods
// that it is about.
#pragma once

#include <memory>

#include "kernels/interface/device_queue.h"

namespace fox {

class NullQueue : public DeviceQueue {
 public:
  Stream stream() const override { return nullptr; }
  Buffer AllocatePinned(size_t) override { return {}; }
  void CopyPinned(const void*, size_t, void*, Stream) override {}
  std::unique_ptr<Event> MakeEvent() override { return nullptr; }
  std::unique_ptr<CopyStream> MakeCopyStream() override { return nullptr; }
  std::unique_ptr<Graph> Capture(Stream, const std::function<void()>&) override { return nullptr; }
  const char* error() const override { return nullptr; }
  size_t free_bytes() const override { return 0; }
  size_t total_bytes() const override { return 0; }
};

}  // namespace fox
