// Threads that could not be created. gRPC goes on without them and then hangs at some call: its
// default executor queues closures for a thread that does not exist (src/core/lib/iomgr/executor.cc
// of gRPC 1.51). A server that starts reads this count before it says that it listens.
#pragma once

namespace fox {

// Calls of pthread_create in this process that failed; 0 under sanitizers, which have their own
// pthread_create. Any thread may ask.
int FailedThreads();

}  // namespace fox
