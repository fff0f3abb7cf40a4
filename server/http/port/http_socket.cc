// HttpSocket: reads and writes, plain or through TLS. See http_socket.h.
#include "server/http/port/http_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/error.hpp"
#include "kernels/core/check.h"

namespace fox {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

// The most unsent bytes that the kernel holds, so that a reader that stops is noticed soon.
constexpr int kUnsentBytes = 64 << 10;
constexpr int kMostIdleRecords = 32;

void SetOption(int descriptor, int level, int name, int value) {
  setsockopt(descriptor, level, name, &value, sizeof(value));
}

void SetOptions(int descriptor) {
  SetOption(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  // A client that vanished while its request waits is noticed after 80 s.
  SetOption(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 2);
}

}  // namespace

HttpSocket::HttpSocket(asio::io_context& io, int descriptor, const TlsMaterial* tls)
    : socket_(io), tls_(tls == nullptr ? nullptr : SSL_new(tls->context.get()), SSL_free) {
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &length);
  Error error;
  socket_.assign(local.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), descriptor, error);
  if (error) {
    close(descriptor);
    return;
  }
  socket_.non_blocking(true, error);
  SetOptions(descriptor);
  if (tls == nullptr) return;
  if (tls_ != nullptr && SSL_set_fd(tls_.get(), descriptor) == 1) {
    SSL_set_accept_state(tls_.get());
    SSL_set_msg_callback_arg(tls_.get(), this);
    SSL_set_msg_callback(tls_.get(),
                         [](int is_write, int, int type, const void*, size_t, SSL*, void* socket) {
                           if (is_write == 0 && type == SSL3_RT_HEADER)
                             static_cast<HttpSocket*>(socket)->OnRecord();
                         });
  } else {
    Close();
  }
}

HttpSocket::~HttpSocket() { Close(); }

std::string HttpSocket::Peer() const {
  Error error;
  const tcp::endpoint peer = socket_.remote_endpoint(error);
  if (error) return "";
  const std::string address = peer.address().to_string();
  return peer.address().is_v4() ? absl::StrCat("ipv4:", address, ":", peer.port())
                                : absl::StrCat("ipv6:[", address, "]:", peer.port());
}

size_t HttpSocket::ReadSome(char* data, size_t size, Error* error) {
  FOX_CHECK(size > 0);
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(data, size), *error);
  size_t count = 0;
  ERR_clear_error();
  *error = ErrorOf(SSL_read_ex(tls_.get(), data, size, &count));
  if (count > 0) idle_records_ = 0;
  return count;
}

// Called in a read before the record is looked at: some kinds are answered and thrown away without
// an end of the read. After too many, the read finds that the client has ended.
void HttpSocket::OnRecord() {
  if (most_idle_records_ != kMostIdleRecords && SSL_is_init_finished(tls_.get()) == 1) {
    most_idle_records_ = kMostIdleRecords;
    idle_records_ = 0;
  }
  if (++idle_records_ <= most_idle_records_) return;
  SSL_set_shutdown(tls_.get(), SSL_get_shutdown(tls_.get()) | SSL_RECEIVED_SHUTDOWN);
}

size_t HttpSocket::WriteSome(const char* data, size_t size, Error* error) {
  FOX_CHECK(size > 0);
  if (tls_ == nullptr) return socket_.write_some(asio::buffer(data, size), *error);
  size_t count = 0;
  ERR_clear_error();
  *error = ErrorOf(SSL_write_ex(tls_.get(), data, size, &count));
  return count;
}

// A read waits to write only in a handshake, because there is no renegotiation.
HttpSocket::Error HttpSocket::ErrorOf(int result) {
  read_waits_for_ = tcp::socket::wait_read;
  if (result == 1) return {};
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_WRITE:
      if (!SSL_is_init_finished(tls_.get())) read_waits_for_ = tcp::socket::wait_write;
      return asio::error::would_block;
    case SSL_ERROR_WANT_READ:
      return asio::error::would_block;
    case SSL_ERROR_ZERO_RETURN:
      return asio::error::eof;
    default:
      break;
  }
  fell_back_ = ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
  ERR_clear_error();
  if (fell_back_) tls_ = nullptr;
  return asio::error::connection_aborted;
}

void HttpSocket::CloseWriting() {
  Error ignored;
  if (tls_ != nullptr) SSL_shutdown(tls_.get());
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void HttpSocket::Close() {
  tls_ = nullptr;  // it knows the descriptor's number, which the next connection gets
  Error ignored;
  socket_.close(ignored);
}

}  // namespace fox
