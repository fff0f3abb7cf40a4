// Streams of a real model, read over gRPC and HTTP. A client must see the answer that the same
// request got when it ran alone, or the beginning of that answer.
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

// A request and the answer that it got when it ran alone.
struct SoloAnswer {
  StreamRequest request;
  std::vector<uint32_t> ids;
  std::string text;
};

// Counts of streams by their ends, as clients see them. Thread-safe. cut: the server or the client
// ended the stream after its first token; refused: the server ended it before.
struct StreamCounts {
  std::atomic<int64_t> whole{0}, cut{0}, refused{0}, wrong{0}, odd_status{0}, tokens{0};
  void Describe(Part* part) const;
};

// Runs a fixed set of requests one after another on a server without other clients. Empty on
// failure.
std::vector<SoloAnswer> RunAlone(const ServerPorts& ports);

// A client of one server, used by one thread. A stream hangs for a minute at most.
class SoloReader {
 public:
  // Wrong streams are counted in `counts` and break a promise of `part`. Both must outlive this.
  SoloReader(const ServerPorts& ports, Part* part, StreamCounts* counts);

  // Reads the stream of `answer`'s request and leaves after `messages` messages (-1: never). False:
  // the request was refused.
  bool Read(const SoloAnswer& answer, bool http, int64_t messages = -1);

 private:
  bool CheckAnswer(const SoloAnswer& answer, const AnswerEnd& seen, bool left);

  const ServerPorts ports_;
  Part* const part_;
  StreamCounts* const counts_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace fox
