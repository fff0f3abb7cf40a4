# Sourced by ./run: the commands package and image.

# package [PRESET [KIND]]: packs the files that `cmake --install` copies as a Debian package. Unless
# KIND is deb, also as a wheel and an archive with all libraries, beside the Python client's wheel.
package() {
  local preset="${1:-cpu}" log="$root/build/package-${1:-cpu}.log" file python
  [[ " cpu cuda arm64 " == *" $preset "* && "${2:-deb}" == deb ]] ||
    fail "package takes nothing, 'cpu', 'cuda' or 'arm64', then nothing or 'deb'"
  install_for "$preset"
  install_packages dpkg-dev:dpkg-shlibdeps file:file  # CPack calls them
  [[ "${2:-}" == deb ]] || need_python package  # fails now, not after minutes of compiling
  configure "$preset" "$preset" -DFOX_HARDEN=ON
  compile "$preset" fox-server fox-cli fox-bench fox-eval manual
  (cd "$root/build/$preset" && rm -f ./foxserve*.deb && quietly "$log" cpack -G DEB) ||
    fail "cpack failed; the log is ${log#"$root/"}"
  file="$(ls "$root/build/$preset"/foxserve*.deb)"
  say "Install it with: apt install ./${file#"$root/"}"
  [[ "${2:-}" != deb ]] || return 0
  say "Making the wheels"
  rm -f "$root/build/$preset"/foxserve_client-*.whl
  quietly "$log" "$python" -m pip wheel --no-deps --no-build-isolation -w "$root/build/$preset" \
    "$root/proto/python" || fail "there is no wheel of the client; the log is ${log#"$root/"}"
  "$python" -B "$root/docker/wheel/make_wheel.py" "$root/build/$preset" "$root/build/$preset" ||
    fail "there is no wheel"
  file="$(ls "$root/build/$preset"/foxserve-*.whl)"
  say "Or without root: pip install ${file#"$root/"}"
}

# image [cuda]: builds an image with podman, buildah (both work without root) or docker.
image() {
  local program
  [[ -z "${1:-}" || "$1" == cuda ]] || fail "image takes nothing or 'cuda'"
  program="$(command -v podman || command -v buildah || command -v docker)" ||
    fail "there is no podman, buildah or docker"
  # Buildah's default format, OCI, has no health check.
  BUILDAH_FORMAT=docker exec "$program" build -f "$root/docker/Dockerfile${1:+.$1}" \
    -t "foxserve${1:+:$1}" "$root"
}
