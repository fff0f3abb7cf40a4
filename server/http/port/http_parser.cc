// HttpParser: Beast's parser, and checks that it lacks. The only file that sees Beast.
#include "server/http/port/http_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "boost/beast/core/buffers_range.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/rfc7230.hpp"
#include "kernels/core/check.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr uint32_t kMaxHeadBytes = 16 << 10;

// Beast's own string body reserves the length that a head claims.
struct GrowingBody {
  using value_type = std::string;
  class Reader {
   public:
    template <bool is_request, class Fields>
    Reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    template <class Length>
    void init(const Length&, error_code& error) {
      error = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      const size_t before = body_.size();
      for (boost::asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      error = {};
      return body_.size() - before;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
  using reader = Reader;  // as Beast calls it
};

// Works with the string views of every version of Boost.
template <class View>
std::string ToString(const View& view) {
  return std::string(view.data(), view.size());
}

// A header that goes on in the next line (obs-fold): Beast joins the lines, some proxies do not.
bool HasFoldedLine(absl::string_view head) {
  return absl::StrContains(head, "\r\n ") || absl::StrContains(head, "\r\n\t");
}

HttpAnswer ErrorOf(const error_code& error) {
  if (error == http::error::header_limit) return ErrorAnswer(431, "the headers exceed 16 KiB");
  if (error == http::error::body_limit) {
    return ErrorAnswer(413, "the body is larger than --max-message-mb");
  }
  // Our own words: the library's change with its versions.
  static constexpr std::pair<http::error, const char*> kReasons[] = {
      {http::error::bad_method, "its method is no word"},
      {http::error::bad_target, "its target has characters that must be encoded"},
      {http::error::bad_version, "its first line must end with HTTP/1.1 or HTTP/1.0"},
      {http::error::bad_line_ending, "a line must end with CR LF"},
      {http::error::bad_field, "a header must be a name and a colon"},
      {http::error::bad_value, "a header's value has control characters"},
      {http::error::bad_content_length, "Content-Length must be one number"},
      {http::error::bad_transfer_encoding, "Transfer-Encoding must be chunked"},
      {http::error::bad_obs_fold, "a header is folded"},
      {http::error::bad_chunk, "a chunk must begin with its size in hexadecimal"},
      {http::error::bad_chunk_extension, "a chunk's extension is malformed"},
  };
  const auto* const reason = std::find_if(std::begin(kReasons), std::end(kReasons),
                                          [&](const auto& known) { return error == known.first; });
  return ErrorAnswer(
      400, absl::StrCat("not an HTTP request: ",
                        reason == std::end(kReasons) ? "it is malformed" : reason->second));
}

}  // namespace

struct HttpParser::Beast {
  http::request_parser<GrowingBody> parser;
};

HttpParser::HttpParser(int64_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}
HttpParser::~HttpParser() = default;

HttpParser::Step HttpParser::Advance(std::string* in) {
  size_t used = 0;
  const Step step = Take(*in, &used);
  FOX_CHECK(used <= in->size());
  in->erase(0, used);
  return step;
}

HttpParser::Step HttpParser::Take(absl::string_view in, size_t* used) {
  error_code error;
  while (true) {
    if (beast_ != nullptr && beast_->parser.is_header_done() &&
        !std::exchange(head_reported_, true)) {
      return FinishHead();
    }
    if (beast_ != nullptr && beast_->parser.is_done()) {
      request.body = std::move(beast_->parser.get().body());
      return Step::kWhole;
    }
    // Beast bounds a single unfinished line, but neither a whole head nor a chunk's extensions nor
    // trailers, and throws at a field of 64 KiB.
    const absl::string_view window = in.substr(*used, kMaxHeadBytes);
    if (window.empty()) return Step::kMore;
    if (beast_ == nullptr && !blank_line_skipped_) {
      if (window == "\r") return Step::kMore;
      blank_line_skipped_ = absl::StartsWith(window, "\r\n");  // RFC 9112, 2.2
      if (blank_line_skipped_) {
        *used += 2;
        continue;
      }
    }
    if (beast_ == nullptr) {
      beast_ = std::make_unique<Beast>();
      beast_->parser.header_limit(kMaxHeadBytes);
      beast_->parser.body_limit(static_cast<uint64_t>(max_body_bytes_));
    }
    const bool in_head = !beast_->parser.is_header_done();
    const size_t count =
        beast_->parser.put(boost::asio::buffer(window.data(), window.size()), error);
    *used += count;
    if (in_head && (head_bytes_ += count) > kMaxHeadBytes) {
      return Refuse(ErrorOf(http::error::header_limit));
    }
    const bool starved = error == http::error::need_more;
    if (error && !starved) return Refuse(ErrorOf(error));
    if (in_head && HasFoldedLine(window.substr(0, count))) {
      return Refuse(ErrorAnswer(400, "not an HTTP request: a header is folded"));
    }
    if (count > 0) continue;
    if (window.size() < kMaxHeadBytes) return Step::kMore;
    return Refuse(ErrorAnswer(431, "the trailers or a chunk's extensions exceed 16 KiB"));
  }
}

HttpParser::Step HttpParser::FinishHead() {
  FOX_CHECK(beast_ != nullptr && beast_->parser.is_header_done());
  const auto& message = beast_->parser.get();
  old_client_ = message.version() < 11;
  keep_alive_ = beast_->parser.keep_alive();
  request = HttpRequest();
  request.method = ToString(message.method_string());
  for (const auto& field : message) {
    request.headers.emplace_back(absl::AsciiStrToLower(ToString(field.name_string())),
                                 ToString(field.value()));
    // Beast keeps a connection of HTTP/1.0 whose client asks for both; close wins (RFC 9112, 9.3).
    if (field.name() == http::field::connection &&
        http::token_list(field.value()).exists("close")) {
      keep_alive_ = false;
    }
  }
  if (!SetTarget(ToString(message.target()), &request)) {
    return Refuse(
        ErrorAnswer(400, "not an HTTP request: its target must be a path or an http URL"));
  }
  if (!old_client_ && message.count(http::field::host) != 1) {
    return Refuse(ErrorAnswer(400, "not an HTTP request: one Host header is needed"));
  }
  return HasPlainFraming() ? Step::kHead
                           : Refuse(ErrorAnswer(400, "not an HTTP request: ambiguous framing"));
}

// Refuses ambiguous framing: a proxy may read it in another way, and see other requests.
bool HttpParser::HasPlainFraming() const {
  const auto& message = beast_->parser.get();
  const absl::string_view coding = request.Header("transfer-encoding");
  const absl::string_view length = request.Header("content-length");
  return (message.count(http::field::transfer_encoding) == 0 ||
          (absl::EqualsIgnoreCase(coding, "chunked") && !old_client_)) &&
         message.count(http::field::content_length) <= 1 &&
         std::all_of(length.begin(), length.end(), absl::ascii_isdigit);
}

HttpParser::Step HttpParser::Refuse(HttpAnswer answer) {
  refusal_ = std::move(answer);
  return Step::kRefused;
}

size_t HttpParser::body_bytes() const {
  return beast_ == nullptr ? 0 : beast_->parser.get().body().size();
}

bool HttpParser::whole() const { return beast_ != nullptr && beast_->parser.is_done(); }

void HttpParser::Reset() {
  beast_ = nullptr;
  blank_line_skipped_ = head_reported_ = false;
  head_bytes_ = 0;
}

}  // namespace fox
