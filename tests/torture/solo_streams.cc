// Solo streams: see solo_streams.h.
#include "tests/torture/solo_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fox/v1/inference.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "tests/e2e/http_client.h"
#include "tests/torture/torture_server.h"

namespace fox {
namespace {

void SetMinute(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
}

v1::GenerateRequest FoxRequest(const SoloAnswer& answer) {
  v1::GenerateRequest request;
  request.set_text(answer.prompt);
  request.mutable_sampling()->set_temperature(answer.temperature);
  request.mutable_sampling()->set_seed(answer.seed);
  request.mutable_stopping()->set_max_tokens(answer.max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_text(true);
  request.mutable_output()->set_token_ids(true);
  return request;
}

template <typename T>
bool IsBeginning(const T& part, const T& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

// Reads to the end, or leaves after so many messages (-1: never). `take` keeps what one says.
template <class Event, class Reader, class Seen, class Take>
void ReadAll(Reader& reader, int64_t messages, grpc::ClientContext* context, Seen* seen,
             const Take& take) {
  Event event;
  while (reader.Read(&event)) {
    take(event);
    if (messages >= 0 && messages-- == 0) {
      seen->left = true;
      context->TryCancel();
    }
  }
  const grpc::Status status = reader.Finish();
  seen->status = status.error_code();
  seen->reason = status.error_message();
}

}  // namespace

void StreamCounts::Describe(Part* part) const {
  part->Set("streams_whole", whole.load());
  part->Set("streams_cut", cut.load());
  part->Set("streams_refused", refused.load());
  part->Set("streams_wrong", wrong.load());
  part->Set("odd_status", odd_status.load());
  part->Set("tokens_read", tokens.load());
}

std::vector<SoloAnswer> RunAlone(const ServerPorts& ports) {
  const std::unique_ptr<v1::Inference::Stub> stub = v1::Inference::NewStub(ConnectTo(ports.grpc));
  const std::string sentence = "The King rode through the forest of Zenda, and it began to rain. ";
  const std::vector<std::string> prompts = {"Once upon a time", "Chapter 1", sentence,
                                            sentence + sentence + sentence + sentence,
                                            "\"I am not the King,\" said I, and"};
  std::vector<SoloAnswer> answers;
  for (const uint32_t max_tokens : {4u, 40u, 150u}) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      SoloAnswer answer{prompts[i], max_tokens, i % 2 == 0 ? 0.0f : 0.8f, 7 + i, {}, {}};
      grpc::ClientContext context;
      SetMinute(&context);
      v1::GenerateResponse response;
      if (!stub->Generate(&context, FoxRequest(answer), &response).ok()) return {};
      const v1::Completion& completion = response.completions(0);
      answer.ids.assign(completion.token_ids().begin(), completion.token_ids().end());
      answer.text = completion.text();
      answers.push_back(std::move(answer));
    }
  }
  return answers;
}

SoloReader::SoloReader(const ServerPorts& ports, Part* part, StreamCounts* counts)
    : ports_(ports), part_(part), counts_(counts), channel_(ConnectTo(ports.grpc)) {}

StreamEnd SoloReader::Read(Endpoint endpoint, const SoloAnswer& answer, int64_t messages) {
  return Judge(endpoint, answer,
               endpoint == Endpoint::kFox ? ReadFox(answer, messages) : ReadHttp(answer, messages));
}

SoloReader::Seen SoloReader::ReadFox(const SoloAnswer& answer, int64_t messages) {
  Seen seen;
  grpc::ClientContext context;
  SetMinute(&context);
  const auto reader =
      v1::Inference::NewStub(channel_)->GenerateStream(&context, FoxRequest(answer));
  ReadAll<v1::GenerateDelta>(*reader, messages, &context, &seen, [&](const auto& event) {
    seen.text += event.delta().text();
    for (const uint32_t id : event.delta().token_ids()) seen.ids.push_back(id);
    seen.finished |= event.has_finish();
  });
  return seen;
}

SoloReader::Seen SoloReader::ReadHttp(const SoloAnswer& answer, int64_t messages) {
  Seen seen;
  HttpClient client(ports_.http);
  const nlohmann::json body = {{"prompt", answer.prompt},           {"seed", answer.seed},
                               {"temperature", answer.temperature}, {"stream", true},
                               {"max_tokens", answer.max_tokens},   {"ignore_eos", true}};
  client.SendRequest("POST", "/v1/completions", body.dump(), "Content-Type: application/json\r\n");
  seen.status = grpc::UNAVAILABLE;  // until it has ended well
  size_t at = 0;
  while (true) {
    // An event is one chunk: "data: {...}\n\n".
    const size_t begin = client.received().find("data: ", at);
    const size_t end = begin == std::string::npos ? begin : client.received().find("\n\n", begin);
    if (end == std::string::npos) {
      if (at == 0 && absl::StrContains(client.received(), "\r\n\r\n") &&
          !absl::StrContains(client.received(), " 200 ")) {
        const std::string code = client.received().substr(9, 3);
        seen.status = code == "503"   ? grpc::UNAVAILABLE
                      : code == "429" ? grpc::RESOURCE_EXHAUSTED
                                      : grpc::INTERNAL;
        seen.reason = "HTTP " + code;
        return seen;
      }
      if (!client.ReadMore()) return seen;
      continue;
    }
    const std::string data = client.received().substr(begin + 6, end - begin - 6);
    at = end;
    if (data == "[DONE]") {
      if (seen.finished) seen.status = grpc::OK;
      return seen;
    }
    const nlohmann::json event = nlohmann::json::parse(data, nullptr, false);
    if (event.contains("error")) {
      seen.reason = event["error"].dump();
    } else if (event.contains("choices") && !event["choices"].empty()) {
      seen.text += event["choices"][0]["text"].get<std::string>();
      seen.finished |= !event["choices"][0]["finish_reason"].is_null();
    }
    if (messages >= 0 && messages-- == 0) {
      seen.left = true;
      return seen;
    }
  }
}

StreamEnd SoloReader::Judge(Endpoint endpoint, const SoloAnswer& answer, const Seen& seen) {
  const char* const names[] = {"fox.v1", "HTTP"};
  const std::string name = names[static_cast<size_t>(endpoint)];
  counts_->tokens +=
      static_cast<int64_t>(endpoint == Endpoint::kHttp ? seen.text.size() / 4 : seen.ids.size());
  bool right = IsBeginning(seen.ids, answer.ids) && IsBeginning(seen.text, answer.text);
  if (seen.finished) {
    right = right && seen.text == answer.text &&
            (endpoint == Endpoint::kHttp || seen.ids == answer.ids);
  }
  if (!right) {
    ++counts_->wrong;
    part_->Check(false, absl::StrCat("a stream by ", name, " is not the solo run's"));
  }
  // A stream that ends well has its end.
  if (seen.status == grpc::OK && !seen.finished) {
    ++counts_->wrong;
    part_->Check(false, absl::StrCat("a stream by ", name, " ended well before its end"));
  }
  if (seen.status != grpc::OK && seen.status != grpc::UNAVAILABLE &&
      seen.status != grpc::RESOURCE_EXHAUSTED && !seen.left) {
    ++counts_->odd_status;
    part_->Check(false, absl::StrCat("a stream by ", name,
                                     seen.ids.empty() && seen.text.empty() ? ", refused," : "",
                                     " ended with ", seen.status, " ", seen.reason));
  }
  if (seen.status == grpc::OK) {
    ++counts_->whole;
    return StreamEnd::kWhole;
  }
  if (seen.text.empty() && seen.ids.empty()) {
    ++counts_->refused;
    return StreamEnd::kRefused;
  }
  ++counts_->cut;
  return StreamEnd::kCut;
}

}  // namespace fox
