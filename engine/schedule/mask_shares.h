// MaskShares: decides which sequences' grammar masks are computed in which step. Without it the
// masks of one client, a few milliseconds each, would lengthen every step of the other clients.
// Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/schedule/policy.h"
#include "engine/schedule/sequence.h"

namespace fox {

// A client has a part of each plan. If its masks take more than that part, it waits for as many
// plans as they would have filled.
class MaskShares {
 public:
  // Starts a plan. `ready`: the running sequences that could be in it.
  void Begin(const std::set<Sequence*, RunsEarlier>& running, const std::vector<Sequence*>& ready) {
    for (auto& [id, client] : clients_) client.sequences = 0;
    for (const Sequence* sequence : ready) {
      if (sequence->mask_steps > 0) ++clients_[sequence->request.client].sequences;
    }
    first_ = running.empty() ? std::nullopt : std::optional((*running.begin())->request.client);
    is_mixed_ = std::any_of(running.begin(), running.end(), [&](const Sequence* sequence) {
      return sequence->request.client != *first_;
    });
    all_ = std::max<int64_t>(1, static_cast<int64_t>(clients_.size()));
    for (auto it = clients_.begin(); it != clients_.end();) {
      Client& client = it->second;
      client.due =
          IsBesideOthers(it->first) ? std::max<int64_t>(0, client.due - PartOf(client)) : 0;
      it = client.due == 0 && client.sequences == 0 ? clients_.erase(it) : std::next(it);
    }
  }
  // True if the sequence's next mask must wait for a later plan.
  bool Waits(const Sequence& sequence) const {
    if (sequence.mask_steps == 0 || sequence.rescued) return false;
    if (!IsBesideOthers(sequence.request.client)) return false;
    const auto client = clients_.find(sequence.request.client);
    return client != clients_.end() && client->second.due >= PartOf(client->second);
  }
  // The plan has the sequence's next mask.
  void Take(const Sequence& sequence) {
    const uint64_t client = sequence.request.client;
    if (sequence.mask_steps > 0 && IsBesideOthers(client)) {
      clients_[client].due += sequence.mask_steps;
    }
  }

 private:
  struct Client {
    int64_t due = 0;        // steps of masks taken ahead of the client's part
    int64_t sequences = 0;  // ready sequences with masks
  };
  bool IsBesideOthers(uint64_t client) const {
    return is_mixed_ || (first_.has_value() && *first_ != client);
  }
  int64_t PartOf(const Client& client) const {
    return std::max(kMaskSteps / all_, kMaskStepsPerSequence * client.sequences);
  }

  std::map<uint64_t, Client> clients_;
  int64_t all_ = 1;
  std::optional<uint64_t> first_;  // client of the first running sequence
  bool is_mixed_ = false;          // another running sequence has another client
};

}  // namespace fox
