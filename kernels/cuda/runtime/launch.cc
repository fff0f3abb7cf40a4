// Which launches may overlap. See launch.h.
#include "kernels/cuda/runtime/launch.h"

#include <atomic>
#include <mutex>
#include <set>

namespace fox::cuda {
namespace {

// The streams on which kernels run one at a time.
struct SerialStreams {
  std::mutex mutex;
  std::set<cudaStream_t> streams;
  std::atomic<bool> any = false;  // false: a launch takes no lock
};

SerialStreams& Serial() {
  static SerialStreams serial;
  return serial;
}

}  // namespace

bool Overlaps(const void* kernel, cudaStream_t stream) {
  if (!HasSm90Code(kernel)) return false;
  SerialStreams& serial = Serial();
  if (!serial.any) return true;
  const std::lock_guard<std::mutex> lock(serial.mutex);
  return !serial.streams.contains(stream);
}

void AllowOverlap(cudaStream_t stream, bool allow) {
  SerialStreams& serial = Serial();
  const std::lock_guard<std::mutex> lock(serial.mutex);
  if (allow) {
    serial.streams.erase(stream);
  } else {
    serial.streams.insert(stream);
  }
  serial.any = !serial.streams.empty();
}

}  // namespace fox::cuda
