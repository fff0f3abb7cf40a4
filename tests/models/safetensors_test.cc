// The safetensors reader against every way a file can be wrong, and element access of tensors.
#include "models/safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "models/host_tensor.h"
#include "tests/models/refused.h"
#include "tests/models/safetensors_writer.h"

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

TEST(SafetensorsTest, ReadsWhatWasWritten) {
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
      {R"({"dtype":"F64","shape":[2],"data_offsets":[0,8]})", "need 16"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,12]})", "past the end"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "before they begin"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "hole"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "after the last tensor"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0.0,8.0]})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8]})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":"08"})", "two whole numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]})", "two whole"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,0]})", "before they"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})", "past the end"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":[-0],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":[null],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})", "extent of zero"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape must be an array"},
      {R"({"dtype":"F32","shape":{"0":2},"data_offsets":[0,8]})", "shape must be an array"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", "8 dimensions"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", "overflows"},
      {R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})", "overflows"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})", "overflows"},
      {R"({"dtype":"F32","shape":[36893488147419103234],"data_offsets":[0,8]})", "whole numbers"},
      {R"({"dtype":"f32","shape":[2],"data_offsets":[0,8]})", "unknown dtype \"f32\""},
      {R"({"dtype":"","shape":[2],"data_offsets":[0,8]})", "unknown dtype"},
      {R"({"dtype":"Q4\n","shape":[2],"data_offsets":[0,8]})", "unknown dtype \"Q4?\""},
      {R"({"dtype":4,"shape":[2],"data_offsets":[0,8]})", "dtype must be a string"},
      {R"({"shape":[2],"data_offsets":[0,8]})", "exactly the keys"},
      {R"({"dtype":"F32","data_offsets":[0,8]})", "exactly the keys"},
      {R"({"dtype":"F32","shape":[2]})", "exactly the keys"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", "exactly the keys"},
      {R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})", "duplicate key"},
      {R"([])", "must be an object"},
      {R"(null)", "must be an object"},
      {R"("F32")", "must be an object"},
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
      {"   ", 0, "does not begin with {"},
      {" {" + good + "}", 2, "does not begin with {"},
      {"\xef\xbb\xbf{" + good + "}", 2, "does not begin with {"},
      {"[]", 0, "does not begin with {"},
      {"null", 0, "does not begin with {"},
      {"{" + good, 2, "not valid JSON"},
      {"{" + good + ",}", 2, "not valid JSON"},
      {"{" + good + "}}", 2, "not valid JSON"},
      {"{" + good + "} x", 2, "not valid JSON"},
      {"{" + good + "}//", 2, "not valid JSON"},
      {"{" + good + "}" + std::string("\0{", 2), 2, "NUL"},
      {"{" + good + "}" + std::string(1, '\0'), 2, "NUL"},
      {"{'a':1}", 0, "not valid JSON"},
      {"{\"\xff\":1}", 0, "not valid JSON"},
      {R"({"\ud800":1})", 0, "not valid JSON"},
      {R"({"a":01})", 0, "not valid JSON"},
      {R"({"a":NaN})", 0, "not valid JSON"},
      {R"({"a":1e999})", 0, "not valid JSON"},
      {R"({"__metadata__":{"format":1}})", 0, "strings only"},
      {R"({"__metadata__":{"format":null}})", 0, "strings only"},
      {R"({"__metadata__":{"format":{"a":"b"}}})", 0, "strings only"},
      {R"({"__metadata__":[]})", 0, "must be an object"},
      {R"({"__metadata__":null})", 0, "must be an object"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "duplicate key"},
      {R"({"a":)" + std::string(1 << 20, '[') + "}", 0, "nested too deeply"},
      {R"({"a":)" + std::string(100, '{'), 0, "not valid JSON"},
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

