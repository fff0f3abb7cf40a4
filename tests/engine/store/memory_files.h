// MemoryFiles: a FileSystem in memory whose n-th call fails, alone or with all after it, and which
// loses, with its power, contents and names that were not synced.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/store/file_system.h"

namespace fox {

// The disk, which outlives a server.
class Disk {
 public:
  using Bytes = std::vector<std::byte>;
  struct Inode {
    Bytes now, synced;
  };
  using Names = std::map<std::string, std::shared_ptr<Inode>>;

  Names names, synced_names;
  int64_t clock = 0;
  std::map<std::string, int64_t> used;
  int64_t calls = 0;             // that change something
  int64_t fail_at = -1;          // the first call that fails
  int64_t fail_calls = 1 << 30;  // how many do
  absl::Status error = absl::UnavailableError("no power");

  // Leaves the disk as it may be when the power comes back. Each name is the old or the new one,
  // and each block of 512 bytes of an unsynced file the old one, the new one or rubbish; its length
  // is any in between.
  void LosePower(std::mt19937_64& rng) {
    Names kept;
    Names all = synced_names;
    all.insert(names.begin(), names.end());
    for (const auto& [name, unused] : all) {
      const Names& from = rng() % 2 == 0 ? names : synced_names;
      if (const auto found = from.find(name); found != from.end()) kept[name] = found->second;
    }
    for (auto& [name, inode] : kept) Tear(rng, *inode);
    names = synced_names = std::move(kept);
    fail_at = -1;
  }

 private:
  static void Tear(std::mt19937_64& rng, Inode& inode) {
    if (inode.now == inode.synced) return;
    const size_t longest = std::max(inode.now.size(), inode.synced.size());
    Bytes torn(rng() % 2 == 0 ? inode.now.size() : rng() % (longest + 1));
    for (size_t begin = 0; begin < torn.size(); begin += 512) {
      const size_t end = std::min(begin + 512, torn.size());
      const Bytes& from = rng() % 3 == 0 ? inode.synced : inode.now;
      const bool rubbish = rng() % 8 == 0;
      for (size_t i = begin; i < end; ++i) {
        torn[i] = rubbish ? static_cast<std::byte>(rng()) : i < from.size() ? from[i] : std::byte{};
      }
    }
    inode.now = inode.synced = std::move(torn);
  }
};

class MemoryFiles final : public FileSystem {
 public:
  explicit MemoryFiles(Disk& disk) : disk_(disk) {}

  absl::StatusOr<std::vector<Entry>> List() override {
    std::vector<Entry> entries;
    for (const auto& [name, inode] : disk_.names) {
      entries.push_back({name, static_cast<int64_t>(inode->now.size()), disk_.used[name]});
    }
    return entries;
  }
  absl::StatusOr<int> Create(const std::string& name) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    std::shared_ptr<Disk::Inode>& inode = disk_.names[name];
    if (inode == nullptr) inode = std::make_shared<Disk::Inode>();
    inode->now.clear();
    disk_.used[name] = ++disk_.clock;
    return Add(inode);
  }
  absl::StatusOr<int> Open(const std::string& name) override {
    const auto found = disk_.names.find(name);
    if (found == disk_.names.end()) return absl::NotFoundError("no such file");
    return Add(found->second);
  }
  absl::StatusOr<int64_t> Size(int file) override {
    return static_cast<int64_t>(files_[file]->now.size());
  }
  // A write that fails may have written a part.
  absl::Status Write(int file, std::span<const std::byte> bytes, int64_t offset) override {
    absl::Status status = Change();
    if (!status.ok()) bytes = bytes.first(bytes.size() / 2);
    Disk::Bytes& now = files_[file]->now;
    now.resize(std::max(now.size(), static_cast<size_t>(offset) + bytes.size()));
    std::copy(bytes.begin(), bytes.end(), now.begin() + offset);
    return status;
  }
  absl::Status Read(int file, std::span<std::byte> bytes, int64_t offset) override {
    if (!read_error.ok() && reads++ >= fail_read) return read_error;
    const Disk::Bytes& now = files_[file]->now;
    if (static_cast<size_t>(offset) + bytes.size() > now.size()) {
      return absl::UnavailableError("the file is too short");
    }
    std::copy_n(now.begin() + offset, bytes.size(), bytes.begin());
    return absl::OkStatus();
  }
  absl::Status Sync(int file) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    files_[file]->synced = files_[file]->now;
    return absl::OkStatus();
  }
  void Close(int file) override { files_.erase(file); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    disk_.names[to] = disk_.names.at(from);
    disk_.names.erase(from);
    disk_.used[to] = ++disk_.clock;
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& name) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    return disk_.names.erase(name) == 1 ? absl::OkStatus() : absl::NotFoundError("no such file");
  }
  absl::Status SyncNames() override {
    if (absl::Status status = Change(); !status.ok()) return status;
    disk_.synced_names = disk_.names;
    return absl::OkStatus();
  }
  void Touch(const std::string& name) override { disk_.used[name] = ++disk_.clock; }

  absl::Status read_error;
  int64_t reads = 0, fail_read = 0;  // with a read_error: reads, and the first that fails
  size_t open_files() const { return files_.size(); }

 private:
  int Add(std::shared_ptr<Disk::Inode> inode) {
    files_[next_] = std::move(inode);
    return next_++;
  }
  absl::Status Change() {
    const int64_t call = disk_.calls++;
    const bool fails =
        disk_.fail_at >= 0 && call >= disk_.fail_at && call < disk_.fail_at + disk_.fail_calls;
    return fails ? disk_.error : absl::OkStatus();
  }

  Disk& disk_;
  std::map<int, std::shared_ptr<Disk::Inode>> files_;
  int next_ = 3;
};

}  // namespace fox
