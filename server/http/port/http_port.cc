// HttpPort: its loop and connections. A connection reads one request, hands it on, writes its
// answer, and reads the next. Pipelined bytes wait in a small buffer. See http_port.h.
#include "server/http/port/http_port.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"
#include "server/calls/call.h"
#include "server/http/port/http_error.h"
#include "server/http/port/http_parser.h"
#include "server/http/port/http_socket.h"
#include "server/http/port/unfinished_bodies.h"

namespace fox {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxPipelinedBytes = 16 << 10;
constexpr double kBodyBytesPerSecond = 16 << 10;
constexpr double kLingerSeconds = 2;  // for a client that still sends to read why it is refused
constexpr std::chrono::milliseconds kTick(50);
constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

class Connection;

// The state that all connections share. All but the atomics and `io` is used by the port's thread
// alone.
struct Loop : std::enable_shared_from_this<Loop> {
  Loop(const HttpPortOptions& opts, std::shared_ptr<const HttpRoutes> table)
      : options(opts), routes(std::move(table)) {}
  void Add(int descriptor, const TlsMaterial* tls);
  void Tick();
  void Close(bool idle_only);

  const HttpPortOptions options;
  const std::shared_ptr<const HttpRoutes> routes;
  asio::io_context io{1};
  asio::steady_timer timer{io};
  std::array<char, 64 << 10> scratch{};  // every connection reads into it
  std::unordered_set<std::shared_ptr<Connection>> connections;
  UnfinishedBodies bodies{options.receive_memory_bytes};
  std::atomic<int64_t> handling{0};
  std::atomic<bool> draining{false}, stopped{false};
};

class Connection : public std::enable_shared_from_this<Connection>, public UnfinishedBodies::Body {
 public:
  Connection(std::shared_ptr<Loop> loop, int descriptor, const TlsMaterial* tls)
      : loop_(std::move(loop)),
        socket_(loop_->io, descriptor, tls),
        peer_(socket_.Peer()),
        parser_(loop_->options.max_body_bytes) {
    Expire(loop_->options.head_timeout);
  }

  const std::shared_ptr<Loop>& loop() const { return loop_; }
  bool is_open() const { return socket_.is_open(); }
  bool idle() const { return state_ != State::kHandling; }
  bool expired(Clock::time_point now) const { return now >= deadline_; }
  void Read();
  void OnDeadline();
  // Nothing more is read or written.
  void Close(const absl::Status& reason);

  // For the exchange with this number; without effect when it is over.
  void AttachCall(uint64_t exchange, std::shared_ptr<Call> call) {
    if (exchange == exchange_ && !closed_) call_ = std::move(call);
  }
  void Answer(uint64_t exchange, HttpAnswer answer);
  void BeginStream(uint64_t exchange, HttpAnswer head);
  void WriteStream(uint64_t exchange, const std::string& bytes, bool last);
  void AbandonReader(uint64_t exchange) {
    if (exchange == exchange_) Close(absl::AbortedError("the reader has stalled"));
  }

 private:
  enum class State { kHead, kBody, kHandling, kLingering };

  void Expire(double seconds) {
    deadline_ = seconds > 0 ? Clock::now() + SteadyDuration(seconds) : kNoDeadline;
  }
  void OnReadable(const error_code& error);
  void OnEnd();
  void Process();
  bool OnHead();
  bool CountBody();
  void Handle();
  // Answers without a handler, and ends the connection.
  void Refuse(HttpAnswer answer);
  void BeginExchange();
  bool IsRunning(uint64_t exchange) const {
    return exchange == exchange_ && state_ == State::kHandling && !closed_ && !last_queued_;
  }
  void QueueBytes(std::string bytes, bool last);
  void WriteSome();
  void OnWritten(const error_code& error, size_t count);
  void FinishExchange();

  const std::shared_ptr<Loop> loop_;
  HttpSocket socket_;
  const std::string peer_;
  State state_ = State::kHead;
  Clock::time_point deadline_;
  bool reading_ = false, ended_ = false, closed_ = false;  // ended: by the client's FIN
  std::string in_;                                         // not parsed yet
  HttpParser parser_;
  std::optional<HttpAnswer> refusal_;  // of a request whose head is all of it
  HttpHeaders cors_;                   // of the answer
  Clock::time_point body_since_;