// A file of about 4 KB.
std::string SmallFile() {
  TensorSpecs tensors;
  for (int i = 0; i < 12; ++i) {
    tensors["model.layers." + std::to_string(i) + ".weight"] = {
        "BF16", {8, 8}, std::string(128, 'w')};
  }
  tensors["ids"] = {"I64", {3}, std::string(24, 'i')};
  return SafetensorsBytes(tensors);
}

TEST(SafetensorsTest, TruncationAtEveryByte) {
  const std::string file = SmallFile();
  ASSERT_GT(file.size(), 2000u);
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    // An exact heap block, so that the address sanitizer sees a read past the end.
    const auto copy = std::make_unique<std::byte[]>(size);
    std::memcpy(copy.get(), file.data(), size);
    ASSERT_FALSE(ParseSafetensors({copy.get(), size}, "f").ok()) << size;
  }
  ExpectError(file + "x", "after the last tensor");
}

void CheckAccepted(const std::string& file, const SafetensorsEntries& entries) {
  const auto* begin = reinterpret_cast<const std::byte*>(file.data());
  size_t total = 0;
  for (const auto& [name, entry] : entries) {
    ASSERT_GE(entry.data.data(), begin + 8) << name;
    ASSERT_LE(entry.data.data() + entry.data.size(), begin + file.size()) << name;
    if (entry.dtype) {
      const HostTensor tensor{entry.data.data(), *entry.dtype, entry.shape};
      ASSERT_EQ(static_cast<size_t>(tensor.size()) * SizeOf(*entry.dtype), entry.data.size());
    }
    total += entry.data.size();
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  ASSERT_EQ(total + 8 + length, file.size());
}

TEST(SafetensorsTest, RandomMutationsNeverCrash) {
  const std::string original = SmallFile();
  uint64_t header = 0;
  std::memcpy(&header, original.data(), sizeof(header));
  const std::vector<std::string> tokens = {"[",
                                           "]",
                                           "{",
                                           "}",
                                           "\"",
                                           ":",
                                           ",",
                                           "0",
                                           "-1",
                                           "1e9",
                                           "128",
                                           "1.5",
                                           "null",
                                           "true",
                                           "\"a\":",
                                           "[0,128]",
                                           "[]",
                                           "{}",
                                           "\"F32\"",
                                           "\"BF16\"",
                                           "18446744073709551615",
                                           "9223372036854775808",
                                           "__metadata__",
                                           "\\u0000"};
  std::mt19937_64 random(11);
  int accepted = 0;
  for (int round = 0; round < 100000; ++round) {
    std::string file = original;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = 8 + random() % header;
      switch (random() % 4) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1: {  // splice a token over the text: the length stays true
          const std::string& token = tokens[random() % tokens.size()];
          file.replace(at, std::min<size_t>(token.size(), 8 + header - at), token, 0,
                       std::min<size_t>(token.size(), 8 + header - at));
          break;
        }
        case 2:
          file[at] = static_cast<char>('0' + random() % 10);
          break;
        default:
          file[random() % 8] = static_cast<char>(random());
      }
    }
    const absl::StatusOr<SafetensorsEntries> entries = Parse(file);
    if (!entries.ok()) {
      ASSERT_LE(entries.status().message().size(), 1024u);
      continue;
    }
    ++accepted;
    ASSERT_NO_FATAL_FAILURE(CheckAccepted(file, *entries));
  }
  EXPECT_GT(accepted, 100);  // damage to a name leaves a well-formed file
}

