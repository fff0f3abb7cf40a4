// LineWriter: see line_writer.h.
#include "server/process/line_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "engine/steady_clock.h"

namespace fox {
namespace {

// A thread that takes no signals: they belong to whoever waits for them.
std::thread StartWithoutSignals(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

LineWriter::LineWriter(int descriptor, size_t max_bytes, Report report)
    : descriptor_(descriptor), max_bytes_(max_bytes), report_(std::move(report)) {
  thread_ = StartWithoutSignals([this] { Loop(); });
}

LineWriter::~LineWriter() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void LineWriter::Add(std::string line) {
  {
    const MutexLock lock(mutex_);
    if (bytes_ + line.size() > max_bytes_) {
      ++dropped_;
      ++total_dropped_;
      return;
    }
    if (dropped_ > 0) {
      queue_.push_back({report_(dropped_), dropped_});
      bytes_ += queue_.back().text.size();
      dropped_ = 0;
    }
    bytes_ += line.size();
    queue_.push_back({std::move(line), 0});
  }
  changed_.NotifyAll();
}

bool LineWriter::Flush(double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + SteadyDuration(seconds);
  const MutexLock lock(mutex_);
  while (!queue_.empty() || writing_ || (dropped_ > 0 && !failing_)) {
    if (!changed_.WaitUntil(mutex_, deadline)) return false;
  }
  return true;
}

void LineWriter::Loop() {
  Queued entry;
  while (Next(&entry)) {
    const bool written = Write(entry.text);
    {
      const MutexLock lock(mutex_);
      bytes_ -= entry.text.size();
      failing_ = !written;
      writing_ = false;
      if (!written) dropped_ += entry.reported > 0 ? entry.reported : 1;
    }
    if (!written && entry.reported == 0) ++total_dropped_;
    changed_.NotifyAll();
  }
}

bool LineWriter::Next(Queued* entry) {
  const MutexLock lock(mutex_);
  // While writing fails, the report waits for the next line.
  while (!stopping_ && queue_.empty() && (dropped_ == 0 || failing_)) changed_.Wait(mutex_);
  if (stopping_) return false;
  if (queue_.empty()) {
    *entry = {report_(dropped_), std::exchange(dropped_, 0)};
    bytes_ += entry->text.size();
  } else {
    *entry = std::move(queue_.front());
    queue_.pop_front();
  }
  writing_ = true;
  return true;
}

// One write a line, so that lines of several processes do not mix.
bool LineWriter::Write(const std::string& text) {
  std::string whole;
  if (torn_) whole += '\n';
  whole += text;
  size_t done = 0;
  while (done < whole.size()) {
    const ssize_t n = write(descriptor_, whole.data() + done, whole.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {  // somebody else made it non-blocking
      pollfd ready{descriptor_, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      torn_ = torn_ || done > 0;
      return false;
    }
  }
  torn_ = false;
  return true;
}

}  // namespace fox
