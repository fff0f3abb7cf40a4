// DeviceQueue: the interface of a backend that works asynchronously: a stream, pinned memory,
// events and captured graphs. Ops::queue() is null if calls return when their work is done.
//
// For the thread that calls the Ops, but for a CopyStream. After a device error every call returns
// at once and error() says what happened; a device does not recover from it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/core/buffer.h"

namespace fox {

// A stream of the backend; null is the backend's default (and the CPU's only) stream.
using Stream = void*;

// Work recorded once and enqueued many times as one launch.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Launch(Stream stream) = 0;
};

// A point in a stream that the host can wait for; used again and again.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Record(Stream stream) = 0;
  // Returns when all work before the last Record is done.
  virtual void Wait() = 0;
};

// A stream of copies beside the steps, which the device's copy engines carry out.
class CopyStream {
 public:
  virtual ~CopyStream() = default;
  // Begins a copy between device memory and memory of AllocatePinned, either way, behind the copies
  // that were begun before. No step may use the memory until Wait returns. False: the device
  // failed. One thread at a time, any thread.
  virtual bool Begin(const void* from, size_t bytes, void* to) = 0;
  // Returns when all bytes are there. False: the device failed.
  virtual bool Wait() = 0;
};

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // The stream that steps run on.
  virtual Stream stream() const = 0;
  // Host memory for asynchronous copies, which operations can read and write.
  virtual Buffer AllocatePinned(size_t bytes) = 0;
  // Between device memory and memory of AllocatePinned, either way; bytes copied to the host are
  // there after an Event recorded later has passed.
  virtual void CopyPinned(const void* from, size_t bytes, void* to, Stream stream) = 0;
  virtual std::unique_ptr<Event> MakeEvent() = 0;
  virtual std::unique_ptr<CopyStream> MakeCopyStream() = 0;
  // Records what `work` enqueues on `stream`, running none of it. Null on failure: see error().
  // REQUIRES: the same work ran before, so that lazy allocations are done.
  virtual std::unique_ptr<Graph> Capture(Stream stream, const std::function<void()>& work) = 0;
  // Null without an error.
  virtual const char* error() const = 0;
  // Checks, without waiting, for an error that no call has reported yet.
  virtual void Probe() {}
  // Device memory, bytes.
  virtual size_t free_bytes() const = 0;
  virtual size_t total_bytes() const = 0;
};

}  // namespace fox
