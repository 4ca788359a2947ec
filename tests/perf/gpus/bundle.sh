#!/usr/bin/env bash
# Packs what run.sh needs into one archive, for a host without a build: binaries, GPU tests, their
# libraries but for CUDA, MPI and NCCL, tests and models. There:
#   tar xJf BUNDLE && LD_LIBRARY_PATH=$PWD/rootstock/build/dev/lib rootstock/tests/perf/gpus/run.sh
#   rootstock/build/dev OUT
#
# usage: tests/perf/gpus/bundle.sh BUILD_DIR BUNDLE.tar.xz
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=$(cd "${1:?folder of the build}" && pwd) bundle=$(realpath "${2:?archive}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
to=$scratch/rootstock
mkdir -p "$to/build/dev/bin" "$to/build/dev/gpu_tests" "$to/build/dev/lib"
cp "$build"/bin/{lora-coordinator,lora-worker,loractl,lora-bench,*.so} "$to/build/dev/bin/"
for test in "$build/gpu_tests/worker_group_gpus_test"; do
  [ ! -x "$test" ] || cp "$test" "$to/build/dev/gpu_tests/"
done
find "$to/build/dev" -type f -exec strip {} +
find "$to/build/dev" -type f -exec ldd {} + | awk '$3 ~ /^\// { print $3 }' |
  grep -vE '/lib(c|m|dl|rt|pthread|resolv|mpi|open-rte|open-pal|cuda[a-z]*|cublas[A-Za-z]*|nccl)\.so' |
  sort -u | xargs -I{} cp -Lu {} "$to/build/dev/lib/"
git -C "$root" ls-files tests deploy coordinator/frontend |
  (cd "$root" && tar c --files-from=- 2>/dev/null) | tar x -C "$to"
tar c -C "$scratch" rootstock | xz -T0 -3 >"$bundle"
du -h "$bundle"
