// Streams of a real model, read by each of its endpoints and compared with the same request's
// answer when it ran alone: what a client saw is that answer, or its beginning.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "tests/fixtures/client_streams.h"
#include "tests/torture/part.h"

namespace fox {

// A request and what it must bring.
struct SoloAnswer {
  StreamRequest request;
  std::vector<uint32_t> ids;
  std::string text;
};

// Counts over all streams, as their clients see them; any thread. Cut: it had begun, and the server
// or the client broke it off; refused: before its first token.
struct StreamCounts {
  std::atomic<int64_t> whole{0}, cut{0}, refused{0}, wrong{0}, odd_status{0}, tokens{0};
  void Describe(Part* part) const;
};

// Runs a fixed set of requests one after another on a server without other clients. Empty: it
// failed.
std::vector<SoloAnswer> RunAlone(const ServerPorts& ports);

// One server's client; used by one thread. Streams hang no longer than a minute.
class SoloReader {
 public:
  // What is not right is counted, and a broken promise of `part`; all must outlive it.
  SoloReader(const ServerPorts& ports, Part* part, StreamCounts* counts);

  // Reads a stream and leaves after `messages` of them; -1: reads all. False: it was refused.
  bool Read(const SoloAnswer& answer, bool http, int64_t messages = -1);

 private:
  bool Judge(const SoloAnswer& answer, const AnswerEnd& seen, bool left);

  const ServerPorts ports_;
  Part* const part_;
  StreamCounts* const counts_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace fox
