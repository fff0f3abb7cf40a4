// What a process that serves, or measures serving, sets before anything else, and what it counts.
#pragma once

namespace fox {

// Of descriptors: as many as the system allows; what has no port of its own needs few
// (server_flags.h divides them). Of the heap: large messages go back to the system when they are
// freed, and what one thread has freed another one uses, so what clients send and leave does not
// stay resident. Of threads: stacks of 8 MiB, whatever `ulimit -s` says. Of Abseil: no search for
// deadlocks, with which distributions build it: gRPC would search at each lock, for all threads in
// turn; with thousands of calls that takes most of the time. Call once, before threads.
void ApplyProcessSettings();

// Threads that could not be created: calls of pthread_create in this process that failed; 0 under
// sanitizers, which have their own pthread_create. gRPC goes on without them and then hangs at some
// call: its default executor queues closures for a thread that does not exist
// (src/core/lib/iomgr/executor.cc of gRPC 1.51). A server that starts reads this count before it
// says that it listens. Any thread may ask.
int FailedThreads();

}  // namespace fox
