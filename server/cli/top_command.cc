// fox-cli top: a server's load as a table that keeps changing; without a terminal it is printed
// once.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fox/v1/info.grpc.pb.h"
#include "server/cli/commands.h"
#include "server/cli/connection.h"

namespace fox::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBarWidth = 30;
constexpr const char* kHome = "\x1b[H\x1b[J";  // to the upper left corner; clears the rest

// The load at one moment.
struct Reading {
  v1::Load load;
  Clock::time_point when;
};

std::string Bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
}

std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string Bar(double share) {
  const int filled = static_cast<int>(std::lround(kBarWidth * std::min(std::max(share, 0.0), 1.0)));
  return absl::StrCat("[", std::string(static_cast<size_t>(filled), '#'),
                      std::string(static_cast<size_t>(kBarWidth - filled), '.'), "]");
}

std::string Mass(double log_mass) {
  return std::isfinite(log_mass) ? absl::StrFormat("%.4f", log_mass) : "none";
}

std::string Traffic(const Reading& before, const Reading& now) {
  const double seconds = std::chrono::duration<double>(now.when - before.when).count();
  const auto rate = [&](uint64_t (v1::Load::*total)() const) {
    const double grown = static_cast<double>((now.load.*total)() - (before.load.*total)());
    return seconds > 0 ? grown / seconds : 0.0;
  };
  return absl::StrFormat(
      "per second  %10.1f generated  %10.1f of prompts  %8.1f steps  %8.1f pages evicted\n",
      rate(&v1::Load::generated_tokens), rate(&v1::Load::prompt_tokens), rate(&v1::Load::steps),
      rate(&v1::Load::pages_evicted));
}

std::string Memory(const v1::ServerInfo& server, const v1::Load& load) {
  const auto page = static_cast<double>(load.page_bytes());
  const double pool = page * static_cast<double>(load.num_pages());
  const double held = page * static_cast<double>(load.kept_pages());
  const double unpruned = page * static_cast<double>(load.unpruned_pages());
  const double share = unpruned > 0 ? held / unpruned : 0;
  return absl::StrCat(
      absl::StrFormat("KV pool     %s %5.1f%%  %s of %s\n", Bar(load.page_usage()),
                      100 * load.page_usage(), Bytes(held), Bytes(pool)),
      absl::StrFormat("kept        %s %5.1f%%  %s of %s without forgetting\n", Bar(share),
                      100 * share, Bytes(held), Bytes(unpruned)),
      absl::StrFormat("certificate log mass %s, tolerance %s; %d pages evicted, %d preemptions\n",
                      Mass(load.max_log_evicted_mass()), Mass(server.log_tolerance()),
                      load.pages_evicted(), load.preemptions()));
}

std::string Table(const v1::ServerInfo& server, const std::string& model, const Reading& before,
                  const Reading& now) {
  const v1::Load& load = now.load;
  return absl::StrCat(
      absl::StrFormat("%s  foxserve %s  %s  %s\n\n", model, server.version(), server.device(),
                      server.draining() ? "DRAINING" : "up " + Duration(server.uptime_s())),
      absl::StrFormat("requests    %d of %d running, %d waiting (%d tokens, %.1f s), %d paused\n",
                      load.running(), server.max_num_seqs(), load.waiting(), load.queued_tokens(),
                      load.queue_s(), load.paused()),
      absl::StrFormat("calls       %d open, %s held\n", load.calls(),
                      Bytes(static_cast<double>(load.call_bytes()))),
      Traffic(before, now), Memory(server, load),
      absl::StrFormat("ended       %d finished, %d cancelled, %d expired, %d aborted, %d rejected, "
                      "%d failed\n",
                      load.requests_finished(), load.requests_cancelled(), load.requests_expired(),
                      load.requests_aborted(), load.requests_rejected(), load.requests_failed()),
      absl::StrFormat("engine      last turned %.2f s ago\n", load.heartbeat_age_s()));
}

// Reads what the table shows. Returns the exit code; an error is reported.
int Read(const Connection& connection, v1::Info::Stub& stub, v1::ServerInfo* server,
         Reading* reading) {
  const int code = connection.Ask(stub, &v1::Info::Stub::GetServerInfo, {}, server);
  if (code != kExitOk) return code;
  const int loaded = connection.Ask(stub, &v1::Info::Stub::GetLoad, {}, &reading->load);
  reading->when = Clock::now();
  return loaded;
}

}  // namespace

int Top(const std::vector<std::string>& arguments) {
  FlagSet set;
  Connection connection;
  connection.timeout_s = 5;
  double interval = 1;
  bool once = false;
  set.Double("interval", "SECONDS", "time between two looks", 0.1, 3600, &interval);
  set.Bool("once", "print one table and end", &once);
  const std::optional<int> over = connection.Begin("top", arguments, &set, /*most=*/0);
  if (over.has_value()) return *over;
  once = once || isatty(STDOUT_FILENO) == 0;

  const std::unique_ptr<v1::Info::Stub> stub = v1::Info::NewStub(connection.Open());
  v1::ModelInfo model;
  v1::ServerInfo server;
  Reading before, now;
  int code = connection.Ask(*stub, &v1::Info::Stub::GetModelInfo, {}, &model);
  if (code == kExitOk) code = Read(connection, *stub, &server, &before);
  while (code == kExitOk) {  // until a signal ends it; rates need two readings
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
    code = Read(connection, *stub, &server, &now);
    if (code != kExitOk) break;
    const std::string table = Table(server, model.served_model_name(), before, now);
    std::printf("%s%s", once ? "" : kHome, table.c_str());
    if (std::fflush(stdout) != 0) return once ? kExitOk : kExitFailed;
    if (once) break;
    before = now;
  }
  return code;
}

}  // namespace fox::cli
