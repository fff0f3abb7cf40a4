// What clients of a server see while it is made to fail: streams through both endpoints, and
// health.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "tests/faults/http_exchange.h"

namespace fox {

// In gRPC's words: a connection that ends before the answer does is UNAVAILABLE.
grpc::Status StatusOf(const HttpText& answer);

// How an answer ended.
struct AnswerEnd {
  bool http = false;
  grpc::Status status;
  std::string text;

  std::string DebugString() const;
};

// A greedy answer without an end of its own, as a stream, by either endpoint.
struct StreamRequest {
  std::string prompt;
  int max_tokens = 100;
  bool http = false;
};

std::shared_ptr<grpc::Channel> ConnectTo(int port);
// Blocks until the end; tells of each piece of text as it comes.
AnswerEnd ReadAnswer(int grpc_port, int http_port, const StreamRequest& request,
                     grpc::ClientContext* context, const std::function<void()>& on_text = nullptr);

// Answers that are read at the same time, a thread each.
class ClientStreams {
 public:
  ClientStreams(int grpc_port, int http_port, const std::vector<StreamRequest>& requests);
  ~ClientStreams();  // Join()

  // Waits until each has brought text, or has ended.
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

// A Watch of grpc.health.v1.
class HealthWatch {
 public:
  explicit HealthWatch(int grpc_port);
  ~HealthWatch();

  // Waits for the first answer.
  bool WaitServing();
  // When NOT_SERVING came, or the end of the connection; FaultPage::Now(). Waits for it.
  int64_t WaitNotServing();

 private:
  void Read();

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false;
  int64_t not_serving_ns_ = 0;
  std::thread thread_;
};

}  // namespace fox
