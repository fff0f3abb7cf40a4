// FakeStore: a SnapshotStore in memory that takes its time, in any order, and fails now and then:
// what it should keep is gone, or cannot be read. Read fake_executor.h first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/snapshot_store.h"
#include "engine/request/step_executor.h"
#include "engine/store/digest.h"
#include "tests/engine/sim/random.h"

namespace fox::sim {

class FakeStore final : public SnapshotStore {
 public:
  // `executor` has the buffers. `delays`: the probability that an operation is not done in a step.
  FakeStore(StepExecutor& executor, uint64_t seed, double faults, double delays)
      : executor_(&executor), random_(seed, 0), faults_(faults), delays_(delays) {}
  // From now on it serves another executor, which nothing is being written for.
  void Serve(StepExecutor& executor, double faults, double delays) {
    executor_ = &executor;
    faults_ = faults;
    delays_ = delays;
    pending_.clear();
    done_.clear();
  }

  void SetDelays(double delays) { delays_ = delays; }

  int64_t Find(const std::string& cache_salt, double log_tolerance,
               const std::vector<int32_t>& tokens, int64_t unit, int64_t more_than,
               int64_t most) override {
    int64_t longest = 0;
    for (const auto& [what, image] : stored_) {
      const auto size = static_cast<int64_t>(what.tokens.size());
      if (what.cache_salt != cache_salt || what.log_tolerance != log_tolerance) continue;
      if (size % unit != 0 || size <= std::max(more_than, longest) || size > most) continue;
      if (std::equal(what.tokens.begin(), what.tokens.end(), tokens.begin())) longest = size;
    }
    return longest;
  }
  void Write(int32_t buffer, StoredSnapshot what) override {
    pending_.push_back({{buffer, /*read=*/false, /*ok=*/false, std::move(what)}, clears_});
  }
  void Read(int32_t buffer, StoredSnapshot what) override {
    pending_.push_back({{buffer, /*read=*/true, /*ok=*/false, std::move(what)}, clears_});
    // Until it is done, there is something else.
    std::memset(executor_->StagingBuffer(buffer), 0x5a,
                static_cast<size_t>(executor_->limits().staging_bytes));
  }
  bool has_done() const override { return !done_.empty(); }
  std::vector<Done> TakeDone() override { return std::exchange(done_, {}); }
  void Clear(const std::string& only) override {
    ++clears_;
    std::erase_if(stored_, [&only](const auto& entry) {
      return only.empty() || NamespaceName(entry.first.cache_salt) == only;
    });
  }
  std::vector<StoredNamespace> List(const std::string& after, size_t most) const override {
    std::map<std::string, StoredNamespace> found;
    for (const auto& [what, image] : stored_) {
      StoredNamespace& of = found[NamespaceName(what.cache_salt)];
      of.name = NamespaceName(what.cache_salt);
      ++of.files;
      of.bytes += static_cast<int64_t>(image.size());
    }
    std::vector<StoredNamespace> list;
    for (auto at = found.upper_bound(after); at != found.end() && list.size() < most; ++at) {
      list.push_back(at->second);
    }
    return list;
  }
  StoreStats stats() const override { return stats_; }
  void SetWake(std::function<void()>) override {}

  // Time passes.
  void Advance() {
    std::vector<Pending> later;
    for (Pending& pending : pending_) {
      if (random_.Chance(delays_)) {
        later.push_back(std::move(pending));
      } else {
        Finish(std::move(pending));
      }
    }
    pending_ = std::move(later);
  }
  bool Owns(int32_t buffer) const {
    const auto has = [buffer](const Done& done) { return done.buffer == buffer; };
    return std::any_of(done_.begin(), done_.end(), has) ||
           std::any_of(pending_.begin(), pending_.end(),
                       [&](const Pending& pending) { return has(pending.done); });
  }

 private:
  using Image = std::vector<std::byte>;
  struct Pending {
    Done done;
    int64_t clears = 0;
  };

  auto Stored(const StoredSnapshot& what) {
    return std::find_if(stored_.begin(), stored_.end(), [&what](const auto& entry) {
      return entry.first.cache_salt == what.cache_salt && entry.first.tokens == what.tokens &&
             entry.first.log_tolerance == what.log_tolerance;
    });
  }
  void Finish(Pending pending) {
    Done& done = pending.done;
    std::byte* const buffer = executor_->StagingBuffer(done.buffer);
    const auto bytes = static_cast<size_t>(executor_->limits().staging_bytes);
    const auto found = Stored(done.what);
    const bool fails = random_.Chance(faults_);
    if (fails) ++stats_.errors;
    if (done.read) {
      done.ok = !fails && found != stored_.end() && pending.clears == clears_;
      if (done.ok) {
        done.what = found->first;
        std::copy(found->second.begin(), found->second.end(), buffer);
      } else if (found != stored_.end()) {
        stored_.erase(found);
      }
    } else {
      done.ok = !fails;
      if (done.ok && pending.clears == clears_ && found == stored_.end()) {
        stored_.emplace_back(done.what, Image(buffer, buffer + bytes));
        ++stats_.saved;
      }
      if (stored_.size() > 20) stored_.erase(stored_.begin());
    }
    done_.push_back(std::move(done));
  }

  StepExecutor* executor_;
  Random random_;
  double faults_, delays_;
  std::vector<std::pair<StoredSnapshot, Image>> stored_;
  std::vector<Pending> pending_;
  std::vector<Done> done_;
  int64_t clears_ = 0;
  StoreStats stats_;
};

}  // namespace fox::sim
