#!/usr/bin/env bash
# Puts FlashInfer's headers, for the CUDA build, into the cache: downloads its pinned Python package
# (101 MB), checks its hash and unpacks the headers. Left alone when they are there.
#
# usage: deploy/fetch_flashinfer.sh [--help]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case ${1:-} in
  "") ;;
  --help) help_of "$0" && exit 0 ;;
  *) misuse "unknown option $1" ;;
esac

version=0.7.4
sha256=a051a62e09a2738e8b0de47a1944fd2f0f3eff01b728b662141ea660cb09dd32
target=$ROOTSTOCK_CACHE/flashinfer-$version
if [ -f "$target/complete" ]; then
  say "FlashInfer's headers: all there"
  exit 0
fi
say "FlashInfer's headers: fetching"
mkdir -p "$ROOTSTOCK_CACHE"
scratch=$(mktemp -d "$ROOTSTOCK_CACHE/flashinfer.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
printf 'flashinfer-python==%s --hash=sha256:%s\n' "$version" "$sha256" >"$scratch/requirements.txt"
"$VENV/bin/pip" download -q --disable-pip-version-check --no-deps --only-binary :all: \
  --require-hashes -r "$scratch/requirements.txt" -d "$scratch"
"$VENV/bin/python" - "$scratch"/flashinfer_python-*.whl "$scratch/tree" <<'PYTHON'
import sys
import zipfile

FOLDERS = tuple(f"flashinfer/data/{name}/" for name in
                ("include", "cccl/libcudacxx/include", "cccl/cub", "cccl/thrust",
                 "cutlass/include"))
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith(FOLDERS)])
PYTHON
touch "$scratch/tree/flashinfer/data/complete"
rm -rf "$target"
mv "$scratch/tree/flashinfer/data" "$target"
