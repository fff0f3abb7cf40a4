// RandomMessage: see random_message.h.
#include "tests/e2e/random_message.h"

#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "google/protobuf/unknown_field_set.h"

namespace fox {

using google::protobuf::FieldDescriptor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kFloats[] = {0, -0.0f, 0.5f, 1, -1, 1e-40f, 3e38f, kInfinity, -kInfinity, NAN, -20};
constexpr uint64_t kNumbers[] = {0, 1, 2, 3, 16, 17, 255, 259, 260, 1u << 31, ~uint64_t{0}};

std::string RandomMessage::Of(const google::protobuf::Descriptor* type, int depth) {
  google::protobuf::UnknownFieldSet fields;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (Below(6) != 0) continue;
    for (uint64_t left = field->is_repeated() ? Below(4) : 1; left > 0; --left) {
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          if (depth == 3) break;
          fields.AddLengthDelimited(field->number(), Of(field->message_type(), depth + 1));
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          fields.AddLengthDelimited(field->number(), Text());
          break;
        case FieldDescriptor::CPPTYPE_FLOAT:
          fields.AddFixed32(field->number(),
                            std::bit_cast<uint32_t>(kFloats[Below(std::size(kFloats))]));
          break;
        default:  // numbers, booleans, enumerations
          fields.AddVarint(field->number(), kNumbers[Below(std::size(kNumbers))]);
      }
    }
  }
  std::string bytes;
  fields.SerializeToString(&bytes);
  return bytes;
}

void RandomMessage::Mutate(std::string* bytes) {
  for (uint64_t k = Below(4); k > 0 && !bytes->empty(); --k) {
    (*bytes)[Below(bytes->size())] = static_cast<char>(Below(256));
  }
  if (Below(8) == 0) bytes->resize(Below(bytes->size() + 1));
}

std::string RandomMessage::Text() {
  std::string text(Below(30), 'x');
  for (char& c : text) c = static_cast<char>(Below(16) == 0 ? 0 : 'a' + Below(26));
  return text;
}

}  // namespace fox
