# Sourced by ./run: the CUDA toolkit and the NVIDIA cards of this machine.

# Prints how many GPUs there are that CUDA_VISIBLE_DEVICES leaves visible.
count_gpus() {
  local count=0
  if command -v nvidia-smi >/dev/null; then
    count="$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)"
    if ((count > 0)) && [[ -v CUDA_VISIBLE_DEVICES ]]; then
      count="$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '^[^-]' || true)"
    fi
  fi
  echo "$count"
}

# Prints the path of an nvcc, or fails.
find_nvcc() {
  local folder
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    if [[ -n "$folder" && -x "$folder/bin/nvcc" ]]; then
      echo "$folder/bin/nvcc"
      return 0
    fi
  done
  command -v nvcc
}

# nvcc VERSION is at least 12.4.
is_recent_nvcc() {
  local version
  version="$("$1" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')"
  [[ "$(printf '%s\n' 12.4 "$version" | sort -V | head -n 1)" == 12.4 ]]
}

# cuda_architectures NVCC: the cards of this machine, or Hopper; and PTX, which any later card
# compiles for itself, and a card that this nvcc does not know. FOX_CUDA_ARCHITECTURES in the
# environment wins: for a build that is to run elsewhere.
cuda_architectures() {
  local capabilities=() cap list=""
  [[ -z "${FOX_CUDA_ARCHITECTURES:-}" ]] || { echo "$FOX_CUDA_ARCHITECTURES" && return 0; }
  if command -v nvidia-smi >/dev/null; then
    mapfile -t capabilities < <(nvidia-smi --query-gpu=compute_cap --format=csv,noheader \
      2>/dev/null | tr -d '. ' | sort -un | grep -E '^[0-9]{2,3}$' || true)
  fi
  ((${#capabilities[@]})) || capabilities=(90)
  for cap in "${capabilities[@]}"; do
    "$1" --list-gpu-arch | grep -x "compute_$cap" >/dev/null || continue
    # From Hopper on, tensor core instructions exist for one architecture only ("a").
    ((cap >= 90)) && cap="${cap}a"
    list+="$cap-real;"
  done
  echo "${list}80-virtual"
}

# choose_preset FLAGS...: prints cuda or cpu, which programs to build and start for these flags of
# fox-server, and says why: cuda where there are a card and an nvcc for it.
choose_preset() {
  local device="${FOX_DEVICE:-auto}" last="" argument card name nvcc
  for argument in "$@"; do
    [[ "$last" != --device ]] || device="$argument"
    [[ "$argument" != --device=* ]] || device="${argument#*=}"
    last="$argument"
  done
  [[ ! "$device" =~ ^(cpu|cuda)$ ]] || { echo "$device" && return 0; }
  card="$(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2>/dev/null | head -n 1)" ||
    true
  name="${card#*, }"
  if [[ "$(count_gpus)" == 0 ]]; then
    say "Computing on the CPU: no NVIDIA card is visible"
  elif [[ ! "$card" =~ ^([89]|[1-9][0-9])\. ]]; then
    say "Computing on the CPU: $name has compute capability ${card%%,*}, and 8.0 is needed"
  elif ! nvcc="$(find_nvcc)" || ! is_recent_nvcc "$nvcc"; then
    say "Computing on the CPU, though there is $name: no nvcc 12.4 or later (./run build cuda)"
  else
    say "Computing on $name; --device cpu computes on the CPU"
    echo cuda
    return 0
  fi
  echo cpu
}
