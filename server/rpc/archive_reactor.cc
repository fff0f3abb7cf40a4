// ArchiveReactor: see archive_reactor.h.
#include "server/rpc/archive_reactor.h"

#include <algorithm>

#include "vllm/grpc/engine/get_tokenizer.pb.h"

namespace fox {
namespace {

constexpr size_t kChunkBytes = 64 << 10;

}  // namespace

ArchiveReactor::ArchiveReactor(ServerCore& core, grpc::CallbackServerContext* context,
                               CallInfo info)
    : call_(core, context, std::move(info)) {
  const MutexLock lock(ticket_->mutex);
  ticket_->reactor = this;
}

void ArchiveReactor::Send(absl::StatusOr<Archive> archive) {
  if (!archive.ok()) return End(archive.status());
  archive_ = *std::move(archive);
  WriteNext();
}

void ArchiveReactor::WriteNext() {
  const size_t size = std::min(kChunkBytes, archive_->bytes.size() - sent_);
  smg::grpc::common::GetTokenizerChunk chunk;
  chunk.set_data(archive_->bytes.data() + sent_, size);
  sent_ += size;
  if (sent_ == archive_->bytes.size()) chunk.set_sha256(archive_->sha256);
  bytes_.Clear();
  SerializeMessage(chunk, &bytes_);
  if (!call_.Hold(static_cast<int64_t>(bytes_.Length()))) return End(AnswersUnread());
  call_.writes().Begin();
  StartWrite(&bytes_);
}

void ArchiveReactor::OnWriteDone(bool ok) {
  call_.writes().End();
  call_.Drop(static_cast<int64_t>(bytes_.Length()));
  if (!ok) return End(absl::CancelledError("the call is over"));
  if (sent_ == archive_->bytes.size()) return End(absl::OkStatus());
  WriteNext();
}

void ArchiveReactor::OnCancel() {
  const std::shared_ptr<Ticket> ticket = ticket_;
  call_.OnCancel();
  ArchiveReactor* self = ticket->Take();
  if (self != nullptr) self->End(absl::CancelledError("the call is over"));
}

void ArchiveReactor::End(const absl::Status& status) {
  call_.writes().Begin();
  Finish(call_.End(status));
}

}  // namespace fox
