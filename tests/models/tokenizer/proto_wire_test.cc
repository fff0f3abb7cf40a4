// Protobuf's wire format, by the examples of its documentation, and broken in every way.
#include "models/tokenizer/proto_wire.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace fox {
namespace {

// The fields as text, "?" at the end of malformed data.
std::string Fields(const std::string& data) {
  ProtoWire wire(data, 0, data.size());
  std::ostringstream shown;
  while (wire.Next()) {
    shown << wire.field();
    if (wire.IsVarint()) shown << "=" << wire.varint();
    if (wire.IsBytes()) shown << "'" << wire.AsString() << "'";
    if (wire.IsFixed32()) shown << "~" << wire.AsFloat();
    shown << " ";
  }
  EXPECT_FALSE(wire.Next());
  if (wire.malformed()) shown << "?";
  return shown.str();
}

TEST(ProtoWireTest, EveryWireType) {
  EXPECT_EQ(Fields(""), "");
  EXPECT_EQ(Fields("\x08\x96\x01"), "1=150 ");
  EXPECT_EQ(Fields("\x12\x07testing"), "2'testing' ");
  EXPECT_EQ(Fields(std::string("\x1D\x00\x00\xC0\x3F", 5)), "3~1.5 ");
  EXPECT_EQ(Fields("\x21"
                   "12345678\x08\x01"),
            "4 1=1 ");
  EXPECT_EQ(Fields("\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"), "1=18446744073709551615 ");
  EXPECT_EQ(Fields(std::string("\xFA\xFF\xFF\xFF\x0F\x00", 6)), "536870911'' ");
}

TEST(ProtoWireTest, MessagesAreReadInPlace) {
  const std::string data = "\x1A\x03\x08\x96\x01\x08\x07";
  ProtoWire outer(data, 0, data.size());
  ASSERT_TRUE(outer.Next());
  ProtoWire inner = outer.AsMessage();
  ASSERT_TRUE(inner.Next());
  EXPECT_EQ(inner.varint(), 150u);
  EXPECT_FALSE(inner.Next());
  EXPECT_FALSE(inner.malformed());
  ASSERT_TRUE(outer.Next());
  EXPECT_EQ(outer.varint(), 7u);
}

TEST(ProtoWireTest, MalformedData) {
  EXPECT_EQ(Fields("\x08"), "?");                                                 // no value
  EXPECT_EQ(Fields("\x08\x96"), "?");                                             // half a value
  EXPECT_EQ(Fields(std::string("\x08").append(10, '\x80').append("\x01")), "?");  // 11 bytes long
  EXPECT_EQ(Fields("\x12\x08testing"), "?");                                // one byte too few
  EXPECT_EQ(Fields("\x12\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01x"), "?");  // 2^64 - 1 bytes
  EXPECT_EQ(Fields("\x1D\x01\x02\x03"), "?");
  EXPECT_EQ(Fields("\x21\x01\x02\x03"), "?");
  EXPECT_EQ(Fields(std::string("\x00\x01", 2)), "?");                      // field 0
  EXPECT_EQ(Fields("\x0B\x0C"), "?");                                      // a group
  EXPECT_EQ(Fields("\x0E\x01"), "?");                                      // wire type 6
  EXPECT_EQ(Fields("\xF8\xFF\xFF\xFF\x7F\x01"), "?");                      // a field above 2^29
  EXPECT_EQ(Fields(std::string("\x88\x80\x80\x80\x80\x00\x01", 7)), "?");  // a tag of 6 bytes
  EXPECT_EQ(Fields(std::string("\x12\x80\x80\x80\x80\x80\x00", 7)), "?");  // a length of 6 bytes
  EXPECT_EQ(Fields("\x08\x05\x12\x05"
                   "ab"),
            "1=5 ?");
}

}  // namespace
}  // namespace fox
