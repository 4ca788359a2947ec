#!/usr/bin/env bash
# Packs the binaries with the shared libraries they need into one relocatable archive, for a machine
# with the same or a newer glibc. Left to the target: glibc, Open MPI, CUDA and NCCL.
#
# usage: deploy/bundle.sh [options]
#   --preset NAME    which build to pack (default: release)
#   --with PATH      pack this executable too, relative to the build folder (may be repeated)
#   --output FILE    default: build/rootstock-PRESET.tar.zst
#   --no-build       pack what is built
#   --help
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release output="" build=1 with=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) needs "$1" "a name" "${2-}" && preset=$2 && shift ;;
    --with) needs "$1" "a path" "${2-}" && with+=("$2") && shift ;;
    --output) needs "$1" "a file" "${2-}" && output=$(realpath -m "$2") && shift ;;
    --no-build) build=0 ;;
    --help) help_of "$0" && exit 0 ;;
    *) misuse "unknown option $1" ;;
  esac
  shift
done
preset_is_known "$preset"

# What the target brings: glibc's parts, Open MPI (its own dependencies stay with it), CUDA, NCCL.
left_to_target='^(linux-vdso|ld-linux.*|lib(c|m|mvec|pthread|dl|rt|resolv|util|anl|nsl))\.so'
left_to_target+='|^lib(mpi|open-rte|open-pal|oshmem)[a-z_]*\.so|^lib(cuda|cudart|cublas|cublasLt|nccl|nvidia)'

needed_by() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# collect FILE: copies what FILE needs into lib/, then what those need.
collect() {
  local name path
  for name in $(needed_by "$1"); do
    if [[ $name =~ $left_to_target ]] || [ -e "$folder/lib/$name" ]; then continue; fi
    path=$(ldd "$1" | awk -v name="$name" '$1 == name { print $3 }')
    [ -f "$path" ] || die "$1 needs $name, which is not there"
    install -m 644 "$path" "$folder/lib/$name"
    patchelf --set-rpath '$ORIGIN' "$folder/lib/$name"
    collect "$path"
  done
}

cd "$ROOT"
deploy/install.sh --bundle --no-build
[ $build = 0 ] || deploy/install.sh --preset "$preset"
output=${output:-$ROOT/build/rootstock-$preset.tar.zst}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
folder=$scratch/rootstock
mkdir -p "$folder/bin" "$folder/lib"

say "collecting build/$preset/bin"
shopt -s nullglob
for binary in "build/$preset/bin"/* ${with[@]+"${with[@]/#/build/$preset/}"}; do
  case $binary in *.so) continue ;; esac # comes with what needs it
  [ -f "$binary" ] && [ -x "$binary" ] || continue
  copy=$folder/bin/$(basename "$binary")
  install -m 755 "$binary" "$copy"
  strip --strip-debug "$copy"
  patchelf --set-rpath '$ORIGIN/../lib' "$copy"
  collect "$binary"
done
[ -n "$(ls "$folder/bin")" ] || die "build/$preset/bin holds no binary"
cp LICENSE README.md "$folder/"

tar -C "$scratch" -c rootstock | zstd -q -T0 -12 -f -o "$output"
say "packed $(ls "$folder/bin" | tr '\n' ' ')and $(ls "$folder/lib" | wc -l) libraries"
printf '%s\n' "$output ($(du -h "$output" | cut -f1))" "unpack: tar --zstd -xf $(basename "$output")"
