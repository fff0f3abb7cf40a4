// UnfinishedBodies: the memory of bodies that have not arrived whole, shared fairly: a client that
// holds less of it than others neither waits for them nor is refused.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <unordered_set>

namespace fox {

// Used by one thread.
class UnfinishedBodies {
 public:
  using Clock = std::chrono::steady_clock;

  // One body, as far as it has arrived. It must outlive its place here.
  class Body {
   private:
    friend class UnfinishedBodies;
    uint64_t client_ = 0;
    int64_t bytes_ = 0;
    Clock::time_point heard_;  // when bytes came last
  };

  // `max_bytes`: of all clients together; one client may have half of it.
  explicit UnfinishedBodies(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Bytes have come: the body has `bytes` now. Returns a body that has to end to make room, perhaps
  // this one; remove it, and ask MostInTheWay again. Null: there is room. The victim belongs to
  // `client` if that has too much, else to the client with most; among its bodies it has waited
  // longest for bytes.
  Body* Grow(Body* body, uint64_t client, int64_t bytes, Clock::time_point now);
  Body* MostInTheWay(uint64_t client) const;
  // Without effect for a body that is not here.
  void Remove(Body* body);
  int64_t bytes() const { return bytes_; }

 private:
  struct Client {
    int64_t bytes = 0, bodies = 0;
  };

  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::map<uint64_t, Client> clients_;  // those with bodies here
  std::unordered_set<Body*> bodies_;
};

}  // namespace fox
