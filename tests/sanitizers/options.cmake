# Options of the sanitizers, read by ctest in a build with FOX_SANITIZE, for all tests and for the
# programs that tests start. The first report ends the program.
set(ENV{ASAN_OPTIONS} "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1")
set(ENV{LSAN_OPTIONS} "suppressions=${CMAKE_CURRENT_LIST_DIR}/lsan.supp:print_suppressions=0")
set(ENV{UBSAN_OPTIONS} "print_stacktrace=1")
# io_sync=0: sockets order nothing, or else all threads that send and receive would be ordered.
# report_thread_leaks=0: gRPC ends its threads when it likes.
set(thread_options "halt_on_error=1:second_deadlock_stack=1:io_sync=0:report_thread_leaks=0")
set(ENV{TSAN_OPTIONS} "${thread_options}:suppressions=${CMAKE_CURRENT_LIST_DIR}/tsan.supp")
