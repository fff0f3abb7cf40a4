// Settings of the process: large blocks go back to the system, locks do not search for deadlocks,
// threads have large stacks.
#include "server/process/process_settings.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace fox {
namespace {

// By default glibc raises its mapping threshold to the size of the largest mapping that was freed,
// and keeps smaller blocks in the heap from then on.
TEST(ProcessSettingsTest, LargeMessagesAreAlwaysMapped) {
  ApplyProcessSettings();
  void* volatile message = std::malloc(16 << 20);
  std::free(message);
  const size_t before = mallinfo2().hblks;
  message = std::malloc(2 << 20);
  EXPECT_EQ(mallinfo2().hblks, before + 1);
  std::free(message);
  EXPECT_EQ(mallinfo2().hblks, before);
}

TEST(ProcessSettingsTest, DescriptorsAreAllThatTheSystemAllows) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{std::min<rlim_t>(limit.rlim_max, 100), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  ApplyProcessSettings();
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

// If Abseil searched for deadlocks, taking two locks in both orders would print a report, though no
// thread waits.
TEST(ProcessSettingsTest, TheOrderOfLocksIsNotSearched) {
  ApplyProcessSettings();
  absl::Mutex a, b;
  const auto both = [](absl::Mutex& first, absl::Mutex& second) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    first.Lock();
    second.Lock();
    second.Unlock();
    first.Unlock();
  };
  testing::internal::CaptureStderr();
  both(a, b);
  both(b, a);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Whatever `ulimit -s` is. Each thread also has a stack for signal handlers, which run if the first
// one is full.
TEST(ProcessSettingsTest, ThreadsHaveLargeStacks) {
  ApplyProcessSettings();
  std::thread([] {
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
    size_t bytes = 0;
    ASSERT_EQ(pthread_attr_getstacksize(&attributes, &bytes), 0);
    pthread_attr_destroy(&attributes);
    EXPECT_GE(bytes, size_t{8 << 20} - 65536);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    stack_t stack{};
    ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
    EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
    EXPECT_GE(stack.ss_size, size_t{32 << 10});
#endif
  }).join();
}

TEST(ProcessSettingsTest, ThreadsThatFailAreCounted) {
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