  uint64_t exchange_ = 0;       // counts requests
  std::shared_ptr<Call> call_;  // until the answer's end; null: none was attached
  bool keep_alive_ = true, head_only_ = false;
  std::string out_, next_;  // in flight, and behind it
  size_t out_done_ = 0;
  bool last_queued_ = false;
};

class Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, uint64_t number)
      : connection_(std::move(connection)), number_(number) {}

  void AttachCall(std::shared_ptr<Call> call) override {
    connection_->AttachCall(number_, std::move(call));
  }
  void Answer(HttpAnswer answer) override {
    RunOnLoop([n = number_, answer = std::move(answer)](Connection* connection) mutable {
      connection->Answer(n, std::move(answer));
    });
  }
  void Write(std::string bytes) override {
    if (std::exchange(begun_, true)) return WriteStream(std::move(bytes), /*last=*/false);
    RunOnLoop([n = number_, answer = WithHead(std::move(bytes))](Connection* connection) mutable {
      connection->BeginStream(n, std::move(answer));
    });
  }
  void EndAnswer(const absl::Status& status, std::string bytes, int64_t retry_after_ms) override {
    if (begun_) return WriteStream(std::move(bytes), /*last=*/true);
    Answer(status.ok() ? WithHead(std::move(bytes))
                       : ErrorAnswer(status, std::move(bytes), retry_after_ms, head.headers));
  }
  void AbandonReader(const absl::Status&) override {
    RunOnLoop([n = number_](Connection* connection) { connection->AbandonReader(n); });
  }

 private:
  // A loop that has ended keeps the functions posted to it: they must not keep the loop in turn.
  template <class Function>
  void RunOnLoop(Function function) {
    asio::dispatch(connection_->loop()->io, [connection = std::weak_ptr<Connection>(connection_),
                                             function = std::move(function)]() mutable {
      if (const auto alive = connection.lock()) function(alive.get());
    });
  }
  void WriteStream(std::string bytes, bool last) {
    RunOnLoop([n = number_, bytes = std::move(bytes), last](Connection* connection) {
      connection->WriteStream(n, bytes, last);
    });
  }
  HttpAnswer WithHead(std::string bytes) const {
    HttpAnswer answer = head;
    answer.body = std::move(bytes);
    return answer;
  }

  const std::shared_ptr<Connection> connection_;
  const uint64_t number_;
  bool begun_ = false;  // a stream; used by one thread at a time, as Transport promises
};

void Loop::Add(int descriptor, const TlsMaterial* tls) {
  if (stopped) {
    close(descriptor);
    return;
  }
  auto connection = std::make_shared<Connection>(shared_from_this(), descriptor, tls);
  if (!connection->is_open()) return;
  connections.insert(connection);
  connection->Read();
}

void Loop::Tick() {
  std::vector<std::shared_ptr<Connection>> expired;
  const Clock::time_point now = Clock::now();
  for (const auto& connection : connections) {
    if (connection->expired(now)) expired.push_back(connection);
  }
  for (const auto& connection : expired) connection->OnDeadline();
  timer.expires_after(kTick);
  timer.async_wait([this](const error_code& error) {
    if (!error) Tick();
  });
}

void Loop::Close(bool idle_only) {
  const auto all = connections;
  for (const auto& connection : all) {
    if (idle_only && !connection->idle()) continue;
    connection->Close(absl::UnavailableError("the server is stopping"));
  }
}

void Connection::Read() {
  if (reading_ || closed_ || ended_) return;
  // The client may have its whole answer before OnWritten.
  if (last_queued_ && in_.size() >= kMaxPipelinedBytes) return;
  reading_ = true;
  socket_.WaitToRead(
      [self = shared_from_this()](const error_code& error) { self->OnReadable(error); });
}

void Connection::OnReadable(const error_code& error) {
  reading_ = false;
  if (closed_) return;
  error_code failure = error;
  std::array<char, 64 << 10>& scratch = loop_->scratch;
  const size_t count = error ? 0 : socket_.ReadSome(scratch.data(), scratch.size(), &failure);
  if (failure == asio::error::would_block) return Read();
  if (failure && socket_.fell_back() && state_ == State::kHead) {
    return Refuse(ErrorAnswer(400, "this port speaks TLS: https://"));
  }
  if (failure || count == 0) return OnEnd();
  if (state_ == State::kLingering) return Read();
  in_.append(scratch.data(), count);
  // Without reading on, the client's FIN would stay hidden, and its request would run to its end.
  if (state_ == State::kHandling && !last_queued_ && in_.size() > kMaxPipelinedBytes) {
    return Close(absl::CancelledError("too much is pipelined"));
  }
  Process();
}

void Connection::OnEnd() {
  ended_ = true;
  if (!last_queued_) Close(absl::CancelledError("the client went away"));
}

