// SimTransport: the connection of one simulated client. It checks the order of a call's writes, and
// tells the call what became of them when the day lets it: as the gRPC port does, which takes the
// end of an answer even after its reader has left, or as the HTTP port does, which does not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/calls/call.h"
#include "server/calls/transport.h"
#include "tests/server/calls/sim/sim_environment.h"

namespace fox::sim {

class SimTransport final : public Transport {
 public:
  enum class Port : uint8_t { kGrpc, kHttp };

  SimTransport(Port port, SimEnvironment& day) : port_(port), day_(day) {}

  // The transport holds the call until OnReleased.
  void Attach(std::shared_ptr<Call> call) { call_ = std::move(call); }

  void Write(std::string bytes) override;
  void EndAnswer(const absl::Status& status, std::string bytes, int64_t retry_after_ms) override;
  void AbandonReader(const absl::Status& status) override;

  // The actor. Not while it acts already (`acts`).
  bool acts() const { return acts_; }
  bool has_bytes() const { return writing_ || (ended_ && !released_); }
  // The client reads what was written: OnWritten, or OnReleased if that was the end.
  void ReadBytes();
  void CloseReader(const absl::Status& reason);  // OnClosed
  void KeepAlive();                              // OnSilence

  bool released() const { return released_; }
  bool closed() const { return closed_; }
  bool ended() const { return ended_; }
  bool abandoned() const { return abandoned_; }
  const absl::Status& status() const { return status_; }  // valid once ended
  // All that the client has got: records, and at the end a failure.
  const std::string& received() const { return received_; }
  int64_t in_flight_bytes() const { return static_cast<int64_t>(in_flight_.size()); }
  const Call* call() const { return call_.get(); }

 private:
  void Check(bool holds, const char* rule) const {
    if (!holds) day_.ReportViolation(std::string("transport: ") + rule);
  }
  void Release();

  const Port port_;
  SimEnvironment& day_;
  std::shared_ptr<Call> call_;
  bool acts_ = false, writing_ = false, ended_ = false, closed_ = false, abandoned_ = false;
  bool released_ = false;
  std::string in_flight_, received_;
  absl::Status status_;
};

}  // namespace fox::sim
