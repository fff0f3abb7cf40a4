// HttpClient: HTTP/1.1 over one connection, written by hand: what a library would not send can be
// sent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace fox {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without its framing
  bool whole = false;                          // the body is there to its end

  nlohmann::json Json() const { return nlohmann::json::parse(body); }
  std::string ErrorMessage() const { return Json()["error"]["message"]; }
  std::string ErrorField() const;
};

// Without a byte for that long, reading ends.
class HttpClient {
 public:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr int kPatienceMs = 40000;  // as much longer as ctest's limits of time
#else
  static constexpr int kPatienceMs = 20000;
#endif

  // Without a listener, nothing can be sent and nothing is ever read.
  explicit HttpClient(int port);
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept : socket_(other.socket_) { other.socket_ = -1; }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False: the server has closed the connection.
  bool Send(const std::string& bytes);
  void SendRequest(const std::string& method, const std::string& path, const std::string& body,
                   const std::string& headers = "");
  // Waits for a whole answer.
  HttpReply Read(bool head_only = false);
  HttpReply Post(const std::string& path, const nlohmann::json& body);
  HttpReply Get(const std::string& path);

  // What has arrived of a stream; waits until it holds `text`. False: the stream ended before.
  bool ReadUntil(const std::string& text);
  const std::string& received() const { return in_; }
  // Waits for more of it. False: the connection has ended, or nothing came for so long.
  bool ReadMore(int milliseconds = kPatienceMs);
  // Waits for the end of the connection. False: it does not come, or more bytes have come.
  bool AtEnd();
  void Close();
  // Ends with a reset instead of a FIN.
  void Reset();

 private:
  int socket_;
  std::string in_;
};

// The data of server-sent events, in order.
std::vector<std::string> Events(const std::string& body);

}  // namespace fox
