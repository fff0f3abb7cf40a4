// FailedThreads counts the threads that pthread_create could not create, and only those.
#include "server/process/failed_threads.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <thread>

namespace fox {
namespace {

TEST(FailedThreadsTest, CountsWhatFails) {
  std::thread([] {}).join();
  EXPECT_EQ(FailedThreads(), 0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own pthread_create";
#endif
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, size_t{1} << 60), 0);  // no address space
  pthread_t thread = {};
  EXPECT_NE(pthread_create(
                &thread, &attributes, [](void* p) { return p; }, nullptr),
            0);
  EXPECT_EQ(FailedThreads(), 1);
  pthread_attr_destroy(&attributes);
}

}  // namespace
}  // namespace fox
