#!/bin/bash
# Runs the fuzz targets of a build with libFuzzer on all processors, each for its share of the time.
#
#   run_fuzzers.sh build/fuzz MINUTES [TARGET..]
#
# A crash, a leak or an input that needs more than 5 s or 2 GiB ends its target: the input and a log
# are in build/fuzz/findings/TARGET, and the exit status is not 0.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
build="$(cd "$1" && pwd)"
minutes="$2"
shift 2
[[ $# -gt 0 ]] || set -- $(cd "$build/corpora" && printf '%s\n' */ | tr -d /)
rounds=$((($# + $(nproc) - 1) / $(nproc)))
seconds="$(awk "BEGIN { print int(60 * $minutes / $rounds) + 1 }")"
# Sanitizers of clang 14 cannot place their memory under strong address randomisation.
fixed="$(setarch -R echo setarch -R 2>/dev/null || true)"
export here build seconds fixed
export ASAN_OPTIONS=abort_on_error=0:detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

fuzz() {
  local findings="$build/findings/$1" work="$build/work/$1" dictionary="$here/dictionaries/$1.dict"
  mkdir -p "$findings" "$work"
  [[ ! -f "$dictionary" ]] || set -- "$1" "-dict=$dictionary"
  if FUZZ_TARGET="$1" $fixed "$build/bin/fuzzers" -timeout=5 -rss_limit_mb=2048 \
    -malloc_limit_mb=1024 -max_len=4096 "-max_total_time=$seconds" -print_final_stats=1 \
    "-artifact_prefix=$findings/" "${@:2}" "$work" "$build/corpora/$1" &>"$findings/log"; then
    echo "$1: $(awk '/number_of_executed_units/ { print $2 }' "$findings/log") executions"
  else
    echo "$1: FOUND, see $findings"
    return 1
  fi
}
export -f fuzz

printf '%s\n' "$@" | xargs -P"$(nproc)" -I{} bash -c 'fuzz {}'
