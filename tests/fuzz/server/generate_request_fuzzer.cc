// Messages of fox.v1, converted to engine requests. The first byte chooses a GenerateRequest or a
// ScoreRequest, as serialized bytes or with fields that the input chooses, with or without a
// tokenizer.
#include <algorithm>
#include <string>
#include <vector>

#include "fox/v1/inference.pb.h"
#include "tests/fuzz/server/message_filler.h"
#include "tests/fuzz/server/request_world.h"

namespace fox {
namespace {

// False: the bytes are no message. gRPC refuses them before our code sees them.
template <class Message>
bool Read(FuzzInput& in, bool raw, Message* message) {
  if (raw) return message->ParseFromString(in.Rest());
  MessageFiller(in).Fill(message);
  // As it would come over the wire: proto3 has no strings that are not UTF-8.
  const std::string bytes = message->SerializeAsString();
  return message->ParseFromString(bytes);
}

template <class Message>
void Check(const Message& request, const absl::StatusOr<GenerationSpec>& spec,
           const absl::StatusOr<GenerationSpec>& again, bool seeded,
           const ConversionContext& context) {
  FOX_CHECK(spec.status() == again.status());
  if (!spec.ok()) return CheckRefusal(spec.status());
  CheckSpec(*spec, context);
  const std::vector<int32_t>& prompt = spec->sequences.front().prompt;
  FOX_CHECK(!request.has_truncate_prompt_tokens() ||
            prompt.size() <= request.truncate_prompt_tokens());
  if (request.has_token_ids()) {  // the ids at the end stay
    const auto& ids = request.token_ids().ids();
    FOX_CHECK(std::equal(prompt.rbegin(), prompt.rend(), ids.rbegin(),
                         [](int32_t a, uint32_t b) { return static_cast<uint32_t>(a) == b; }));
  }
  FOX_CHECK(SameWork(*spec, *again, seeded));
}

}  // namespace

FUZZ_TEST(generate_request) {
  google::protobuf::SetLogHandler(nullptr);
  static const RequestWorld worlds[] = {RequestWorld(true), RequestWorld(false)};
  const size_t choice = in.Byte();
  const bool raw = (choice & 1) != 0, score = (choice & 2) != 0, stream = (choice & 8) != 0;
  const ConversionContext& context = worlds[choice >> 2 & 1].context;
  if (score) {
    v1::ScoreRequest request;
    if (!Read(in, raw, &request)) return;
    Check(request, ConvertScore(request, context), ConvertScore(request, context), /*seeded=*/false,
          context);
    return;
  }
  v1::GenerateRequest request;
  if (!Read(in, raw, &request)) return;
  Check(request, ConvertGenerate(request, stream, context),
        ConvertGenerate(request, stream, context), request.sampling().has_seed(), context);
}

}  // namespace fox
