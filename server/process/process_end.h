// How the process ends when it cannot return from main: exit codes, and ends that no stuck thread
// and no reader of the log can delay. Each tells why in one line of the log.
#pragma once

namespace fox {

inline constexpr int kExitEngineFailed = 70;   // EX_SOFTWARE
inline constexpr int kExitConfiguration = 78;  // EX_CONFIG

// From now on what would abort (an uncaught exception, a library that gets no memory or
// no thread, a failed check) or crash ends the process with `code`; where cores are wanted
// (RLIMIT_CORE is not 0) it does abort or crash, behind its line, and leaves one.
void EndOnAbort(int code);

// Ends the process with `code` after `seconds`, unless it has ended before. The last call counts.
void EndWithin(double seconds, int code = kExitEngineFailed);

// What EndWithin said last counts no more.
void CancelEnd();

// Ends the process now, without destructors; the log is written first if that takes no longer than
// 0.2 s.
[[noreturn]] void EndNow(int code);

}  // namespace fox
