// HttpExchange: its messages as bytes. See http_exchange.h.
#include "server/http/port/http_exchange.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

namespace http = boost::beast::http;

constexpr char kDate[] = "%a, %d %b %Y %H:%M:%S GMT";  // RFC 9110, 5.6.7

bool IsHexDigit(char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name, int place) const {
  for (const auto& [known, value] : headers) {
    if (known == name && place-- == 0) return value;
  }
  return {};
}

std::string PercentDecoded(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && IsHexDigit(text[i + 1]) &&
        IsHexDigit(text[i + 2])) {
      out += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

bool SetTarget(absl::string_view target, HttpRequest* request) {
  const size_t scheme = target.find("://");
  if (!absl::StartsWith(target, "/") && target != "*") {
    const absl::string_view name = target.substr(0, scheme);
    if (scheme == absl::string_view::npos ||
        !(absl::EqualsIgnoreCase(name, "http") || absl::EqualsIgnoreCase(name, "https"))) {
      return false;
    }
    target.remove_prefix(scheme + 3);
    const absl::string_view host = target.substr(0, target.find_first_of("/?"));
    if (host.empty() || absl::StrContains(host, '@')) return false;  // RFC 9110, 4.2.1 and 4.2.4
    auto& headers = request->headers;
    headers.erase(std::remove_if(headers.begin(), headers.end(),
                                 [](const auto& header) { return header.first == "host"; }),
                  headers.end());
    headers.emplace_back("host", host);
    target.remove_prefix(host.size());
  }
  const size_t question = target.find('?');
  request->path = std::string(target.substr(0, question));
  if (request->path.empty()) request->path.push_back('/');
  if (request->path.size() > 1 && request->path.back() == '/') request->path.pop_back();
  request->query =
      question == absl::string_view::npos ? "" : std::string(target.substr(question + 1));
  return true;
}

std::string AnswerHead(const HttpAnswer& answer, BodyFraming framing, const HttpHeaders& more) {
  FOX_CHECK(answer.status >= 200 && answer.status < 600);
  const auto reason =
      http::obsolete_reason(http::int_to_status(static_cast<unsigned>(answer.status)));
  std::string head = absl::StrCat(
      "HTTP/1.1 ", answer.status, " ", absl::string_view(reason.data(), reason.size()),
      "\r\nDate: ", absl::FormatTime(kDate, absl::Now(), absl::UTCTimeZone()),
      "\r\nContent-Type: ", answer.content_type, "\r\nX-Content-Type-Options: nosniff\r\n");
  for (const HttpHeaders* headers : {&answer.headers, &more}) {
    for (const auto& [name, value] : *headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  if (framing == BodyFraming::kLength) {
    absl::StrAppend(&head, "Content-Length: ", answer.body.size(), "\r\n");
  } else if (framing == BodyFraming::kChunked) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  if (answer.close || framing == BodyFraming::kClose) head += "Connection: close\r\n";
  return head + "\r\n";
}

std::string Chunk(absl::string_view bytes) {
  if (bytes.empty()) return "";
  return absl::StrCat(absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
}

}  // namespace fox
