// SignalHandler: see signal_handler.h.
#include "server/process/signal_handler.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/core/check.h"

namespace fox {
namespace {

// The next pending signal, or 0.
int Next(int signals) {
  signalfd_siginfo info{};
  if (read(signals, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace

SignalHandler::SignalHandler() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signals_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  FOX_CHECK(signals_ >= 0 && wake_ >= 0);
}

SignalHandler::~SignalHandler() {
  close(signals_);
  close(wake_);
}

int SignalHandler::Wait() {
  for (;;) {
    if (const int signal = Next(signals_)) return signal;
    uint64_t woken = 0;
    if (read(wake_, &woken, sizeof(woken)) == sizeof(woken)) return 0;
    pollfd ready[] = {{signals_, POLLIN, 0}, {wake_, POLLIN, 0}};
    poll(ready, 2, -1);
  }
}

bool SignalHandler::Again() { return Next(signals_) != 0; }

void SignalHandler::Wake() {
  const uint64_t once = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &once, sizeof(once));
}

}  // namespace fox
