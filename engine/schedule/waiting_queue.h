// WaitingQueue: the sequences that wait for a running slot, and the order of their turns: preempted
// sequences, then clients that are due a slot, then the client with the fewest tokens served plus
// the cost of its first request (fair queueing: Demers, Keshav and Shenker, SIGCOMM 1989). Read
// policy.h next.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "engine/schedule/policy.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"

namespace fox {

class WaitingQueue {
 public:
  // A client's account lives from the Enter of its first sequence to the Leave of its last.
  void Enter(const Sequence& sequence);
  void Leave(const Sequence& sequence);
  // Aborts if the counts contradict the sequences that wait.
  void Check() const;
  void Add(Sequence* sequence, Seconds now);
  void Remove(Sequence* sequence);
  int64_t size() const { return size_; }
  int64_t tokens() const { return tokens_; }
  // A round asks for the next sequence until all are passed over or have left the queue.
  void BeginRound() { ++round_; }
  void PassOver(Sequence* sequence) const { sequence->queue_.passed_in_round = round_; }
  // Passes over all sequences of the sequence's client.
  void PassOverClient(Sequence* sequence) {
    PassOver(sequence);
    clients_.at(sequence->request.client).passed_in_round = round_;
  }
  // The next sequence in turn that was not passed over in this round; null: none is left.
  Sequence* Next(Seconds now) const;
  // The first sequence that IsDue and was not passed over in this round; null: none.
  Sequence* Due(Seconds now) const;
  // True if the sequence's client has no running slot and has waited kSlotTurn for one. Sequences
  // with slow readers, and those less urgent than another in the queue, are never due.
  bool IsDue(const Sequence& sequence, Seconds now) const;
  // True if the first request of a new client will be due a slot, even if another client must yield
  // it.
  bool WillBeDue(uint64_t client, int64_t slots) const {
    return clients_.count(client) == 0 && static_cast<int64_t>(clients_.size()) < slots;
  }
  // The waiting sequence that has been without a token for longest; null: none waits.
  Sequence* LongestWithoutToken() const;
  // Start charges the client for the tokens to compute, Stop for those generated since.
  void Start(Sequence* sequence, Seconds now);
  void Stop(Sequence* sequence);
  Work All(const ServiceTimes& times) const {
    return {static_cast<double>(tokens_), times.ExpectedTokens(max_tokens_, size()),
            static_cast<double>(size())};
  }
  // Work that starts before a newcomer of `client` with `tokens` tokens of prompts and cost `cost`.
  Work Ahead(uint64_t client, int64_t tokens, int64_t cost, const ServiceTimes& times) const;
  // Victim for a queue that is full for a newcomer with `requests` requests of `tokens` tokens: the
  // newest request of the client that holds most, if neither it nor a sibling has started and it is
  // not among `others`. Null: refuse the newcomer, because there is no victim or because its client
  // would hold more than an even share of `max_requests` and `max_tokens`.
  Sequence* Displaced(uint64_t client, int64_t requests, int64_t tokens, int64_t max_requests,
                      int64_t max_tokens, const std::vector<Sequence*>& others) const;

 private:
  struct Client {
    uint64_t id = 0;
    int64_t served = 0;   // tokens
    int64_t members = 0;  // sequences in any state
    int64_t running = 0;  // sequences
    int64_t passed_in_round = -1;
    std::set<Sequence*, ComesEarlier> waiting;
    int64_t tokens = 0, max_tokens = 0;  // sums over `waiting`: to compute, to generate

    int64_t turn() const {
      const QueueEntry& first = (*waiting.begin())->queue();
      return served + Cost(first.tokens, first.max_tokens);
    }
  };
  struct LessServed {
    bool operator()(const Client* a, const Client* b) const {
      const Sequence& first = **a->waiting.begin();
      const Sequence& second = **b->waiting.begin();
      if (first.priority != second.priority) return first.priority < second.priority;
      return a->turn() != b->turn() ? a->turn() < b->turn() : first.place < second.place;
    }
  };

  bool passed(const Sequence& sequence) const { return sequence.queue().passed_in_round == round_; }
  void Count(const Sequence& sequence, int64_t sign, Client* client);
  void Serve(int64_t tokens, Client* client);

  std::map<uint64_t, Client> clients_;
  std::set<Client*, LessServed> turns_;  // clients with waiting sequences
  std::set<Sequence*, ComesEarlier> preempted_;
  int64_t size_ = 0, tokens_ = 0, max_tokens_ = 0;
  double served_ = 0;  // virtual time: tokens served per client; a new client starts here
  int64_t round_ = 0;
};

}  // namespace fox
