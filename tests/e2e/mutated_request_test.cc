// A thousand random requests through real gRPC: half are messages with random fields, half are
// bytes of such messages, mutated. The server stays alive and answers each with an allowed code.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "tests/e2e/test_server.h"

namespace fox {
namespace {

using google::protobuf::FieldDescriptor;

class RandomMessage {
 public:
  explicit RandomMessage(uint32_t seed) : random_(seed) {}

  uint64_t Below(uint64_t n) { return random_() % n; }

  void Fill(google::protobuf::Message* message, int depth) {
    const google::protobuf::Descriptor* descriptor = message->GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor* field = descriptor->field(i);
      if (Below(6) != 0) continue;
      const uint64_t count = field->is_repeated() ? Below(4) : 1;
      for (uint64_t k = 0; k < count; ++k) Set(message, field, depth);
    }
  }

 private:
  void Set(google::protobuf::Message* message, const FieldDescriptor* field, int depth) {
    const google::protobuf::Reflection* reflection = message->GetReflection();
    const bool repeated = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth < 3) {
          Fill(repeated ? reflection->AddMessage(message, field)
                        : reflection->MutableMessage(message, field),
               depth + 1);
        }
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        if (repeated) {
          reflection->AddString(message, field, Text());
        } else {
          reflection->SetString(message, field, Text());
        }
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        if (repeated) {
          reflection->AddUInt32(message, field, static_cast<uint32_t>(Number()));
        } else {
          reflection->SetUInt32(message, field, static_cast<uint32_t>(Number()));
        }
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection->SetUInt64(message, field, Number());
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        reflection->SetInt32(message, field, static_cast<int32_t>(Number()));
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        reflection->SetFloat(message, field, Float());
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(message, field, Below(2) == 0);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection->SetEnumValue(message, field, static_cast<int>(Below(5)));
        break;
      default:
        FAIL() << field->full_name();
    }
  }

  std::string Text() {
    std::string text(Below(30), 'x');
    for (char& c : text) c = static_cast<char>(Below(16) == 0 ? 0 : 'a' + Below(26));
    return text;
  }
  uint64_t Number() {
    const uint64_t numbers[] = {0, 1, 2, 3, 16, 17, 255, 259, 260, 1u << 31, ~uint64_t{0}};
    return numbers[Below(std::size(numbers))];
  }
  float Float() {
    const float infinity = std::numeric_limits<float>::infinity();
    const float numbers[] = {0, -0.0f, 0.5f, 1, -1, 1e-40f, 3e38f, infinity, -infinity, NAN, -20};
    return numbers[Below(std::size(numbers))];
  }

  std::mt19937 random_;
};

TEST(MutatedRequestTest, TheServerAnswersWithAllowedCodes) {
  TestServer server;
  grpc::GenericStub stub(server.channel);
  const std::set<grpc::StatusCode> allowed = {
      grpc::OK,        grpc::INVALID_ARGUMENT,  grpc::OUT_OF_RANGE,
      grpc::NOT_FOUND, grpc::DEADLINE_EXCEEDED, grpc::UNIMPLEMENTED};
  const char* const methods[] = {"/fox.v1.Inference/Generate",   "/fox.v1.Inference/Score",
                                 "/fox.v1.Inference/Abort",      "/fox.v1.Tokenizer/Tokenize",
                                 "/fox.v1.Tokenizer/Detokenize", "/fox.v1.Info/GetModelInfo"};
  RandomMessage random(20240607);
  std::map<grpc::StatusCode, int> seen;
  for (int round = 0; round < 1000; ++round) {
    v1::GenerateRequest request;
    random.Fill(&request, 0);
    if (random.Below(4) != 0) request.clear_model();
    if (random.Below(2) == 0) request.mutable_stopping()->set_max_tokens(5);
    if (random.Below(2) == 0) request.set_text("some text");
    std::string bytes = request.SerializeAsString();
    if (round % 2 == 1) {
      for (uint64_t k = random.Below(4); k > 0 && !bytes.empty(); --k) {
        bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
      }
      if (random.Below(8) == 0) bytes.resize(random.Below(bytes.size() + 1));
    }
    grpc::ClientContext context;
    SetTimeout(&context, 5000);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer message(&slice, 1);
    grpc::ByteBuffer response;
    grpc::CompletionQueue queue;
    const char* method = methods[random.Below(3) != 0 ? 0 : random.Below(std::size(methods))];
    auto call = stub.PrepareUnaryCall(&context, method, message, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    ++seen[status.error_code()];
    EXPECT_EQ(allowed.count(status.error_code()), 1u)
        << "round " << round << " " << method << ": " << status.error_code() << " "
        << status.error_message();
    EXPECT_LE(status.error_message().size(), 1024u);
    EXPECT_EQ(status.error_message().find('/'), std::string::npos) << status.error_message();
  }
  EXPECT_GT(seen[grpc::OK], 50);
  EXPECT_GT(seen[grpc::INVALID_ARGUMENT], 100);
  EXPECT_TRUE(server.WaitIdle());

  grpc::ClientContext context;
  SetTimeout(&context);
  v1::GenerateResponse response;
  ASSERT_TRUE(server.inference->Generate(&context, GreedyRequest("alive", 5), &response).ok());
  EXPECT_EQ(response.completions(0).text(), ExpectedText("alive", 5));
}

}  // namespace
}  // namespace fox
