// PostJson: see http_exchange.h.
#include "tests/faults/http_exchange.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

// All bytes of the answer.
std::string Exchange(int socket, const std::string& request,
                     const std::function<void()>& on_event) {
  std::string answer;
  const timeval patience{30, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (send(socket, request.data(), request.size(), MSG_NOSIGNAL) < 0) return answer;
  std::array<char, 16384> buffer{};
  bool told = false;
  ssize_t count = 0;
  while ((count = recv(socket, buffer.data(), buffer.size(), 0)) > 0) {
    answer.append(buffer.data(), static_cast<size_t>(count));
    if (!told && on_event && answer.find("data: ") != std::string::npos) {
      told = true;
      on_event();
    }
  }
  return answer;
}

// The body of an answer in chunks; true: the last one is there.
bool Join(const std::string& chunks, std::string* body) {
  for (size_t at = 0;;) {
    const size_t line = chunks.find("\r\n", at);
    if (line == std::string::npos) return false;
    const size_t size = std::strtoul(chunks.c_str() + at, nullptr, 16);
    if (size == 0) return true;
    if (line + 2 + size > chunks.size()) return false;
    body->append(chunks, line + 2, size);
    at = line + 2 + size + 2;
  }
}

}  // namespace

HttpText PostJson(int port, const std::string& path, const std::string& json,
                  const std::function<void()>& on_event) {
  HttpText out;
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    answer = Exchange(
        socket,
        absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                     "Content-Type: application/json\r\nContent-Length: ", json.size(), "\r\n\r\n",
                     json),
        on_event);
  }
  close(socket);
  const size_t head = answer.find("\r\n\r\n");
  if (head == std::string::npos) return out;
  out.status = std::atoi(answer.c_str() + 9);
  const std::string rest = answer.substr(head + 4);
  const size_t length = answer.find("Content-Length: ");
  if (length < head) {
    const size_t size = std::strtoul(answer.c_str() + length + 16, nullptr, 10);
    out.body = rest;
    out.whole = rest.size() == size;
  } else {
    out.whole = Join(rest, &out.body);
  }
  return out;
}

}  // namespace fox
