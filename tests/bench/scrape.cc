// One GET over a plain socket, and its lines. See scrape.h.
#include "tests/bench/scrape.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace fox {
namespace {

std::string Get(int port, const std::string& path) {
  const int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  std::string answer;
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      send(socket_, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    std::array<char, 4096> buffer = {};
    ssize_t count = 0;
    while ((count = recv(socket_, buffer.data(), buffer.size(), 0)) > 0) {
      answer.append(buffer.data(), static_cast<size_t>(count));
    }
  }
  close(socket_);
  return answer;
}

}  // namespace

std::map<std::string, double> Scrape(int port) {
  std::map<std::string, double> values;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(Get(port, "/metrics"), '\n'))) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == std::string::npos || absl::StartsWith(line, "#")) continue;
    if (absl::SimpleAtod(line.substr(space + 1), &value)) values[line.substr(0, space)] = value;
  }
  return values;
}

}  // namespace fox
