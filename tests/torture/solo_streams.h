// Streams of a real model, read by each of its endpoints and compared with the same request's
// answer when it ran alone: what a client saw is that answer, or its beginning.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "tests/torture/part.h"
#include "tests/torture/server_process.h"

namespace fox {

// A request and what it must bring.
struct SoloAnswer {
  std::string prompt;
  uint32_t max_tokens = 0;
  float temperature = 0;
  uint64_t seed = 0;
  std::vector<uint32_t> ids;
  std::string text;
};

enum class Endpoint { kFox, kHttp };

// How a stream ended, as its client sees it.
enum class StreamEnd {
  kWhole,    // to its end
  kCut,      // it had begun, and the server or the client broke it off
  kRefused,  // before its first token
};

// Counts over all streams; any thread.
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

  // Reads a stream by `endpoint` and leaves after `messages` of them; -1: reads all.
  StreamEnd Read(Endpoint endpoint, const SoloAnswer& answer, int64_t messages = -1);

 private:
  struct Seen {
    std::vector<uint32_t> ids;
    std::string text;
    bool finished = false, left = false;
    int status = 0;  // of gRPC; HTTP's are translated
    std::string reason;
  };
  Seen ReadFox(const SoloAnswer& answer, int64_t messages);
  Seen ReadHttp(const SoloAnswer& answer, int64_t messages);
  StreamEnd Judge(Endpoint endpoint, const SoloAnswer& answer, const Seen& seen);

  const ServerPorts ports_;
  Part* const part_;
  StreamCounts* const counts_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace fox
