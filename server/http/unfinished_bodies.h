// UnfinishedBodies: the memory of bodies that have not arrived whole, shared fairly: a client with
// less of it than others never waits for them, nor is it refused.
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

  // What has arrived of one. It must outlive its place here.
  class Body {
   private:
    friend class UnfinishedBodies;
    uint64_t client_ = 0;
    int64_t bytes_ = 0;
    Clock::time_point heard_;  // when bytes came last
  };

  // Of all clients together; one may have half of it.
  explicit UnfinishedBodies(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Bytes have come: the body has so many now. Returns a body that has to end to make room, which
  // may be this one: of the client that has too much, or most where all together have, the one that
  // has waited longest for bytes. Null: there is room. Remove it, and ask MostInTheWay again.
  Body* Grow(Body* body, uint64_t client, int64_t bytes, Clock::time_point now);
  Body* MostInTheWay(uint64_t client) const;
  // Without effect for one that is not here.
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
