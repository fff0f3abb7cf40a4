// WaitingQueue: turns, virtual time and shares of the queue. Read waiting_queue.h first.
#include "engine/schedule/waiting_queue.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace fox {

void WaitingQueue::Enter(const Sequence& sequence) {
  Client& client = clients_[sequence.request.client];
  client.id = sequence.request.client;
  ++client.members;
}

void WaitingQueue::Leave(const Sequence& sequence) {
  const auto found = clients_.find(sequence.request.client);
  FOX_CHECK(found != clients_.end() && found->second.members > 0);
  if (--found->second.members == 0) clients_.erase(found);
}

void WaitingQueue::Check() const {
  int64_t size = 0, tokens = 0, max_tokens = 0;
  const auto add = [&](const Sequence* sequence) {
    sequence->Check();
    FOX_CHECK(sequence->state == SequenceState::kWaiting);
    ++size;
    tokens += sequence->queue_.tokens;
    max_tokens += sequence->queue_.max_tokens;
  };
  for (const Sequence* sequence : preempted_) {
    FOX_CHECK(sequence->preempted);
    add(sequence);
  }
  size_t waiting = 0;  // clients
  for (const auto& [id, client] : clients_) {
    FOX_CHECK(client.id == id && client.running >= 0 && client.members > 0);
    FOX_CHECK(static_cast<int64_t>(client.waiting.size()) + client.running <= client.members);
    if (!client.waiting.empty()) ++waiting;
    const int64_t tokens_before = tokens, max_tokens_before = max_tokens;
    for (const Sequence* sequence : client.waiting) {
      FOX_CHECK(!sequence->preempted && sequence->request.client == id);
      add(sequence);
    }
    FOX_CHECK(client.tokens == tokens - tokens_before);
    FOX_CHECK(client.max_tokens == max_tokens - max_tokens_before);
  }
  FOX_CHECK(turns_.size() == waiting);
  FOX_CHECK(size_ == size && tokens_ == tokens && max_tokens_ == max_tokens);
}

void WaitingQueue::Count(const Sequence& sequence, int64_t sign, Client* client) {
  const QueueEntry& entry = sequence.queue_;
  size_ += sign;
  tokens_ += sign * entry.tokens;
  max_tokens_ += sign * entry.max_tokens;
  if (client == nullptr) return;
  client->tokens += sign * entry.tokens;
  client->max_tokens += sign * entry.max_tokens;
}

void WaitingQueue::Add(Sequence* sequence, Seconds now) {
  FOX_CHECK(sequence->state == SequenceState::kWaiting);
  sequence->queue_.waiting_since = now;
  const int64_t replays = sequence->replays_left();
  sequence->queue_.tokens = sequence->remaining() - replays;
  sequence->queue_.max_tokens = sequence->max_tokens - sequence->produced() + replays;
  if (sequence->preempted) {
    Count(*sequence, 1, nullptr);
    FOX_CHECK(preempted_.insert(sequence).second);
    return;
  }
  Client& client = clients_.at(sequence->request.client);
  if (client.waiting.empty()) {
    client.served = std::max(client.served, static_cast<int64_t>(served_));
  } else {
    turns_.erase(&client);
  }
  FOX_CHECK(client.waiting.insert(sequence).second);
  Count(*sequence, 1, &client);
  turns_.insert(&client);
}

void WaitingQueue::Remove(Sequence* sequence) {
  if (sequence->preempted) {
    Count(*sequence, -1, nullptr);
    FOX_CHECK(preempted_.erase(sequence) == 1);
    return;
  }
  Client& client = clients_.at(sequence->request.client);
  turns_.erase(&client);
  FOX_CHECK(client.waiting.erase(sequence) == 1);
  Count(*sequence, -1, &client);
  if (!client.waiting.empty()) turns_.insert(&client);
}

Sequence* WaitingQueue::Next(Seconds now) const {
  for (Sequence* sequence : preempted_) {
    if (!passed(*sequence)) return sequence;
  }
  if (Sequence* due = Due(now); due != nullptr) return due;
  for (const Client* client : turns_) {
    if (client->passed_in_round == round_) continue;
    for (Sequence* sequence : client->waiting) {
      if (!passed(*sequence)) return sequence;
    }
  }
  return nullptr;
}

bool WaitingQueue::IsDue(const Sequence& sequence, Seconds now) const {
  if (sequence.preempted || now < sequence.queue_.waiting_since + kSlotTurn) return false;
  const Sequence& most_urgent = **(*turns_.begin())->waiting.begin();
  return sequence.priority == most_urgent.priority && !sequence.reads_slowly() &&
         clients_.at(sequence.request.client).running == 0;
}

