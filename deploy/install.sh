#!/usr/bin/env bash
# Installs what Rootstock needs on Debian 12 and builds it. What is there already is left alone,
# so a second run takes seconds.
#
# usage: deploy/install.sh [options]
#   --preset NAME    CMake preset to build: dev (default), release, asan, tsan, gpu
#   --target NAME    build this target only (may be repeated; default: all of the preset)
#   --tests          also what the tests need: their Python packages, promtool, --bundle
#   --bundle         also what deploy/bundle.sh needs
#   --no-packages    leave the system's packages alone
#   --no-build       packages and Python only
#   --jobs N         compile jobs (default: the number of cores)
#   --help
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=dev tests=0 bundle=0 packages=1 build=1 jobs=$(nproc) targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) needs "$1" "a name" "${2-}" && preset=$2 && shift ;;
    --target) needs "$1" "a name" "${2-}" && targets+=("$2") && shift ;;
    --tests) tests=1 ;;
    --bundle) bundle=1 ;;
    --no-packages) packages=0 ;;
    --no-build) build=0 ;;
    --jobs) needs "$1" "a number" "${2-}" && jobs=$2 && shift ;;
    --help) help_of "$0" && exit 0 ;;
    *) misuse "unknown option $1" ;;
  esac
  shift
done
whole --jobs "$jobs"
preset_is_known "$preset"

# One line a use; each is asked for by deploy/cmake/RootstockDependencies.cmake or by a script here.
wanted_packages() {
  echo ca-certificates cmake ninja-build ccache g++ pkg-config git        # build
  echo libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc # RPC
  echo libabsl-dev libspdlog-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev
  echo prometheus-cpp-dev libssl-dev libsqlite3-dev libcurl4-openssl-dev  # metrics, sha256, registry, object stores
  echo libicu-dev libsentencepiece-dev                                    # tokenizers
  echo libopenmpi-dev openmpi-bin libdnnl-dev                             # worker
  echo libgtest-dev libgmock-dev libbenchmark-dev                         # tests
  echo python3 python3-venv                                               # models, tests
  [ $bundle$tests = 00 ] || echo patchelf zstd                           # bundle
  [ $tests = 0 ] || echo iproute2                                         # two machines
}

install_packages() {
  local missing=() name
  for name in $(wanted_packages); do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] ||
      missing+=("$name")
  done
  if [ ${#missing[@]} = 0 ]; then
    say "packages: all there"
    return
  fi
  say "packages: installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# The Python environment holds every requirement file that was asked for so far; its stamp names
# them with their hashes.
install_python() {
  local files=() stamp=$VENV/requirements.sha256 file
  if ! "$VENV/bin/python" -c '' 2>/dev/null; then rm -rf "$VENV"; fi
  for file in deploy/models/requirements.txt tests/requirements.txt tests/tokenizer/requirements.txt; do
    [ -f "$file" ] || continue
    case $file in
      tests/*) [ $tests = 1 ] || grep -qs " $file\$" "$stamp" || continue ;;
    esac
    files+=("$file")
  done
  if [ ${#files[@]} = 0 ] || sha256sum "${files[@]}" | cmp -s - "$stamp"; then
    say "Python: all there"
    return
  fi
  say "Python: installing ${files[*]} into build/venv"
  [ -d "$VENV" ] || /usr/bin/python3 -m venv "$VENV"
  # A minute or two: pip says what it is at.
  "$VENV/bin/pip" install --progress-bar off --disable-pip-version-check "${files[@]/#/-r}"
  sha256sum "${files[@]}" >"$stamp"
}

# promtool comes out of Debian's prometheus package, whose services are not wanted here.
install_promtool() {
  local kept=$ROOTSTOCK_CACHE/tools/promtool scratch
  mkdir -p "$TOOLS" "$(dirname "$kept")"
  if [ ! -x "$kept" ]; then
    say "promtool: taking it out of the prometheus package"
    scratch=$(mktemp -d)
    (cd "$scratch" && { apt-get download -q prometheus ||
      { as_root apt-get update -q && apt-get download -q prometheus; }; })
    dpkg -x "$scratch"/prometheus_*.deb "$scratch/tree"
    mv "$scratch/tree/usr/bin/promtool" "$kept"
    rm -rf "$scratch"
  fi
  ln -sf "$kept" "$TOOLS/promtool"
}

# Where there is a CUDA toolkit the build has CUDA kernels (RootstockDependencies.cmake looks there).
has_cuda() { PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; }

build_preset() {
  if [ ! -f "build/$preset/build.ninja" ]; then
    say "configuring build/$preset"
    cmake --preset "$preset"
  fi
  say "building build/$preset"
  cmake --build --preset "$preset" -j "$jobs" ${targets[@]+--target "${targets[@]}"}
}

cd "$ROOT"
[ $packages = 0 ] || install_packages
mkdir -p build
install_python
[ $tests = 0 ] || install_promtool
if has_cuda; then deploy/fetch_flashinfer.sh; fi
[ $build = 0 ] || build_preset