void Connection::OnDeadline() {
  if (state_ == State::kBody || (state_ == State::kHead && parser_.begun())) {
    Refuse(ErrorAnswer(408, "the request did not arrive in time"));
  } else if (state_ == State::kHandling && out_.empty()) {
    Expire(loop_->options.silence);
    if (const std::shared_ptr<Call> call = call_) call->OnSilence();
  } else {
    Close(absl::AbortedError("the reader has stalled"));
  }
}

void Connection::Close(const absl::Status& reason) {
  if (std::exchange(closed_, true)) return;
  deadline_ = kNoDeadline;
  const std::shared_ptr<Connection> self = shared_from_this();
  loop_->bodies.Remove(this);
  if (state_ == State::kHandling) --loop_->handling;
  socket_.Close();
  loop_->connections.erase(self);
  const std::shared_ptr<Call> call = std::move(call_);
  if (call == nullptr) return;
  call->OnClosed(reason);
  call->OnReleased();
}

void Connection::Process() {
  while (!closed_ && state_ != State::kHandling && state_ != State::kLingering) {
    if (!parser_.begun() && !in_.empty()) Expire(loop_->options.head_timeout);
    const HttpParser::Step step = parser_.Advance(&in_);
    if (step == HttpParser::Step::kRefused) return Refuse(parser_.refusal());
    if (step == HttpParser::Step::kHead && !OnHead()) return;
    if (state_ == State::kBody && !CountBody()) return;
    if (step == HttpParser::Step::kWhole) Handle();
    if (step == HttpParser::Step::kMore) break;
  }
  Read();
}

// False: the request is refused.
bool Connection::OnHead() {
  HttpRequest& request = parser_.request;
  request.peer = peer_;
  keep_alive_ = parser_.keep_alive();
  head_only_ = request.method == "HEAD";
  refusal_ = loop_->routes->CheckHead(&request);
  cors_ = loop_->routes->CorsHeaders(request);
  if (refusal_.has_value() && !parser_.whole()) {
    Refuse(*std::move(refusal_));
    return false;
  }
  state_ = State::kBody;
  body_since_ = Clock::now();
  if (!parser_.whole() && !parser_.old_client() && in_.empty() &&
      absl::EqualsIgnoreCase(request.Header("expect"), "100-continue")) {
    static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
    error_code ignored;  // nothing else is being written: it fits, or the client has gone
    socket_.WriteSome(kContinue, sizeof(kContinue) - 1, &ignored);
  }
  return true;
}

// Charges the body's bytes so far to the budget, and gives them their time. False: the request has
// been refused.
bool Connection::CountBody() {
  const auto size = static_cast<int64_t>(parser_.body_bytes());
  const uint64_t client = parser_.request.client;
  const Clock::time_point now = Clock::now();
  for (Body* body = loop_->bodies.Grow(this, client, size, now); body != nullptr;
       body = loop_->bodies.MostInTheWay(client)) {
    static_cast<Connection*>(body)->Refuse(
        ErrorAnswer(absl::ResourceExhaustedError("too much is being received at once"),
                    /*retry_after_ms=*/1000));
    if (body == this) return false;
  }
  const double seconds = loop_->options.body_timeout;
  deadline_ = std::min(
      now + SteadyDuration(seconds),
      body_since_ + SteadyDuration(seconds + static_cast<double>(size) / kBodyBytesPerSecond));
  return true;
}

void Connection::Handle() {
  BeginExchange();
  auto exchange = std::make_shared<Exchange>(shared_from_this(), exchange_);
  exchange->request = std::move(parser_.request);
  parser_.Reset();
  if (refusal_.has_value()) {
    Answer(exchange_, *std::exchange(refusal_, std::nullopt));
  } else {
    FOX_CHECK(exchange->request.handler != nullptr);
    (*exchange->request.handler)(exchange);
  }
}

void Connection::Refuse(HttpAnswer answer) {
  BeginExchange();
  parser_.Reset();
  in_.clear();
  answer.close = true;
  Answer(exchange_, std::move(answer));
}

void Connection::BeginExchange() {
  state_ = State::kHandling;
  ++loop_->handling;
  ++exchange_;
  Expire(loop_->options.silence);
  loop_->bodies.Remove(this);
}

void Connection::Answer(uint64_t exchange, HttpAnswer answer) {
  if (!IsRunning(exchange)) return;
  answer.close = answer.close || !keep_alive_ || loop_->draining;
  keep_alive_ = !answer.close;
  if (keep_alive_ && parser_.old_client()) answer.headers.emplace_back("Connection", "keep-alive");
  const std::string head = AnswerHead(answer, BodyFraming::kLength, cors_);
  QueueBytes(head_only_ ? head : head + answer.body, /*last=*/true);
}

