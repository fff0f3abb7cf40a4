// Process-wide settings of fox-server and fox-bench, applied before any thread starts, and the
// count of threads that could not be created.
#pragma once

namespace fox {

// Applies the settings. Call once, before threads start. - Descriptors: as many as the system
// allows; server_flags.h divides them among the ports. - Heap: freed large messages return to the
// system, and threads share few arenas, so that memory of
//   past calls does not stay resident.
// - Threads: stacks of 8 MiB, whatever `ulimit -s` says. - Abseil's mutexes: no search for
// deadlocks, which distributions enable. gRPC would search at each
//   lock, one thread at a time; with thousands of calls that takes most of the time.
void ApplyProcessSettings();

// Number of calls of pthread_create in this process that failed; always 0 under sanitizers, which
// have a pthread_create of their own. gRPC continues without a thread and hangs at a later call:
// its default executor queues closures for the missing thread (src/core/lib/iomgr/executor.cc of
// gRPC 1.51). So a starting server checks this count before it reports that it listens. Any thread.
int FailedThreads();

}  // namespace fox
