// DeliveryPool: its lanes' queues and threads. See delivery_pool.h.
#include "engine/delivery_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/core/check.h"

namespace fox {

DeliveryPool::DeliveryPool(int threads, bool has_threads) : has_threads_(has_threads) {
  for (int i = 0; i < std::max(1, threads); ++i) lanes_.push_back(std::make_unique<Lane>());
  if (!has_threads_) return;
  for (std::unique_ptr<Lane>& lane : lanes_) {
    lane->thread = std::thread([&lane = *lane] { Run(lane); });
  }
}

DeliveryPool::~DeliveryPool() {
  if (!has_threads_) {
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      while (RunLane(lane)) continue;
    }
    return;
  }
  for (std::unique_ptr<Lane>& lane : lanes_) {
    {
      const MutexLock lock(lane->mutex);
      lane->stopping = true;
    }
    lane->wake.NotifyOne();
  }
  for (std::unique_ptr<Lane>& lane : lanes_) lane->thread.join();
}

void DeliveryPool::Post(size_t lane, Delivery delivery) {
  {
    const MutexLock lock(lanes_[lane]->mutex);
    lanes_[lane]->queue.push_back(std::move(delivery));
  }
  lanes_[lane]->wake.NotifyOne();
}

void DeliveryPool::Flush(Seconds now) {
  for (std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->staged.empty()) continue;
    for (Delivery& delivery : lane->staged) delivery.when = now;
    {
      const MutexLock lock(lane->mutex);
      if (lane->queue.empty()) {
        lane->queue.swap(lane->staged);
      } else {
        std::move(lane->staged.begin(), lane->staged.end(), std::back_inserter(lane->queue));
      }
    }
    lane->staged.clear();
    lane->wake.NotifyOne();
  }
}

double DeliveryPool::StuckFor() const {
  const Clock::time_point now = Clock::now();
  Clock::time_point oldest = now;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    oldest = std::min(oldest, lane->receiving_since.load(std::memory_order_relaxed));
  }
  return std::chrono::duration<double>(now - oldest).count();
}

bool DeliveryPool::RunLane(size_t lane) {
  FOX_CHECK(!has_threads_);
  std::vector<Delivery> deliveries;
  {
    const MutexLock lock(lanes_[lane]->mutex);
    deliveries.swap(lanes_[lane]->queue);
  }
  const bool any = !deliveries.empty();
  DeliverAll(*lanes_[lane], &deliveries);
  return any;
}

void DeliveryPool::Run(Lane& lane) {
  std::vector<Delivery> deliveries;  // outside the loop: its memory is used again
  for (;;) {
    {
      const MutexLock lock(lane.mutex);
      while (!lane.stopping && lane.queue.empty()) lane.wake.Wait(lane.mutex);
      deliveries.swap(lane.queue);
    }
    if (deliveries.empty()) return;  // stopping
    DeliverAll(lane, &deliveries);
  }
}

void DeliveryPool::DeliverAll(Lane& lane, std::vector<Delivery>* deliveries) {
  for (Delivery& delivery : *deliveries) {
    lane.receiving_since.store(Clock::now(), std::memory_order_relaxed);
    delivery.listener->OnOutput(std::move(delivery.output), delivery.when);
    delivery.listener = nullptr;
  }
  lane.receiving_since.store(Clock::time_point::max(), std::memory_order_relaxed);
  deliveries->clear();
}

}  // namespace fox
