// One HTTP request and its answer over a connection that may end at any byte, or not begin.
#pragma once

#include <functional>
#include <string>

namespace fox {

struct HttpText {
  int status = 0;  // 0: there was no answer
  std::string body;
  bool whole = false;
};

// POSTs JSON and reads until the server closes, at most 30 s without a byte. `on_event` is called
// when the first event of a stream is there.
HttpText PostJson(int port, const std::string& path, const std::string& json,
                  const std::function<void()>& on_event = nullptr);

}  // namespace fox
