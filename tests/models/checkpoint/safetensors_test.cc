// The safetensors reader: accepted files, and refusals with their reasons. Cut and damaged files:
// tests/fuzz/models/safetensors_fuzzer.cc.
#include "models/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/models/checkpoint/safetensors_writer.h"
#include "tests/models/refused.h"

namespace fox {
namespace {

absl::StatusOr<SafetensorsEntries> Parse(const std::string& file) {
  return ParseSafetensors({reinterpret_cast<const std::byte*>(file.data()), file.size()}, "f");
}

void ExpectError(const std::string& file, const std::string& part) {
  SCOPED_TRACE(file.substr(0, 200));
  ExpectRefused(Parse(file).status(), part);
}

// One F32 tensor [2] under the name "a", its entry given as text.
std::string OneEntry(const std::string& entry, size_t data_bytes = 8) {
  return RawSafetensors(R"({"a":)" + entry + "}", std::string(data_bytes, 'x'));
}

TEST(SafetensorsTest, ReadsBackWrittenTensors) {
  const std::string file = SafetensorsBytes({{"b", {"F32", {2, 3}, std::string(24, '\x01')}},
                                             {"a", {"BF16", {3}, "\x02\x02\x02\x02\x02\x02"}},
                                             {"scalar", {"F64", {}, std::string(8, '\x03')}},
                                             {"ids", {"I64", {1}, std::string(8, '\x04')}}});
  const absl::StatusOr<SafetensorsEntries> entries = Parse(file);
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  ASSERT_EQ(entries->size(), 4u);
  const SafetensorsEntry& b = entries->at("b");
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.data.size(), 24u);
  EXPECT_EQ(b.data[23], std::byte{1});
  EXPECT_EQ(entries->at("a").data[0], std::byte{2});
  EXPECT_TRUE(entries->at("scalar").shape.empty());
  EXPECT_FALSE(entries->at("ids").dtype.has_value());
  EXPECT_EQ(entries->at("ids").dtype_name, "I64");
}

TEST(SafetensorsTest, OrderInTheHeaderIsFree) {
  const std::string file =
      RawSafetensors(R"({"z":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},)"
                     R"("a":{"data_offsets":[0,3],"shape":[3],"dtype":"I8"}}   )",
                     "12345");
  EXPECT_TRUE(Parse(file).ok());
  EXPECT_TRUE(Parse(RawSafetensors("{}", "")).ok());
}

TEST(SafetensorsTest, MalformedEntries) {
  const struct {
    const char* entry;
    const char* part;
  } kCases[] = {
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "has 4 bytes"},
      {R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "need 12"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,12]})", "past the end"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "before they begin"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "hole"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "after the last tensor"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0.0,8.0]})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8]})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]})", "two whole"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,0]})", "before they"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})", "past the end"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})", "extent of zero"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape must be an array"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", "8 dimensions"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", "overflows"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})", "overflows"},
      {R"({"dtype":"F32","shape":[36893488147419103234],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"f32","shape":[2],"data_offsets":[0,8]})", "unknown dtype \"f32\""},
      {R"({"dtype":"Q4\n","shape":[2],"data_offsets":[0,8]})", "unknown dtype \"Q4?\""},
      {R"({"dtype":4,"shape":[2],"data_offsets":[0,8]})", "dtype must be a string"},
      {R"({"shape":[2],"data_offsets":[0,8]})", "exactly the keys"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", "exactly the keys"},
      {R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})", "duplicate key"},
      {R"([])", "must be an object"},
  };
  for (const auto& c : kCases) ExpectError(OneEntry(c.entry), c.part);
}

TEST(SafetensorsTest, MalformedHeaders) {
  const std::string good = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const std::string overlap = R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]})";
  const std::string same = R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const std::string hole = R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]})";
  const struct {
    std::string header;
    size_t data;
    const char* part;
  } kCases[] = {
      {"{" + good + "," + overlap + "}", 3, "overlap"},
      {"{" + good + "," + same + "}", 2, "overlap"},
      {"{" + good + "," + hole + "}", 5, "hole"},
      {"{" + good + "," + good + "}", 2, "duplicate key \"a\""},
      {"{" + good + "}", 3, "after the last tensor"},
      {"{" + good + "}", 1, "past the end"},
      {"{}", 1, "after the last tensor"},
      {"", 0, "does not begin with {"},
      {" {" + good + "}", 2, "does not begin with {"},
      {"\xef\xbb\xbf{" + good + "}", 2, "does not begin with {"},
      {"{" + good, 2, "not valid JSON"},
      {"{" + good + "} x", 2, "not valid JSON"},
      {"{" + good + "}" + std::string("\0{", 2), 2, "NUL"},
      {"{" + good + "}" + std::string(1, '\0'), 2, "NUL"},
      {"{\"\xff\":1}", 0, "not valid JSON"},
      {R"({"\ud800":1})", 0, "not valid JSON"},
      {R"({"__metadata__":{"format":1}})", 0, "strings only"},
      {R"({"__metadata__":{"format":{"a":"b"}}})", 0, "strings only"},
      {R"({"__metadata__":[]})", 0, "must be an object"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "duplicate key"},
      {R"({"a":)" + std::string(1 << 20, '[') + "}", 0, "nested too deeply"},
  };
  for (const auto& c : kCases)
    ExpectError(RawSafetensors(c.header, std::string(c.data, 'd')), c.part);
}

TEST(SafetensorsTest, HeaderLength) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const auto with_length = [&](uint64_t length) {
    std::string file = RawSafetensors(json, "12");
    std::memcpy(file.data(), &length, sizeof(length));
    return file;
  };
  EXPECT_TRUE(Parse(with_length(json.size())).ok());
  ExpectError("", "too short");
  ExpectError("1234567", "too short");
  ExpectError(with_length(0), "does not begin with {");
  ExpectError(with_length(json.size() - 1), "not valid JSON");
  ExpectError(with_length(json.size() + 3), "past the end of the file");
  ExpectError(with_length(kMaxSafetensorsHeader), "past the end of the file");
  ExpectError(with_length(kMaxSafetensorsHeader + 1), "header longer than");
  // Adding 8 to these wraps around.
  for (uint64_t length : {~uint64_t{0}, ~uint64_t{7}, uint64_t{1} << 63}) {
    ExpectError(with_length(length), "header longer than");
  }
}

TEST(SafetensorsTest, TensorAndValueCountsAreBounded) {
  const auto file = [](size_t count) {
    std::string header = "{";
    for (size_t i = 0; i < count; ++i) {
      header += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[],)" +
                R"("data_offsets":[)" + std::to_string(i) + "," + std::to_string(i + 1) + "]}";
    }
    return RawSafetensors(header + "}", std::string(count, 'x'));
  };
  EXPECT_TRUE(Parse(file(kMaxSafetensorsTensors)).ok());
  ExpectError(file(kMaxSafetensorsTensors + 1), "more than 100000 tensors");
  std::string numbers = R"({"a":[0)";
  for (int i = 0; i < 4000000; ++i) numbers += ",0";
  ExpectError(RawSafetensors(numbers + "]}", ""), "too many JSON values");
}

TEST(SafetensorsTest, HostileNamesStayOneShortLine) {
  const std::string entry = R"(":{"dtype":"U8","shape":[9],"data_offsets":[0,2]}})";
  ExpectError(RawSafetensors("{\"" + std::string(1 << 20, 'n') + entry, "12"), "nnn...\"");
  ExpectError(RawSafetensors(R"({"a\nb\u001b[31m\u00e9)" + entry, "12"), "a?b?[31m??");
}

}  // namespace
}  // namespace fox
