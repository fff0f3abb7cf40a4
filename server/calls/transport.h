// Transport: the way of one call's answer to its client: a gRPC stream, an HTTP exchange, or a
// test's record. Read call.h next: a call writes to a transport, which reports back.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace fox {

// Methods may be called from any thread, one at a time but for AbandonReader, and must not block.
//
// A transport tells its Call (call.h), by methods of the call:
//   OnWritten   the bytes of Write were taken: the next write may follow. Once for each Write,
//               unless OnClosed comes instead.
//   OnSilence   nothing was written for a while: a proxy may soon close the connection.
//   OnClosed    the reader went away (Cancelled) or has stalled (Aborted): nothing more is written.
//   OnReleased  last: the transport holds nothing of the answer any more. Comes after the bytes of
//               EndAnswer were taken, or after OnClosed.
class Transport {
 public:
  virtual ~Transport() = default;

  // Writes a part of the answer; the transport's headers precede the first. The next Write or
  // EndAnswer comes only after OnWritten or OnClosed.
  virtual void Write(std::string bytes) = 0;
  // Ends the answer: with `bytes` if `status` is Ok; else with the status, and `bytes` are the form
  // of the failure that the call's format has ("" if the transport's own is enough). Once, also
  // after OnClosed. `retry_after_ms`: when a client should come back that is refused for lack of
  // room.
  virtual void EndAnswer(const absl::Status& status, std::string bytes, int64_t retry_after_ms) = 0;
  // A write is in flight and does not end, and the memory that it holds is needed: cuts the reader
  // off. OnClosed follows.
  virtual void AbandonReader(const absl::Status& status) = 0;
};

}  // namespace fox
