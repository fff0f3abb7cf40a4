// SimTransport: a call's writes, and the events that follow from them. See sim_transport.h.
#include "tests/server/calls/sim/sim_transport.h"

#include <utility>

namespace fox::sim {

void SimTransport::Write(std::string bytes) {
  day_.Interrupt();
  Check(!writing_, "one write at a time");
  Check(!ended_, "no write follows the end");
  Check(!bytes.empty(), "a write has bytes");
  if (released_ || (closed_ && port_ == Port::kHttp)) return;
  writing_ = true;
  in_flight_ = std::move(bytes);
  day_.Interrupt();
}

void SimTransport::EndAnswer(const absl::Status& status, std::string bytes, int64_t) {
  day_.Interrupt();
  Check(!std::exchange(ended_, true), "an answer ends once");
  Check(!writing_ || closed_, "the end waits for the write");
  status_ = status;
  if (released_) return;
  if (!writing_) in_flight_ = std::move(bytes);
  day_.Interrupt();
}

void SimTransport::AbandonReader(const absl::Status& status) {
  day_.Interrupt();
  Check(!status.ok(), "a reader is cut off for a reason");
  day_.Count(CallMark::kAbandonedWrites);
  abandoned_ = true;
}

void SimTransport::ReadBytes() {
  acts_ = true;
  std::string bytes = std::exchange(in_flight_, {});
  if (!closed_) received_ += bytes;
  if (std::exchange(writing_, false)) {
    call_->OnWritten();
  } else {
    Release();
  }
  acts_ = false;
}

void SimTransport::CloseReader(const absl::Status& reason) {
  acts_ = true;
  closed_ = true;
  const std::shared_ptr<Call> call = call_;
  call->OnClosed(reason);
  if (port_ == Port::kHttp) {
    writing_ = false;
    in_flight_.clear();
    Release();
  }
  acts_ = false;
}

void SimTransport::KeepAlive() {
  acts_ = true;
  call_->OnSilence();
  acts_ = false;
}

void SimTransport::Release() {
  Check(!std::exchange(released_, true), "a transport lets go of an answer once");
  std::exchange(call_, nullptr)->OnReleased();
}

}  // namespace fox::sim
