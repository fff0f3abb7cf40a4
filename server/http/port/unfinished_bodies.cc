// UnfinishedBodies: see unfinished_bodies.h.
#include "server/http/port/unfinished_bodies.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace fox {

UnfinishedBodies::Body* UnfinishedBodies::Grow(Body* body, uint64_t client, int64_t bytes,
                                               Clock::time_point now) {
  FOX_CHECK(bytes >= 0);
  Client& own = clients_[client];
  if (bodies_.insert(body).second) ++own.bodies;
  own.bytes += bytes - body->bytes_;
  bytes_ += bytes - body->bytes_;
  FOX_CHECK(own.bytes >= 0 && bytes_ >= own.bytes);
  body->client_ = client;
  body->bytes_ = bytes;
  body->heard_ = now;
  return MostInTheWay(client);
}

UnfinishedBodies::Body* UnfinishedBodies::MostInTheWay(uint64_t client) const {
  const auto own = clients_.find(client);
  int64_t most = own == clients_.end() ? 0 : own->second.bytes;
  const bool too_much = most > (max_bytes_ + 1) / 2;
  if (!too_much && bytes_ <= max_bytes_) return nullptr;
  if (!too_much) {
    for (const auto& [id, other] : clients_) most = std::max(most, other.bytes);
  }
  Body* found = nullptr;
  for (Body* body : bodies_) {
    const bool guilty =
        too_much ? body->client_ == client : clients_.at(body->client_).bytes == most;
    if (guilty && (found == nullptr || body->heard_ < found->heard_)) found = body;
  }
  return found;
}

void UnfinishedBodies::Remove(Body* body) {
  if (bodies_.erase(body) == 0) return;
  bytes_ -= body->bytes_;
  const auto own = clients_.find(body->client_);
  FOX_CHECK(own != clients_.end() && own->second.bodies > 0);
  own->second.bytes -= body->bytes_;
  FOX_CHECK(own->second.bytes >= 0 && bytes_ >= own->second.bytes);
  if (--own->second.bodies == 0) clients_.erase(own);
  body->bytes_ = 0;
}

}  // namespace fox
