# Sourced by ./run: the commands for machines with a GPU.

# Prints -portable if --portable is among the arguments. Such a build is for compute capability 8.0
# and has only the kernels for cards before Hopper.
portable() { [[ " $* " != *" --portable "* ]] || echo -portable; }

# Builds and packs the programs of gpu-test and gpu-bench, with paths relative to the repository.
gpu_pack() {
  local tests=() suffix pack
  suffix="$(portable "$@")"
  pack="pack$suffix"
  [[ -z "$suffix" ]] || export FOX_CUDA_ARCHITECTURES=80-virtual
  install_packages "${build_packages[@]}"
  configure cuda "$pack" -DFOX_ONEDNN=OFF -DFOX_WERROR=ON -DFOX_SOURCE_ROOT=. \
    "-DFOX_BINARY_ROOT=build/gpu$suffix"
  compile "$pack" build.ninja  # updates the list of tests
  mapfile -t tests < <(python3 -B "$root/tests/bench/gpu_pack.py" "$root/build/$pack" --list)
  compile "$pack" "${tests[@]}" fox-server fox-cli fox-bench fox-eval
  python3 -B "$root/tests/bench/gpu_pack.py" "$root/build/$pack" "gpu$suffix"
}

# Prints the folder of a CUDA build: an unpacked archive if there is one and no own build.
gpu_folder() {
  local suffix
  suffix="$(portable "$@")"
  if [[ -f "$root/.gpu-pack/foxserve-gpu$suffix.tar.xz" &&
    ! -f "$root/build/cuda$suffix/build.ninja" ]]; then
    python3 -B "$root/tests/bench/gpu_build.py" "gpu$suffix" || fail "could not unpack .gpu-pack"
    echo "$root/build/gpu$suffix"
  else
    [[ -z "$suffix" ]] || export FOX_CUDA_ARCHITECTURES=80-virtual
    { configure cuda "cuda$suffix" && compile "cuda$suffix"; } >&2
    echo "$root/build/cuda$suffix"
  fi
}

gpu_test() { run_on_gpu gpu_test.py "$@"; }
gpu_bench() { run_on_gpu gpu_bench.py "$@"; }

run_on_gpu() {
  local script="$1" folder
  shift
  folder="$(gpu_folder "$@")"
  exec python3 -B "$root/tests/bench/$script" "$folder" "$@"
}
