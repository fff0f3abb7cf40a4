// HttpSocket: the bytes of one connection, which never block: plain, or through TLS, whose
// handshake is a part of the first reads. Sockets are Boost's Asio, which this unit and
// http_port.cc alone see.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "server/process/tls_files.h"

struct ssl_st;

namespace fox {

// Used by one thread. With TLS, SIGPIPE must be ignored.
class HttpSocket {
 public:
  using Error = boost::system::error_code;

  // Takes over a connected descriptor. `tls` null: plain text.
  HttpSocket(boost::asio::io_context& io, int descriptor, const TlsMaterial* tls);
  ~HttpSocket();
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  // False: after Close, or the system had no room for it.
  bool is_open() const { return socket_.is_open(); }
  // "ipv4:127.0.0.1:4711", as gRPC writes it.
  std::string Peer() const;

  // Return the bytes read or written; 0 with an error, which is would_block if a wait helps. A read
  // takes one TLS record at most. A client that sends only records without data (changes of its
  // key, wishes to renegotiate) is at its end after 32 of them, as in BoringSSL and rustls.
  size_t ReadSome(char* data, size_t size, Error* error);
  size_t WriteSome(const char* data, size_t size, Error* error);
  template <class Handler>
  void WaitToRead(Handler handler) {
    socket_.async_wait(read_waits_for_, std::move(handler));
  }
  template <class Handler>
  void WaitToWrite(Handler handler) {
    socket_.async_wait(boost::asio::ip::tcp::socket::wait_write, std::move(handler));
  }

  // True once a client has spoken plain HTTP to a TLS port: from then on the socket is plain, so
  // that an answer can say so.
  bool fell_back() const { return fell_back_; }

  // Tells the client that everything has been written. After Close alone, TLS clients know that
  // bytes may be missing.
  void CloseWriting();
  void Close();

 private:
  Error ErrorOf(int result);
  void OnRecord();

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;  // null: plain text
  boost::asio::ip::tcp::socket::wait_type read_waits_for_ = boost::asio::ip::tcp::socket::wait_read;
  bool fell_back_ = false;
  int idle_records_ = 0;         // that came since the last data
  int most_idle_records_ = 256;  // of a handshake, whose messages a client may split
};

}  // namespace fox
