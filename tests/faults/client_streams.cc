// ClientStreams and HealthWatch: see client_streams.h.
#include "tests/faults/client_streams.h"

#include <chrono>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fox/v1/inference.grpc.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/http_client.h"
#include "tests/faults/fault_page.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr int kServing = 1;

v1::GenerateRequest RequestOf(const StreamRequest& request) {
  v1::GenerateRequest out;
  out.set_text(request.prompt);
  out.mutable_sampling()->set_temperature(0);
  out.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(request.max_tokens));
  out.mutable_stopping()->set_ignore_eos(true);
  return out;
}

AnswerEnd ReadGrpc(int port, const StreamRequest& request, grpc::ClientContext* context,
                   const std::function<void()>& on_text) {
  AnswerEnd end;
  const auto stub = v1::Inference::NewStub(ConnectTo(port));
  auto reader = stub->GenerateStream(context, RequestOf(request));
  v1::GenerateDelta event;
  while (reader->Read(&event)) {
    if (!event.has_delta()) continue;
    end.text += event.delta().text();
    if (on_text) on_text();
  }
  end.status = reader->Finish();
  return end;
}

grpc::Status Unavailable(const std::string& why) { return {grpc::StatusCode::UNAVAILABLE, why}; }

// The status of an HTTP answer that is not 200, or of an error in a stream.
grpc::Status StatusOf(int http_status, const std::string& body) {
  switch (http_status) {
    case 503:
      return Unavailable(body);
    case 429:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, body};
    case 500:
      return {grpc::StatusCode::INTERNAL, body};
    default:
      return {grpc::StatusCode::UNKNOWN, absl::StrCat(http_status, " ", body)};
  }
}

// An error that comes within a stream has no status of HTTP; its words say which.
grpc::Status StreamError(const Json& error) {
  const std::string message = error.at("message");
  const bool internal = absl::StrContains(message, "numerical failure");
  return internal ? grpc::Status(grpc::StatusCode::INTERNAL, message) : Unavailable(message);
}

AnswerEnd ReadHttp(int port, const StreamRequest& request, const std::function<void()>& on_text) {
  AnswerEnd end;
  end.http = true;
  HttpClient client(port);
  client.SendRequest("POST", "/v1/completions",
                     Json{{"prompt", request.prompt},
                          {"max_tokens", request.max_tokens},
                          {"temperature", 0},
                          {"ignore_eos", true},
                          {"stream", true}}
                         .dump(),
                     "Content-Type: application/json\r\n");
  if (!client.ReadUntil("\r\n\r\n")) {
    end.status = Unavailable("the connection ended");
    return end;
  }
  if (client.ReadUntil("data: ") && on_text) on_text();
  const HttpReply reply = client.Read();
  if (reply.status != 200) {
    end.status = StatusOf(reply.status, reply.body);
    return end;
  }
  end.status = Unavailable("the stream ended");
  for (const std::string& data : Events(reply.body)) {
    if (data == "[DONE]") {
      if (end.status.error_message() == "the stream ended") end.status = grpc::Status::OK;
      break;
    }
    const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded()) break;  // cut off
    if (event.contains("error")) {
      end.status = StreamError(event["error"]);
      if (end.status.error_message() == "the stream ended") break;
    } else if (!event["choices"].empty()) {
      end.text += event["choices"][0].value("text", "");
    }
  }
  return end;
}

}  // namespace

std::string AnswerEnd::DebugString() const {
  return absl::StrCat(http ? "HTTP" : "gRPC", ": ", static_cast<int>(status.error_code()), " ",
                      status.error_message(), " after '", text.substr(0, 200), "'");
}

std::shared_ptr<grpc::Channel> ConnectTo(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

AnswerEnd ReadAnswer(int grpc_port, int http_port, const StreamRequest& request,
                     grpc::ClientContext* context, const std::function<void()>& on_text) {
  return request.http ? ReadHttp(http_port, request, on_text)
                      : ReadGrpc(grpc_port, request, context, on_text);
}

ClientStreams::ClientStreams(int grpc_port, int http_port,
                             const std::vector<StreamRequest>& requests)
    : ends_(requests.size()) {
  for (size_t i = 0; i < requests.size(); ++i) {
    threads_.emplace_back([=, this, request = requests[i]] {
      bool started = false;
      const auto start = [&] {
        if (std::exchange(started, true)) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        ++started_;
        changed_.notify_all();
      };
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      AnswerEnd end = ReadAnswer(grpc_port, http_port, request, &context, start);
      start();
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_[i] = std::move(end);
    });
  }
}

ClientStreams::~ClientStreams() { Join(); }

void ClientStreams::WaitText() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return started_ == ends_.size(); });
}

std::vector<AnswerEnd> ClientStreams::Join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return ends_;
}

HealthWatch::HealthWatch(int grpc_port)
    : channel_(ConnectTo(grpc_port)), thread_([this] { Read(); }) {}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  thread_.join();
}

void HealthWatch::Read() {
  grpc::GenericStub stub(channel_);
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue);
  call->StartCall(&tag);
  queue.Next(&tag, &ok);
  const grpc::Slice nothing("");  // of all services
  if (ok) {
    call->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), &tag);
    queue.Next(&tag, &ok);
  }
  while (ok) {
    grpc::ByteBuffer answer;
    call->Read(&answer, &tag);
    queue.Next(&tag, &ok);
    const int64_t now = FaultPage::Now();
    grpc::Slice bytes;
    google::protobuf::Int32Value status;  // an enum has the same form
    const bool parsed = ok && answer.DumpToSingleSlice(&bytes).ok() &&
                        status.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size()));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (parsed && status.value() == kServing) {
      serving_ = true;
    } else if (not_serving_ns_ == 0) {
      not_serving_ns_ = now;
    }
    changed_.notify_all();
  }
  grpc::Status status;
  call->Finish(&status, &tag);
  queue.Next(&tag, &ok);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (not_serving_ns_ == 0) not_serving_ns_ = FaultPage::Now();
  changed_.notify_all();
}

bool HealthWatch::WaitServing() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(10),
                    [this] { return serving_ || not_serving_ns_ != 0; });
  return serving_ && not_serving_ns_ == 0;
}

int64_t HealthWatch::WaitNotServing() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(60), [this] { return not_serving_ns_ != 0; });
  return not_serving_ns_;
}

}  // namespace fox
