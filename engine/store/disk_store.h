// DiskStore: snapshots in files of one directory (snapshot_file.h), least recently used first out.
//
// A file's name says all that its index needs, so a start reads no file:
//   IDENTITY-NAMESPACE-TOKENS-KEY.snapshot
//   the server's identity, the NamespaceName, the length, the hash of namespace and tokens
// Files of other servers count for the limit, and are never opened. One thread writes, one reads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/request/snapshot_store.h"
#include "engine/store/file_system.h"
#include "engine/store/image_lane.h"
#include "engine/store/snapshot_file.h"

namespace fox {

struct DiskStoreOptions {
  SnapshotFormat format;
  DeviceQueue* queue = nullptr;  // of the device that has the buffers; null: the host has them
  int64_t max_bytes = 0;         // of all files
  int read_threads = 1;          // that share the reading of a file
  bool has_threads = true;       // false: the owner calls RunOne instead, as a test does
  // Takes a line about a failure, at most one in kWarningInterval; any thread.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

class DiskStore final : public SnapshotStore {
 public:
  static constexpr double kWarningInterval = 60;  // seconds

  // `buffers`: the executor's staging buffers, which outlive the store, as does its device. Lists
  // the directory, and removes a file that an earlier server left half written. On the thread that
  // calls the Ops, if there is a device.
  DiskStore(std::unique_ptr<FileSystem> files, std::vector<std::span<std::byte>> buffers,
            DiskStoreOptions options);
  ~DiskStore() override;  // after the file that is being written; the other tasks are dropped

  int64_t Find(const std::string& cache_salt, double log_tolerance,
               const std::vector<int32_t>& tokens, int64_t unit, int64_t more_than,
               int64_t most) override;
  void Write(int32_t buffer, StoredSnapshot what) override;
  void Read(int32_t buffer, StoredSnapshot what) override;
  bool has_done() const override { return has_done_; }
  std::vector<Done> TakeDone() override;
  void Clear(const std::string& only) override;
  std::vector<StoredNamespace> List(const std::string& after, size_t most) const override;
  StoreStats stats() const override;
  void SetWake(std::function<void()> wake) override;

  // Without threads: carries out the oldest write, removal or read. False: there is none.
  bool RunOne();

 private:
  struct Task {
    bool read = false;
    int32_t buffer = -1;  // -1: only the removals are asked for
    StoredSnapshot what;
    int64_t clears = 0;  // when it was queued
    double queued = 0;   // SteadySeconds
  };
  struct Worker {
    std::deque<Task> tasks;
    CondVar wake;
    std::thread thread;
  };
  struct File {
    int64_t bytes = 0;
    std::string name_space;  // "": it is not known
    int64_t tokens = 0;      // 0: another server's
    uint64_t used = 0;       // its place in by_use_
  };

  std::string PrefixOf(const std::string& cache_salt) const;
  std::string NameOf(const StoredSnapshot& what) const;
  void Scan();
  void Push(Worker& worker, Task task);
  void Loop(Worker& worker);
  void Run(Task task);
  absl::Status WriteFile(const Task& task);
  absl::Status ReadFile(Task& task);
  void RemoveCleared();
  void RemoveOld(int64_t room);
  void Finish(Done done);
  void Warn(const char* what, const absl::Status& status);
  File FileOf(const FileSystem::Entry& entry) const;
  void AddFile(const std::string& name, File file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<FileSystem> files_;
  const std::vector<std::span<std::byte>> buffers_;
  const DiskStoreOptions options_;
  const std::string identity_;         // in the names of its own files
  ThreadPool reading_;                 // used by the reader
  std::vector<ImageLane> read_lanes_;  // one for each of its threads
  ImageLane write_lane_;               // used by the writer

  mutable Mutex mutex_;
  Worker writer_, reader_;                                     // tasks: ABSL_GUARDED_BY(mutex_)
  std::map<std::string, File> index_ ABSL_GUARDED_BY(mutex_);  // by name
  std::map<uint64_t, std::string> by_use_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  std::map<int64_t, int64_t> lengths_ ABSL_GUARDED_BY(mutex_);      // own files, by tokens
  // Of the files in the index.
  struct Amount {
    int64_t files = 0, bytes = 0;
  };
  std::map<std::string, Amount> namespaces_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> cleared_ ABSL_GUARDED_BY(mutex_);    // by Clear, still in the index
  std::vector<std::string> doomed_ ABSL_GUARDED_BY(mutex_);  // to be removed
  std::vector<Done> done_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  StoreStats stats_ ABSL_GUARDED_BY(mutex_);
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t clears_ ABSL_GUARDED_BY(mutex_) = 0;
  double warned_ ABSL_GUARDED_BY(mutex_) = -1e18;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_done_{false};
};

}  // namespace fox
