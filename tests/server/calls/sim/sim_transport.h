// SimTransport: the connection of one simulated client. It checks the order of a call's writes, and
// tells the call what became of them when the day lets it: as the gRPC port does, which takes the
// end of an answer even after its reader has left, or as the HTTP port does, which does not. Tests
// with threads have readers of a thread of their own, or none, as a write is read at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/mutex.h"
#include "server/calls/call.h"
#include "server/calls/transport.h"
#include "tests/server/calls/sim/sim_environment.h"

namespace fox::sim {

class SimTransport final : public Transport {
 public:
  enum class Port : uint8_t { kGrpc, kHttp };

  // `reads_at_once`: no reader acts; each write and the end are taken as they come.
  SimTransport(Port port, SimEnvironment& day, bool reads_at_once = false)
      : port_(port), day_(day), reads_at_once_(reads_at_once) {}

  // The transport holds the call until OnReleased.
  void Attach(std::shared_ptr<Call> call) {
    const MutexLock lock(mutex_);
    call_ = std::move(call);
  }

  void Write(std::string bytes) override;
  void EndAnswer(const absl::Status& status, std::string bytes, int64_t retry_after_ms) override;
  void AbandonReader(const absl::Status& status) override;

  // The actor. Not while it acts already (`acts`).
  bool acts() const { return acts_; }
  bool has_bytes() const {
    const MutexLock lock(mutex_);
    return writing_ || (ended_ && !released_);
  }
  // The client reads what was written: OnWritten, or OnReleased if that was the end.
  void ReadBytes();
  void CloseReader(const absl::Status& reason);  // OnClosed
  void KeepAlive();                              // OnSilence

  bool released() const { return Locked(released_); }
  bool closed() const { return Locked(closed_); }
  bool ended() const { return Locked(ended_); }
  bool abandoned() const { return Locked(abandoned_); }
  absl::Status status() const { return Locked(status_); }  // valid once ended
  // All that the client has got: records, and at the end a failure.
  std::string received() const { return Locked(received_); }
  int64_t in_flight_bytes() const { return static_cast<int64_t>(Locked(in_flight_).size()); }
  std::shared_ptr<Call> call() const { return Locked(call_); }  // null once released

 private:
  void Check(bool holds, const char* rule) const {
    if (!holds) day_.ReportViolation(std::string("transport: ") + rule);
  }
  void Release();
  template <class T>
  T Locked(const T& member) const {
    const MutexLock lock(mutex_);
    return member;
  }

  const Port port_;
  SimEnvironment& day_;
  const bool reads_at_once_;
  std::atomic<bool> acts_{false};
  mutable Mutex mutex_;  // of the rest
  std::shared_ptr<Call> call_;
  bool writing_ = false, ended_ = false, closed_ = false, abandoned_ = false, released_ = false;
  std::string in_flight_, received_;
  absl::Status status_;
};

}  // namespace fox::sim
