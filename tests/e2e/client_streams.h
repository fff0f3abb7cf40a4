// Streams of a server in another process, by either endpoint, as its clients see them: what has
// come and how it ended.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/server_process.h"

namespace fox {

// An answer without an end of its own, as a stream.
struct StreamRequest {
  std::string prompt;
  int max_tokens = 100;
  bool http = false;
  float temperature = 0;
  uint64_t seed = 0;
};

// How it ended. In gRPC's words: a connection that ends before the answer does is UNAVAILABLE.
struct AnswerEnd {
  bool http = false;
  grpc::Status status;
  std::string text;
  std::vector<uint32_t> ids;  // by gRPC alone
  bool finished = false;      // its last event is there

  std::string DebugString() const;
};

grpc::Status StatusOf(const HttpReply& answer);

// Blocks until the end, at most a minute. `on_event` is called after each event; false: the client
// leaves. `channel`: for gRPC; null: one of its own.
AnswerEnd ReadAnswer(const ServerPorts& ports, const StreamRequest& request,
                     const std::function<bool()>& on_event = nullptr,
                     std::shared_ptr<grpc::Channel> channel = nullptr);

// Answers that are read at the same time, a thread each.
class ClientStreams {
 public:
  ClientStreams(const ServerPorts& ports, const std::vector<StreamRequest>& requests);
  ~ClientStreams();  // Join()

  // Waits until each has brought something, or has ended.
  void WaitText();
  // In the order of the requests, when all have ended.
  std::vector<AnswerEnd> Join();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t started_ = 0;
  std::vector<AnswerEnd> ends_;
  std::vector<std::thread> threads_;
};

}  // namespace fox
