// HttpClient: see http_client.h.
#include "tests/e2e/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fox {
std::string HttpReply::ErrorField() const {
  const nlohmann::json field = Json()["error"]["param"];
  return field.is_null() ? "" : field.get<std::string>();
}

HttpClient::HttpClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Close();
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

void HttpClient::Reset() {
  const linger now{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

bool HttpClient::Send(const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

void HttpClient::SendRequest(const std::string& method, const std::string& path,
                             const std::string& body, const std::string& headers) {
  Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers,
                    "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                    body));
}

bool HttpClient::ReadMore(int milliseconds) {
  if (socket_ < 0) return false;
  pollfd waiting{socket_, POLLIN, 0};
  if (poll(&waiting, 1, milliseconds) != 1) return false;
  std::array<char, 1 << 16> buffer{};
  const ssize_t count = recv(socket_, buffer.data(), buffer.size(), 0);
  if (count <= 0) return false;
  in_.append(buffer.data(), static_cast<size_t>(count));
  return true;
}

bool HttpClient::ReadUntil(const std::string& text) {
  while (!absl::StrContains(in_, text)) {
    if (!ReadMore()) return false;
  }
  return true;
}

HttpReply HttpClient::Read(bool head_only) {
  HttpReply reply;
  if (!ReadUntil("\r\n\r\n")) return reply;
  const size_t head = in_.find("\r\n\r\n") + 4;
  const std::vector<std::string> lines = absl::StrSplit(in_.substr(0, head - 4), "\r\n");
  in_.erase(0, head);
  EXPECT_TRUE(absl::SimpleAtoi(lines[0].substr(9, 3), &reply.status)) << lines[0];
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    reply.headers[absl::AsciiStrToLower(parts[0])] = parts[1];
  }
  if (reply.status == 100) return Read(head_only);
  if (head_only) return reply;
  if (reply.headers.count("transfer-encoding") > 0) {
    while (true) {
      if (!ReadUntil("\r\n")) return reply;
      const size_t end = in_.find("\r\n");
      const size_t size = std::stoul(in_.substr(0, end), nullptr, 16);
      while (in_.size() < end + 2 + size + 2) {
        if (!ReadMore()) return reply;
      }
      reply.body += in_.substr(end + 2, size);
      in_.erase(0, end + 2 + size + 2);
      if (size == 0) {
        reply.whole = true;
        return reply;
      }
    }
  }
  if (reply.headers.count("content-length") == 0) {
    while (ReadMore()) {
    }
    reply.body = std::exchange(in_, {});
    return reply;
  }
  const size_t size = std::stoul(reply.headers["content-length"]);
  while (in_.size() < size && ReadMore()) {
  }
  reply.whole = in_.size() >= size;
  reply.body = in_.substr(0, size);
  in_.erase(0, size);
  return reply;
}

HttpReply HttpClient::Post(const std::string& path, const nlohmann::json& body) {
  SendRequest("POST", path, body.dump());
  return Read();
}

HttpReply HttpClient::Get(const std::string& path) {
  SendRequest("GET", path, "");
  return Read();
}

bool HttpClient::AtEnd() {
  pollfd waiting{socket_, POLLIN, 0};
  if (poll(&waiting, 1, kPatienceMs) != 1) return false;
  char byte = 0;
  return recv(socket_, &byte, 1, 0) <= 0;
}

std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> out;
  for (absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    EXPECT_TRUE(absl::ConsumePrefix(&event, "data: ")) << event;
    out.emplace_back(event);
  }
  return out;
}

}  // namespace fox
