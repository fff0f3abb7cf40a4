// SnapshotStore: the seam between the prefix cache and a place for snapshots outside of the pool.
// DiskStore (engine/store) keeps them in files; tests put a store of their own here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/paging/acp.h"

namespace fox {

// A snapshot without its image (kernels/paging/slot_image.h).
struct StoredSnapshot {
  std::string cache_salt;
  double log_tolerance = kNoMass;
  std::vector<int32_t> tokens;
  // Of the image; a store fills both in when it reads.
  int64_t pages = 0;
  double max_log_evicted_mass = kNoMass;  // certificate
};

// Counters since start, and sizes now.
struct StoreStats {
  int64_t files = 0, bytes = 0;
  int64_t saved = 0, read = 0, removed = 0;  // files; `removed`: for room
  int64_t errors = 0;                        // of reading and writing
  double read_seconds = 0;                   // from Read to the end of it, of all that were read
};

// The files of a namespace, of this server and of others.
struct StoredNamespace {
  std::string name;  // NamespaceName (engine/store/digest.h)
  int64_t files = 0, bytes = 0;
};

// Images lie in the executor's staging buffers (StepExecutor::StagingBuffer). A buffer given to
// Write or Read belongs to the store until TakeDone returns it. One thread calls, but for the
// methods that say otherwise; no call waits for a disk.
class SnapshotStore {
 public:
  struct Done {
    int32_t buffer = 0;
    bool read = false;  // it was Read, not Write
    bool ok = false;    // it is stored, or it was found and is in the buffer
    StoredSnapshot what;
  };

  virtual ~SnapshotStore() = default;

  // Tokens of the longest stored snapshot of a prefix of `tokens` in the namespace of `cache_salt`
  // and `log_tolerance`, among the lengths that are multiples of `unit`, at most `most`, and longer
  // than `more_than`; 0: there is none, as far as is known without reading.
  virtual int64_t Find(const std::string& cache_salt, double log_tolerance,
                       const std::vector<int32_t>& tokens, int64_t unit, int64_t more_than,
                       int64_t most) = 0;
  // Stores the image in the buffer.
  virtual void Write(int32_t buffer, StoredSnapshot what) = 0;
  // Reads the image of these tokens into the buffer.
  virtual void Read(int32_t buffer, StoredSnapshot what) = 0;
  // True if TakeDone has something to return. Any thread may ask.
  virtual bool has_done() const = 0;
  virtual std::vector<Done> TakeDone() = 0;
  // Removes the snapshots of the namespace of this NamespaceName, "": of all, other servers', too.
  // Writes and reads that have not ended are given up. No removed snapshot is found from now on;
  // the files themselves go soon after.
  virtual void Clear(const std::string& only) = 0;
  // The first `most` namespaces behind the name `after`, in the order of their names. Any thread.
  virtual std::vector<StoredNamespace> List(const std::string& after, size_t most) const = 0;
  virtual StoreStats stats() const = 0;  // any thread
  // From now on `wake` is called, on any thread, when TakeDone has something to return; it must not
  // call the store, nor wait for a thread that does. Null: no longer.
  virtual void SetWake(std::function<void()> wake) = 0;
};

}  // namespace fox
