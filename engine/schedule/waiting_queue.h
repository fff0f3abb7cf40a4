// WaitingQueue: sequences that wait for a running slot, and whose turn it is. Preempted ones come
// first, in the order of running. Then clients take turns: the next slot is that of the client that
// has been served least, counted in tokens, as if what large requests ask for had been served
// already: small requests do not wait for all large ones before them (weighted fair queueing:
// Demers, Keshav and Shenker, SIGCOMM 1989). Within a client requests come in order. Under priority
// scheduling the most urgent come before, of whatever client. A client that has waited a while and
// has no running slot goes before those of equal priority that have one. Now and then the one that
// has waited longest takes its turn out of order, so nothing starves, whatever others send.
// Read scheduler.h next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "engine/schedule/sequence.h"
#include "engine/schedule/service_times.h"

namespace fox {

class WaitingQueue {
 public:
  static constexpr Seconds kAging = 5.0;     // age at which the oldest request jumps the queue
  static constexpr int64_t kAgedShare = 8;   // once others were served so many times its cost
  static constexpr int64_t kDecodeCost = 4;  // of a decoded token, in tokens of a prompt
  // A client without a running slot waits so long before it is due one, and a sequence keeps its
  // slot for so long at least. The sum bounds the wait where clients are no more than slots. Long
  // beside a step, so that changes cost little; short beside what a person notices.
  static constexpr Seconds kSlotTurn = 0.5;

  // What a request asks for, in tokens of a prompt; of those that it may generate the first 512.
  static int64_t Cost(int64_t tokens, int64_t max_tokens) {
    return tokens + kDecodeCost * std::min<int64_t>(max_tokens, 512);
  }
  // In whole thousands, so that the order of requests like each other stays.
  static int64_t Asked(int64_t tokens, int64_t max_tokens) {
    return Cost(tokens, max_tokens) / 1024 * 1024;
  }

  // A client's account is kept from the first of its sequences to enter until the last one leaves.
  void Enter(const Sequence& sequence);
  void Leave(const Sequence& sequence);

  void Add(Sequence* sequence, Seconds now);
  void Remove(Sequence* sequence);
  int64_t size() const { return static_cast<int64_t>(by_age_.size() + preempted_.size()); }
  int64_t tokens() const { return tokens_; }

  // Begins a round of choosing: no client is passed over any more.
  void BeginRound() { ++round_; }
  // Whose turn it is, of those not passed over in this round; null: none is left.
  Sequence* Next(Seconds now) const;
  // The request whose client is due a running slot first, of those not passed over in this round;
  // null: none. Requests less urgent than others that wait, and slow readers, are due none.
  Sequence* Due(Seconds now) const;
  bool IsDue(const Sequence& sequence, Seconds now) const;
  // Whether the first request of a newcomer is due a slot, if need be that of another client.
  bool WillBeDue(uint64_t client, int64_t slots) const {
    return clients_.count(client) == 0 && static_cast<int64_t>(clients_.size()) < slots;
  }
  // Whether it goes before all turns: of those that were not preempted it has waited longest, and
  // long enough.
  bool IsAged(const Sequence& sequence, Seconds now) const;
  void PassOver(Sequence* sequence) const { sequence->queue_.passed_in_round = round_; }
  // Takes a sequence out that Next gave; its client is charged what it must compute.
  void Start(Sequence* sequence, Seconds now);
  // The sequence has given its running slot up; its client is charged what it has generated in it.
  void Stop(Sequence* sequence);

  // All that wait.
  Work All(const ServiceTimes& times) const {
    return {static_cast<double>(tokens_), times.ExpectedTokens(max_tokens_, size()),
            static_cast<double>(size())};
  }
  // What starts before a newcomer of `client` with so many tokens, which asks for as much.
  Work Ahead(uint64_t client, int64_t tokens, int64_t asked, const ServiceTimes& times) const;
  // The queue is full for a newcomer with so many requests and tokens. If that stays within the
  // client's even share of `max_requests` and `max_tokens`: the newest of the client with most that
  // has not started, nor any of its siblings, and is none of `others`. Null: there is none.
  Sequence* Displaced(uint64_t client, int64_t requests, int64_t tokens, int64_t max_requests,
                      int64_t max_tokens, const std::vector<Sequence*>& others) const;

 private:
  struct Older {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->queue_.waiting_since != b->queue_.waiting_since
                 ? a->queue_.waiting_since < b->queue_.waiting_since
                 : a->arrival < b->arrival;
    }
  };
  struct Client {
    uint64_t id = 0;
    int64_t served = 0;   // tokens
    int64_t members = 0;  // sequences anywhere
    int64_t running = 0;  // of them
    std::set<Sequence*, RunsEarlier> waiting;
    int64_t tokens = 0, max_tokens = 0;  // of those: to compute, to generate

    // Whose is least has the next turn. REQUIRES: a sequence waits.
    int64_t turn() const {
      const Sequence& first = **waiting.begin();
      return served + Asked(first.queue_.tokens, first.queue_.max_tokens);
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

  bool passed(const Sequence& sequence) const { return sequence.queue_.passed_in_round == round_; }
  void Count(const Sequence& sequence, int64_t sign, Client* client);
  void Serve(int64_t tokens, Client* client);
  Sequence* NextInTurn() const;

  std::map<uint64_t, Client> clients_;
  std::set<Client*, LessServed> turns_;  // those that wait
  std::set<Sequence*, Older> by_age_;    // all that wait but the preempted ones
  std::set<Sequence*, RunsEarlier> preempted_;
  int64_t tokens_ = 0, max_tokens_ = 0;
  // What each client is due by now: a newcomer begins there.
  double served_ = 0;
  int64_t cost_since_aged_ = 0;
  int64_t round_ = 0;
};

}  // namespace fox