Sequence* WaitingQueue::Due(Seconds now) const {
  for (const Client* client : turns_) {
    if (client->running > 0 || client->passed_in_round == round_) continue;
    for (Sequence* sequence : client->waiting) {
      if (!passed(*sequence) && IsDue(*sequence, now)) return sequence;
    }
  }
  return nullptr;
}

Sequence* WaitingQueue::LongestWithoutToken() const {
  Sequence* longest = nullptr;
  const auto consider = [&](const auto& waiting) {
    for (Sequence* sequence : waiting) {
      if (longest == nullptr || IsLongerWithoutToken(*sequence, *longest)) longest = sequence;
    }
  };
  consider(preempted_);
  for (const Client* client : turns_) consider(client->waiting);
  return longest;
}

void WaitingQueue::Start(Sequence* sequence, Seconds now) {
  if (!sequence->preempted) {
    int64_t least = INT64_MAX;
    for (const Client* client : turns_) least = std::min(least, client->served);
    served_ = std::max(served_, static_cast<double>(least));
  }
  Remove(sequence);
  Client& client = clients_.at(sequence->request.client);
  ++client.running;
  sequence->queue_.running_since = now;
  sequence->queue_.charged_length = sequence->length();
  if (sequence->preempted) return;  // charged at its first start
  Serve(sequence->remaining(), &client);
}

void WaitingQueue::Stop(Sequence* sequence) {
  Client& client = clients_.at(sequence->request.client);
  FOX_CHECK(--client.running >= 0);
  QueueEntry& entry = sequence->queue_;
  const int64_t length = sequence->length();
  const int64_t decoded = length - std::exchange(entry.charged_length, length);
  const int64_t steps =
      sequence->all_mask_steps - std::exchange(entry.charged_mask_steps, sequence->all_mask_steps);
  Serve(kDecodeCost * decoded + steps / kMaskStepsPerToken, &client);
}

// Advances virtual time by tokens / clients, each client's fair part.
void WaitingQueue::Serve(int64_t tokens, Client* client) {
  served_ += static_cast<double>(tokens) / static_cast<double>(clients_.size());
  const bool waits = !client->waiting.empty();
  if (waits) turns_.erase(client);
  client->served += tokens;
  if (waits) turns_.insert(client);
}

// Until the newcomer starts, each other client with an earlier turn is served as many tokens as
// this client: its waiting ones and the newcomer's.
Work WaitingQueue::Ahead(uint64_t client, int64_t tokens, int64_t cost,
                         const ServiceTimes& times) const {
  Work work;
  for (const Sequence* sequence : preempted_) {
    work.Add({static_cast<double>(sequence->queue_.tokens),
              times.ExpectedTokens(sequence->queue_.max_tokens), 1});
  }
  const auto own = clients_.find(client);
  const double turn =
      static_cast<double>(tokens + (own == clients_.end() ? 0 : own->second.tokens));
  auto newcomer = static_cast<int64_t>(served_);
  if (own != clients_.end()) newcomer = std::max(newcomer, own->second.served + own->second.tokens);
  newcomer += cost;
  for (const Client* other : turns_) {
    if (other->id != client && other->turn() > newcomer) continue;
    const auto total = static_cast<double>(other->tokens);
    const double share = other->id == client || total <= turn ? 1.0 : turn / total;
    const auto requests = static_cast<int64_t>(other->waiting.size());
    work.Add(
        {total, times.ExpectedTokens(other->max_tokens, requests), static_cast<double>(requests)},
        share);
  }
  return work;
}

Sequence* WaitingQueue::Displaced(uint64_t client, int64_t requests, int64_t tokens,
                                  int64_t max_requests, int64_t max_tokens,
                                  const std::vector<Sequence*>& others) const {
  const auto own = clients_.find(client);
  const bool waits = own != clients_.end() && !own->second.waiting.empty();
  const auto share = [&](int64_t of_requests, int64_t of_tokens) {
    return std::max(static_cast<double>(of_requests) / static_cast<double>(max_requests),
                    static_cast<double>(of_tokens) / static_cast<double>(max_tokens));
  };
  const auto rivals = static_cast<double>(turns_.size()) - (waits ? 1 : 0);
  if (waits) {
    requests += static_cast<int64_t>(own->second.waiting.size());
    tokens += own->second.tokens;
  }
  if (rivals == 0 || share(requests, tokens) * (rivals + 1) > 1) return nullptr;
  Sequence* newest = nullptr;
  double most = 0;
  for (const Client* other : turns_) {
    const double held = share(static_cast<int64_t>(other->waiting.size()), other->tokens);
    if (other->id == client || held <= most) continue;
    for (auto last = other->waiting.rbegin(); last != other->waiting.rend(); ++last) {
      if ((*last)->started || (*last)->group->started) continue;
      if (std::find(others.begin(), others.end(), *last) != others.end()) continue;
      newest = *last;
      most = held;
      break;
    }
  }
  return newest;
}

}  // namespace fox
