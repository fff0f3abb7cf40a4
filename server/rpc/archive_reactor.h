// ArchiveReactor: the end of a GetTokenizer: sends an archive in chunks, one write at a time, once
// it was made on a thread that may take a while. Read vllm_service.h next.
#pragma once

#include <memory>
#include <utility>

#include "server/rpc/call_handle.h"
#include "server/rpc/tokenizer_archive.h"

namespace fox {

// Deletes itself, and gives back the call's share, when the call has ended.
class ArchiveReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  using Archive = std::shared_ptr<const TokenizerArchive>;

  // Whoever takes the reactor from it first goes on with it: the thread that has made the archive,
  // or the library, which cancels the call. Any thread.
  struct Ticket {
    Mutex mutex;
    ArchiveReactor* reactor ABSL_GUARDED_BY(mutex) = nullptr;

    ArchiveReactor* Take() {
      const MutexLock lock(mutex);
      return std::exchange(reactor, nullptr);
    }
  };

  ArchiveReactor(ServerCore& core, grpc::CallbackServerContext* context, CallInfo info);

  const std::shared_ptr<Ticket>& ticket() const { return ticket_; }
  // By who has taken the ticket: begins to send, or ends the call with a refusal.
  void Send(absl::StatusOr<Archive> archive);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  void WriteNext();
  void End(const absl::Status& status);

  const std::shared_ptr<Ticket> ticket_ = std::make_shared<Ticket>();
  CallHandle call_;
  Archive archive_;
  size_t sent_ = 0;  // bytes of the archive, the write in flight included
  grpc::ByteBuffer bytes_;
};

}  // namespace fox
