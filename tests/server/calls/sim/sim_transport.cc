// SimTransport: a call's writes, and the events that follow from them. See sim_transport.h.
#include "tests/server/calls/sim/sim_transport.h"

#include <utility>

namespace fox::sim {

void SimTransport::Write(std::string bytes) {
  day_.Interrupt();
  {
    const MutexLock lock(mutex_);
    Check(!writing_, "one write at a time");
    Check(!ended_, "no write follows the end");
    Check(!bytes.empty(), "a write has bytes");
    if (released_ || (closed_ && port_ == Port::kHttp)) return;
    writing_ = true;
    in_flight_ = std::move(bytes);
  }
  day_.Interrupt();
  if (reads_at_once_) ReadBytes();
}

void SimTransport::EndAnswer(const absl::Status& status, std::string bytes, int64_t) {
  day_.Interrupt();
  {
    const MutexLock lock(mutex_);
    Check(!std::exchange(ended_, true), "an answer ends once");
    Check(!writing_ || closed_, "the end waits for the write");
    status_ = status;
    if (released_) return;
    if (!writing_) in_flight_ = std::move(bytes);
  }
  day_.Interrupt();
  if (reads_at_once_) ReadBytes();
}

void SimTransport::AbandonReader(const absl::Status& status) {
  day_.Interrupt();
  Check(!status.ok(), "a reader is cut off for a reason");
  day_.Count(CallMark::kAbandonedWrites);
  const MutexLock lock(mutex_);
  abandoned_ = true;
}

void SimTransport::ReadBytes() {
  acts_ = true;
  const std::shared_ptr<Call> call = this->call();
  bool was_writing = false;
  {
    const MutexLock lock(mutex_);
    const std::string bytes = std::exchange(in_flight_, {});
    if (!closed_) received_ += bytes;
    was_writing = std::exchange(writing_, false);
  }
  if (was_writing) {
    call->OnWritten();
  } else {
    Release();
  }
  acts_ = false;
}

void SimTransport::CloseReader(const absl::Status& reason) {
  acts_ = true;
  const std::shared_ptr<Call> call = this->call();
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  if (call != nullptr) call->OnClosed(reason);
  if (port_ == Port::kHttp) {
    {
      const MutexLock lock(mutex_);
      writing_ = false;
      in_flight_.clear();
    }
    Release();
  }
  acts_ = false;
}

void SimTransport::KeepAlive() {
  acts_ = true;
  call()->OnSilence();
  acts_ = false;
}

void SimTransport::Release() {
  std::shared_ptr<Call> call;
  {
    const MutexLock lock(mutex_);
    Check(!std::exchange(released_, true), "a transport lets go of an answer once");
    call = std::exchange(call_, nullptr);
  }
  call->OnReleased();
}

}  // namespace fox::sim
