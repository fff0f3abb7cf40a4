// The protobuf wire format without groups, which no file here uses. See proto_wire.h.
#include "models/tokenizer/proto_wire.h"

#include <cstring>

#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr unsigned kMaxBits = 70, kMaxShortBits = 35;  // 10 and 5 bytes, as in protobuf

}  // namespace

bool ProtoWire::Fail() {
  malformed_ = true;
  at_ = end_;
  return false;
}

bool ProtoWire::ReadVarint(unsigned max_bits, uint64_t* value) {
  *value = 0;
  for (unsigned shift = 0; shift < max_bits; shift += 7) {
    if (at_ == end_) return Fail();
    const auto byte = static_cast<uint8_t>(data_[at_++]);
    *value |= static_cast<uint64_t>(byte & 0x7Fu) << shift;
    if (byte < 0x80) return true;
  }
  return Fail();
}

bool ProtoWire::Next() {
  if (at_ == end_) return false;
  field_begin_ = at_;
  uint64_t tag = 0;
  if (!ReadVarint(kMaxShortBits, &tag)) return false;
  if (tag > UINT32_MAX || (tag >> 3) == 0) return Fail();
  field_ = static_cast<uint32_t>(tag >> 3);
  wire_type_ = static_cast<uint32_t>(tag & 7);
  if (wire_type_ == 0) return ReadVarint(kMaxBits, &value_);
  uint64_t length = 0;
  if (wire_type_ == 1) {
    length = 8;
  } else if (wire_type_ == 5) {
    length = 4;
  } else if (wire_type_ != 2 || !ReadVarint(kMaxShortBits, &length)) {
    return Fail();
  }
  if (length > end_ - at_) return Fail();
  begin_ = at_;
  at_ += static_cast<size_t>(length);
  return true;
}

float ProtoWire::AsFloat() const {
  FOX_CHECK(IsFixed32() && at_ - begin_ == 4);
  uint32_t bits = 0;
  for (size_t i = 0; i < 4; ++i) {
    bits |= static_cast<uint32_t>(static_cast<uint8_t>(data_[begin_ + i])) << (8 * i);
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::string ProtoWire::AsString() const {
  FOX_CHECK(IsBytes() && begin_ <= at_);
  return data_.substr(begin_, at_ - begin_);
}

std::string ProtoWire::AsField() const { return data_.substr(field_begin_, at_ - field_begin_); }

}  // namespace fox
