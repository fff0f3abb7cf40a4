// ArchiveReactor: see archive_reactor.h.
#include "server/rpc/archive_reactor.h"

#include <algorithm>
#include <utility>

#include "vllm/grpc/engine/get_tokenizer.pb.h"

namespace fox {
namespace {

constexpr size_t kChunkBytes = 64 << 10;

}  // namespace

void ArchiveReactor::Send(absl::StatusOr<Archive> archive) {
  if (!archive.ok()) return Answer(archive.status());
  if (!Claim()) return;
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
  if (!info_.share.Hold(static_cast<int64_t>(bytes_.Length()))) {
    return End(AnswersUnread(), nullptr);
  }
  writes_->Begin();
  StartWrite(&bytes_);
}

void ArchiveReactor::OnWriteDone(bool ok) {
  writes_->End();
  info_.share.Hold(-static_cast<int64_t>(bytes_.Length()));
  if (ok && sent_ < archive_->bytes.size()) return WriteNext();
  End(ok ? absl::OkStatus() : WhyCancelled(), nullptr);
}

}  // namespace fox
