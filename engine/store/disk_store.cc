// DiskStore: the index, and the two threads. Read disk_store.h first.
#include "engine/store/disk_store.h"

#include <pthread.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr char kEnding[] = ".snapshot", kTemporary[] = "writing.tmp";
constexpr size_t kIdentityHex = 16, kKeyHex = 32;  // digits of digests in a name
constexpr int kFilesAtOnce = 1000;                 // under one lock

// The hash of a prefix begins with its namespace; its tokens follow.
void AddNamespace(const std::string& cache_salt, double log_tolerance, Sha256* hash) {
  hash->AddText(cache_salt);
  hash->Add(&log_tolerance, sizeof(log_tolerance));
}

std::string NameFor(const std::string& prefix, int64_t tokens, const Sha256& hash) {
  return absl::StrCat(prefix, tokens, "-", ToHex(hash.Get()).substr(0, kKeyHex), kEnding);
}

}  // namespace

DiskStore::DiskStore(std::unique_ptr<FileSystem> files, std::vector<std::span<std::byte>> buffers,
                     DiskStoreOptions options)
    : files_(std::move(files)),
      buffers_(std::move(buffers)),
      options_(std::move(options)),
      identity_(ToHex(options_.format.identity).substr(0, kIdentityHex)),
      reading_(options_.read_threads),
      write_lane_(options_.queue) {
  for (int i = 0; i < reading_.threads(); ++i) read_lanes_.emplace_back(options_.queue);
  Scan();
  if (!options_.has_threads) return;
  for (Worker* worker : {&writer_, &reader_}) {
    worker->thread = std::thread([this, worker] { Loop(*worker); });
  }
}

