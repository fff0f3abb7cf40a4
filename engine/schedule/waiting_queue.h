// WaitingQueue: sequences that wait for a running slot, and whose turn it is: those that were
// preempted, then clients that are due a slot, then the client served least, with what its first
// request asks for (Demers, Keshav and Shenker, SIGCOMM 1989). Read policy.h next.
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
  // A client's account is kept from the first of its sequences to enter until the last one leaves.
  void Enter(const Sequence& sequence);
  void Leave(const Sequence& sequence);
  void Add(Sequence* sequence, Seconds now);
  void Remove(Sequence* sequence);
  int64_t size() const { return size_; }
  int64_t tokens() const { return tokens_; }
  void BeginRound() { ++round_; }
  void PassOver(Sequence* sequence) const { sequence->queue_.passed_in_round = round_; }
  // With all that its client has.
  void PassOverClient(Sequence* sequence) {
    PassOver(sequence);
    clients_.at(sequence->request.client).passed_in_round = round_;
  }
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
  Sequence* Hungriest() const;
  // Its client is charged what it must compute, and at the end what it has generated.
  void Start(Sequence* sequence, Seconds now);
  void Stop(Sequence* sequence);
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
  struct Client {
    uint64_t id = 0;
    int64_t served = 0;   // tokens
    int64_t members = 0;  // sequences anywhere
    int64_t running = 0;  // of them
    int64_t passed_in_round = -1;
    std::set<Sequence*, ComesEarlier> waiting;
    int64_t tokens = 0, max_tokens = 0;  // of those: to compute, to generate

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
  std::set<Client*, LessServed> turns_;  // those that wait
  std::set<Sequence*, ComesEarlier> preempted_;
  int64_t size_ = 0, tokens_ = 0, max_tokens_ = 0;
  double served_ = 0;  // what each client is due by now: a newcomer begins there
  int64_t round_ = 0;
};

}  // namespace fox