TEST(HostTensorTest, HalfToFloatIsExactForAllBitPatterns) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint32_t exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    const double sign = bits & 0x8000 ? -1 : 1;
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), fraction != 0) << bits;
      ASSERT_EQ(std::isinf(value), fraction == 0) << bits;
    } else {
      const double expected =
          exponent == 0 ? sign * fraction * std::pow(2.0, -24)
                        : sign * (1024 + fraction) * std::pow(2.0, static_cast<int>(exponent) - 25);
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
    }
    ASSERT_EQ(std::signbit(value), sign < 0) << bits;
  }
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(HostTensorTest, ReadsUnalignedElementsOfEveryType) {
  // 1, -2.5, 0.15625, 65504 are exact in all four types but bfloat16, which holds the first three.
  const struct {
    DType dtype;
    std::string bytes;
    double last;
  } kCases[] = {
      {DType::kF64, Bytes<double>({1, -2.5, 0.15625, 65504}), 65504},
      {DType::kF32, Bytes<float>({1, -2.5f, 0.15625f, 65504}), 65504},
      {DType::kF16, Bytes<uint16_t>({0x3c00, 0xc100, 0x3100, 0x7bff}), 65504},
      {DType::kBF16, Bytes<uint16_t>({0x3f80, 0xc020, 0x3e20, 0x4780}), 65536},
  };
  for (const auto& c : kCases) {
    for (size_t shift = 0; shift < 8; ++shift) {
      const std::string shifted = std::string(shift, '\xff') + c.bytes;
      const HostTensor tensor{
          reinterpret_cast<const std::byte*>(shifted.data()) + shift, c.dtype, {2, 2}};
      double wide[4];
      float narrow[3];
      ReadElements(tensor, 0, 4, wide);
      ReadElements(tensor, 1, 3, narrow);
      EXPECT_EQ(wide[0], 1);
      EXPECT_EQ(wide[1], -2.5);
      EXPECT_EQ(wide[2], 0.15625);
      EXPECT_EQ(wide[3], c.last);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(static_cast<double>(narrow[i]), wide[i + 1]);
      ReadElements(tensor, 4, 0, wide);  // an empty range at the end is a range
    }
  }
  const std::string tiny = Bytes<double>({1.0 / 3, 1e-300, 5e-324});
  const HostTensor tensor{reinterpret_cast<const std::byte*>(tiny.data()), DType::kF64, {3}};
  double exact[3];
  float rounded[3];
  ReadElements(tensor, 0, 3, exact);
  ReadElements(tensor, 0, 3, rounded);
  EXPECT_EQ(exact[2], 5e-324);
  EXPECT_EQ(rounded[0], static_cast<float>(1.0 / 3));
  EXPECT_EQ(rounded[1], 0.0f);
}

TEST(HostTensorTest, CountsNonFiniteElements) {
  const int64_t size = 40000;  // several blocks of the counting loop and a rest
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const size_t width = SizeOf(dtype);
    // The largest finite value, and both infinities and a NaN, by their high bytes.
    const uint8_t top = dtype == DType::kF16 ? 0x7b : 0x7f;
    std::string bytes(static_cast<size_t>(size) * width + 1, '\xff');
    for (int64_t i = 0; i < size; ++i) {
      char* element = &bytes[1 + static_cast<size_t>(i) * width];
      element[width - 1] = static_cast<char>(top);
      if (dtype == DType::kF64) element[width - 2] = '\xef';
      if (dtype == DType::kF32 || dtype == DType::kBF16) element[width - 2] = '\x7f';
    }
    const HostTensor tensor{reinterpret_cast<const std::byte*>(&bytes[1]), dtype, {size}};
    EXPECT_EQ(CountNonFinite(tensor), 0) << NameOf(dtype);
    // Setting the top two bytes to ff makes a NaN of any type.
    for (int64_t i : {int64_t{0}, int64_t{16383}, int64_t{16384}, size - 1}) {
      char* element = &bytes[1 + static_cast<size_t>(i) * width];
      element[width - 1] = element[width - 2] = '\xff';
    }
    EXPECT_EQ(CountNonFinite(tensor), 4) << NameOf(dtype);
    std::fill(bytes.begin(), bytes.end(), '\xff');
    EXPECT_EQ(CountNonFinite(tensor), size) << NameOf(dtype);
  }
  const std::vector<float> limits = {
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), -0.0f};
  const HostTensor tensor{reinterpret_cast<const std::byte*>(limits.data()), DType::kF32, {5}};
  EXPECT_EQ(CountNonFinite(tensor), 2);
}

}  // namespace
}  // namespace fox
