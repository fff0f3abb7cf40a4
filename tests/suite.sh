# Sourced by ./run: the commands test and tidy.

source "$root/models/finetune/finetune.sh"

# preset_tests PRESET LABEL TARGETS...: builds TARGETS and runs the tests with LABEL (empty: all
# tests of compiled programs). Prints one line; ctest's own report goes to a log.
preset_tests() {
  local preset="$1" label="$2" log="$root/build/$1-tests.log" wrap=()
  local except='gpu|package|tidy|torch' selection
  shift 2
  [[ -n "${FOX_NIGHTLY:-}" ]] || except+='|e2e'
  selection=(-LE "$except")
  build "$preset" "$@"
  [[ -n "$label" ]] && selection+=(-L "$label")
  # GCC's thread sanitizer cannot place its memory under strong address randomisation.
  if setarch -R true 2>/dev/null; then wrap=(setarch -R); fi
  if ! ${wrap[@]+"${wrap[@]}"} ctest --test-dir "$root/build/$preset" \
    "${selection[@]}" --output-on-failure -j "$(job_count)" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    fail "tests fail under $preset; the log is ${log#"$root/"}"
  fi
  say "$preset: $(grep -E 'tests passed' "$log" | tail -n 1)"
}

# Tests the build for aarch64 by an emulator, where the system has packages for it beside its own.
emulated_tests() {
  if ! has_arm64_packages; then
    say "This system has no packages for aarch64 beside its own: the build for it is not tested"
    return
  fi
  preset_tests arm64 emulated emulated_tests
}

# timed NAME COMMAND...: runs it, and keeps the seconds it took for the report.
timed() {
  local name="$1" start="$SECONDS"
  shift
  "$@"
  parts+="$((SECONDS - start)) $name"$'\n'
}

# Compiles all kernels for Hopper up to PTX, which skips the slow ptxas, and the tests for a GPU. At
# night also compiles the kernels for other cards completely.
compile_cuda() {
  FOX_CUDA_ARCHITECTURES=90a-virtual configure cuda cuda-check -DFOX_WERROR=ON
  compile cuda-check fox_cuda cuda_tests engine_gpu_tests fox_bench_gpu fox_cuda_faults
  [[ -n "${FOX_NIGHTLY:-}" ]] || return 0
  FOX_CUDA_ARCHITECTURES='80-real;89-real;120a-real' configure cuda other-cards
  compile other-cards fox_cuda
}

# Prints why tests of build/cpu were skipped, as a green suite would hide it.
say_skipped() {
  awk '/ Testing: / { test = $3 } /^SKIPPED/ && !said[test]++ { print test ": " $0 }' \
    "$root/build/cpu/Testing/Temporary/LastTest.log" | while IFS= read -r line; do say "$line"; done
}

run_test() {
  local nvcc parts="" log="$root/build/tests.log" left_out='gpu|nightly' status=0 joined=()
  case "${1:-}" in
    "") ;;
    all) export FOX_NIGHTLY=1 left_out=gpu ;;
    *) fail "test takes nothing or 'all', not '$1'" ;;
  esac
  install_packages "${build_packages[@]}" "${test_packages[@]}" "${tidy_packages[@]}"
  # Without them, the tests that need them are skipped.
  if [[ -z "${FOX_NO_INSTALL:-}" ]]; then
    need_python test
    if [[ -n "${FOX_NIGHTLY:-}" ]]; then
      need_python oracle
      install_torch
    fi
  fi
  # A clean clone is compiled as a unity build, and warnings are errors. An existing build keeps its
  # settings, so that warnings of a newer compiler do not stop the tests.
  [[ -f "$root/build/cpu/build.ninja" ]] || joined=(-DCMAKE_UNITY_BUILD=ON -DFOX_WERROR=ON)
  configure cpu cpu ${joined[@]+"${joined[@]}"}
  timed "build of cpu" compile cpu
  timed "thread sanitizer" preset_tests tsan thread thread_tests ${FOX_NIGHTLY:+e2e_tests}
  if nvcc="$(find_nvcc)" && is_recent_nvcc "$nvcc"; then
    timed "build of CUDA" compile_cuda
  else
    say "No CUDA toolkit here: the CUDA kernels are not compiled"
  fi
  if [[ -n "${FOX_NIGHTLY:-}" ]]; then
    timed "address sanitizer" preset_tests asan "" all
    timed "aarch64" emulated_tests
  fi
  say "Running the tests of build/cpu"
  # ctest's own last lines stay the last ones.
  ctest --test-dir "$root/build/cpu" -LE "$left_out" --output-on-failure -j "$(job_count)" 2>&1 |
    tee "$log" | sed -u '/% tests passed/,$d' || status=$?
  say "$((SECONDS / 60)) min $((SECONDS % 60)) s in all; the ten slowest parts, in seconds:"
  { printf '%s' "$parts" && sed -nE \
    's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: (\S+) .* ([0-9]+)\.[0-9]+ sec.*/\2 \1/p' "$log"; } |
    sort -rn | head -n 10 >&2 || true
  say_skipped
  sed -n '/% tests passed/,$p' "$log"
  return "$status"
}

run_tidy() {
  install_packages "${build_packages[@]}" "${tidy_packages[@]}"
  build cpu fox_proto  # clang-tidy reads the generated headers
  exec ctest --test-dir "$root/build/cpu" -L tidy --output-on-failure -j "$(job_count)"
}
