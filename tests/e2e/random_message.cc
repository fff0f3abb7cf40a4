// RandomMessage: see random_message.h.
#include "tests/e2e/random_message.h"

#include <cmath>
#include <iterator>
#include <limits>

#include "google/protobuf/descriptor.h"
#include "kernels/core/check.h"

namespace fox {

using google::protobuf::FieldDescriptor;

void RandomMessage::Fill(google::protobuf::Message* message, int depth) {
  const google::protobuf::Descriptor* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (Below(6) != 0) continue;
    const uint64_t count = field->is_repeated() ? Below(4) : 1;
    for (uint64_t k = 0; k < count; ++k) Set(message, field, depth);
  }
}

void RandomMessage::Mutate(std::string* bytes) {
  for (uint64_t k = Below(4); k > 0 && !bytes->empty(); --k) {
    (*bytes)[Below(bytes->size())] = static_cast<char>(Below(256));
  }
  if (Below(8) == 0) bytes->resize(Below(bytes->size() + 1));
}

void RandomMessage::Set(google::protobuf::Message* message, const FieldDescriptor* field,
                        int depth) {
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
      FOX_CHECK(false);  // a type that no request has
  }
}

std::string RandomMessage::Text() {
  std::string text(Below(30), 'x');
  for (char& c : text) c = static_cast<char>(Below(16) == 0 ? 0 : 'a' + Below(26));
  return text;
}

uint64_t RandomMessage::Number() {
  const uint64_t numbers[] = {0, 1, 2, 3, 16, 17, 255, 259, 260, 1u << 31, ~uint64_t{0}};
  return numbers[Below(std::size(numbers))];
}

float RandomMessage::Float() {
  const float infinity = std::numeric_limits<float>::infinity();
  const float numbers[] = {0, -0.0f, 0.5f, 1, -1, 1e-40f, 3e38f, infinity, -infinity, NAN, -20};
  return numbers[Below(std::size(numbers))];
}

}  // namespace fox
