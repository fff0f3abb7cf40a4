// The fixed requests of the solo run, and the comparison of other streams with its answers.
#include "tests/torture/solo_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fixtures/raw_call.h"

namespace fox {
namespace {

template <typename T>
bool IsBeginning(const T& part, const T& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
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
  const std::string sentence = "The King rode through the forest of Zenda, and it began to rain. ";
  const std::vector<std::string> prompts = {"Once upon a time", "Chapter 1", sentence,
                                            sentence + sentence + sentence + sentence,
                                            "\"I am not the King,\" said I, and"};
  std::vector<SoloAnswer> answers;
  for (const int max_tokens : {4, 40, 150}) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const StreamRequest request{prompts[i], max_tokens, false, i % 2 == 0 ? 0.0f : 0.8f, 7 + i};
      AnswerEnd end = ReadAnswer(ports, request);
      if (!end.status.ok()) return {};
      answers.push_back({request, std::move(end.ids), std::move(end.text)});
    }
  }
  return answers;
}

SoloReader::SoloReader(const ServerPorts& ports, Part* part, StreamCounts* counts)
    : ports_(ports), part_(part), counts_(counts), channel_(ConnectTo(ports.grpc)) {}

bool SoloReader::Read(const SoloAnswer& answer, bool http, int64_t messages) {
  StreamRequest request = answer.request;
  request.http = http;
  bool left = false;
  const auto on_event = [&] {
    left |= messages >= 0 && messages-- == 0;
    return !left;
  };
  const AnswerEnd seen = ReadAnswer(ports_, request, on_event, channel_);
  return CheckAnswer(answer, seen, left);
}

bool SoloReader::CheckAnswer(const SoloAnswer& answer, const AnswerEnd& seen, bool left) {
  const std::string name = seen.http ? "a stream by HTTP" : "a stream by fox.v1";
  counts_->tokens += static_cast<int64_t>(seen.http ? seen.text.size() / 4 : seen.ids.size());
  bool right = IsBeginning(seen.ids, answer.ids) && IsBeginning(seen.text, answer.text);
  if (seen.finished) {
    right = right && seen.text == answer.text && (seen.http || seen.ids == answer.ids);
  }
  if (!right) {
    ++counts_->wrong;
    part_->Check(false, name + " is not the solo run's");
  }
  const grpc::StatusCode code = seen.status.error_code();
  if (code == grpc::OK && !seen.finished) {
    ++counts_->wrong;
    part_->Check(false, name + " ended well before its end");
  }
  const bool refused = code != grpc::OK && seen.text.empty() && seen.ids.empty();
  if (code != grpc::OK && code != grpc::UNAVAILABLE && code != grpc::RESOURCE_EXHAUSTED && !left) {
    ++counts_->odd_status;
    part_->Check(false, absl::StrCat(name, refused ? ", refused," : "", " ended with ", code, " ",
                                     seen.status.error_message()));
  }
  ++(code == grpc::OK ? counts_->whole : refused ? counts_->refused : counts_->cut);
  return !refused;
}

}  // namespace fox
