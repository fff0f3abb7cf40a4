// The wire: buffers, metadata, statuses, deadlines. See wire.h.
#include "server/rpc/wire.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/duration.pb.h"
#include "grpc/support/time.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "kernels/core/check.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

using MessageTraits = grpc::SerializationTraits<google::protobuf::Message>;

constexpr size_t kMaxShortMessageBytes = 256 << 10;
constexpr size_t kMaxStatusBytes = 1024;
constexpr size_t kMaxCopiedBytes = 4096;

// The first entry of that name; empty: there is none.
absl::string_view MetadataOf(const grpc::CallbackServerContext& context, absl::string_view key) {
  const auto found = context.client_metadata().find(grpc::string_ref(key.data(), key.size()));
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

// Encodes a length-delimited field with a number below 16.
std::string Field(int number, const std::string& bytes) {
  FOX_CHECK(number > 0 && number < 16);
  std::string out(1, static_cast<char>(number << 3 | 2));
  size_t rest = bytes.size();
  for (; rest >= 0x80; rest >>= 7) out.push_back(static_cast<char>(rest | 0x80));
  out.push_back(static_cast<char>(rest));
  return out + bytes;
}

// google.rpc.Status with a google.rpc.RetryInfo, whose .proto files distributions do not carry.
std::string RetryDetails(const grpc::Status& status, int64_t milliseconds) {
  google::protobuf::Duration delay;
  delay.set_seconds(milliseconds / 1000);
  delay.set_nanos(static_cast<int32_t>(milliseconds % 1000 * 1000000));
  google::protobuf::Any detail;
  detail.set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  detail.set_value(Field(1, delay.SerializeAsString()));
  const std::string code = {1 << 3, static_cast<char>(status.error_code())};
  return code + Field(2, status.error_message()) + Field(3, detail.SerializeAsString());
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& in, google::protobuf::Message* out) {
  if (!in.Valid()) return absl::InvalidArgumentError("no whole message came");
  grpc::ByteBuffer consumed(in);  // shares the bytes
  if (consumed.Length() == 0) return absl::OkStatus();
  if (MessageTraits::Deserialize(&consumed, out).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError("the request is not a valid " +
                                    std::string(out->GetDescriptor()->full_name()) +
                                    ": it is malformed or a string in it is not UTF-8");
}

absl::Status ParseShortMessage(const grpc::ByteBuffer& in, google::protobuf::Message* out) {
  if (in.Length() <= kMaxShortMessageBytes) return ParseMessage(in, out);
  return absl::InvalidArgumentError("the request is larger than 256 KiB");
}

grpc::ByteBuffer ToByteBuffer(std::string bytes) {
  if (bytes.size() <= kMaxCopiedBytes) {  // one allocation at most, none for a token's few bytes
    const grpc::Slice copied(bytes.data(), bytes.size());
    return grpc::ByteBuffer(&copied, 1);
  }
  auto* const owned = new std::string(std::move(bytes));
  const grpc::Slice slice(
      owned->data(), owned->size(), [](void* string) { delete static_cast<std::string*>(string); },
      owned);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer TakeBytes(const grpc::ByteBuffer* request) {
  grpc::ByteBuffer taken;
  taken.Swap(const_cast<grpc::ByteBuffer*>(request));  // the library's own, and not constant
  return taken;
}

CallInfo DescribeCall(const char* method, const grpc::CallbackServerContext& context,
                      ServerCore& core) {
  const std::string& client = core.client_metadata();
  const size_t clients = client.empty() ? 0 : context.client_metadata().count(client);
  CallInfo call =
      core.Describe(method, context.peer(),
                    {MetadataOf(context, "authorization"), MetadataOf(context, "traceparent"),
                     clients == 0 ? "" : MetadataOf(context, client), clients > 1});
  call.deadline = DeadlineOf(context.raw_deadline(), call.arrival);
  return call;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message().data(), status.message().size());
  if (message.size() > kMaxStatusBytes) {
    size_t end = kMaxStatusBytes;
    while (end > 0 && IsContinuationByte(message[end])) --end;
    message.resize(end);  // not inside a UTF-8 character
  }
  // The canonical codes have the same numbers on both sides.
  static_assert(static_cast<int>(absl::StatusCode::kCancelled) == grpc::CANCELLED);
  static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) == grpc::UNAUTHENTICATED);
  // The server's own failures are INTERNAL.
  const bool ours = absl::IsUnknown(status) || absl::IsDataLoss(status);
  return grpc::Status(ours ? grpc::INTERNAL : static_cast<grpc::StatusCode>(status.code()),
                      message);
}

grpc::Status EndStatus(const absl::Status& status, int64_t retry_after_ms,
                       grpc::CallbackServerContext* context) {
  grpc::Status out = ToGrpc(status);
  if (out.error_code() != grpc::RESOURCE_EXHAUSTED) return out;
  context->AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(retry_after_ms));
  context->AddTrailingMetadata("retry-after-ms", absl::StrCat(retry_after_ms));
  return grpc::Status(out.error_code(), out.error_message(), RetryDetails(out, retry_after_ms));
}

Seconds DeadlineOf(gpr_timespec deadline, Seconds now) {
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return kNever;
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return now + static_cast<double>(left.tv_sec) + 1e-9 * left.tv_nsec;
}

}  // namespace fox
