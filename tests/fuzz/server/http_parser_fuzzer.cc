// HttpParser: the result for the bytes of a connection does not depend on how they are cut into
// pieces; and a request that was written by the rules, its body whole or in chunks, is read back
// unchanged. The first byte chooses which of the two is tested.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/http/port/http_parser.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

constexpr int64_t kMaxBody = 512;

void CheckRefused(HttpAnswer answer) {
  FOX_CHECK(answer.status == 400 || answer.status == 413 || answer.status == 431);
  for (const auto framing : {BodyFraming::kLength, BodyFraming::kChunked, BodyFraming::kClose}) {
    const std::string head = AnswerHead(answer, framing);
    FOX_CHECK(head.starts_with(absl::StrCat("HTTP/1.1 ", answer.status, " ")));
    FOX_CHECK(head.find("\r\n\r\n") == head.size() - 4);
    answer.close = true;
    answer.headers.emplace_back("x", "y");
  }
}

// All results of the parser for a connection, up to a refusal, as one text.
class Connection {
 public:
  void Take(const std::string& bytes) {
    in_ += bytes;
    while (!refused_) {
      const size_t before = in_.size();
      const HttpParser::Step step = parser_.Advance(&in_);
      FOX_CHECK(in_.size() <= before);
      FOX_CHECK(parser_.body_bytes() <= static_cast<size_t>(kMaxBody));
      if (step == HttpParser::Step::kMore) {
        FOX_CHECK(!parser_.whole());
        return;
      }
      if (step == HttpParser::Step::kHead) {
        Tell();
      } else if (step == HttpParser::Step::kWhole) {
        FOX_CHECK(parser_.whole() || parser_.request.body.size() <= size_t{kMaxBody});
        absl::StrAppend(&told, "body:", parser_.request.body, "\n");
        ++requests;
        last = parser_.request;
        parser_.Reset();
        FOX_CHECK(!parser_.begun());
      } else {
        CheckRefused(parser_.refusal());
        told += "refused";  // which code depends on what came first
        refused_ = true;
      }
    }
  }
  bool refused() const { return refused_; }

  std::string told;
  int requests = 0;
  HttpRequest last;

 private:
  void Tell() {
    const HttpRequest& request = parser_.request;
    absl::StrAppend(&told, request.method, " ", request.path, " ? ", request.query, " ",
                    parser_.keep_alive(), parser_.old_client(), "\n");
    size_t bytes = 0;
    for (const auto& [name, value] : request.headers) {
      absl::StrAppend(&told, name, ":", value, "\n");
      bytes += name.size() + value.size();
      FOX_CHECK(
          std::none_of(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'Z'; }));
      FOX_CHECK(value.find('\n') == std::string::npos);
    }
    FOX_CHECK(bytes <= 16 << 10);
  }

  HttpParser parser_{kMaxBody};
  std::string in_;
  bool refused_ = false;
};

// True if `longer` is `shorter` and a refusal.
bool IsCutAtRefusal(const std::string& shorter, const std::string& longer) {
  return longer == shorter + "refused";
}

void CutAnywhere(FuzzInput& in) {
  std::vector<size_t> steps(1 + in.Below(8));
  for (size_t& step : steps) step = 1 + in.Below(64);
  const size_t stretched = in.Below(4) == 0 ? in.Byte() * size_t{512} : 0;
  const size_t place = in.Byte() + in.Byte();
  std::string bytes = in.Rest();
  // Many equal bytes: an endless line or head must be refused before it is large.
  if (place < bytes.size()) bytes.insert(place, stretched, bytes[place]);
  Connection whole, parts;
  whole.Take(bytes);
  for (size_t at = 0, i = 0; at < bytes.size(); at += steps[i++ % steps.size()]) {
    parts.Take(bytes.substr(at, steps[i % steps.size()]));
  }
  for (Connection* connection : {&whole, &parts}) connection->Take("\r\n\r\n");
  // While a head or a chunk's line is unfinished, it may be refused early or late.
  const bool same = whole.told == parts.told || IsCutAtRefusal(whole.told, parts.told) ||
                    IsCutAtRefusal(parts.told, whole.told);
  if (!same) {
    std::fprintf(stderr, "whole:\n%s\nin parts:\n%s\n", whole.told.c_str(), parts.told.c_str());
  }
  FOX_CHECK(same);
}

// A text of visible characters, without characters that end a name, a target or a value.
std::string Word(FuzzInput& in, size_t most) {
  std::string word = in.Text(most);
  for (char& c : word) c = "abcXYZ019-_.~!$"[static_cast<uint8_t>(c) % 15];
  return word;
}

void WriteAndRead(FuzzInput& in) {
  const bool chunked = in.Bool();
  HttpRequest request;
  request.method = in.Bool() ? "POST" : "PUT";
  request.path = "/" + Word(in, 40);
  request.query = Word(in, 20);
  request.headers.emplace_back("host", "h");
  for (size_t count = in.Below(6); count > 0; --count) {
    std::string name = absl::StrCat("x", count, Word(in, 10));  // once each: Beast groups them
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    request.headers.emplace_back(std::move(name), Word(in, 30));
  }
  std::vector<size_t> sizes(1 + in.Below(5));
  for (size_t& size : sizes) size = 1 + in.Below(60);
  request.body = in.Rest().substr(0, size_t{kMaxBody});

  std::string bytes =
      absl::StrCat(request.method, " ", request.path, request.query.empty() ? "" : "?",
                   request.query, " HTTP/1.1\r\n");
  for (const auto& [name, value] : request.headers) {
    absl::StrAppend(&bytes, name, ": ", value, "\r\n");
  }
  if (chunked) {
    bytes += "Transfer-Encoding: chunked\r\n\r\n";
    for (size_t at = 0, i = 0; at < request.body.size(); at += sizes[i++ % sizes.size()]) {
      bytes += Chunk(request.body.substr(at, sizes[i % sizes.size()]));
    }
    bytes += Chunk("");  // nothing: an empty chunk would end the body
    bytes += kLastChunk;
  } else {
    absl::StrAppend(&bytes, "Content-Length: ", request.body.size(), "\r\n\r\n", request.body);
  }
  Connection connection;
  connection.Take(bytes + bytes);  // two equal requests in a row
  FOX_CHECK(!connection.refused() && connection.requests == 2);
  FOX_CHECK(connection.last.method == request.method && connection.last.path == request.path);
  FOX_CHECK(connection.last.query == request.query && connection.last.body == request.body);
  FOX_CHECK(connection.last.headers.size() == request.headers.size() + 1);
  FOX_CHECK(
      std::equal(request.headers.begin(), request.headers.end(), connection.last.headers.begin()));
}

}  // namespace

FUZZ_TEST(http_parser) { in.Bool() ? CutAnywhere(in) : WriteAndRead(in); }

}  // namespace fox
