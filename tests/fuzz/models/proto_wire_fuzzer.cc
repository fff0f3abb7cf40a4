// ProtoWire against protobuf's own reading of a message of unknown fields: it accepts no more
// (less: groups, which no file of ours has, and tags of 33 bits and more), and sees the same
// fields.
#include <string>

#include "google/protobuf/empty.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "models/tokenizer/proto_wire.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

bool HasGroup(const UnknownFieldSet& fields) {
  for (int i = 0; i < fields.field_count(); ++i) {
    if (fields.field(i).type() == UnknownField::TYPE_GROUP) return true;
  }
  return false;
}

void CheckField(const ProtoWire& wire, const UnknownField& field) {
  FOX_CHECK(wire.field() == static_cast<uint32_t>(field.number()));
  FOX_CHECK(wire.IsVarint() == (field.type() == UnknownField::TYPE_VARINT));
  FOX_CHECK(wire.IsBytes() == (field.type() == UnknownField::TYPE_LENGTH_DELIMITED));
  FOX_CHECK(wire.IsFixed32() == (field.type() == UnknownField::TYPE_FIXED32));
  if (wire.IsVarint()) FOX_CHECK(wire.varint() == field.varint());
  if (wire.IsBytes()) FOX_CHECK(wire.AsString() == field.length_delimited());
  if (!wire.IsFixed32()) return;
  const float value = wire.AsFloat();
  uint32_t bits = 0;
  static_assert(sizeof(bits) == sizeof(value));
  __builtin_memcpy(&bits, &value, sizeof(bits));
  FOX_CHECK(bits == field.fixed32());
}

// As protobuf itself writes the fields, they are accepted.
void CheckWritten(const UnknownFieldSet& fields) {
  std::string written;
  FOX_CHECK(fields.SerializeToString(&written));
  ProtoWire wire(written, 0, written.size());
  int count = 0;
  while (wire.Next()) CheckField(wire, fields.field(count++));
  FOX_CHECK(!wire.malformed() && count == fields.field_count());
}

// Messages in messages, as far as they read as such.
void WalkMessages(ProtoWire wire, int depth) {
  while (wire.Next()) {
    if (wire.IsBytes() && depth > 0) WalkMessages(wire.AsMessage(), depth - 1);
  }
}

}  // namespace

FUZZ_TEST(proto_wire) {
  const std::string bytes = in.Rest();
  google::protobuf::Empty message;
  const bool valid = message.ParseFromString(bytes);
  const UnknownFieldSet& fields = message.GetReflection()->GetUnknownFields(message);
  ProtoWire wire(bytes, 0, bytes.size());
  int count = 0;
  std::string joined;
  while (wire.Next()) {
    if (valid && !HasGroup(fields)) {
      FOX_CHECK(count < fields.field_count());
      CheckField(wire, fields.field(count));
    }
    ++count;
    joined += wire.AsField();
  }
  if (!wire.malformed()) {
    FOX_CHECK(valid && count == fields.field_count());
    FOX_CHECK(joined == bytes);
  }
  if (valid && !HasGroup(fields)) CheckWritten(fields);
  WalkMessages(ProtoWire(bytes, 0, bytes.size()), 4);
}

}  // namespace fox
