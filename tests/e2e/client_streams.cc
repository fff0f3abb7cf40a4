// ClientStreams: see client_streams.h.
#include "tests/e2e/client_streams.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fox/v1/inference.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/raw_call.h"

namespace fox {
namespace {

using Json = nlohmann::json;

grpc::Status Unavailable(const std::string& why) { return {grpc::StatusCode::UNAVAILABLE, why}; }

v1::GenerateRequest RequestOf(const StreamRequest& request) {
  v1::GenerateRequest out;
  out.set_text(request.prompt);
  out.mutable_sampling()->set_temperature(request.temperature);
  out.mutable_sampling()->set_seed(request.seed);
  out.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(request.max_tokens));
  out.mutable_stopping()->set_ignore_eos(true);
  out.mutable_output()->set_text(true);
  out.mutable_output()->set_token_ids(true);
  return out;
}

AnswerEnd ReadGrpc(const std::shared_ptr<grpc::Channel>& channel, const StreamRequest& request,
                   const std::function<bool()>& on_event) {
  AnswerEnd end;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  auto reader = v1::Inference::NewStub(channel)->GenerateStream(&context, RequestOf(request));
  v1::GenerateDelta event;
  while (reader->Read(&event)) {
    end.text += event.delta().text();
    end.ids.insert(end.ids.end(), event.delta().token_ids().begin(),
                   event.delta().token_ids().end());
    end.finished |= event.has_finish();
    if (on_event && !event.has_prompt() && !on_event()) context.TryCancel();
  }
  end.status = reader->Finish();
  return end;
}

// What an event says, added to what is there.
void AddEvent(const Json& event, AnswerEnd* end) {
  if (event.contains("error")) {
    // An error that comes within a stream has no status of HTTP; its words say which.
    const std::string message = event["error"].value("message", "");
    end->status = absl::StrContains(message, "numerical failure")
                      ? grpc::Status(grpc::StatusCode::INTERNAL, message)
                      : Unavailable(message);
  } else if (event.contains("choices") && !event["choices"].empty()) {
    end->text += event["choices"][0].value("text", "");
    end->finished |= !event["choices"][0]["finish_reason"].is_null();
  }
}

AnswerEnd ReadHttp(int port, const StreamRequest& request, const std::function<bool()>& on_event) {
  AnswerEnd end;
  end.http = true;
  end.status = Unavailable("the stream was cut");
  HttpClient client(port);
  const Json body = {{"prompt", request.prompt},           {"seed", request.seed},
                     {"temperature", request.temperature}, {"stream", true},
                     {"max_tokens", request.max_tokens},   {"ignore_eos", true}};
  client.SendRequest("POST", "/v1/completions", body.dump());
  if (!client.ReadUntil("\r\n\r\n")) return end;
  if (!absl::StartsWith(client.received(), "HTTP/1.1 200 ")) {
    end.status = StatusOf(client.Read());
    return end;
  }
  // An event is one chunk: "data: {...}\n\n".
  for (size_t at = 0;;) {
    const size_t begin = client.received().find("data: ", at);
    at = begin == std::string::npos ? begin : client.received().find("\n\n", begin);
    if (at == std::string::npos) {
      at = begin == std::string::npos ? client.received().size() : begin;
      at -= std::min<size_t>(at, 5);  // half of "data: "
      if (!client.ReadMore()) return end;
      continue;
    }
    const std::string data = client.received().substr(begin + 6, at - begin - 6);
    if (data == "[DONE]") {
      const bool well = end.finished && client.ReadUntil("\r\n0\r\n\r\n");
      if (well) end.status = grpc::Status::OK;
      return end;
    }
    const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_discarded()) AddEvent(event, &end);
    if (on_event && !on_event()) return end;
  }
}

}  // namespace

std::string AnswerEnd::DebugString() const {
  return absl::StrCat(http ? "HTTP" : "gRPC", ": ", static_cast<int>(status.error_code()), " ",
                      status.error_message(), " after '", text.substr(0, 200), "'");
}

grpc::Status StatusOf(const HttpReply& answer) {
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

AnswerEnd ReadAnswer(const ServerPorts& ports, const StreamRequest& request,
                     const std::function<bool()>& on_event,
                     std::shared_ptr<grpc::Channel> channel) {
  if (request.http) return ReadHttp(ports.http, request, on_event);
  if (channel == nullptr) channel = ConnectTo(ports.grpc);
  return ReadGrpc(channel, request, on_event);
}

ClientStreams::ClientStreams(const ServerPorts& ports, const std::vector<StreamRequest>& requests)
    : ends_(requests.size()) {
  for (size_t i = 0; i < requests.size(); ++i) {
    threads_.emplace_back([=, this, request = requests[i]] {
      bool started = false;
      const auto start = [&] {
        if (std::exchange(started, true)) return true;
        const std::lock_guard<std::mutex> lock(mutex_);
        ++started_;
        changed_.notify_all();
        return true;
      };
      AnswerEnd end = ReadAnswer(ports, request, start);
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

}  // namespace fox
