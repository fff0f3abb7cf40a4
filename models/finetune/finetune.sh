# `./run finetune` and `./run foxify`: installs what training needs into .venv/, as `./run test all`
# and `./run gain` do, too, and starts the processes that train.

finetune_requirements=('numpy>=1.24,<3' 'PyYAML>=6,<7' 'torch>=2.10,<3' 'safetensors>=0.4,<1'
  'sentencepiece>=0.2,<1' 'tokenizers>=0.15,<1' 'matplotlib>=3.7,<4')
cpu_wheels=https://download.pytorch.org/whl/cpu

# Installs PyTorch without CUDA from cpu_wheels. PyPI's PyTorch cannot be imported without CUDA's
# libraries, 3 GB in all.
install_cpu_torch() {
  [[ "$(cat "$venv/.finetune" 2>/dev/null)" != "${finetune_requirements[*]}" &&
    -z "${FOX_NO_INSTALL:-}" ]] || return 0
  need_python convert
  say "Installing PyTorch for the CPU into .venv, once"
  if pip install --retries 1 --timeout 10 --index-url "$cpu_wheels" 'torch>=2.10,<3'; then
    touch "$venv/.finetune-cpu"
  else
    say "$cpu_wheels is out of reach: installing PyPI's PyTorch, 3 GB with CUDA's libraries"
  fi
}

# Builds the op of kernels/torch if there is an nvcc for the GPU; else the program uses the
# reference in the sources.
install_kernels() {
  local stamp="$venv/.finetune-kernels" sources nvcc
  if ! nvcc="$(find_nvcc)" || ! is_recent_nvcc "$nvcc"; then return 0; fi
  sources="$(find "$root/kernels" -type f -not -path '*/build/*' | sort | xargs cksum | cksum)"
  [[ "$(cat "$stamp" 2>/dev/null)" != "$sources" ]] || return 0
  install_packages "${build_packages[@]}"
  pip install 'setuptools>=68' wheel || fail "pip could not install setuptools and wheel"
  say "Building the kernels of kernels/torch for this machine's GPU"
  CUDACXX="$nvcc" FOX_CUDA_ARCHITECTURES="$(cuda_architectures "$nvcc")" \
    pip install --no-build-isolation --no-deps "$root/kernels/torch" ||
    fail "the kernels could not be built; the log is build/pip.log"
  printf '%s\n' "$sources" >"$stamp"
}

# Installs the packages of training, with PyTorch for the CPU if there is no GPU; sets gpu_count to
# the number of GPUs that CUDA_VISIBLE_DEVICES leaves visible.
install_torch() {
  gpu_count="$(count_gpus)"
  if ((gpu_count == 0)); then
    install_cpu_torch
  elif [[ -f "$venv/.finetune-cpu" && -z "${FOX_NO_INSTALL:-}" ]]; then  # before the GPU came
    pip uninstall -y torch
    rm -f "$venv/.finetune" "$venv/.finetune-cpu"
  fi
  need_python finetune
}

# prepare CHECK ARGUMENTS: installs PyTorch, if the module CHECK accepts the arguments.
prepare() {
  if command -v python3 >/dev/null; then  # a wrong argument must not install anything
    (python=python3 && run_module "$@") || exit
  fi
  install_torch
}

# train CHECK PROGRAM ARGUMENTS: runs the module PROGRAM, one process for each GPU.
train() {
  local gpu_count python launcher=()
  prepare "$1" "${@:3}"
  if ((gpu_count > 0)) && [[ -z "${FOX_NO_INSTALL:-}" ]]; then install_kernels; fi
  if ((gpu_count > 1)); then
    launcher=(torch.distributed.run --standalone --nproc-per-node "$gpu_count" -m)
  fi
  run_module ${launcher[@]+"${launcher[@]}"} "${@:2}"
}

finetune() { train models.finetune.arguments models.finetune.train "$@"; }

foxify() { train models.foxify.options models.foxify.foxify "$@"; }
