// The library that makes the CUDA of a server fail: the test is linked with it to know where it is,
// and preloads it there.
#pragma once

namespace fox {

// True if this process is a server under test.
bool IsPreloaded();

}  // namespace fox
