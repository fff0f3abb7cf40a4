// HttpPort where Boost was not found when this was built: HttpServer::Listen says so.
#include "server/http/http_port.h"

namespace fox {

struct HttpPort::Impl {};

bool HttpPort::IsBuilt() { return false; }

HttpPort::HttpPort(const HttpPortOptions&, Gate, Handler) {}
HttpPort::~HttpPort() = default;
void HttpPort::Add(int) {}
void HttpPort::Drain() {}
void HttpPort::Stop(double) {}

}  // namespace fox
