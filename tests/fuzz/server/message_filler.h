// MessageFiller: a protobuf message of the fields and values that an input chooses, so that few
// bytes reach deep; ranges' ends and special floats come often.
#pragma once

#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {

class MessageFiller {
 public:
  explicit MessageFiller(FuzzInput& in) : in_(in) {}

  void Fill(google::protobuf::Message* message, int depth = 3) {
    const google::protobuf::Descriptor& type = *message->GetDescriptor();
    for (size_t count = in_.Below(8); count > 0 && type.field_count() > 0; --count) {
      Set(message, type.field(static_cast<int>(in_.Byte()) % type.field_count()), depth);
    }
  }

 private:
  using Field = google::protobuf::FieldDescriptor;

  void Set(google::protobuf::Message* message, const Field* field, int depth) {
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
      case Field::CPPTYPE_MESSAGE:
        if (depth == 0) return;
        return Fill(many ? reflection.AddMessage(message, field)
                         : reflection.MutableMessage(message, field),
                    depth - 1);
      case Field::CPPTYPE_STRING:
        return many ? reflection.AddString(message, field, Text())
                    : reflection.SetString(message, field, Text());
      case Field::CPPTYPE_UINT32: {
        const auto value = static_cast<uint32_t>(Number());
        return many ? reflection.AddUInt32(message, field, value)
                    : reflection.SetUInt32(message, field, value);
      }
      case Field::CPPTYPE_INT32: {
        const auto value = static_cast<int32_t>(Number());
        return many ? reflection.AddInt32(message, field, value)
                    : reflection.SetInt32(message, field, value);
      }
      case Field::CPPTYPE_UINT64:
        return many ? reflection.AddUInt64(message, field, Number())
                    : reflection.SetUInt64(message, field, Number());
      case Field::CPPTYPE_FLOAT:
        return many ? reflection.AddFloat(message, field, Float())
                    : reflection.SetFloat(message, field, Float());
      case Field::CPPTYPE_BOOL:
        return many ? reflection.AddBool(message, field, in_.Bool())
                    : reflection.SetBool(message, field, in_.Bool());
      case Field::CPPTYPE_ENUM:
        if (!many) reflection.SetEnumValue(message, field, static_cast<int>(in_.Below(6)));
        return;
      default:
        return;
    }
  }

  std::string Text() { return in_.Bool() ? in_.Text(100) : std::string(in_.Below(2), 'a'); }

  uint64_t Number() {
    constexpr uint64_t kNumbers[] = {0,  1,   2,   16,       17,         63,        64,
                                     65, 128, 256, 258,      259,        1024,      1025,
                                     20, 21,  100, 1u << 31, UINT32_MAX, UINT64_MAX};
    const size_t choice = in_.Below(24);
    return choice < std::size(kNumbers) ? kNumbers[choice] : in_.Byte();
  }

  float Float() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kFloats[] = {0,    -0.0f,  0.5f,  1,   1.0001f,   -1,         2,   2.0001f, 100,
                                 -100, 1e-45f, 3e38f, -20, kInfinity, -kInfinity, NAN, -10};
    return kFloats[in_.Below(std::size(kFloats))];
  }

  FuzzInput& in_;
};

}  // namespace fox