void Connection::BeginStream(uint64_t exchange, HttpAnswer head) {
  if (!IsRunning(exchange)) return;
  keep_alive_ = keep_alive_ && !parser_.old_client() && !loop_->draining;
  head.close = !keep_alive_;
  const std::string first = parser_.old_client() ? head.body : Chunk(head.body);
  const auto framing = parser_.old_client() ? BodyFraming::kClose : BodyFraming::kChunked;
  QueueBytes(AnswerHead(head, framing, cors_) + first, /*last=*/false);
}

void Connection::WriteStream(uint64_t exchange, const std::string& bytes, bool last) {
  if (!IsRunning(exchange)) return;
  QueueBytes(parser_.old_client() ? bytes : absl::StrCat(Chunk(bytes), last ? kLastChunk : ""),
             last);
}

void Connection::QueueBytes(std::string bytes, bool last) {
  last_queued_ = last;
  if (!out_.empty()) {
    next_ += bytes;
    return;
  }
  out_ = std::move(bytes);
  out_done_ = 0;
  if (out_.empty()) return FinishExchange();  // the end of a stream of HTTP/1.0
  WriteSome();
}

void Connection::WriteSome() {
  Expire(loop_->options.stall_timeout);
  error_code error;
  const size_t count = socket_.WriteSome(out_.data() + out_done_, out_.size() - out_done_, &error);
  if (error == asio::error::would_block) {
    return socket_.WaitToWrite([self = shared_from_this()](const error_code&) {
      if (!self->closed_) self->WriteSome();
    });
  }
  asio::post(loop_->io,
             [self = shared_from_this(), error, count] { self->OnWritten(error, count); });
}

void Connection::OnWritten(const error_code& error, size_t count) {
  if (closed_) return;
  if (error) return Close(absl::CancelledError("the client went away"));
  out_done_ += count;
  if (out_done_ < out_.size()) return WriteSome();
  out_ = std::exchange(next_, {});
  out_done_ = 0;
  if (!out_.empty()) {
    WriteSome();
  } else if (last_queued_) {
    return FinishExchange();
  } else {
    Expire(loop_->options.silence);
  }
  const std::shared_ptr<Call> call = call_;
  if (call != nullptr) call->OnWritten();
}

void Connection::FinishExchange() {
  FOX_CHECK(state_ == State::kHandling && !closed_);
  --loop_->handling;
  ++exchange_;
  if (call_ != nullptr) std::exchange(call_, nullptr)->OnReleased();
  last_queued_ = false;
  state_ = State::kHead;
  if (ended_) return Close(absl::OkStatus());
  if (keep_alive_) {
    Expire(loop_->options.idle_timeout);
    return Process();
  }
  // Bytes that the client still sends are thrown away: to close at once would take the answer from
  // it.
  state_ = State::kLingering;
  in_.clear();
  socket_.CloseWriting();
  Expire(kLingerSeconds);
  Read();
}

}  // namespace

struct HttpPort::Impl {
  std::shared_ptr<Loop> loop;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::thread thread;
};

HttpPort::HttpPort(const HttpPortOptions& options, std::shared_ptr<const HttpRoutes> routes) {
  auto loop = std::make_shared<Loop>(options, std::move(routes));
  impl_ = std::make_unique<Impl>(
      Impl{loop, asio::make_work_guard(loop->io), std::thread([loop] { loop->io.run(); })});
  asio::post(loop->io, [loop = loop.get()] { loop->Tick(); });
}

HttpPort::~HttpPort() { Stop(0); }

void HttpPort::Add(int descriptor, std::shared_ptr<const TlsMaterial> tls) {
  Loop& loop = *impl_->loop;
  asio::post(loop.io,
             [&loop, descriptor, tls = std::move(tls)] { loop.Add(descriptor, tls.get()); });
}

void HttpPort::Drain() { impl_->loop->draining = true; }

void HttpPort::Stop(double seconds) {
  if (!impl_->thread.joinable()) return;
  Loop& loop = *impl_->loop;
  Drain();
  asio::post(loop.io, [&loop] { loop.Close(/*idle_only=*/true); });
  const Clock::time_point deadline = Clock::now() + SteadyDuration(seconds);
  while (loop.handling > 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  loop.stopped = true;
  loop.io.stop();
  impl_->thread.join();
  // This thread is alone with the loop now.
  loop.Close(/*idle_only=*/false);
  loop.io.restart();
  loop.io.poll();
}

}  // namespace fox
