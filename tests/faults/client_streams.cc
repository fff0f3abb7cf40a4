// ClientStreams and HealthWatch: see client_streams.h.
#include "tests/faults/client_streams.h"

#include <chrono>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fox/v1/inference.grpc.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "nlohmann/json.hpp"
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

// An error that comes within a stream has no status of HTTP; its words say which.
grpc::Status StreamError(const Json& error) {
  const std::string message = error.at("message");
  const bool internal = absl::StrContains(message, "numerical failure");
  return internal ? grpc::Status(grpc::StatusCode::INTERNAL, message) : Unavailable(message);
}

AnswerEnd ReadHttp(int port, const StreamRequest& request, const std::function<void()>& on_text) {
  const Json body = {{"prompt", request.prompt},
                     {"max_tokens", request.max_tokens},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true}};
  const HttpText answer = PostJson(port, "/v1/completions", body.dump(), on_text);
  AnswerEnd end;
  end.http = true;
  if (answer.status != 200) {
    end.status = StatusOf(answer);
    return end;
  }
  bool done = false;
  for (absl::string_view event : absl::StrSplit(answer.body, "\n\n", absl::SkipEmpty())) {
    absl::ConsumePrefix(&event, "data: ");
    done = event == "[DONE]";
    const Json json = Json::parse(event, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) continue;
    if (json.contains("error")) {
      end.status = StreamError(json["error"]);
    } else if (!json["choices"].empty()) {
      end.text += json["choices"][0].value("text", "");
    }
  }
  if (end.status.ok() && !(done && answer.whole)) end.status = Unavailable("the stream was cut");
  return end;
}

}  // namespace

std::string AnswerEnd::DebugString() const {
  return absl::StrCat(http ? "HTTP" : "gRPC", ": ", static_cast<int>(status.error_code()), " ",
                      status.error_message(), " after '", text.substr(0, 200), "'");
}

grpc::Status StatusOf(const HttpText& answer) {
  switch (answer.status) {
    case 0:
      return Unavailable("no answer");
    case 200:
      return answer.whole ? grpc::Status::OK : Unavailable("the answer was cut");
    case 429:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, answer.body};
    case 500:
      return {grpc::StatusCode::INTERNAL, answer.body};
    case 503:
      return Unavailable(answer.body);
    default:
      return {grpc::StatusCode::UNKNOWN, absl::StrCat(answer.status, " ", answer.body)};
  }
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