DiskStore::~DiskStore() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  for (Worker* worker : {&writer_, &reader_}) {
    worker->wake.NotifyAll();
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void DiskStore::Scan() {
  absl::StatusOr<std::vector<FileSystem::Entry>> entries = files_->List();
  if (!entries.ok()) return Warn("listing", entries.status());
  std::sort(entries->begin(), entries->end(),
            [](const auto& a, const auto& b) { return a.used < b.used; });
  bool temporary = false;
  {
    const MutexLock lock(mutex_);
    for (const FileSystem::Entry& entry : *entries) {
      if (entry.name == kTemporary) temporary = true;
      if (!absl::EndsWith(entry.name, kEnding)) continue;
      AddFile(entry.name, FileOf(entry));
    }
  }
  if (temporary) files_->Remove(kTemporary).IgnoreError();  // the next write replaces it
  RemoveOld(0);
}

// What its name tells of a file. Names that are not ours only count.
DiskStore::File DiskStore::FileOf(const FileSystem::Entry& entry) const {
  File file;
  file.bytes = entry.bytes;
  const std::vector<std::string> parts = absl::StrSplit(entry.name, absl::ByAnyChar("-."));
  int64_t tokens = 0;
  if (parts.size() != 5 || parts[1].size() != kNamespaceDigits || parts[3].size() != kKeyHex ||
      !absl::SimpleAtoi(parts[2], &tokens) || tokens <= 0) {
    return file;
  }
  file.name_space = parts[1];
  if (parts[0] == identity_) file.tokens = tokens;
  return file;
}

void DiskStore::AddFile(const std::string& name, File file) {
  Forget(name);
  file.used = ++uses_;
  by_use_[uses_] = name;
  if (file.tokens > 0) ++lengths_[file.tokens];
  ++stats_.files;
  stats_.bytes += file.bytes;
  Amount& of = namespaces_[file.name_space];
  ++of.files;
  of.bytes += file.bytes;
  index_[name] = std::move(file);
}

void DiskStore::Forget(const std::string& name) {
  const auto found = index_.find(name);
  if (found == index_.end()) return;
  const File& file = found->second;
  by_use_.erase(file.used);
  const auto length = lengths_.find(file.tokens);
  if (length != lengths_.end() && --length->second == 0) lengths_.erase(length);
  --stats_.files;
  stats_.bytes -= file.bytes;
  const auto of = namespaces_.find(file.name_space);
  of->second.bytes -= file.bytes;
  if (--of->second.files == 0) namespaces_.erase(of);
  index_.erase(found);
}

std::string DiskStore::PrefixOf(const std::string& cache_salt) const {
  return absl::StrCat(identity_, "-", NamespaceName(cache_salt), "-");
}

std::string DiskStore::NameOf(const StoredSnapshot& what) const {
  Sha256 hash;
  AddNamespace(what.cache_salt, what.log_tolerance, &hash);
  hash.Add(what.tokens.data(), what.tokens.size() * sizeof(int32_t));
  return NameFor(PrefixOf(what.cache_salt), static_cast<int64_t>(what.tokens.size()), hash);
}

// Hashes the tokens once, and looks up the lengths that some file has.
int64_t DiskStore::Find(const std::string& cache_salt, double log_tolerance,
                        const std::vector<int32_t>& tokens, int64_t unit, int64_t more_than,
                        int64_t most) {
  most = std::min(most, static_cast<int64_t>(tokens.size()));
  const MutexLock lock(mutex_);
  const auto end = lengths_.upper_bound(most);
  auto length = lengths_.upper_bound(more_than);
  if (length == lengths_.end() || length->first > most || !cleared_.empty()) return 0;
  const std::string prefix = PrefixOf(cache_salt);
  Sha256 hash;
  AddNamespace(cache_salt, log_tolerance, &hash);
  int64_t hashed = 0, longest = 0;
  for (; length != end; ++length) {
    if (length->first % unit != 0) continue;
    hash.Add(tokens.data() + hashed, static_cast<size_t>(length->first - hashed) * sizeof(int32_t));
    hashed = length->first;
    if (index_.count(NameFor(prefix, hashed, hash)) > 0) longest = hashed;
  }
  return longest;
}

void DiskStore::Push(Worker& worker, Task task) {
  {
    const MutexLock lock(mutex_);
    task.clears = clears_;
    task.queued = SteadySeconds();
    worker.tasks.push_back(std::move(task));
  }
  worker.wake.NotifyOne();
}

void DiskStore::Write(int32_t buffer, StoredSnapshot what) {
  Push(writer_, {/*read=*/false, buffer, std::move(what)});
}

void DiskStore::Read(int32_t buffer, StoredSnapshot what) {
  Push(reader_, {/*read=*/true, buffer, std::move(what)});
}

void DiskStore::Clear(const std::string& only) {
  {
    const MutexLock lock(mutex_);
    ++clears_;
    if (!only.empty() && namespaces_.count(only) == 0) return;
    cleared_.insert(only);
  }
  Push(writer_, {});
}

// Carries out Clear. The index may be long: the writer, which alone adds to it, walks it in parts,
// between which others may use it.
void DiskStore::RemoveCleared() {
  std::set<std::string> cleared;
  {
    const MutexLock lock(mutex_);
    cleared = cleared_;
  }
  std::string last;
  for (bool more = !cleared.empty(); more;) {
    const MutexLock lock(mutex_);
    std::vector<std::string> names;
    auto at = index_.upper_bound(last);
    for (int i = 0; i < kFilesAtOnce && at != index_.end(); ++i, ++at) {
      last = at->first;
      if (cleared.count("") + cleared.count(at->second.name_space) > 0) names.push_back(last);
    }
    more = at != index_.end();
    for (std::string& name : names) {
      Forget(name);
      doomed_.push_back(std::move(name));
    }
    for (const std::string& only : cleared) {
      if (!more) cleared_.erase(only);
    }
  }
}

std::vector<StoredNamespace> DiskStore::List(const std::string& after, size_t most) const {
  const MutexLock lock(mutex_);
  std::vector<StoredNamespace> found;
  for (auto at = namespaces_.upper_bound(after); at != namespaces_.end(); ++at) {
    if (found.size() == most) break;
    found.push_back({at->first, at->second.files, at->second.bytes});
  }
  return found;
}

void DiskStore::Loop(Worker& worker) {
  pthread_setname_np(pthread_self(), &worker == &writer_ ? "store writer" : "store reader");
  for (;;) {
    Task task;
    {
      const MutexLock lock(mutex_);
      while (worker.tasks.empty() && !stopping_) worker.wake.Wait(mutex_);
      if (stopping_) return;
      task = std::move(worker.tasks.front());
      worker.tasks.pop_front();
    }
    Run(std::move(task));
  }
}

bool DiskStore::RunOne() {
  FOX_CHECK(!options_.has_threads);
  Task task;
  {
    const MutexLock lock(mutex_);
    Worker& worker = writer_.tasks.empty() ? reader_ : writer_;
    if (worker.tasks.empty()) return false;
    task = std::move(worker.tasks.front());
    worker.tasks.pop_front();
  }
  Run(std::move(task));
  return true;
}

void DiskStore::Run(Task task) {
  absl::Status status;
  if (task.read) {
    status = ReadFile(task);
    if (!status.ok() && !absl::IsNotFound(status)) Warn("reading", status);
  } else {
    RemoveOld(0);
    if (task.buffer < 0) return;
    status = WriteFile(task);
    if (!status.ok()) Warn("writing", status);
  }
  Finish({task.buffer, task.read, status.ok(), std::move(task.what)});
}

// Removes doomed files, and the least recently used ones until `room` bytes are free.
void DiskStore::RemoveOld(int64_t room) {
  RemoveCleared();
  std::vector<std::string> names;
  {
    const MutexLock lock(mutex_);
    names = std::exchange(doomed_, {});
    while (!by_use_.empty() && stats_.bytes + room > options_.max_bytes) {
      names.push_back(by_use_.begin()->second);
      Forget(std::string(names.back()));
      ++stats_.removed;
    }
  }
  for (const std::string& name : names) {
    const absl::Status status = files_->Remove(name);
    if (!status.ok() && !absl::IsNotFound(status)) Warn("removing", status);
  }
}

absl::Status DiskStore::WriteFile(const Task& task) {
  const int64_t bytes = SnapshotFileBytes(options_.format, task.what);
  if (bytes > options_.max_bytes) return absl::OkStatus();  // as if it were removed at once
  const std::string name = NameOf(task.what);
  {
    const MutexLock lock(mutex_);
    if (index_.count(name) > 0) return absl::OkStatus();
  }
  RemoveOld(bytes);
  const auto image = buffers_[static_cast<size_t>(task.buffer)].first(
      SlotImageBytes(options_.format.shape, task.what.pages));
  absl::Status status =
      WriteSnapshotFile(*files_, options_.format, task.what, image, write_lane_, kTemporary, name);
  if (!status.ok()) {
    files_->Remove(kTemporary).IgnoreError();
    files_->Remove(name).IgnoreError();  // if the names could not be synced
    return status;
  }
  const MutexLock lock(mutex_);
  if (task.clears != clears_) {
    doomed_.push_back(name);
  } else {
    AddFile(name, {bytes, NamespaceName(task.what.cache_salt),
                   static_cast<int64_t>(task.what.tokens.size())});
    ++stats_.saved;
  }
  return absl::OkStatus();
}

absl::Status DiskStore::ReadFile(Task& task) {
  const std::string name = NameOf(task.what);
  absl::Status status = ReadSnapshotFile(*files_, options_.format, name, reading_, read_lanes_,
                                         buffers_[static_cast<size_t>(task.buffer)], &task.what);
  if (status.ok()) files_->Touch(name);
  // A file that cannot be read is not tried again. If the device failed, the file may be whole.
  const bool unreadable = !status.ok() && !absl::IsAborted(status);
  if (unreadable && !absl::IsNotFound(status)) files_->Remove(name).IgnoreError();
  const MutexLock lock(mutex_);
  if (task.clears != clears_) return absl::NotFoundError("the store was emptied");
  const auto found = index_.find(name);
  if (status.ok() && found != index_.end()) {
    AddFile(name, File(found->second));
    ++stats_.read;
    stats_.read_seconds += SteadySeconds() - task.queued;
  } else if (unreadable) {
    Forget(name);
  }
  return status;
}

void DiskStore::Finish(Done done) {
  const MutexLock lock(mutex_);
  done_.push_back(std::move(done));
  has_done_ = true;
  if (wake_) wake_();
}

std::vector<SnapshotStore::Done> DiskStore::TakeDone() {
  const MutexLock lock(mutex_);
  has_done_ = false;
  return std::exchange(done_, {});
}

void DiskStore::SetWake(std::function<void()> wake) {
  const MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

StoreStats DiskStore::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

void DiskStore::Warn(const char* what, const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    ++stats_.errors;
    const double now = SteadySeconds();
    if (now < warned_ + kWarningInterval) return;
    warned_ = now;
  }
  options_.warn(absl::StrCat(what, " a snapshot: ", status.message()));
}

}  // namespace fox
