// ProtoWire: reads the fields of one protobuf message, in order. It checks files without protobuf's
// generated classes, which must not be linked here. A field that claims more bytes than exist ends
// the reading as malformed. Read sentencepiece_check.cc next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fox {

class ProtoWire {
 public:
  // Reads [begin, end) of `data`, which must outlive this object.
  ProtoWire(const std::string& data, size_t begin, size_t end)
      : data_(data), at_(begin), end_(end) {}

  // Steps to the next field; false at the end and on malformed data.
  bool Next();
  bool malformed() const { return malformed_; }

  uint32_t field() const { return field_; }
  bool IsVarint() const { return wire_type_ == 0; }
  bool IsBytes() const { return wire_type_ == 2; }
  bool IsFixed32() const { return wire_type_ == 5; }

  uint64_t varint() const { return value_; }
  float AsFloat() const;                                        // REQUIRES: IsFixed32()
  std::string AsString() const;                                 // REQUIRES: IsBytes()
  std::string AsField() const;                                  // the field with its tag
  ProtoWire AsMessage() const { return {data_, begin_, at_}; }  // REQUIRES: IsBytes()

 private:
  bool ReadVarint(unsigned max_bits, uint64_t* value);
  bool Fail();

  const std::string& data_;
  size_t at_, end_;
  bool malformed_ = false;
  uint32_t field_ = 0, wire_type_ = 0;
  uint64_t value_ = 0;
  size_t field_begin_ = 0;
  size_t begin_ = 0;  // where the field's value begins, if it has a length
};

}  // namespace fox
