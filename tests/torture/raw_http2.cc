// Writes frames of RFC 9113. Headers are unindexed literals (RFC 7541, 6.2.2), so that no table is
// needed.
#include "tests/torture/raw_http2.h"

#include <cstdint>

namespace fox {
namespace {

std::string Number(uint32_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return out;
}

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Number(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + Number(stream, 4) + payload;
}

std::string Header(const std::string& name, const std::string& value) {
  std::string out(1, '\0');
  for (const std::string& text : {name, value}) {
    out += static_cast<char>(text.size());  // below 127 each
    out += text;
  }
  return out;
}

uint32_t StreamOf(int call) { return 2 * static_cast<uint32_t>(call) + 1; }

constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4;
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;
constexpr uint32_t kCancel = 8;

}  // namespace

std::string RawHttp2Calls(const std::string& method, const std::string& message, int calls) {
  const std::string headers = Header(":method", "POST") + Header(":scheme", "http") +
                              Header(":path", method) + Header(":authority", "localhost") +
                              Header("te", "trailers") + Header("content-type", "application/grpc");
  const std::string body =
      std::string(1, '\0') + Number(static_cast<uint32_t>(message.size()), 4) + message;
  std::string out = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");
  for (int call = 0; call < calls; ++call) {
    out += Frame(kHeaders, kEndHeaders, StreamOf(call), headers);
    out += Frame(kData, kEndStream, StreamOf(call), body);
  }
  return out;
}

std::string RawHttp2Reset(int call) { return Frame(kReset, 0, StreamOf(call), Number(kCancel, 4)); }

}  // namespace fox
